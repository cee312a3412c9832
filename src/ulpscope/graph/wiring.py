"""Which operator of a graph reads which: edges, built from what each operator says about its inputs."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ulpscope.records.graphs import ControlEdge, Edge, Graph, Operator


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
