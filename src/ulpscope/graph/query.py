"""Operators of a model: counted, filtered, found by name; which reads which, what lies around one.

Tensors are followed over the borders of sub-graphs: an operator such as PartitionedCall runs a graph of its own. Data
operators in there stand for the call's inputs, and the inputs of its NetOutput for the call's outputs. In a function of
TensorFlow these are its _Arg and _Retval; several calls may run one function, then its arguments have no one maker.
"""

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from ulpscope.graph.names import sanitised
from ulpscope.records.graphs import (
    ARGUMENT,
    INDEX,
    RESULT,
    ControlEdge,
    Edge,
    Graph,
    GraphModel,
    Operator,
    Source,
)


@dataclass(frozen=True, slots=True)
class OperatorFilter:
    """Which operators are wanted: those that fit every pattern that is given."""

    name: str | None = None
    type: str | None = None
    fusion_pass: str | None = None
    kernel: str | None = None
    graph: str | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def __str__(self) -> str:
        words = {field.name.removeprefix("fusion_"): getattr(self, field.name) for field in fields(self)}
        return " ".join(f"--{option} {pattern}" for option, pattern in words.items() if pattern is not None)


@dataclass(frozen=True, slots=True)
class FoundOperators:
    """What a name leads to: operators of that name (one a graph), or those that it may mean."""

    operators: tuple[Operator, ...] = ()
    candidates: tuple[Operator, ...] = ()


def all_operators(model: GraphModel) -> Iterator[Operator]:
    for graph in model.graphs:
        yield from graph.operators


def type_counts(model: GraphModel) -> list[tuple[str, int]]:
    """How many operators of each type there are, the most frequent first."""
    counted = Counter(operator.type for operator in all_operators(model))
    return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))


def match_operators(model: GraphModel, wanted: OperatorFilter) -> list[Operator]:
    return [operator for operator in all_operators(model) if fits(operator, wanted)]


def find_operators(model: GraphModel, name: str) -> FoundOperators:
    """By the whole name; else by the name as files write it (fc1_Relu for fc1/Relu); else by a part of it."""
    for called in (lambda other: other == name, lambda other: sanitised(other) == sanitised(name)):
        found = tuple([operator for operator in all_operators(model) if called(operator.name)])
        if found:
            return FoundOperators(operators=found)
    partly = tuple(match_operators(model, OperatorFilter(name=name)))
    if len({operator.name for operator in partly}) == 1:
        return FoundOperators(operators=partly)
    return FoundOperators(candidates=partly)


def nearest_names(model: GraphModel, name: str) -> list[str]:
    """Names that resemble one that is not there."""
    names = dict.fromkeys(operator.name for operator in all_operators(model))
    return difflib.get_close_matches(name, names, n=3, cutoff=0.5)


def fits(operator: Operator, wanted: OperatorFilter) -> bool:
    """Whether an operator is wanted."""
    return (
        _one_fits((operator.name,), wanted.name)
        and _one_fits((operator.type,), wanted.type)
        and _one_fits(operator.passes, wanted.fusion_pass)
        and _one_fits((operator.kernel or "",), wanted.kernel)
        and _one_fits((operator.graph,), wanted.graph)
    )


def _one_fits(texts: Iterable[str], pattern: str | None) -> bool:
    """Whether a pattern stands anywhere in a text; one with * or ? must fit all of it. Case does not count."""
    if pattern is None:
        return True
    small = pattern.lower()
    if "*" in small or "?" in small:
        return any(fnmatchcase(text.lower(), small) for text in texts)
    return any(small in text.lower() for text in texts)


@dataclass(frozen=True, slots=True)
class Wiring:
    """A graph's edges, found by either end."""

    operators: Mapping[str, Operator]
    """By name; where several bear one, the first."""
    readers: Mapping[str, tuple[Edge, ...]]
    """Edges that leave an operator, by its name."""
    followers: Mapping[str, tuple[str, ...]]
    """Operators that wait for one without reading anything of it."""


def edges(graph: Graph) -> tuple[Edge, ...]:
    """Tensors that go from operator to operator. What no operator makes (ONNX: weights, inputs) has no edge."""
    names = {operator.name for operator in graph.operators}
    return tuple(
        [
            Edge(each.source.operator, each.source.output, operator.name, position)
            for operator in graph.operators
            for position, each in enumerate(operator.inputs)
            if each.source is not None and each.source.operator in names
        ]
    )


def control_edges(graph: Graph) -> tuple[ControlEdge, ...]:
    """Orders without a tensor."""
    names = {operator.name for operator in graph.operators}
    return tuple(
        [
            ControlEdge(before, operator.name)
            for operator in graph.operators
            for before in operator.controls
            if before in names
        ]
    )


def wiring(graph: Graph) -> Wiring:
    readers: dict[str, list[Edge]] = defaultdict(list)
    followers: dict[str, list[str]] = defaultdict(list)
    for edge in edges(graph):
        readers[edge.producer].append(edge)
    for control in control_edges(graph):
        followers[control.before].append(control.after)
    return Wiring(
        operators={operator.name: operator for operator in reversed(graph.operators)},
        readers={name: tuple(found) for name, found in readers.items()},
        followers={name: tuple(found) for name, found in followers.items()},
    )


BORDERS = ("AtomicAddrClean", "NetOutput")
"""Types of operators that join everything with everything: shown, not passed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An operator with its surroundings."""

    centre: str
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]
    controls: tuple[ControlEdge, ...]


def cut_out(graph: Graph, name: str, *, depth: int) -> Cut:
    """What can be reached from an operator in this many steps, along tensors and orders, in both directions."""
    inside = _within(wiring(graph), name, depth)
    return Cut(
        centre=name,
        operators=tuple([operator for operator in graph.operators if operator.name in inside]),
        edges=tuple([edge for edge in edges(graph) if edge.producer in inside and edge.consumer in inside]),
        controls=tuple([edge for edge in control_edges(graph) if edge.before in inside and edge.after in inside]),
    )


def _within(wires: Wiring, name: str, depth: int) -> set[str]:
    inside = {name}
    frontier = [name]
    for _ in range(depth):
        passable = [near for near in frontier if near == name or wires.operators[near].type not in BORDERS]
        reached = dict.fromkeys(other for near in passable for other in _neighbours(wires, near))
        frontier = [other for other in reached if other not in inside and other in wires.operators]
        if not frontier:
            break
        inside.update(frontier)
    return inside


def _neighbours(wires: Wiring, name: str) -> Iterator[str]:
    operator = wires.operators[name]
    yield from (each.source.operator for each in operator.inputs if each.source is not None)
    yield from operator.controls
    yield from (edge.consumer for edge in wires.readers.get(name, ()))
    yield from wires.followers.get(name, ())


PARENT_INDEX = "_parent_node_index"
"""Which input or output of the call a Data, or an input of a NetOutput, stands for."""
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
"""Operators that run a function once, with their inputs as its arguments."""


@dataclass(frozen=True, slots=True)
class Place:
    """An output of an operator of a certain graph."""

    graph: str
    source: Source

    def __str__(self) -> str:
        return f"{self.source} of {self.graph}"


@dataclass(frozen=True, slots=True)
class Borders:
    """A model's operators, found from either side of a border."""

    operators: Mapping[tuple[str, str], Operator]
    """By graph and name."""
    callers: Mapping[str, Operator]
    """By the graph that they run."""
    ends: Mapping[str, Operator]
    """The NetOutput of each graph."""
    results: Mapping[tuple[str, int], Source]
    """What each function gives, by its graph and place."""
    shared: frozenset[str]
    """Graphs that several operators run."""


def borders(model: GraphModel) -> Borders:
    found = [operator for graph in model.graphs for operator in graph.operators]
    run = Counter(name for operator in found for name in operator.subgraphs)
    return Borders(
        operators={(operator.graph, operator.name): operator for operator in found},
        callers={name: operator for operator in found for name in operator.subgraphs},
        ends={operator.graph: operator for operator in found if operator.type == "NetOutput"},
        results=dict(_results(found)),
        shared=frozenset(name for name, count in run.items() if count > 1),
    )


def _results(operators: Iterable[Operator]) -> Iterator[tuple[tuple[str, int], Source]]:
    for operator in operators:
        place = operator.attributes.get(INDEX)
        if operator.type == RESULT and isinstance(place, int) and operator.inputs and operator.inputs[0].source:
            yield (operator.graph, place), operator.inputs[0].source


def made_at(known: Borders, graph: str, source: Source) -> Place:
    """Where a tensor was made: what stands for it at the borders of graphs is passed."""
    place = Place(graph, source)
    passed = {place}
    while (following := _over_border(known, place)) is not None and following not in passed:
        passed.add(following)
        place = following
    return place


def _over_border(known: Borders, place: Place) -> Place | None:
    operator = known.operators.get((place.graph, place.source.operator))
    if operator is None:
        return None
    if operator.type == "Data" and place.graph in known.callers:
        return _outwards(known.callers[place.graph], operator, PARENT_INDEX)
    if operator.type == ARGUMENT and place.graph in known.callers and place.graph not in known.shared:
        caller = known.callers[place.graph]
        # Loops and branches hand on their inputs in other ways.
        return _outwards(caller, operator, INDEX) if caller.type in CALLS else None
    if operator.type in CALLS:
        for name in operator.subgraphs:
            if (name, place.source.output) in known.results:
                return Place(name, known.results[name, place.source.output])
    end = next((known.ends[name] for name in operator.subgraphs if name in known.ends), None)
    return None if end is None else _inwards(end, place.source.output)


def _outwards(caller: Operator, data: Operator, stated: str) -> Place | None:
    position = data.attributes.get(stated)
    if not isinstance(position, int) or not 0 <= position < len(caller.inputs):
        return None
    source = caller.inputs[position].source
    return None if source is None else Place(caller.graph, source)


def _inwards(end: Operator, output: int) -> Place | None:
    for position, each in enumerate(end.inputs):
        stated = None if each.desc is None else each.desc.attributes.get(PARENT_INDEX)
        if (position if stated is None else stated) == output:
            return None if each.source is None else Place(end.graph, each.source)
    return None
