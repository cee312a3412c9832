"""Ctrl-C that is not lost."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
