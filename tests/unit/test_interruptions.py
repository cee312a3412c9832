"""Exceptions that are raised into our work from outside are told from its own errors."""

import ctypes
import functools
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ulpscope.capture.exceptions import is_interruption, pass_on_interruption


class LateError(Exception):
    """What a handler raises."""


def raising(_signal: int, _frame: Any) -> None:
    raise LateError("too late")


def raising_deep(*_: Any) -> None:
    def inner() -> None:
        raise ValueError("too late")

    inner()


def raising_and_forgetting(number: int, frame: Any) -> None:
    del number, frame
    raise LateError("too late")


def raising_once(number: int, _frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise LateError("too late")


class Deadline:
    def handle(self, _signal: int, _frame: Any) -> None:
        raise TimeoutError("too late")

    def __call__(self, number: int, frame: Any) -> None:
        self.handle(number, frame)


HANDLERS = [
    raising,
    raising_deep,
    raising_and_forgetting,
    functools.partial(raising_and_forgetting),
    raising_once,
    Deadline().handle,
    Deadline(),
    functools.partial(raising),
    lambda s, f: raising(s, f),
]


def caught(work: Callable[[], Any]) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_raises_is_an_interruption(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert is_interruption(caught(lambda: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_was_taken_for_a_fault_of_the_disk_is_handed_on_as_it_came() -> None:
    def write() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except OSError as error:
            raise RuntimeError("cannot write") from error

    before = signal.signal(signal.SIGUSR1, Deadline().handle)
    try:
        told = caught(write)
        assert is_interruption(told)
        with pytest.raises(TimeoutError, match="too late"):
            pass_on_interruption(told)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [LateError, TimeoutError, RuntimeError, KeyboardInterrupt, SystemExit])
def test_what_another_thread_has_raised_is_an_interruption(kind: type[BaseException]) -> None:
    def wait_for_it() -> None:
        here = ctypes.c_ulong(threading.get_ident())
        ctypes.pythonapi.PyThreadState_SetAsyncExc(here, ctypes.py_object(kind))
        for _ in range(1_000_000):
            pass

    assert is_interruption(caught(wait_for_it))


def raises_bare() -> None:
    raise NotImplementedError


@pytest.mark.parametrize(
    "work",
    [raises_bare, lambda: {}["missing"], lambda: 1 / 0, lambda: next(iter(())), lambda: raising(0, None)],
)
def test_errors_of_the_code_itself_are_none(work: Callable[[], Any]) -> None:
    assert not is_interruption(caught(work))
