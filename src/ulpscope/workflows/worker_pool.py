"""Processes side by side that leave Ctrl-C to the process that started them.

A terminal sends the signal to all of them. A worker that hears it tells where it was interrupted, at its worst while it
still imports; the one that started it says what there is to say.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_LOOK_AGAIN = 0.001
"""Seconds."""


class WorkerPool(ProcessPoolExecutor):
    """A pool of spawned processes; `start` is called in each of them first. Those that still work when it is left by
    an exception are ended."""

    def __init__(self, processes: int, start: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()):
        # Forked processes would inherit threads' locks from numpy and polars.
        super().__init__(processes, multiprocessing.get_context("spawn"), _begin, (start, arguments))
        self._others: frozenset[BaseProcess] = frozenset(multiprocessing.active_children())

    def submit(
        self, function: Callable[_Given, _Made], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Made]:
        # Here the pool starts its processes, one after the other.
        with _interrupts_held():
            return super().submit(function, *args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with suppress(BrokenProcessPool):
                self._give_up()
        super().__exit__(kind, error, trace)

    def _give_up(self) -> None:
        ending = threading.Thread(target=self._end_workers, args=(self.submit(os.getpid),))
        ending.start()
        self.shutdown(cancel_futures=True)
        ending.join()

    def _end_workers(self, last: Future[int]) -> None:
        # Up to Python 3.11 a pool whose workers die fails over cancelled work. It goes through its work in order: when
        # it has come to the last, nothing cancelled is left.
        while not (last.running() or last.done()):
            time.sleep(_LOOK_AGAIN)
        for worker in multiprocessing.active_children():
            if worker not in self._others:
                worker.terminate()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits. What is started meanwhile begins with the signal blocked, and is not left half started."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    # The mask is of this thread only: another one, such as numpy's, may still receive the signal for the process.
    handled = threading.current_thread() is threading.main_thread() and before is not None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if handled:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        if handled:
            signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if came:
        signal.raise_signal(signal.SIGINT)


def _begin(start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if start is not None:
        start(*arguments)


def usable_cores() -> int:
    """Those that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


AGAIN = 0.05
"""Seconds; by then C code has mostly got its answer."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt again where it was lost.

    If Ctrl-C comes while C code calls Python back (a compiler of kernels does, for one), the exception is printed and
    dropped, and the command goes on as if nothing had happened.
    """
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def again(lost: "sys.UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        timers.append(threading.Timer(AGAIN, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()
