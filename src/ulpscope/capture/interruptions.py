"""Exceptions that somebody else raises into our own work: they are the run's, and must reach it.

A signal's handler runs between two instructions of whatever code is running, and another thread can have an exception
raised there (PyThreadState_SetAsyncExc, by which some libraries end what takes too long).
"""

import dis
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

_OURS = str(Path(__file__).parent.parent) + os.sep

# What compiled code raises without a word.
_RAISED_BARE = (MemoryError, StopIteration, StopAsyncIteration)
_RAISE = dis.opmap["RAISE_VARARGS"]


def is_interruption(error: BaseException) -> bool:
    """Whether this comes from outside of the code that it was raised in."""
    return find_interruption(error) is not None


def find_interruption(error: BaseException) -> BaseException | None:
    """What came from outside: this error, or one that code of ours took for its own and told in other words."""
    found: BaseException | None = error
    while found is not None and not _is_from_outside(found):
        found = found.__cause__
    return found


def pass_on_interruption(error: BaseException) -> None:
    """Raise what is no error of ours; to be called where errors are caught."""
    interruption = find_interruption(error)
    if interruption is not None:
        raise interruption


def _is_from_outside(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return True
    entries = list(_entries(error.__traceback__))
    if _is_injected(error, entries):
        return True
    handlers = _handlers()
    return any(entry.tb_frame.f_code in handlers or _handles_signal(entry.tb_frame) for entry in entries)


def _is_injected(error: Exception, entries: list[TracebackType]) -> bool:
    """Whether another thread had it raised: such an exception is a class, made without words, and no code raises it."""
    if error.args or isinstance(error, _RAISED_BARE) or not entries:
        return False
    innermost = entries[-1]
    return innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != _RAISE


def _handlers() -> set[CodeType]:
    """What runs where a signal comes."""
    codes = (_code_of(signal.getsignal(number)) for number in signal.valid_signals())
    return {code for code in codes if code is not None}


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    for function in (handler, vars(type(handler)).get("__call__")):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def _handles_signal(frame: FrameType) -> bool:
    """Whether a frame was handed the very one that it interrupts, as a handler is that is none any more."""
    interrupted = frame.f_back
    if interrupted is None or frame.f_code.co_filename.startswith(_OURS):
        return False
    for value in frame.f_locals.values():
        if value is interrupted or (type(value) is tuple and any(item is interrupted for item in value)):
            return True
    return False


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
