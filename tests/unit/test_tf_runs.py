"""npu-dump, npu-overflow and tf-dump around scripts that stand for TensorFlow's: what is set, found and told."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.shells import Told, make_data

from ulpscope.cli.main import main
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.run.command import injecting_path
from ulpscope.workflows.tf_runs.settings import SWITCHED_VARIABLE

DATA = Path(__file__).parents[1] / "data/ascend/precision_data"
DUMP = "precision_data/npu/debug_0/dump"
WRITES = "import os, pathlib; d = pathlib.Path('{}/20261118000000'); d.mkdir(parents=True); (d / 'x').write_text('abc')"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DUMP_GE_GRAPH", "DUMP_GRAPH_PATH", "PRECISION_TOOL_DUMP", "PRECISION_TOOL_OVERFLOW"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ASCEND_LOG_PATH", str(tmp_path / "log"))
    return tmp_path


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def switches(word: str) -> str:
    """What our names leave for the command."""
    return f"import os; open(os.environ['{SWITCHED_VARIABLE}'], 'a').write('{word}\\n')"


def test_the_script_finds_its_switches_set(capfd: pytest.CaptureFixture[str]) -> None:
    names = "PRECISION_TOOL_DUMP PRECISION_TOOL_OVERFLOW DUMP_GE_GRAPH DUMP_GRAPH_LEVEL DUMP_GRAPH_PATH NPU_DUMP_GRAPH"
    asked = f"import os; print(*(os.environ[name] for name in '{names}'.split()))"
    main(["npu-dump", *python(asked)])
    assert capfd.readouterr().out.split() == ["True", "False", "2", "3", "precision_data/npu/debug_0/graph", "true"]
    main(["npu-overflow", *python(asked)])
    assert capfd.readouterr().out.split()[:2] == ["False", "True"]


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DUMP_GE_GRAPH", "3")
    main(["npu-dump", *python("import os; print(os.environ['DUMP_GE_GRAPH'])")])
    assert capfd.readouterr().out == "3\n"


def test_what_is_new_is_listed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    earlier = folder / DUMP / "20200101000000/x"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("of an earlier run", encoding="utf-8")
    assert main(["npu-dump", *python(WRITES.format(DUMP))]) == 0
    told = capfd.readouterr().err
    assert f"ulpscope: npu-dump: 1 dump file (3 B) in {DUMP}" in told
    assert "next: ulpscope shell precision_data" in told


@pytest.mark.parametrize("command", ["npu-dump", "npu-overflow", "tf-dump"])
def test_the_exit_code_of_a_script_is_passed_on(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([command, *python("raise SystemExit(5)")]) == 5
    told = capfd.readouterr().err
    assert "the command failed before" in told
    assert "the command ended with exit status 5" in told


def test_a_script_that_switches_nothing_on_is_told_what_it_lacks(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["npu-dump", *python("pass")]) == 3
    told = capfd.readouterr().err
    assert f"nothing was collected in {DUMP}: no script of the command asked for a dump" in told
    assert "import ulpscope.compat.tf_config as npu_tf_config" in told


def test_a_device_that_writes_nothing_is_told_from_a_script_that_asks_for_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["npu-dump", *python(switches("dump"))]) == 3
    assert "the script switched it on, but the device wrote nothing" in capfd.readouterr().err


def test_no_record_is_no_overflow_only_where_the_device_looked(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["npu-overflow", *python(switches("overflow"))]) == 0
    assert "no overflow: the script switched detection on" in capfd.readouterr().err
    assert main(["npu-overflow", *python("pass")]) == 3
    assert main(["npu-overflow", *python(switches("dump"))]) == 3


def copies_records(folder: Path) -> list[str]:
    source, target = DATA / "overflow/dump", folder / "precision_data/overflow/dump"
    return python(f"import shutil; shutil.copytree({str(source)!r}, {str(target)!r}, dirs_exist_ok=True)")


def test_records_are_told_as_overflow_tells_them(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["npu-overflow", *copies_records(folder)]) == 1
    told = capfd.readouterr()
    assert told.out.startswith("OVERFLOW: scale/Mul (Muls) overflowed first")
    assert "2 overflow files" in told.err


def test_json_is_all_that_stdout_gets(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    copy = copies_records(folder)
    copy[-1] += "; print('of the script')"
    assert main(["npu-overflow", "--json", *copy]) == 1
    told = capfd.readouterr()
    content = json.loads(told.out)
    assert (content["command"], content["script_exit"]) == ("npu-overflow", 0)
    assert content["overflow"]["verdict"] == "overflow"
    assert content["collected"][0]["files"] == 2
    assert "of the script" in told.err


def test_errors_of_the_devices_log_are_quoted_if_they_are_of_this_run(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = folder / "log/debug/plog/plog-1.log"
    log.parent.mkdir(parents=True)
    log.write_text("[ERROR] GE(1,python): an earlier one\n", encoding="utf-8")
    lines = "[INFO] GE(1,python): fine\\n[ERROR] GE(1,python): no memory\\n" + "[ERROR] RUNTIME(1): more\\n" * 30
    assert main(["npu-dump", *python(f"open({str(log)!r}, 'a').write('{lines}')")]) == 3
    told = capfd.readouterr().err
    assert f"31 ERROR lines in the device's log below {folder / 'log'}:" in told
    assert "plog-1.log: [ERROR] GE(1,python): no memory" in told
    assert "and 11 more" in told
    assert "earlier one" not in told
    assert "fine" not in told


def test_a_whole_line_in_one_word_is_for_a_shell(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["npu-dump", "--", "echo one; exit 4"]) == 4
    assert capfd.readouterr().out == "one\n"


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["npu-dump"], "no command to run"),
        (["npu-dump", "--", "no-such-program"], "there is no command 'no-such-program'"),
        (["npu-overflow", "python", "train.py"], "the command python train.py without `--` before it"),
        (["npu-dump", "--model", "net", "--", "true"], "--model without --acl"),
        (["npu-dump", "--acl", "a.json", "--", "true"], "--acl with a command"),
        (["npu-dump", "--acl", "a.json"], "--acl without --model"),
        (["npu-dump", "--acl", "a.json", "--overflow", "--model", "net"], "--overflow with --model"),
        (["npu-dump", "--acl", "a.json", "--model", "net", "--steps", "0,5"], "--steps '0,5'"),
    ],
)
def test_bad_usage(words: list[str], seen: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"ulpscope: error: {seen}" in capfd.readouterr().err
    assert not Path("a.json").exists()


def test_a_key_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TF_DUMP_STEP", "first")
    main(["npu-dump", *python("pass")])
    assert "the variable TF_DUMP_STEP is 'first', not steps such as 0|5|10" in capfd.readouterr().err


def test_tf_dump_converts_what_is_there(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tf-dump"]) == 3
    assert "precision_data/tf/tf_debug does not exist" in capfd.readouterr().err
    shutil.copytree(DATA.parent / "tf_debug_real", folder / "precision_data/tf/tf_debug")
    assert main(["tf-dump"]) in (0, 1)
    arrays = list((folder / "precision_data/tf/dump").glob("*.npy"))
    assert arrays
    assert f"{len(arrays)} files written to precision_data/tf/dump" in capfd.readouterr().out
    assert main(["tf-dump"]) == 2
    assert "precision_data/tf/dump is not empty" in capfd.readouterr().err


def test_tf_dump_does_not_mix_two_runs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "precision_data/tf/tf_debug/run_1_0").mkdir(parents=True)
    assert main(["tf-dump", *python("open('ran', 'w')")]) == 2
    assert "already holds a dump of an earlier run" in capfd.readouterr().err
    assert not Path("ran").exists()


INJECTED = """
import json
from pathlib import Path
Path("wrappers").mkdir()
Path("wrappers/__init__.py").write_text("")
Path("wrappers/cli.py").write_text("class Prompt: pass")
Path("ours.py").write_text("def replace(module): module.Prompt = 'replaced'\\ndef fail(module): raise OSError('no')")
import sys
sys.path.insert(0, ".")
from wrappers.cli import Prompt
import json.tool
print(Prompt, hasattr(json.tool, "main"))
"""


def test_a_module_is_handed_over_as_it_is_imported(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As tf-dump takes tfdbg's prompt out of a script; what fails leaves the module as it is."""
    wanted = "wrappers.cli=ours:replace json.tool=ours:fail"
    environment = {**os.environ, "PYTHONPATH": injecting_path(os.environ), "ULPSCOPE_AFTER_IMPORT": wanted}
    done = subprocess.run(
        [sys.executable, "-c", INJECTED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "replaced True\n", done.stderr
    assert done.stderr == "ulpscope: json.tool stays as it is: OSError: no\n"


def test_words_of_the_shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They run with the data that the shell was started on."""
    data = make_data(folder / "mine")
    monkeypatch.setenv("PRECISION_TOOL_DATA_ROOT_DIR", str(data))
    monkeypatch.delenv("PRECISION_TOOL_DATA_ROOT_DIR")
    told = Told(data, capsys)
    code = WRITES.format(data / "npu/debug_0/dump")
    said = " ".join(told(f'npu_dump {sys.executable} -c "{code}"').split())
    assert f"npu-dump: 1 dump file (3 B) in {data / 'npu/debug_0/dump'}" in said
    assert told.code is ExitCode.OK
    assert "exit status 5" in told(f"npu_dump {sys.executable} -c 'raise SystemExit(5)'")
    assert told.code is ExitCode.DIFFERENCE
    assert "asked for overflow detection" in " ".join(told("npu_overflow true").split())
    assert told.code is ExitCode.NOTHING
    shutil.rmtree(data / "overflow/dump")
    copied = f"cp -r {DATA / 'overflow/dump'} {data / 'overflow/dump'}"
    assert "OVERFLOW: scale/Mul (Muls) overflowed first" in told(f"npu_overflow {copied}")
    assert told.code is ExitCode.DIFFERENCE


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("train -d gpu", "'gpu' is no device"),
        ("train -a dmup", "'dmup' is no action"),
        ("train -a 'dump|fusion'", "'fusion' is no action"),
        ("npu_dump", "no command to run"),
    ],
)
def test_lines_of_the_shell_that_cannot_be_done(
    line: str, seen: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRECISION_TOOL_DATA_ROOT_DIR", str(folder / "mine"))
    told = Told(make_data(folder / "mine"), capsys)
    with pytest.raises(UlpscopeError) as error:
        told(line)
    assert seen in error.value.seen
