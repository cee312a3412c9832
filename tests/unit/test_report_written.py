"""`ulpscope compare --out` leaves a page, with what it tells in both languages and the stacks behind it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import STACKS, HandmadeRun, frame

from ulpscope.cli.main import main
from ulpscope.records.enums import ExitCode

SOURCE = "import torch\nx = torch.relu(x)\n"


def write_run(out: Path, output: Any, source: Path) -> None:
    run = HandmadeRun()
    read = run.value(np.linspace(-1.0, 1.0, 64))
    run.call("torch.relu", reads={"args.0": read}, makes={"output.0": output}, module="model.act", stack=7)
    run.write(out)
    lines = [("x.py", 2, "forward"), ("/no/such/place/train.py", 9, "main"), ("x.txt", 1, "other")]
    files = [str(source.parent / name) if name.startswith("x") else name for name, _, _ in lines]
    rows = [
        {"stack": 7, "depth": depth, "file": file, "line": line, "function": function}
        for depth, (file, (_, line, function)) in enumerate(zip(files, lines, strict=True))
    ]
    frame(STACKS, rows).write_parquet(out / "rank0" / "stacks-000.parquet")


@pytest.fixture
def result(tmp_path: Path) -> Path:
    source = tmp_path / "x.py"
    source.write_text(SOURCE, encoding="utf-8")
    source.with_suffix(".txt").write_text("a secret\n", encoding="utf-8")
    values = np.linspace(-1.0, 1.0, 64).clip(0)
    write_run(tmp_path / "ref", values, source)
    write_run(tmp_path / "target", values * 1.5, source)
    words = ["compare", str(tmp_path / "ref"), str(tmp_path / "target"), "--out", str(tmp_path / "result")]
    assert main(words) == ExitCode.DIFFERENCE
    return tmp_path / "result"


@pytest.mark.parametrize(("language", "words"), [("en", "Open in a browser: "), ("zh", "用浏览器打开：")])
def test_the_answer_ends_with_where_the_page_is(
    result: Path, capsys: pytest.CaptureFixture[str], language: str, words: str
) -> None:
    folder = result.parent
    out = folder / "other"
    main(["compare", str(folder / "ref"), str(folder / "target"), "--out", str(out), "--language", language])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"  {words}{out / 'report.html'}"


def test_without_a_page_none_is_named(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", str(result.parent / "ref"), str(result.parent / "target")]
    capsys.readouterr()
    main(words)
    assert "browser" not in capsys.readouterr().out
    main([*words, "--json"])
    assert "report" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["compare", "overflow"])
def test_the_json_object_names_the_page_and_is_the_summary(
    result: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    runs = [str(result.parent / name) for name in ("ref", "target")]
    out = result.parent / "*[1] ?"
    capsys.readouterr()
    main([command, *runs, "--out", str(out), "--json"])
    content = json.loads(capsys.readouterr().out)
    assert (out / content["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert content == json.loads((out / "summary.json").read_text(encoding="utf-8"))


def test_a_path_does_not_steer_the_terminal(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["overflow", str(result.parent / "ref"), "--out", str(result.parent / "a\x1b[31m folder")])
    assert "\x1b" not in capsys.readouterr().out


def told(result: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((result / "told.json").read_text(encoding="utf-8"))
    return content


def test_the_page_is_there(result: Path) -> None:
    assert (result / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_sentences_are_there_in_both_languages(result: Path) -> None:
    summary = json.loads((result / "summary.json").read_text(encoding="utf-8"))
    english = [finding["sentence"] for finding in summary["findings"]]
    assert [sentence["en"] for sentence in told(result)["findings"]] == english
    assert all("其输出" in sentence["zh"] for sentence in told(result)["findings"])
    assert len(told(result)["advice"]) == len(summary["advice"])


def test_the_stack_has_its_lines_and_no_line_of_other_files(result: Path) -> None:
    (stack,) = told(result)["stacks"]
    assert [(Path(line["file"]).name, line["line"], line["function"], line["text"]) for line in stack] == [
        ("x.py", 2, "forward", "x = torch.relu(x)"),
        ("train.py", 9, "main", None),
        ("x.txt", 1, "other", None),
    ]
