"""What runs while a graph is made: the layer, the op whose gradient is computed or the optimizer that each of the
graph's ops belongs to, and the line of the script that made it.

TensorFlow runs the Python of a function or of a session's script once, to make a graph. What is learnt here turns the
graph's nodes, when they are executed, into the calls that the same Python would have made eagerly.
"""

import contextlib
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensorflow.python.framework import ops
from tensorflow.python.util import tf_stack

from ulpscope.capture.recording.recorder import Recorder
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.tensorflow.tensors import EAGER, SYMBOLIC_ARGUMENTS
from ulpscope.records.enums import Kind, Phase


class Symbol(NamedTuple):
    """A tensor of a graph."""

    op: str
    slot: int


@dataclass(frozen=True, slots=True)
class SymbolicUse:
    """A tensor that a scope reads or makes."""

    role: str
    place: str
    symbol: Symbol


@dataclass(frozen=True, slots=True)
class HeldUse:
    """A variable that a scope reads, or has written when it ends."""

    role: str
    place: str
    handle: Any
    """Of a session's variable its name."""


@dataclass(eq=False, slots=True)
class Scope:
    """A call of the script's in which ops of a graph are made."""

    number: int
    kind: Kind
    op: str
    outer: "Scope | None"
    graph: int
    """The identity of the graph that was being made."""
    module: str | None
    module_class: str | None
    phase: Phase | None = None
    stack: int | None = None
    forward: str | None = None
    """The op whose gradient this is."""
    symbols: list[SymbolicUse] = field(default_factory=list)
    held: list[HeldUse] = field(default_factory=list)
    arguments: str = "{}"
    holds: bool = True
    """Whether what is made meanwhile is inside of its call."""
    shown: list[str] = field(default_factory=list)
    """Of an update: names of the ops that are read."""
    optimizer: Any = None
    """A weak reference to whoever updates: its settings are asked for when it does."""


def outermost_first(scope: Scope | None) -> list[Scope]:
    """A scope with all that it is in."""
    found = []
    while scope is not None:
        found.append(scope)
        scope = scope.outer
    return found[::-1]


class Written(NamedTuple):
    """Where an op of a graph was made."""

    number: int
    graph: int
    scope: Scope | None
    phase: Phase | None
    stack: int | None
    inputs: tuple[Symbol, ...]
    op: str
    is_alike: bool = False
    """Whether its first result has the shape of its first operand."""


MADE_OF_GRADIENTS = (Phase.BACKWARD, Phase.OTHER)

SHOWN_OF_UPDATES = 16
"""Ops, the last of an update: the first make states, or are folded. Half of them only write, and have no result. So
each of Keras' optimizers is seen to run (test_sees.py)."""


def _update_of(scope: "Scope | None") -> "Scope | None":
    while scope is not None and scope.kind is not Kind.OPTIMIZER:
        scope = scope.outer
    return scope


class Tracer:
    """Notes where the ops of graphs are made."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers = itertools.count()
        self._scope: Scope | None = None
        self._by_graph: weakref.WeakKeyDictionary[Any, dict[str, Written]] = weakref.WeakKeyDictionary()
        self._latest: dict[str, Written] = {}
        self._in_folder: dict[str, tuple[str, Written]] = {}
        self.updating: set[str] = set()
        """Names of ops of updates that nobody outside of them reads."""
        self.hidden = 0
        """Above zero while ops are made that nobody executes: shapes of a model's layers are asked for."""

    @property
    def module(self) -> str | None:
        """The path of the layer that is being called."""
        return None if self._scope is None else self._scope.module

    def made(self, op: Any, inputs: Sequence[Any], outputs: Sequence[Any], name: str | None, graph: Any) -> None:
        """An op was put into a graph; a constant may have no name yet, and is nobody's call."""
        if self.hidden or name is None:
            return
        known = self._by_graph.get(graph)
        if known is None:
            known = self._by_graph[graph] = {}
        read = tuple(Symbol(tensor.op.name, tensor.value_index) for tensor in inputs)
        phase = self._phase(read)
        stack = None if phase is Phase.UPDATE else self.stack()  # of thousands of ops, which are told as one call
        where = Written(
            next(self._numbers), id(graph), self._scope, phase, stack, read, str(op), _are_alike(inputs, outputs)
        )
        known[name] = where
        if where.op == "Placeholder" and name in self._latest:
            return  # what an inner graph is handed bears the name of who made it
        self._latest[name] = where
        self._note_update(name, read)
        folder = name.rpartition("/")[0]
        if folder:
            self._in_folder[folder] = name, where

    def _phase(self, read: tuple[Symbol, ...]) -> Phase | None:
        """Of the scope; what the script makes of gradients by itself is no part of the forward."""
        phase = None if self._scope is None else self._scope.phase
        if phase is not None:
            return phase
        given = (self._latest.get(symbol.op) for symbol in read)
        return Phase.OTHER if any(one is not None and one.phase in MADE_OF_GRADIENTS for one in given) else None

    def _note_update(self, name: str, read: tuple[Symbol, ...]) -> None:
        """Of each update the last ops are read all the same: they tell that it runs."""
        update = _update_of(self._scope)
        if update is None:
            self.updating.difference_update(symbol.op for symbol in read)
            return
        update.shown.append(name)
        if len(update.shown) > SHOWN_OF_UPDATES:
            self.updating.add(update.shown.pop(0))

    def written(self, graph: Any) -> dict[str, Written]:
        """All ops of a graph by name."""
        return self._by_graph.get(graph, {})

    def latest(self, name: str) -> Written | None:
        """The op of this name that was made last, in any graph."""
        return self._latest.get(name)

    def in_folder(self, folder: str) -> tuple[str, Written] | None:
        """The op that was made last directly in a name scope, with its name."""
        return self._in_folder.get(folder)

    def bias_gradients(self) -> dict[Symbol, str]:
        """Names of ops that compute gradients of biases, by what they sum."""
        ops = ((name, made.inputs) for name, made in self._latest.items() if "BiasAddGrad" in name)
        return {inputs[0]: name for name, inputs in ops if len(inputs) == 1}

    def open(self, kind: Kind, op: str, **known: Any) -> Scope:
        """A scope inside of the one that is running; `known` are its fields."""
        outer = self._scope
        where = {"module": outer and outer.module, "module_class": outer and outer.module_class, **known}
        where.setdefault("phase", outer and outer.phase)
        graph = id(ops.get_default_graph())
        return Scope(next(self._numbers), kind, op, outer, graph, stack=self.stack(), **where)

    @contextlib.contextmanager
    def inside(self, scope: Scope | None) -> Iterator[None]:
        """Ops that are made meanwhile belong to a scope."""
        if scope is None:
            yield
            return
        before, self._scope = self._scope, scope
        try:
            yield
        finally:
            self._scope = before

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Ops that are made meanwhile are none of the script's."""
        self.hidden += 1
        try:
            yield
        finally:
            self.hidden -= 1

    def stack(self) -> int | None:
        """The lines of the script that are running, as they were before TensorFlow rewrote them."""
        stacks = self._recorder.stacks
        lines = ((frame.filename, frame.lineno, frame.name) for frame in reversed(tf_stack.extract_stack()))
        return stacks.number_of([line for line in lines if not stacks.hides(line[0])])


def _are_alike(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    if not inputs or not outputs:
        return False
    given, made = inputs[0].shape, outputs[0].shape
    return given.rank is not None and made.rank is not None and given.as_list() == made.as_list()


def symbols(role: str, tensors: Placed) -> list[SymbolicUse]:
    """Tensors of a graph, at their places."""
    return [
        SymbolicUse(role, place, Symbol(tensor.op.name, tensor.value_index))
        for place, tensor in tensors
        if is_symbolic(tensor)
    ]


def is_symbolic(tensor: Any) -> bool:
    """Whether it is a tensor of a graph, not an eager one."""
    return isinstance(tensor, SYMBOLIC_ARGUMENTS.tensor) and not isinstance(tensor, EAGER)


def placed_gradients(places: Iterable[str], gradients: Iterable[Any]) -> Placed:
    """Gradients as tensors of a graph: of one that tells only some rows, the rows and which they are."""
    found: Placed = []
    for place, gradient in zip(places, gradients, strict=False):
        if hasattr(gradient, "indices") and hasattr(gradient, "values"):
            found += [(place, gradient.values), (f"{place}.indices", gradient.indices)]
        elif gradient is not None:
            found.append((place, gradient))
    return found
