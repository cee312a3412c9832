"""Two results of `ulpscope check` set against each other."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.checking import checked, output

from ulpscope.cli.main import main
from ulpscope.records.checks import Verdict
from ulpscope.workflows.check.journal import checked_json
from ulpscope.workflows.compare.checks import is_check_result

QUIET = {"rmse": 1e-2, "max_rel": 1e-2, "mean_rel": 1e-2, "small_value_ratio": 0.0, "error_balance": 0.0}


def write_result(out: Path, rows: dict[str, dict[str, float]], *, device: str) -> Path:
    """What a check leaves: an output a name, with these metrics."""
    out.mkdir()
    lines = [json.dumps({"command": "check"})]
    for number, (name, metrics) in enumerate(rows.items()):
        made = output(Verdict.PASS, metrics=tuple(metrics.items()))
        case = replace(checked(name, Verdict.PASS, number=number, outputs=(made,)), device=device)
        lines.append(json.dumps(checked_json(case)))
    (out / "cases.jsonl").write_text("\n".join(lines) + "\n")
    summary = {"command": "check", "trace": "runs/ref", "scope": {"devices": [device]}}
    (out / "summary.json").write_text(json.dumps(summary))
    return out


@pytest.fixture
def results(tmp_path: Path) -> list[str]:
    """softmax is three times as noisy on the second device; only one has silu."""
    noisy = QUIET | {"rmse": 3e-2}
    reference = write_result(tmp_path / "cpu", {"softmax": QUIET, "exp": QUIET, "silu": QUIET}, device="cpu")
    target = write_result(tmp_path / "gpu", {"softmax": noisy, "exp": QUIET}, device="cuda:0")
    return [str(reference), str(target)]


def compared(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    main(["compare", *words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_what_a_check_wrote_is_recognised(results: list[str], tmp_path: Path) -> None:
    assert is_check_result(Path(results[0]))
    assert not is_check_result(tmp_path)
    (tmp_path / "summary.json").write_text('{"command": "compare"}')
    assert not is_check_result(tmp_path)


def test_larger_errors_are_found(results: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *results]) == 1
    told = capsys.readouterr().out
    assert told.startswith("DIVERGED: 1 of 2 outputs have errors on cuda:0 that those on cpu do not excuse")
    assert "softmax.0" in told
    assert "rmse 3.0" in told
    assert "exp.0" not in told


def test_the_other_way_round_they_agree(results: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *results[::-1]]) == 0
    assert capsys.readouterr().out.startswith("AGREE: 2 outputs compared")


def test_json(results: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = compared(results, capsys)
    assert (told["schema"], told["command"], told["verdict"]) == (1, "compare", "diverged")
    assert told["counts"] == {"outputs": 2, "pass": 1, "skip": 0, "fail": 1, "only_reference": 1, "only_target": 0}
    (finding,) = told["findings"]
    assert (finding["op"], finding["tensor"], finding["kind"]) == ("torch.softmax", "output.0", "computation")
    assert finding["evidence"]["failing"] == ["rmse"]
    assert finding["evidence"]["figures"]["rmse"] == pytest.approx(3.0)
    assert finding["next"] == "ulpscope repro runs/ref 0 -o repro"
    assert told["scope"]["devices"] == {"reference": ["cpu"], "target": ["cuda:0"]}


def test_a_result_is_written(results: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["compare", *results, "--out", str(out), "--json"]) == 1
    assert json.loads((out / "summary.json").read_text()) == json.loads(capsys.readouterr().out)
    with open(out / "ratios.csv", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert [row["verdict"] for row in rows.values()] == ["FAIL", "PASS"]
    assert float(rows["torch.softmax.0"]["rmse"]) == pytest.approx(3.0)


def test_nothing_in_common_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_result(tmp_path / "one", {"exp": QUIET}, device="cpu")
    other = write_result(tmp_path / "other", {"log": QUIET}, device="cpu")
    assert main(["compare", str(one), str(other)]) == 3
    assert capsys.readouterr().out.startswith("NOTHING COMPARED")


@pytest.mark.parametrize("words", [["--steps", "0"], ["--plan"], ["--standard", "msprobe"], ["--replay", "on"]])
def test_options_of_runs_are_refused(results: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *results, *words]) == 2
    assert f"{words[0]} with two results of ulpscope check" in capsys.readouterr().err


def test_chinese(results: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *results, "--language", "zh"]) == 1
    assert capsys.readouterr().out.startswith("出现分歧（DIVERGED）：2 个输出中有 1 个在 cuda:0 上的误差")


def test_a_broken_result_is_named(results: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (Path(results[1]) / "summary.json").write_text('{"command": "check"}')
    assert main(["compare", *results]) == 2
    assert "summary.json has no 'trace'" in capsys.readouterr().err
    (Path(results[1]) / "cases.jsonl").unlink()
    assert main(["compare", *results]) == 2
    assert "cases.jsonl" in capsys.readouterr().err
