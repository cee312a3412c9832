"""Every name that msprobe gave its users does what it did, or says what to write instead: none is passed over."""

from pathlib import Path

import pytest

from ulpscope.compat.msprobe_commands import main, translated
from ulpscope.compat.msprobe_config import read_config
from ulpscope.compat.telling import COMMANDS, KEYS, NAMES, TASKS, Fate, Old, by_name
from ulpscope.records.errors import UlpscopeError

PAGE = Path(__file__).parents[2] / "docs" / "compat-msprobe.md"

# From the documentation of msprobe 1.0 to 26.2 and of ptdbg_ascend.
DOCUMENTED_KEYS = """
task dump_path rank step level seed is_deterministic enable_dataloader acl_config extra_info async_dump precision
risk_level custom_op_namespaces dump_enable load scope list tensor_list data_mode summary_mode file_format slice
request_id bench_path diff_nums device backward_input overflow_nums check_mode white_list black_list error_data_path
is_online is_benchmark_device nfs_path tls_path host port master_ip master_port rank_list fuzz_device pert_mode
handler_type fuzz_level fuzz_stage if_preheat preheat_step max_sample grad_level param_list bounds
""".split()
DOCUMENTED_TASKS = """
statistics tensor structure acc_check run_ut nan_check overflow_check exception_dump diff_check free_benchmark
grad_probe
""".split()
DOCUMENTED_NAMES = """
PrecisionDebugger seed_all module_dump module_dump_end random_save set_fx_dump_config set_ge_dump_config TrainerMon
TrainerMonitorV2 acl_save AclGraphDumper compare compare_distributed pt_compare SingleSave SingleComparator
PrecisionChecker ConfigChecker GradComparator PtdbgDispatch parse set_reproducibility
""".split()
METHODS = """
start stop step save set_init_step register_custom_api restore_custom_api monitor forward_backward_dump_end
configure_hook
""".split()
DOCUMENTED_COMMANDS = """
compare run_ut multi_run_ut acc_check multi_acc_check api_precision_compare run_overflow_check overflow_check parse
graph graph_visualize merge_result config_check data2db offline_dump install_deps op_generate code_mapping nan_analyze
""".split()
# Values that ask for something else than what a capture does anyway.
ASKING: dict[str, object] = {
    "async_dump": "sometimes", "precision": "middle", "extra_info": False, "is_online": True, "diff_nums": -1,
    "check_mode": "atomic", "summary_mode": "md5", "file_format": "npy", "dump_enable": False, "level": "L2",
    "enable_dataloader": True,
}  # fmt: skip


def test_every_documented_name_has_a_row() -> None:
    assert {*DOCUMENTED_KEYS} == {*by_name(KEYS)}
    assert {*DOCUMENTED_TASKS} == {*by_name(TASKS)}
    assert {*DOCUMENTED_NAMES} | {f"PrecisionDebugger.{name}" for name in METHODS} <= {*by_name(NAMES)}
    assert {*DOCUMENTED_COMMANDS} <= {*by_name(COMMANDS)}


@pytest.mark.parametrize("row", [row for row in KEYS if row.fate is Fate.TOLD or row.name in ASKING], ids=str)
def test_a_key_that_is_not_followed_is_told_once(row: Old) -> None:
    asked = ASKING.get(row.name, ["something", "else"])
    remarks = read_config(None, {"dump_path": "x", row.name: asked}).remarks
    assert sum(row.name in remark for remark in remarks) == 1, remarks
    for quiet in row.quiet:
        assert read_config(None, {"dump_path": "x", row.name: quiet}).remarks == ()


@pytest.mark.parametrize("row", TASKS, ids=lambda row: row.name)
def test_a_task_is_done_or_told(row: Old) -> None:
    remarks = read_config(None, {"dump_path": "x", "task": row.name}).remarks
    assert [row.here in remark for remark in remarks] == ([] if row.fate is Fate.KEPT else [True])


@pytest.mark.parametrize("name", [*DOCUMENTED_NAMES, *(f"PrecisionDebugger.{name}" for name in METHODS)])
def test_a_name_can_be_imported_and_is_what_its_row_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import ulpscope.compat.msprobe as msprobe

    room, _, last = name.rpartition(".")
    found = getattr(msprobe.PrecisionDebugger if room else msprobe, last)
    assert callable(found)
    row = by_name(NAMES)[name]
    assert (type(found).__name__ == "StandIn") == (row.fate is Fate.TOLD and not room)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("compare -tp T -gp G -o OUT --xlsx --rank 0,1 -fm", "compare G T --ranks 0,1 --xlsx --out OUT"),
        ("compare -i compare.json -o OUT -s", "compare compare.json --out OUT"),
        ("run_overflow_check -forward forward_info_0.json", "check forward_info_0.json --overflow --device cpu"),
        ("overflow_check -i DIR -o OUT", "overflow DIR --out OUT"),
        ("run_ut -api_info dump.json -o OUT -f -j", "check dump.json --device cpu --out OUT --columns msprobe"),
        (
            "run_ut -forward forward_info_0.json -backward backward_info_0.json -save_error_data -o OUT",
            "check forward_info_0.json --device cpu --all --save-failing --out OUT --columns msprobe",
        ),
        (
            "multi_run_ut -api_info dump.json -n 4 -d 0 1 -o OUT",
            "check dump.json --device cpu --all --jobs 4 --out OUT --columns msprobe",
        ),
        ("api_precision_compare -npu n.csv -gpu g.csv -o OUT", "compare g.csv n.csv --out OUT"),
        ("parse -d DUMP -t npy -o OUT", "convert DUMP --to npy -o OUT"),
        ("parse", "shell"),
    ],
)
def test_a_command_becomes_one_of_ours(
    words: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ulpscope.compat.msprobe_commands._device_kind", lambda: None)
    assert " ".join(translated(words.split())) == command


def test_devices_lists_and_results_of_earlier_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ulpscope.compat.msprobe_commands._device_kind", lambda: "npu")
    (tmp_path / "config.json").write_text('{"run_ut": {"white_list": ["conv2d"], "black_list": ["relu"]}}')
    (tmp_path / "config.yaml").write_text("white_list: [gelu]")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/cases.jsonl").write_text("")
    words = translated("multi_run_ut -api_info d.json -d 2 3 -config config.json -o out".split())
    assert " ".join(words[:8]) == "check d.json --device npu:2,npu:3 --only conv2d --skip relu"
    assert words[words.index("--out") + 1].startswith("out/result_")
    assert "--only gelu" in " ".join(translated("run_ut -api_info d.json -c config.yaml".split()))
    resumed = " ".join(translated("run_ut -api_info d.json -csv_path out/accuracy_checking_result_1.csv".split()))
    assert "--resume --out out --columns" in resumed
    assert translated("api_precision_compare -npu out/x.csv -gpu g.csv".split())[:3] == ["compare", "g.csv", "out"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("nonsense", "msprobe has no command 'nonsense'"),
        ("graph_visualize -tp x", "ulpscope report DIR --model-explorer OUT"),
        ("run_ut", "-api_info dump.json, or -forward"),
        ("run_ut -api_info x --no-such-option", "unrecognized arguments: --no-such-option"),
        ("run_ut -forward forward_info_0.json -backward other.json", "cp other.json backward_info_0.json"),
        ("run_ut -forward a.json -backward b.json", "cp a.json forward_info_0.json && cp b.json backward_info_0.json"),
        ("run_ut -api_info x -config missing.json", "-config missing.json cannot be read"),
        ("compare -tp x", "-tp TARGET -gp GOLDEN"),
    ],
)
def test_a_command_that_cannot_be_run_says_what_to_write(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-f", "pytorch", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(row.name in told for row in COMMANDS)


def test_a_told_command_is_an_error() -> None:
    for row in COMMANDS:
        if row.fate is Fate.TOLD:
            with pytest.raises(UlpscopeError, match=row.name):
                translated([row.name])


@pytest.mark.parametrize("rows", [KEYS, TASKS, NAMES, COMMANDS])
def test_the_page_has_the_same_tables(rows: tuple[Old, ...]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [row.name for row in rows if f"| `{row.name}` | {row.fate.value} | {row.here} |" not in page]
    assert missing == []
