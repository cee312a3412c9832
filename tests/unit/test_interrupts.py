"""Ctrl-C is not lost where C code calls Python back."""

import ctypes
import signal
import sys
import time

import pytest

from ulpscope.cli.main import main
from ulpscope.records.enums import ExitCode
from ulpscope.workflows.worker_pool import interruptible


def interrupted_inside_of_c() -> None:
    @ctypes.CFUNCTYPE(None)
    def called_back() -> None:
        signal.raise_signal(signal.SIGINT)

    called_back()


def test_an_interrupt_that_c_code_drops_comes_again() -> None:
    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), interruptible():
        interrupted_inside_of_c()
        time.sleep(30)
    assert sys.unraisablehook is before


def test_a_command_is_interrupted_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> None:
        interrupted_inside_of_c()
        time.sleep(30)

    monkeypatch.setattr("ulpscope.cli.demo.run", run)
    assert main(["demo"]) == ExitCode.INTERRUPTED


def test_a_command_that_has_ended_is_not_interrupted() -> None:
    with interruptible():
        interrupted_inside_of_c()
    time.sleep(0.2)


def test_other_exceptions_are_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(lost.exc_type))

    @ctypes.CFUNCTYPE(None)
    def called_back() -> None:
        raise ValueError

    with interruptible():
        called_back()
    assert reported == [ValueError]
