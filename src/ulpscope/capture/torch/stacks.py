"""Call stacks of the user's code, each kept once. Line numbers are worked out when a stack is first seen."""

import os
import sys
from types import CodeType, FrameType
from typing import Any

import torch

from ulpscope.records.calls import Frame

MAX_DEPTH = 64

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = tuple(os.path.join(_PACKAGE, room) + os.sep for room in ("capture", "workflows", "compat"))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HIDDEN_PREFIXES = (*_OURS, _TORCH, "<frozen ")


class StackTable:
    """Numbers stacks by their code positions."""

    def __init__(self) -> None:
        self._ids: dict[tuple[Any, ...], int] = {}
        self._fresh: list[tuple[int, tuple[Frame, ...]]] = []
        self._hidden: dict[CodeType, bool] = {}

    def current(self) -> int:
        """The id of the stack that led here, innermost user frame first."""
        frames = self._visible_frames(sys._getframe(1))
        key = tuple((frame.f_code, frame.f_lasti) for frame in frames)
        known = self._ids.get(key)
        if known is not None:
            return known
        number = self._ids[key] = len(self._ids)
        self._fresh.append((number, tuple(_resolve(frame) for frame in frames)))
        return number

    def take_fresh(self) -> list[tuple[int, tuple[Frame, ...]]]:
        """Stacks first seen since the last time this was asked."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def _visible_frames(self, frame: FrameType | None) -> list[FrameType]:
        frames: list[FrameType] = []
        hidden = self._hidden
        while frame is not None and len(frames) < MAX_DEPTH:
            code = frame.f_code
            known = hidden.get(code)
            if known is None:
                known = hidden[code] = code.co_filename.startswith(_HIDDEN_PREFIXES)
            if not known:
                frames.append(frame)
            frame = frame.f_back
        return frames


def calling_torch_files(depth: int = 12) -> list[str]:
    """Names of torch's own source files that are on the stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    files = []
    while frame is not None and depth:
        name = frame.f_code.co_filename
        if name.startswith(_TORCH):
            files.append(name[len(_TORCH) :])
        frame = frame.f_back
        depth -= 1
    return files


def _resolve(frame: FrameType) -> Frame:
    code = frame.f_code
    return Frame(file=code.co_filename, line=frame.f_lineno or code.co_firstlineno, function=code.co_name)
