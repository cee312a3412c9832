"""`ulpscope report`: where pages go, and what it says of results that it cannot read."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from made_results import write_result
from ulpscope.cli.main import main
from ulpscope.records.enums import ExitCode


@pytest.fixture
def result(tmp_path: Path) -> Path:
    write_result(tmp_path / "result", layers=2)
    return tmp_path / "result"


def change_summary(result: Path, **entries: Any) -> None:
    path = result / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **entries}), encoding="utf-8")


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["report", *words]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert "expected:" in told.err
    assert "next:" in told.err
    return told.err


def test_the_page_stands_in_the_result(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(result)]) == ExitCode.OK
    assert capsys.readouterr().out == f"{result / 'report.html'}\n"
    assert (result / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_elsewhere(result: Path, tmp_path: Path) -> None:
    assert main(["report", str(result), "--out", str(tmp_path / "page.html")]) == ExitCode.OK
    assert (tmp_path / "page.html").is_file()
    assert not (result / "report.html").exists()


def test_a_place_that_cannot_be_written(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no/such/folder" in refusal(capsys, str(result), "--out", str(result / "no/such/folder/page.html"))


def test_another_schema(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_summary(result, schema=2)
    told = refusal(capsys, str(result))
    assert "schema 2" in told
    assert "schema 1" in told


def test_another_command(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_summary(result, command="convert")
    assert "'convert'" in refusal(capsys, str(result))


def test_a_comparison_of_something_else(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((result / "summary.json").read_text(encoding="utf-8"))
    del summary["neighbours"]
    (result / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert "something else than two runs" in refusal(capsys, str(result))


@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")])
def test_a_broken_summary(result: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (result / "summary.json").write_text(text, encoding="latin-1")
    assert "summary.json cannot be read" in refusal(capsys, str(result))


@pytest.mark.parametrize("findings", [None, {}, "x", [None], ["x"], [{}], [{"sentence": 5}]])
def test_findings_that_are_none(result: Path, capsys: pytest.CaptureFixture[str], findings: Any) -> None:
    change_summary(result, findings=findings)
    assert "findings is no list of objects with a sentence" in refusal(capsys, str(result))


@pytest.mark.parametrize("missing", [7, "rank 1", [{}]])
def test_what_is_missing_is_a_list_of_sentences(result: Path, capsys: pytest.CaptureFixture[str], missing: Any) -> None:
    change_summary(result, missing=missing)
    assert "missing is no list of sentences" in refusal(capsys, str(result))


@pytest.mark.parametrize("command", [None, 5, [], {}])
def test_a_command_that_is_none(result: Path, capsys: pytest.CaptureFixture[str], command: Any) -> None:
    change_summary(result, command=command)
    assert "of a command or kind that has no page" in refusal(capsys, str(result))


@pytest.mark.parametrize("part", [None, 5, {}, [1, 2, 3]])
def test_sentences_that_do_not_fit_are_not_taken(result: Path, part: Any) -> None:
    (result / "told.json").write_text(json.dumps({"schema": 1, "findings": part, "notes": [], "advice": []}))
    assert main(["report", str(result)]) == ExitCode.OK


def test_a_missing_table(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (result / "pairs.parquet").unlink()
    assert "pairs.parquet cannot be read: it is not there" in refusal(capsys, str(result))


def test_a_broken_table(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (result / "pairs.parquet").write_bytes(b"PAR1 and then nothing")
    assert "pairs.parquet cannot be read" in refusal(capsys, str(result))


def test_a_table_without_a_column(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.read_parquet(result / "pairs.parquet").drop("judgement").write_parquet(result / "pairs.parquet")
    assert "no column judgement" in refusal(capsys, str(result))


def test_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no_such" in refusal(capsys, str(tmp_path / "no_such"))


def test_options_that_do_not_go_together(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--port without --serve" in refusal(capsys, str(result), "--port", "1")
    assert "--out with --serve" in refusal(capsys, str(result), "--serve", "--out", "x.html")
    assert "--out with an export" in refusal(capsys, str(result), "--out", "x.html", "--tensorboard", "x")
    assert "--serve with an export" in refusal(capsys, str(result), "--serve", "--model-explorer", "x")
