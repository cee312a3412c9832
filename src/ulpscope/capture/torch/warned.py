"""Warnings that would point at our own code: they are told where the run would have given them without us.

A warning's place is a frame so many levels above the code that warns, and while a call is recorded our frames are among
them. Python also remembers by place what it has told already.
"""

import sys
import warnings
from collections.abc import Callable
from types import FrameType

from ulpscope.capture.torch.originals import HANDLER
from ulpscope.capture.torch.replacing import Replacement
from ulpscope.capture.torch.stacks import is_ours

_REGISTRY = "__warningregistry__"


def replaced_showing() -> Replacement:
    """What stands between Python's filters and whoever shows or collects warnings."""
    return Replacement(warnings, "_showwarnmsg", _placed)


def _placed(entry: Replacement) -> Callable[[warnings.WarningMessage], None]:
    show = entry.original

    def place(message: warnings.WarningMessage) -> None:
        ours = _first_of_ours(sys._getframe(1), message.filename) if entry.is_on else None
        frame = _runs_own(ours)
        if ours is None or frame is None:
            show(message)
            return
        ours.f_globals.pop(_REGISTRY, None)
        warnings.onceregistry.pop((str(message.message), message.category), None)  # type: ignore[attr-defined]
        warnings.warn_explicit(
            message.message,
            message.category,
            frame.f_code.co_filename,
            frame.f_lineno,
            frame.f_globals.get("__name__"),
            frame.f_globals.setdefault(_REGISTRY, {}),
            None,
            message.source,
        )

    return place


def _first_of_ours(frame: FrameType | None, file: str) -> FrameType | None:
    """The frame of ours that a warning points at."""
    while frame is not None and (frame.f_code.co_filename != file or not is_ours(frame.f_code)):
        frame = frame.f_back
    return frame


def _runs_own(frame: FrameType | None) -> FrameType | None:
    """The frame that would be there without us, and without torch's asking."""
    while frame is not None and (is_ours(frame.f_code) or frame.f_code is HANDLER):
        asker = frame.f_back if frame.f_code is HANDLER else frame
        frame = None if asker is None else asker.f_back
    return frame
