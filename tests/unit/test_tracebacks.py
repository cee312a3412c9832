"""Tracebacks of scripts that run captured show the script's frames, not those of the capture."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ulpscope.capture import exceptions as tracebacks

INSIDE = os.path.join(os.path.dirname(tracebacks.__file__), "torch", "watching.py")


def ours(work: Callable[[], object]) -> Callable[[], object]:
    """Calls `work` from code that lies in a file of the capture."""
    names: dict[str, Callable[[Callable[[], object]], object]] = {}
    exec(compile("def watch(work):\n    return work()\n", INSIDE, "exec"), names)
    return lambda: names["watch"](work)


def fail() -> None:
    raise ValueError("of the script")


def caught(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def functions(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_our_frames_are_not_printed_and_the_exception_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    error = caught(ours(ours(fail)))
    before = functions(error)
    assert before.count("watch") == 2
    tracebacks.show(type(error), error, error.__traceback__)
    printed = capsys.readouterr().err
    assert "ValueError: of the script" in printed
    assert "in fail" in printed
    assert "watching.py" not in printed
    assert functions(error) == before


def test_an_interrupt_in_our_own_code_ends_at_the_scripts_line() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    interrupt.__code__ = interrupt.__code__.replace(co_filename=INSIDE)
    with pytest.raises(KeyboardInterrupt) as found:
        interrupt()
    shown = tracebacks.without_ours(found.value.__traceback__)
    names = [frame.name for frame in traceback.extract_tb(shown)]
    assert names == ["test_an_interrupt_in_our_own_code_ends_at_the_scripts_line"]


def test_what_led_to_an_exception_is_printed_alike(capsys: pytest.CaptureFixture[str]) -> None:
    def wrap() -> None:
        try:
            ours(fail)()
        except ValueError as error:
            raise RuntimeError("because") from error

    error = caught(wrap)
    tracebacks.show(type(error), error, error.__traceback__)
    printed = capsys.readouterr().err
    assert "in fail" in printed
    assert "direct cause" in printed
    assert "watching.py" not in printed


def test_an_exception_of_ours_alone_is_shown_whole() -> None:
    error = caught(ours(fail))
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename != INSIDE:
        entry = entry.tb_next
    assert entry is not None
    entry.tb_next = None
    assert tracebacks.without_ours(entry) is entry
    assert tracebacks.without_ours(None) is None


def test_a_hook_of_the_users_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(*told: object) -> None:
        """The user's own."""

    monkeypatch.setattr(sys, "excepthook", mine)
    tracebacks.hide_our_frames()
    assert sys.excepthook is mine
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    tracebacks.hide_our_frames()
    assert sys.excepthook is tracebacks.show


def test_files_beside_the_capture_are_not_ours() -> None:
    beside = Path(tracebacks.__file__).parent.parent / "captured.py"
    names: dict[str, Callable[[], None]] = {}
    exec(compile("def run():\n    raise ValueError('x')\n", str(beside), "exec"), names)
    error = caught(names["run"])
    assert [frame.name for frame in traceback.extract_tb(tracebacks.without_ours(error.__traceback__))][-1] == "run"
