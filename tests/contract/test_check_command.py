"""`ulpscope check` as a command, on captured runs, with the real engine in real worker processes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from trained import write

from ulpscope.cli.main import main

QUICK = ["--no-stress", "--jobs", "2"]
FEW = ["--no-stress", "--jobs", "1", "--only", "linear", "--only", "layer_norm"]

REFERENCES = """
import os, time
import torch
import ulpscope

def wrong(x, *args, **kwargs):
    return torch.nn.functional.gelu(x, approximate="tanh")

def dies(*args, **kwargs):
    os.kill(os.getpid(), 11)

def hangs(*args, **kwargs):
    time.sleep(600)

FUNCTIONS = {"wrong": wrong, "dies": dies, "hangs": hangs}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with traces of stats, of tensors and of modules, and files of references."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "stats", only_steps="0")
    write(folder / "tensors", only_steps="0", save="tensors")
    write(folder / "modules", only_steps="0", level="module")
    for name in ("wrong", "dies", "hangs"):
        register = f"ulpscope.reference_for('gelu', function=FUNCTIONS['{name}'])(torch.nn.functional.gelu)\n"
        (folder / f"{name}.py").write_text(REFERENCES + register)
    return folder


@pytest.fixture(autouse=True)
def inside(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def old_table(out: Path, kind: str) -> list[list[str]]:
    (path,) = out.glob(f"accuracy_checking_{kind}_*.csv")
    return list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))


def summary(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("trace", ["stats", "tensors"])
def test_sound_kernels_are_exit_code_0(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", trace, *QUICK, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("SOUND: ")
    assert told.err == ""
    found = summary(tmp_path / "out")
    assert (found["command"], found["verdict"], found["findings"]) == ("check", "sound", [])
    assert found["counts"]["fail"] == 0
    assert found["counts"]["pass"] > 10
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.html",
        "summary.json",
        "told.json",
        "result.csv",
        "details.csv",
        "cases.jsonl",
    }
    details = rows(tmp_path / "out/details.csv")
    assert {row["data"] for row in details} == {"real" if trace == "tensors" else "random"}
    assert any(row["direction"] == "backward" and row["verdict"] == "PASS" for row in details)


def test_the_columns_of_msprobe_are_written_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["check", "tensors", *QUICK, "--only", "linear", "--out", str(out), "--columns", "msprobe"]) == 0
    result, details = (old_table(out, kind) for kind in ("result", "details"))
    assert result[0] == ["API name", "Forward Test Success", "Backward Test Success", "Message"]
    assert ["Functional.linear.0", "pass", "pass"] in [row[:3] for row in result]
    assert (len(details[0]), details[0][4], details[0][-2]) == (23, "余弦相似度", "Status")
    names = [row[0] for row in details]
    assert {"Functional.linear.0.forward.output.0", "Functional.linear.0.backward.output.1"} <= {*names}
    assert float(details[1][4]) == pytest.approx(1.0)
    assert main(["check", "tensors", "--columns", "msprobe"]) == 2
    assert "--out DIR" in capsys.readouterr().err


def test_a_wrong_kernel_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["check", "stats", *QUICK, "--references", "wrong.py", "--out", str(out), "--save-failing"]
    assert main(words) == 1
    told = capsys.readouterr().out
    assert "1 computes wrongly" in told.splitlines()[0]
    assert "torch.nn.functional.gelu.0" in told
    (finding,) = summary(out)["findings"]
    assert (finding["kind"], finding["op"]) == ("computation", "torch.nn.functional.gelu")
    assert finding["evidence"]["verdict"] == "FAIL"
    assert finding["evidence"]["worst_computed"] != finding["evidence"]["worst_exact"]
    assert finding["source"].rpartition("/")[2].startswith("trained.py:")
    (row,) = [row for row in rows(out / "result.csv") if row["forward"] == "FAIL"]
    assert row["name"] == "torch.nn.functional.gelu.0"
    (saved,) = (out / "failing").iterdir()
    tensors = load_file(saved)
    assert not (tensors["computed.output.0"] == tensors["exact.output.0"]).all()


@pytest.mark.parametrize(("file", "verdict", "told"), [("dies", "CRASH", "SIGSEGV"), ("hangs", "TIMEOUT", "5 seconds")])
def test_a_worker_that_dies_or_hangs_costs_one_call(file: str, verdict: str, told: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    only = ["--only", "gelu", "--only", "linear", "--timeout", "5"]
    assert main(["check", "stats", *QUICK, *only, "--references", f"{file}.py", "--out", str(out)]) == 1
    found = {row["name"]: row for row in rows(out / "result.csv")}
    assert found["torch.nn.functional.gelu.0"]["forward"] == verdict
    assert told in found["torch.nn.functional.gelu.0"]["message"]
    assert len(found) > 3
    assert {row["forward"] for name, row in found.items() if "gelu" not in name} <= {"PASS", "WARN"}


def test_jobs_and_resuming_change_nothing(tmp_path: Path) -> None:
    base = ["check", "stats", *FEW]
    assert main([*base, "--jobs", "1", "--out", str(tmp_path / "one")]) == 0
    assert main([*base, "--jobs", "3", "--out", str(tmp_path / "three")]) == 0
    half = tmp_path / "half"
    half.mkdir()
    lines = (tmp_path / "one/cases.jsonl").read_text().splitlines(keepends=True)
    (half / "cases.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[-1][:50])
    assert main([*base, "--out", str(half), "--resume"]) == 0
    for name in ("result.csv", "details.csv", "summary.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()
        assert (tmp_path / "one" / name).read_bytes() == (half / name).read_bytes()


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "stats", *FEW, "--device", "cuda:7"]) == 2
    told = capsys.readouterr()
    assert "device cuda:7 is not there" in told.err
    assert "expected: one of cpu" in told.err
    assert told.out == ""


def test_a_file_of_references_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("import no_such_module")
    assert main(["check", "stats", *FEW, "--references", str(tmp_path / "bad.py")]) == 2
    assert "bad.py cannot be loaded: ModuleNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["nowhere"], 2, "nowhere does not exist"),
        (["modules"], 3, "holds no API calls (it was captured at level module)"),
        (["stats", "--only", "layernorm"], 3, "did you mean layer_norm"),
        (["stats", "--steps", "9"], 3, "has no step 9"),
        (["stats", "--ranks", "9"], 3, "has no rank 9"),
        (["stats", "--steps", "x"], 2, "--steps"),
        (["stats", "--jobs", "0"], 2, "--jobs 0"),
        (["stats", "--timeout", "0"], 2, "--timeout 0"),
        (["stats", "--resume"], 2, "--resume without --out"),
        (["stats", "--save-failing"], 2, "--save-failing without --out"),
        (["stats", "--out", "o", "--resume", "--overwrite"], 2, "--resume with --overwrite"),
        (["stats", "--references", "none.py"], 2, "none.py is not a file"),
        (["stats", "--device", "cpu,"], 2, "--device 'cpu,'"),
        (["stats", "--standard", "nonsense"], 2, "nonsense"),
    ],
)
def test_what_cannot_be_done_is_told(
    words: list[str], code: int, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words]) == code
    told = capsys.readouterr()
    assert problem in told.err
    assert "\n  expected: " in told.err
    assert "\n  next: " in told.err
    assert told.out == ""
    assert not Path("o").exists()


def test_json_is_one_object_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "stats", *FEW, "--json", "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out) == summary(tmp_path / "out")


def test_a_result_is_replaced_only_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "stats", *FEW, "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert main(words) == 2
    assert "already holds a result; add --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_checking_imports_no_framework_here() -> None:
    code = (
        "import sys; from ulpscope.cli.main import main;"
        "assert main(['check', 'stats', '--no-stress', '--only', 'linear']) == 0;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_interruption_keeps_what_was_done(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["check", "stats", "--no-stress", "--jobs", "1", "--references", "hangs.py", "--out", str(out)]
    command = [sys.executable, "-m", "ulpscope", *words]
    # A process group of its own, as a terminal gives it: the workers hear the signal, too.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    _wait_until(lambda: (out / "cases.jsonl").is_file() and len((out / "cases.jsonl").read_text().splitlines()) > 3)
    os.killpg(process.pid, signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "(interrupted: " in told
    assert summary(out)["interrupted"] is True
    done = len((out / "cases.jsonl").read_text().splitlines()) - 1
    assert summary(out)["counts"]["cases"] == done


def _wait_until(happened: Any) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.05)
