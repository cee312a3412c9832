"""Where in the run a thread is: which modules and calls are open."""

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ulpscope.capture.torch.recorder import OpenCall


@dataclass(frozen=True, slots=True)
class ModuleScope:
    """A module whose forward is running."""

    path: str
    class_name: str


class Scopes(threading.local):
    """The open modules and calls of the current thread."""

    def __init__(self) -> None:
        self.modules: list[ModuleScope] = []
        self.calls: list[OpenCall] = []
        self.backward: OpenCall | None = None
        """The call that started the last backward pass."""
        self.hidings: list[AbstractContextManager[None]] = []
        """Suspensions that a backward hook began and another one ends."""
        self.hidden = 0
        """Above zero while code runs that is not to be recorded call by call."""

    @property
    def parent(self) -> int | None:
        return self.calls[-1].id if self.calls else None

    @property
    def module(self) -> str | None:
        return self.modules[-1].path if self.modules else None

    @property
    def module_class(self) -> str | None:
        return self.modules[-1].class_name if self.modules else None
