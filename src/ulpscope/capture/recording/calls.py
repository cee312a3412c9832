"""Calls while they run, in which modules, what became of them, and which are wanted (--only and --skip)."""

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from ulpscope.capture.recording.tensors import Placed
from ulpscope.records.enums import Kind, Phase, Role

# Words of enums, for code that runs several times a call: asking an enum for its word takes longer than a use.
INPUT, OUTPUT = Role.INPUT.value, Role.OUTPUT.value
PARAMETER, BUFFER = Role.PARAMETER.value, Role.BUFFER.value
GRAD_OUTPUT, GRAD_INPUT = Role.GRAD_OUTPUT.value, Role.GRAD_INPUT.value


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call while it runs, and after it for as long as its backward may still come."""

    id: int
    name: str
    kind: Kind
    op: str
    module: str | None
    module_class: str | None
    phase: Phase
    step: int
    micro_step: int
    parent: int | None
    wanted: bool
    recompute: bool = False
    forward: int | None = None
    stack: int | None = None
    autocast: str | None = None
    random: bool = False
    generator: str | None = None
    arguments: str = "{}"
    error: str | None = None


@dataclass(slots=True)
class CallCounts:
    """What became of the calls."""

    seen: int = 0
    recorded: int = 0
    filtered: int = 0
    unobserved: dict[str, int] = field(default_factory=dict)
    raised: dict[str, int] = field(default_factory=dict)
    other_threads: int = 0


class CallPatterns:
    """Decides whether a call is wanted; the same question is answered once.

    A pattern with `*`, `?` or `[` is matched as a whole against op, module path and call name. A plain word matches an
    op by its full or last name, a call by its name, and a module together with everything inside it. The kernels of a
    chosen call are chosen with it.
    """

    def __init__(self, *, only: tuple[str, ...], skip: tuple[str, ...], of_modules: bool = False) -> None:
        """`of_modules`: they choose among calls of modules, and leave all others."""
        self._only = only
        self._of_modules = of_modules
        self.chooses = bool(only)
        """Whether some calls are wanted and others are not."""
        self._skip = skip
        self._answers: dict[tuple[str, str | None, str, bool], bool] = {}

    def wants(self, op: str, module: str | None, name: str, *, inside: bool = False) -> bool:
        """Whether this call is wanted; one `inside` of a chosen call unless it is to be skipped."""
        if not self._only and not self._skip:
            return True
        if self._of_modules and not module:
            return True
        question = (op, module, name, inside)
        answer = self._answers.get(question)
        if answer is None:
            chosen = inside or not self._only or any(matches(pattern, op, module, name) for pattern in self._only)
            skipped = any(matches(pattern, op, module, name) for pattern in self._skip)
            answer = self._answers[question] = chosen and not skipped
        return answer


class ParameterPatterns:
    """Decides whether a parameter is wanted, as paths of modules are: a part of its name from dot to dot will do."""

    def __init__(self, *, only: tuple[str, ...], skip: tuple[str, ...]) -> None:
        self._only, self._skip = only, skip

    def keep(self, named: Placed) -> Placed:
        """Those that are wanted, by the parameter's name."""
        return [(name, one) for name, one in named if self.wants(name)] if self._only or self._skip else named

    def wants(self, name: str) -> bool:
        chosen = not self._only or any(matches(pattern, name, name, name) for pattern in self._only)
        return chosen and not any(matches(pattern, name, name, name) for pattern in self._skip)


def matches(pattern: str, op: str, module: str | None, name: str) -> bool:
    """Whether a pattern means this call."""
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(text, pattern) for text in (op, module, name) if text is not None)
    if pattern in (op, op.rpartition(".")[2], name):
        return True
    return module is not None and (module == pattern or f".{module}.".find(f".{pattern}.") >= 0)


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
