"""The shell's words, carried out without a terminal: what they print of the fixtures, and how they fail."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.unit.shells import ASCEND, COMMANDS, RELU, Told, make_data, rows
from tests.unit.traces import elements_of, make_trace

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.shell.commands import carry_out
from ulpscope.shell.data import Context, no_data
from ulpscope.shell.session import history_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_data(tmp_path / "precision_data")


@pytest.fixture
def told(root: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(root, capsys)


def test_ls_counts_types(told: Told) -> None:
    counted = {kind: int(number) for kind, number in rows(told("ls"))}
    assert (counted["TransData"], counted["Cast"], counted["MatMulV2"], sum(counted.values())) == (7, 3, 2, 29)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("-t MatMul", ["fc1/MatMul", "fc2/MatMul"]),
        ("-n Relu -k te_relu", ["fc1/Relu"]),
        # A pass may be one of a list, and any part of its name finds it.
        ("-f BiasaddConv", ["conv1/Conv2Dconv1/BiasAddconv1/Relu"]),
        ("-f Batchnorm", ["bn/FusedBatchNormV3_Reduce", "bn/FusedBatchNormV3_Update"]),
    ],
)
def test_ls_filters(told: Told, options: str, names: list[str]) -> None:
    assert re.findall(r"\[\w+\]\[.*?\] (\S+)", told(f"ls {options}")) == names
    assert told.code is ExitCode.OK


def test_a_graph_is_read_once(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    told("ls")
    monkeypatch.setattr("ulpscope.workflows.show.graph.open_graph", lambda path: pytest.fail(f"{path} is read again"))
    assert "fc1/Relu" in told("ls -n fc1/Relu")
    assert "fc1/Relu" in told("ni fc1/Relu")


def test_ls_of_nothing(told: Told) -> None:
    told("ls -n nothing")
    assert told.code is ExitCode.NOTHING


def test_a_graph_of_a_newer_compiler_is_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graphs = root / "npu" / "debug_0" / "graph"
    (graphs / "ge_proto_00000_Build.txt").rename(graphs / "ge_proto_00000001_graph_31_Build.txt")
    (graphs / "ge_proto_00000_Build.txt.json").unlink()
    assert "fc1/Relu" in Told(root, capsys)("ls -n fc1")


@pytest.mark.parametrize("line", ["ni fc1/Relu", "ni -n fc1/Relu", "ni fc1_Relu", "ni fc1/Relu -g ge_default"])
def test_ni_tells_all(told: Told, line: str) -> None:
    text = told(line)
    assert "Op(Type/Name): [Relu] fc1/Relu" in text
    assert "KernelName:    te_relu_8370230a_0__kernel0" in text
    assert "-[0][float16][FRACTAL_NZ][3, 1, 16, 16] [] [] [2, 40] fc1/MatMul:0" in text
    assert "['fc2/MatMul']" in text
    # The numbers of the arrays without padding; the reference's are those that numpy gives.
    reference = np.load(ASCEND / "precision_data" / "tf" / "dump" / "fc1_Relu.0.1767225600900010.npy")
    assert RELU in text
    assert "[Shape: (2, 40)] [Dtype: float16] [Max: 4.4882812]" in text
    assert f"[Shape: (2, 40)] [Dtype: float32] [Max: {reference.max():.8g}] [Min: 0]" in text


def test_ni_tells_attributes_and_draws(told: Told, root: Path) -> None:
    text = told("ni fc1/Relu -a -s 1")
    assert "_session_graph_id: 0_11" in text
    (drawing,) = (root / "temp" / "op_graph").iterdir()
    assert drawing.name == "debug_0.ge_default_20260101000000_11.Relu.fc1_Relu.1.svg"
    assert "<svg" in drawing.read_text()


def test_ni_offers_what_may_be_meant(told: Told) -> None:
    text = told("ni Relu")
    assert "Possible Operators" in text
    assert "conv1/Conv2Dconv1/BiasAddconv1/Relu" in text
    with pytest.raises(UlpscopeError, match="no operator 'nothing'"):
        told("ni nothing")


def test_a_part_of_a_name_that_one_graph_has_once_does_not_hide_the_others(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = root / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt"
    other = graph.read_text().replace("fc1/Relu", "fc1/Other")
    graph.with_name("ge_proto_00001_Build.txt").write_text(other)
    told = Told(root, capsys)
    text = told("ni Relu")
    assert "Op(Type/Name): [Conv2D]" in text
    assert "Possible Operators" in text
    assert "[Relu][] fc1/Relu" in text
    assert told.code is ExitCode.OK


def test_pt_prints_128_elements_and_writes_all(told: Told, root: Path) -> None:
    text = told(f"pt {RELU}")
    data = {int(index): numbers.split() for index, numbers in rows(text)}
    assert data[0] == ["2.93", "0.648", "0.1277", "1.847", "0.2021", "3.074", "0.843", "0.3335"]
    assert list(data) == list(range(0, 80, 8))
    written = root / "temp" / "decode" / "dump_decode" / f"{RELU.removesuffix('.npy')}.txt"
    assert np.loadtxt(written).shape == (2, 40)
    many = told("pt fc1_weights.0.1767225600900012.npy")
    assert len(rows(many)) == 16


def test_cp_compares_in_the_networks_layout(told: Told) -> None:
    text = told(f"cp {RELU} fc1_Relu.0.1767225600900010.npy -p 4 -al 0.002 -rl 0.005")
    assert "CosSim:   0.56753275" in text
    assert "NumCnt:   80" in text
    assert "AllClose: False" in text
    assert "ErrorPer: 0.65  (rl= 0.005, al= 0.002)" in text
    assert "[0, 3] │ 1.847" in text
    assert told.code is ExitCode.DIFFERENCE


def test_cp_saves_both(told: Told, root: Path) -> None:
    text = told(f"cp {RELU} fc1_Relu.0.1767225600900010.npy -s")
    assert text.count("TxtFile:") == 2
    assert len(list((root / "temp" / "decode" / "dump_decode").iterdir())) == 2


def test_cp_of_what_agrees(told: Told) -> None:
    told("cp fc1_Relu.0.1767225600900010.npy fc1_Relu.0.1767225600900010.npy")
    assert told.code is ExitCode.OK


def test_dc_converts_an_operator(told: Told, root: Path) -> None:
    told("dc fc1/MatMul -f ND")
    files = sorted(path.name for path in (root / "temp" / "decode" / "dump_convert").rglob("*.npy"))
    # As msaccucmp called them for precision_tool.
    assert files == [
        "MatMulV2.fc1_MatMul.20.0.1767225600020123.input.0.2x216.npy",
        "MatMulV2.fc1_MatMul.20.0.1767225600020123.input.1.216x40.npy",
        "MatMulV2.fc1_MatMul.20.0.1767225600020123.output.0.2x40.npy",
    ]


def test_dc_of_nothing(told: Told) -> None:
    with pytest.raises(UlpscopeError, match="no dump of 'nothing'"):
        told("dc nothing")


def test_vcs_tells_both_sides_and_keeps_its_limit(told: Told) -> None:
    text = told("vcs -c 0.98 -l 2")
    assert re.findall(r"─ (\[\d+\] \S+) ─", text) == ["[15] fc1/Relu", "[18] fc2/MatMul"]
    assert "Left:  ['fc2/MatMul']" in text
    assert "Right: ['fc2/MatMul', 'fc2/BiasAdd']" in text
    assert told.code is ExitCode.DIFFERENCE


def test_ac_checks_all(told: Told) -> None:
    text = told("ac -l 1")
    assert "[15] fc1/Relu" in text
    assert "GraphID:0_11" in text
    assert re.search(r"MatMulBiasAddFusionPass +│ 2 ", text)
    assert "[Muls][27] scale/Mul" in text
    assert "[AI Core][Status:288][TaskId:27]" in text
    assert "[Cast][float32 -> int32] ['global_step/Cast']" in text


def test_ac_keeps_its_limit(told: Told, root: Path) -> None:
    """Two records; the older tool showed one more than it was asked for."""
    folder = next((root / "overflow" / "dump").rglob("Opdebug.*")).parent
    record = next(folder.glob("Opdebug.*"))
    shutil.copy(record, folder / record.name.replace("1767225600027623", "1767225600027999"))
    assert told("overflow -l 1").count("First overflow file timestamp") == 1
    assert told("overflow -l 5").count("First overflow file timestamp") == 2


def test_ac_compares_the_graphs_of_two_runs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = root / "npu" / "debug_1" / "graph"
    shutil.copytree(root / "npu" / "debug_0" / "graph", other)
    graph = other / "ge_proto_00000_Build.txt"
    text = graph.read_text()
    begin = text.index('name: "fc1/Relu"')
    place = text.index("DT_FLOAT16", begin)
    graph.write_text(text[:place] + "DT_FLOAT" + text[place + len("DT_FLOAT16") :])
    told = Told(root, capsys)("ac")
    assert "similarity is [13 / 14]" in told
    assert "[Relu] fc1/Relu" in told
    assert "input.0: [float16][FRACTAL_NZ] | [float32][FRACTAL_NZ]" in told


def test_one_check_that_fails_does_not_stop_the_others(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "fusion" / "fusion_result.json").write_text("{broken")
    assert "[Muls][27] scale/Mul" in Told(root, capsys)("ac")


def test_a_run_is_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(ASCEND / "precision_data" / "npu" / "debug_0" / "dump", capsys)
    assert "fc1/Relu" in told("ls -t Relu")
    assert "output.0" in told("ni Relu.0")
    assert "[Shape: (2, 40)]" in told(f"pt {RELU}")
    assert "scale/Mul" in told("ac")
    with pytest.raises(UlpscopeError, match="-k with a trace"):
        told("ls -k x")


def test_run_and_unknown_words_go_to_the_users_shell(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    context = Context(no_data(tmp_path))
    assert carry_out("run echo $((40 + 2))", context, COMMANDS) is ExitCode.OK
    assert carry_out("echo other; exit 3", context, COMMANDS) is ExitCode.DIFFERENCE
    captured = capfd.readouterr()
    assert captured.out == "42\nother\n"
    assert "exit status 3" in captured.err


def test_help_names_every_word(told: Told) -> None:
    text = told("help")
    for word in (*COMMANDS, "run", "help", "exit"):
        assert re.search(rf"│ {word} ", text)
    assert "-al AL" in told("help cp")
    assert told("cp -h") == told("help cp")


def test_exit_leaves_and_an_empty_line_does_not(told: Told) -> None:
    assert told("exit") == ""
    assert told.code is None
    told("   ")
    assert told.code is ExitCode.OK


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("cp x", "RIGHT"),
        ("ls -q", "unrecognized arguments: -q"),
        ("ls --na x", "unrecognized"),
        ("ac -l -1", "not a number from 0 up"),
        ("cp a b -p x", "not a number from 0 up"),
        ("cp a b -al nan", "not a finite number"),
        ('pt "x', "No closing quotation"),
        ("vcs -f nowhere.csv", "does not exist"),
        ("vc -lt nowhere", "nowhere does not exist"),
        ("vc -g nowhere", "nowhere does not exist"),
        ("ni fc1/Relu -g other", "no graph that is called 'other' has an operator 'fc1/Relu'"),
    ],
)
def test_bad_words_are_told(told: Told, line: str, problem: str) -> None:
    with pytest.raises(UlpscopeError, match=re.escape(problem)):
        told(line)


def test_without_data_paths_still_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.arange(4.0))
    told = Told(tmp_path, capsys)
    assert "0.0 1.0 2.0 3.0" in told(f"pt {tmp_path / 'a.npy'}")
    with pytest.raises(UlpscopeError, match="holds no graph"):
        told("ls")
    with pytest.raises(UlpscopeError, match="holds no result"):
        told("vcs")
    assert not (tmp_path / "temp").exists()


def test_history_is_kept_in_the_users_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert history_file() == Path("/somewhere/ulpscope/shell_history")


def test_vc_compares_and_keeps_the_result(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root / "temp")
    told = Told(root, capsys)
    text = told("vc")
    assert re.search(r"^DIVERGED .* fc1/Relu$", text, re.MULTILINE)
    assert re.findall(r"─ (\[\d+\] \S+) ─", text)[0] == "[15] fc1/Relu"
    assert told.code is ExitCode.DIFFERENCE
    assert "[15] fc1/Relu" in told("vcs -l 1")


@pytest.mark.parametrize("graph", ["ge_proto_00000_Build.txt", ""])
def test_vc_takes_both_sides_and_a_graph_or_a_directory_of_them(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ASCEND / "precision_data"
    told = Told(Path(), capsys)
    graphs = data / "npu" / "debug_0" / "graph"
    text = told(f"vc -lt {data / 'npu' / 'debug_0' / 'dump'} -rt {data / 'tf' / 'dump'} -g {graphs / graph}")
    assert "[15] fc1/Relu" in text
    assert len(list((tmp_path / "temp" / "vector_compare").rglob("result_*.csv"))) == 1


def test_vc_compares_two_dumps_without_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, source in (("debug_0", ASCEND / "precision_data" / "npu" / "debug_0"), ("debug_1", ASCEND / "debug_1")):
        shutil.copytree(source / "dump", tmp_path / "npu" / name / "dump")
    told = Told(tmp_path, capsys)
    text = told("vc")
    # As msaccucmp numbered and measured it: expected/msaccucmp_2025-09_native/cmp_npu_npu.csv of the fixtures.
    assert re.findall(r"─ (\[\d+\] \S+) ─", text)[0] == "[10] fc1_Relu"
    assert "[0]0.567533" in text


def test_vc_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UlpscopeError, match="holds no dumps of an NPU"):
        Told(tmp_path, capsys)("vc")
    with pytest.raises(UlpscopeError, match="holds no reference"):
        Told(ASCEND / "debug_1", capsys)("vc")


def test_a_trace_of_ours_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trace(tmp_path / "run", steps=1, save=True)
    told = Told(tmp_path / "run", capsys)
    assert "7 calls" in told("ls")
    assert "layers.0" in told("ls -t linear")
    assert "torch.relu.0   id 2" in told("ni 2")
    # Call 2 makes value 4, and value 3 before it is less by one.
    assert "4.0 5.0 6.0 7.0 8.0 9.0" in told("pt 2::output.0")
    text = told("cp 2::output.0 2::args.0 -al 0.5 -rl 0")
    assert elements_of(4).tolist() == (elements_of(3) + 1).tolist()
    assert "MaxDiff:  1" in text
    assert "ErrorPer: 1  (rl= 0, al= 0.5)" in text
    told("overflow")
    assert told.code is ExitCode.OK
    assert "4.0 5.0 6.0 7.0 8.0 9.0" in told("pt torch.relu.0::output.0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_results_one_directory_below(told: Told, root: Path) -> None:
    results = root / "temp" / "vector_compare"
    text = told(f"vcs -f {results}")
    assert told.code is ExitCode.DIFFERENCE
    assert "20261115061727/result_1.csv" in "".join(text.split())
    assert "fc1/Relu" in text


@pytest.mark.parametrize("line", ["ni fc1/Relu -a kernel", "ni -a kernel fc1/Relu", "ni -n fc1/Relu -a KERNEL"])
def test_attributes_by_a_part_of_their_name(told: Told, line: str) -> None:
    text = told(line)
    assert "_ge_attr_op_kernel_lib_name: AIcoreEngine" in text
    every = told("ni fc1/Relu -a")
    assert len(every.splitlines()) > len(text.splitlines())
    assert every == told("ni -a fc1/Relu")


def test_an_attribute_that_is_not_there(told: Told) -> None:
    assert "no attribute with nonesuch in its name" in told("ni fc1/Relu -a nonesuch")
    with pytest.raises(UlpscopeError, match="NAME"):
        told("ni")


def test_the_words_of_parse(told: Told, root: Path, tmp_path: Path) -> None:
    dumps = root / "npu" / "debug_0" / "dump"
    other = ASCEND / "debug_1" / "dump"
    out = tmp_path / "out"
    text = told(f"vc -m {dumps} -g {other} -out {out} -asc msaccucmp.py")
    assert f"{dumps}(left)with{other}(right)" in "".join(text.split())
    assert len(list(out.glob("result_*.csv"))) == 1
    assert told.code is ExitCode.DIFFERENCE
    with pytest.raises(UlpscopeError, match="is not empty"):
        told(f"vc -m {dumps} -g {other} -out {out}")
    text = told(f"cad -m {dumps} -g {other} -out {tmp_path / 'cad'}")
    assert "fc1/Relu" in text
    assert len(list((tmp_path / "cad").glob("result_*.csv"))) == 1
    text = told(f"cn -m {RELU} -g fc1_Relu.0.1767225600900010.npy -p 2 -al 0.001 -rl 0.001")
    assert "CosSim:   0.56753" in text
    assert told(f"dc -n {RELU.removesuffix('.output.0.npy')} -out {tmp_path / 'dc'} -asc x")
    assert list((tmp_path / "dc").glob("*.npy"))


def test_cad_of_two_folders_of_arrays(told: Told, tmp_path: Path) -> None:
    for side, factor in (("npu", 2.0), ("gpu", 1.0)):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "Torch_mul_0_forward_output.npy", factor * np.ones(3))
        np.save(tmp_path / side / "Torch_add_0_forward_output.npy", np.ones(3))
    text = told(f"cad -m {tmp_path / 'npu'} -g {tmp_path / 'gpu'} -out {tmp_path / 'out'}")
    assert told.code is ExitCode.DIFFERENCE
    assert "Torch_mul_0_forward_output" in text
    assert (tmp_path / "out" / "diff.json").is_file()
    with pytest.raises(UlpscopeError, match="does not exist"):
        told(f"cad -m {tmp_path / 'none'} -g {tmp_path / 'gpu'}")


def test_pk_tells_the_calls_of_a_pkl(told: Told, tmp_path: Path) -> None:
    path = tmp_path / "dump.pkl"
    path.write_text(
        '["Torch_add_0_forward_output", 1, [], "torch.float32", [2], [1.0, 0.0, 0.5, 1.0]]\n'
        '["Functional_conv2d_0_forward_output", 1, [], "torch.float32", [2], [1.0, 0.0, 0.5, 1.0]]\n'
    )
    text = told(f"pk -f {path} -n conv2d")
    assert "conv2d" in text
    assert "torch.add" not in text
