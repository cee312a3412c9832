"""Where in the run a thread is: which modules and calls are open."""

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from ulpscope.capture.recording.recorder import OpenCall


@dataclass(slots=True)
class ModuleScope:
    """A module whose forward is running."""

    path: str | None
    class_name: str | None
    stack: int | None = None
    """The stack that led to its call, if that is recorded."""


OUTSIDE = ModuleScope(None, None)


class HostCall(NamedTuple):
    """A call that the compiled host part records."""

    id: int


class Scopes(threading.local):
    """The open modules and calls of the current thread."""

    def __init__(self) -> None:
        self.modules: list[ModuleScope] = []
        self.calls: list[OpenCall | HostCall] = []
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
