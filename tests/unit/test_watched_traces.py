"""A trace of watched gradients where calls are asked for: it is refused, and what may be asked of it is named."""

import json
from pathlib import Path

import pytest
from tests.unit.traces import make_trace

from ulpscope.cli.main import main


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    file = make_trace(tmp_path / "watched") / "rank.json"
    told = json.loads(file.read_text())
    told["capture"]["watch"] = "gradients"
    file.write_text(json.dumps(told))
    return tmp_path / "watched"


@pytest.mark.parametrize(
    "command", ["compare calls watched", "compare watched calls", "check watched", "overflow watched"]
)
def test_no_calls_are_read_from_it(
    command: str, watched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(watched.parent)
    make_trace(Path("calls"))
    assert main(command.split()) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "watched holds watched gradients, and no calls" in told.err
    assert "ulpscope compare watched OTHER" in told.err


def test_where_an_answer_without_a_page_was_written_is_told(
    watched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result"
    main(["compare", str(watched), str(watched), "--out", str(out)])
    assert capsys.readouterr().out.endswith(f"Written to {out}\n")
    main(["compare", str(watched), str(watched), "--out", str(tmp_path / "other"), "--json"])
    assert json.loads(capsys.readouterr().out)["command"] == "compare"
