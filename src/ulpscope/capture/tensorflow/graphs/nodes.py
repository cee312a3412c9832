"""Graphs that are observed: nodes as they are executed, after everything that rewrites them."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple


class NotRead(str, Enum):
    """Why a result of a node is not read."""

    DTYPE = "dtype"
    """Strings, resources, variants, and types that no trace knows."""
    REFERENCE = "reference"
    """It is a variable of a session, which others write at any time."""
    HANDED_ON = "handed_on"
    """The node gives what it was given, which was read where it was made."""
    NO_RESULT = "no_result"
    """The node only writes, sends or orders: what it writes is read where it is used."""
    OPTIMIZER = "optimizer"
    """The node belongs to an update, into which nobody wants to see."""
    FUNCTION_BODY = "function_body"
    """The node runs a function whose body nobody prepares: what happens inside is not seen."""
    XLA = "xla"
    """XLA compiles what the node runs: what happens inside is not seen."""
    DEVICE = "device"
    """The graph does not run on the CPU: nothing in it is read."""
    FAILED = "failed"
    """TensorFlow refused an observer: from some node on, nothing in the graph is read."""


class Source(NamedTuple):
    """A result: of which node (its place among the graph's), and which of its outputs."""

    node: int
    slot: int


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node as it is executed."""

    name: str
    op: str
    inputs: tuple[Source, ...]
    controls: tuple[int, ...]
    """Nodes that come first, whose results it does not use."""
    fused_from: tuple[str, ...]
    """Names that it or its parts had before they were fused or renamed, as far as TensorFlow tells them."""
    fused_ops: tuple[str, ...]
    """Operations that follow its own in one kernel."""
    functions: tuple[str, ...]
    """Functions that it calls."""
    definition: Any = field(repr=False, compare=False)
    """TensorFlow's NodeDef: all attributes."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A result that is not read; slot -1 for what a node runs inside, node -1 for a whole graph."""

    node: int
    slot: int
    reason: NotRead


@dataclass(frozen=True)
class ObservedGraph:
    """A graph that one device executes: a function's, or what a session was asked for."""

    number: int
    function: str
    """Empty for a session's."""
    device: str
    fusions: bool
    """Whether grappler might fuse operations."""
    nodes: tuple[GraphNode, ...]
    left_out: tuple[LeftOut, ...]

    def counts(self) -> dict[NotRead, int]:
        """How many results are not read, by reason."""
        return dict(Counter(left.reason for left in self.left_out))

    @cached_property
    def _handed_on(self) -> frozenset[tuple[int, int]]:
        return frozenset((left.node, left.slot) for left in self.left_out if left.reason is NotRead.HANDED_ON)

    def origins(self, source: Source) -> tuple[Source, ...]:
        """Where a result was made: itself, or behind nodes that hand it on. A merge hands on one of several.

        Where there are several, the one that was read last before is meant.
        """
        known = self._origins.get(source)
        if known is None:
            known = self._origins[source] = self._find_origins(source)
        return known

    @cached_property
    def _origins(self) -> dict[Source, tuple[Source, ...]]:
        return {}

    def _find_origins(self, source: Source) -> tuple[Source, ...]:
        found, asked, waiting = [], set(), [source]
        while waiting:
            here = waiting.pop()
            if here in asked:
                continue
            asked.add(here)
            inputs = self.nodes[here.node].inputs
            if here not in self._handed_on or not inputs:
                found.append(here)
            else:
                waiting.append(inputs[0])
        return tuple(found)


def parse_graph(
    number: int, parts: Mapping[str, bytes], parse: Callable[[bytes], Any], *, fusions: bool
) -> ObservedGraph:
    """A graph from what the observer kept of it; `parse` makes a GraphDef of bytes."""
    definitions = list(parse(parts["definition"]).node)
    places = {definition.name: place for place, definition in enumerate(definitions)}
    return ObservedGraph(
        number=number,
        function=parts["function"].decode(),
        device=parts["device"].decode(),
        fusions=fusions,
        nodes=tuple(_node(definition, places) for definition in definitions),
        left_out=tuple(_left_out(line) for line in parts["left_out"].decode().splitlines()),
    )


def _node(definition: Any, places: Mapping[str, int]) -> GraphNode:
    words = [str(word) for word in definition.input]
    return GraphNode(
        name=definition.name,
        op=definition.op,
        inputs=tuple(_source(word, places) for word in words if not word.startswith("^")),
        controls=tuple(places[word[1:]] for word in words if word.startswith("^")),
        fused_from=tuple(definition.experimental_debug_info.original_node_names),
        fused_ops=_fused_ops(definition),
        functions=_functions(definition),
        definition=definition,
    )


def _source(word: str, places: Mapping[str, int]) -> Source:
    """`name` or `name:slot`."""
    name, _, slot = word.partition(":")
    return Source(places[name], int(slot or 0))


def _fused_ops(definition: Any) -> tuple[str, ...]:
    if "fused_ops" not in definition.attr:
        return ()
    return tuple(word.decode() for word in definition.attr["fused_ops"].list.s)


def _functions(definition: Any) -> tuple[str, ...]:
    names = []
    for _, attribute in sorted(definition.attr.items()):
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names += [function.name for function in attribute.list.func]
    return tuple(names)


def _left_out(line: str) -> LeftOut:
    node, slot, reason = line.split()
    return LeftOut(int(node), int(slot), NotRead(reason))
