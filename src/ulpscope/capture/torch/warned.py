"""Warnings that would point at our own code: they are told where the run would have given them without us.

A warning's place is a frame so many levels above the code that warns, and while a call is recorded our frames are among
them, or torch's that asks us, where the compiled host part has none. Python also remembers by place what it has told.
"""

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

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
        warning = sys._getframe(1)
        is_placed = warning.f_code is place.__code__
        pointed, meant = (None, None) if is_placed or not entry.is_on else _frames(warning, message)
        if pointed is None or meant is None or pointed is meant:
            show(message)
            return
        _forget(message, pointed.f_globals.get(_REGISTRY, {}))
        warnings.warn_explicit(
            message.message,
            message.category,
            meant.f_code.co_filename,
            meant.f_lineno,
            meant.f_globals.get("__name__"),
            meant.f_globals.setdefault(_REGISTRY, {}),
            None,
            message.source,
        )

    return place


def _forget(message: warnings.WarningMessage, told: dict[Any, Any]) -> None:
    """That this was told at the place that is not meant, whichever of Python's filters has noted it."""
    text = str(message.message)
    for line in (message.lineno, 0):
        told.pop((text, message.category, line), None)
    warnings.onceregistry.pop((text, message.category), None)  # type: ignore[attr-defined]


def _frames(first: FrameType, message: warnings.WarningMessage) -> tuple[FrameType | None, FrameType | None]:
    """What a warning points at, and what is as many levels above the code that warns if only the run's frames count."""
    levels, pointed = 0, first
    while (pointed.f_code.co_filename, pointed.f_lineno) != (message.filename, message.lineno):
        if pointed.f_back is None:
            return None, None
        levels, pointed = levels + 1, pointed.f_back
    meant = _runs_own(first)
    for _ in range(levels):
        meant = None if meant is None else _runs_own(meant.f_back)
    return pointed, meant


def _runs_own(frame: FrameType | None) -> FrameType | None:
    """The frame that would be there without us, and without torch's asking, which calls the same function once more."""
    while frame is not None and (is_ours(frame.f_code) or frame.f_code is HANDLER):
        asker = frame.f_back if frame.f_code is HANDLER else frame
        frame = None if asker is None else asker.f_back
    return frame
