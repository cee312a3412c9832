"""Exceptions on their way through a capture: what interrupts our own work, and what a script prints that ends by one.

A signal's handler runs between two instructions of whatever code is running, and another thread can have an exception
raised there (PyThreadState_SetAsyncExc, by which some libraries end what takes too long). Such exceptions are the
run's, and must reach it. A script that ends by an exception prints the traceback it would have without a capture: only
what is printed changes, exceptions keep the frames that they have, and a hook of the user's is left alone.
"""

import dis
import functools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

_OURS = str(Path(__file__).parent.parent) + os.sep
_CAPTURE = str(Path(__file__).parent) + os.sep

# What compiled code raises without a word.
_RAISED_BARE = (MemoryError, StopIteration, StopAsyncIteration)
MAX_ERROR_TEXT = 500
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
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(entry.tb_frame.f_code in handlers or _handles_signal(entry.tb_frame) for entry in entries)


def _is_injected(error: Exception, entries: list[TracebackType]) -> bool:
    """Whether another thread had it raised: such an exception is a class, made without words, and no code raises it."""
    if error.args or isinstance(error, _RAISED_BARE) or not entries:
        return False
    innermost = entries[-1]
    return innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != _RAISE


def _code_of(handler: Any) -> CodeType | None:
    """What runs where a signal comes."""
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


def describe_error(error: BaseException) -> str:
    """An exception in words; one whose own text raises is told by its class."""
    try:
        return f"{type(error).__name__}: {error}"[:MAX_ERROR_TEXT]
    except Exception as untold:
        pass_on_interruption(untold)
        return type(error).__name__


def hide_our_frames() -> None:
    """Print uncaught exceptions without the frames of a capture, unless somebody else prints them."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show


def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """What Python prints, less our own frames."""
    whole = [(one, one.__traceback__) for one in _chain(error)]
    try:
        for one, frames in whole:
            one.__traceback__ = without_ours(frames)
        sys.__excepthook__(kind, error, error.__traceback__)
    finally:
        for one, frames in whole:
            one.__traceback__ = frames


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback of the same frames but ours; the whole one if there are no others."""
    kept = [entry for entry in _entries(traceback) if not entry.tb_frame.f_code.co_filename.startswith(_CAPTURE)]
    shown: TracebackType | None = None
    for entry in reversed(kept):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown or traceback


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and those that led to it."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            waiting += [one.__cause__, one.__context__]
    return list(found.values())
