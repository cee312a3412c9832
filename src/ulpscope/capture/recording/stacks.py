"""Call stacks of the user's code, each kept once: by code positions, whose lines are worked out when it is written.

And the modules that this code calls from outside of any other.
"""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from ulpscope.records.calls import Frame
from ulpscope.records.runs import Root

MAX_DEPTH = 64

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = tuple(os.path.join(_PACKAGE, room) + os.sep for room in ("capture", "workflows", "compat"))
HIDDEN = (*_OURS, "<frozen ")
"""How names of files begin whose frames are not the user's, whatever the framework."""


class StackTable:
    """Numbers stacks. Codes are told apart by their ids, and kept: to hash a code is to hash all that is in it."""

    def __init__(self, *framework: str) -> None:
        """With the folders of the framework, whose frames are left out of stacks."""
        self._prefixes = (*HIDDEN, *framework)
        self.module_call: CodeType | None = None
        """The code of ours that every observed module call runs through; whoever observes them sets it."""
        self._ids: dict[tuple[int | None, ...], int] = {}
        """By what a walk meets: as far as the enclosing module call, or all of it."""
        self._numbers: dict[tuple[int, ...], int] = {}
        self._stacks: list[tuple[int, ...]] = []
        """Ids of codes and positions in them by turns, innermost first."""
        self._given: dict[int, tuple[Frame, ...]] = {}
        """Stacks that came as lines, by their numbers."""
        self._by_lines: dict[tuple[tuple[str, int, str], ...], int] = {}
        self._hidden_files: dict[str, bool] = {}
        self._told = 0
        self._codes: dict[int, CodeType] = {}
        self._hidden: dict[int, bool] = {}

    def number(self, frame: FrameType, enclosing: int | None) -> int:
        """The id of the stack that led to a frame.

        `enclosing` is the stack of the innermost module call that runs in this thread, if that is known: it cannot
        have changed since, so the walk ends there.
        """
        key = self._walk(frame, enclosing)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = self._number(key)
        return known

    def hides(self, file: str) -> bool:
        """Whether frames of a file are the framework's or ours."""
        known = self._hidden_files.get(file)
        if known is None:
            known = self._hidden_files[file] = file.startswith(self._prefixes)
        return known

    def number_of(self, lines: Sequence[tuple[str, int, str]]) -> int:
        """The id of a stack that a framework tells by lines, innermost first: file, line and function."""
        kept = tuple(lines[:MAX_DEPTH])
        number = self._by_lines.get(kept)
        if number is None:
            number = self._by_lines[kept] = len(self._stacks)
            self._stacks.append(())
            self._given[number] = tuple(Frame(file=file, line=line, function=name) for file, line, name in kept)
        return number

    def take_fresh(self) -> list[tuple[int, tuple[Frame, ...]]]:
        """Stacks first seen since the last time this was asked."""
        fresh = []
        for number in range(self._told, len(self._stacks)):
            if number in self._given:
                fresh.append((number, self._given[number]))
                continue
            codes, positions = self._stacks[number][::2], self._stacks[number][1::2]
            frames = (_frame(self._codes[code], position) for code, position in zip(codes, positions, strict=True))
            fresh.append((number, tuple(frames)))
        self._told = len(self._stacks)
        return fresh

    def _walk(self, frame: FrameType | None, enclosing: int | None) -> tuple[int | None, ...]:
        """The enclosing stack, if the walk ends there, and the codes and positions in front of it."""
        key: list[int | None] = [enclosing]
        hidden, stop = self._hidden, None if enclosing is None else self.module_call
        while frame is not None and len(key) <= 2 * MAX_DEPTH:
            code = frame.f_code
            if code is stop:
                return tuple(key)
            is_hidden = hidden.get(id(code))
            if is_hidden is None:
                is_hidden = self.is_hidden(code)
            if not is_hidden:
                key.append(id(code))
                key.append(frame.f_lasti)
            frame = frame.f_back
        key[0] = None
        return tuple(key)

    def is_hidden(self, code: CodeType) -> bool:
        """Whether a code is the framework's or ours; from now on it is known."""
        self._codes[id(code)] = code
        is_hidden = self._hidden[id(code)] = code.co_filename.startswith(self._prefixes)
        return is_hidden

    def _number(self, key: tuple[Any, ...]) -> int:
        whole = key[1:] if key[0] is None else key[1:] + self._stacks[key[0]]
        stack = whole[: 2 * MAX_DEPTH]
        number = self._numbers.get(stack)
        if number is None:
            number = len(self._stacks)
            self._stacks.append(stack)  # first: an interruption in between leaves no number without its stack
            self._numbers[stack] = number
        return number


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OURS)


def _frame(code: CodeType, position: int) -> Frame:
    line = next((line for start, end, line in code.co_lines() if start <= position < end), None)
    return Frame(file=code.co_filename, line=line or code.co_firstlineno, function=code.co_name)


@dataclass(slots=True)
class _Known:
    module: weakref.ref[Any]
    module_class: str
    source: str | None
    calls: int


class RootLog:
    """The modules that a run calls from outside of any other: their names, where that happens first, how often."""

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self._known: dict[str, _Known] = {}

    def note(self, module: Any, name: str, frame: FrameType) -> None:
        """A root of this name was called from `frame`."""
        kind = type(module)
        module_class = f"{kind.__module__}.{kind.__qualname__}"
        known = self._known.get(name)
        # A name may be given to another module; one that is made anew for every call stays what it was.
        earlier = None if known is None else known.module()
        is_other = earlier is not None and earlier is not module
        if known is None or is_other or known.module_class != module_class:
            self._known[name] = _Known(weakref.ref(module), module_class, self._source(frame), 1)
        else:
            known.calls += 1

    def _source(self, frame: FrameType | None) -> str | None:
        while frame is not None and self._stacks.is_hidden(frame.f_code):
            frame = frame.f_back
        return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    @property
    def roots(self) -> tuple[Root, ...]:
        """In the order of their first calls."""
        return tuple(
            Root(name=name, module_class=known.module_class, source=known.source, calls=known.calls)
            for name, known in self._known.items()
        )
