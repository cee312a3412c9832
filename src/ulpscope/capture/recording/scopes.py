"""Where in the run a thread is: which modules and calls are open; which modules are called from outside of others."""

import threading
import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.stacks import StackTable
from ulpscope.records.runs import Root


@dataclass(slots=True)
class ModuleScope:
    """A module whose forward is running."""

    path: str | None
    class_name: str | None
    stack: int | None = None
    """The stack that led to its call, if that is recorded."""


OUTSIDE = ModuleScope(None, None)


class NumberedCall(NamedTuple):
    """A call of which a compiled recorder keeps the rest."""

    id: int


class Scopes(threading.local):
    """The open modules and calls of the current thread."""

    def __init__(self) -> None:
        self.modules: list[ModuleScope] = []
        self.calls: list[OpenCall | NumberedCall] = []
        self.backward: OpenCall | None = None
        """The call that started the last backward pass."""
        self.hidings: list[AbstractContextManager[None]] = []
        """Suspensions that a backward hook began and another one ends."""
        self.hidden = 0
        """Above zero while code runs that is not to be recorded call by call."""

    @property
    def parent(self) -> int | None:
        calls = self.calls
        return calls[-1].id if calls else None

    @property
    def innermost(self) -> ModuleScope:
        """The module that is running, or the nameless scope outside of all modules."""
        modules = self.modules
        return modules[-1] if modules else OUTSIDE

    @property
    def module(self) -> str | None:
        return self.innermost.path

    @property
    def module_class(self) -> str | None:
        return self.innermost.class_name


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
        known = self._known.get(name)
        if known is None or _is_other(known, module):
            self._known[name] = _Known(weakref.ref(module), _class_of(module), self._source(frame), 1)
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


def _is_other(known: _Known, module: Any) -> bool:
    """Whether a name was given to another module; one that is made anew for every call stays what it was."""
    return known.module_class != _class_of(module) or (known.module() is not None and known.module() is not module)


def _class_of(module: Any) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"
