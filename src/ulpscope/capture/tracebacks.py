"""A script that ends by an exception prints the traceback it would have without a capture.

Only what is printed changes: exceptions keep the frames that they have, and a hook of the user's is left alone.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parent) + os.sep


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
    kept = [entry for entry in _entries(traceback) if not entry.tb_frame.f_code.co_filename.startswith(_OURS)]
    shown: TracebackType | None = None
    for entry in reversed(kept):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown or traceback


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


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
