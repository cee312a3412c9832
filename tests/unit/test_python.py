"""The commands from Python: what a prompt and a notebook show of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.traces import make_trace

import ulpscope
from ulpscope.records.errors import UlpscopeError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    make_trace(tmp_path / "run")
    return tmp_path / "run"


def told_results(trace: Path) -> dict[str, Any]:
    return {
        "compare": ulpscope.compare(trace, trace),
        "overflow": ulpscope.overflow(trace),
        "show": ulpscope.show(trace, "relu.0", step=0),
    }


def test_every_public_name_is_listed_and_there() -> None:
    assert set(dir(ulpscope)) == set(ulpscope.__all__)
    assert all(callable(getattr(ulpscope, name)) for name in ulpscope.__all__ if name != "__version__")


def test_a_result_that_is_only_named_shows_its_answer(trace: Path) -> None:
    for name, result in told_results(trace).items():
        assert repr(result) == result.text().rstrip("\n"), name
        assert "\n" in repr(result) or "FINITE" in repr(result), name


def test_no_colours_in_a_notebook(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    for name, result in told_results(trace).items():
        assert "\x1b" not in result.text(), name


def test_a_trace_tells_what_it_is(trace: Path) -> None:
    assert repr(ulpscope.open_trace(trace)) == f"Trace({str(trace)!r}: ranks [0], steps [0, 1])"


def test_show_filters_as_the_command_does(trace: Path) -> None:
    found = ulpscope.show(trace, op="relu", phase="forward", step="0-1").json()
    assert [call["id"] for call in found["calls"]] == [2, 9]


def test_results_make_the_directory_that_they_are_written_to(trace: Path, tmp_path: Path) -> None:
    page = ulpscope.compare(trace, trace).write(str(tmp_path / "new" / "result"))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    again = ulpscope.report(tmp_path / "new" / "result", tmp_path / "page.html")
    assert again.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ulpscope.overflow(trace).write(str(tmp_path / "overflow")).exists()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda trace: ulpscope.compare(trace, trace, replay="maybe"), "replay='maybe'"),
        (lambda trace: ulpscope.show(trace, phase="sideways"), "phase='sideways'"),
        (lambda trace: ulpscope.check(trace, data="real-ish"), "data='real-ish'"),
        (lambda trace: ulpscope.repro(trace, 2, "out", variant="odd"), "variant='odd'"),
    ],
)
def test_a_wrong_word_is_told_with_the_right_ones(wrong: Callable[[Path], Any], told: str, trace: Path) -> None:
    with pytest.raises(UlpscopeError, match=told) as raised:
        wrong(trace)
    assert raised.value.expected.startswith("one of ")
