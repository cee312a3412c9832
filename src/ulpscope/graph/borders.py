"""Follows tensors over the borders of sub-graphs.

An operator such as PartitionedCall runs a graph of its own: Data operators in there stand for the call's inputs, and
the inputs of its NetOutput for the call's outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ulpscope.records.graphs import GraphModel, Operator, Source

PARENT_INDEX = "_parent_node_index"
"""Which input or output of the call a Data, or an input of a NetOutput, stands for."""


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


def borders(model: GraphModel) -> Borders:
    found = [operator for graph in model.graphs for operator in graph.operators]
    return Borders(
        operators={(operator.graph, operator.name): operator for operator in found},
        callers={name: operator for operator in found for name in operator.subgraphs},
        ends={operator.graph: operator for operator in found if operator.type == "NetOutput"},
    )


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
        return _outwards(known.callers[place.graph], operator)
    end = next((known.ends[name] for name in operator.subgraphs if name in known.ends), None)
    return None if end is None else _inwards(end, place.source.output)


def _outwards(caller: Operator, data: Operator) -> Place | None:
    position = data.attributes.get(PARENT_INDEX)
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
