"""Cuts out what lies around an operator."""

from collections.abc import Iterator
from dataclasses import dataclass

from ulpscope.graph.wiring import Wiring, control_edges, edges, wiring
from ulpscope.records.graphs import ControlEdge, Edge, Graph, Operator

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
