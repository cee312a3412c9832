"""What graphs alone tell: whether two compilations gave the same operators the same types and layouts, and casts that
lose what a network may need.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ulpscope.graph.query import all_operators
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.graphs import Graph, GraphModel, Operator, TensorDesc
from ulpscope.records.pairs import Pair

SESSION_GRAPH = "_session_graph_id"
"""Operators and graphs say by it which graph of which session they are of: the same in both compilations."""


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor of an operator that is of another type or layout; none on a side that has no such tensor."""

    place: str
    """`input.0`."""
    descs: Pair[TensorDesc | None]


@dataclass(frozen=True, slots=True)
class OperatorDifference:
    """An operator of both graphs with tensors that differ."""

    operators: Pair[Operator]
    tensors: tuple[TensorDifference, ...]


@dataclass(frozen=True, slots=True)
class GraphSimilarity:
    """Two graphs that belong together."""

    graphs: Pair[str]
    session: str | None
    """Session and number that both are of, if that is why they belong together."""
    compared: int
    """Operators of the same name, without inserted ones."""
    differences: tuple[OperatorDifference, ...]
    only_reference: tuple[str, ...]
    only_target: tuple[str, ...]

    @property
    def similar(self) -> int:
        return self.compared - len(self.differences)

    @property
    def agrees(self) -> bool:
        return not (self.differences or self.only_reference or self.only_target)


def similar_graphs(reference: GraphModel, target: GraphModel) -> tuple[GraphSimilarity, ...]:
    """Each graph of the reference with the graph of the target that is of the same session, if there is one."""
    partners = {session_graph(graph): graph for graph in reversed(target.graphs)}
    pairs = ((session, graph) for graph in reference.graphs if (session := session_graph(graph)) is not None)
    return tuple(_compare(session, Pair(graph, partners[session])) for session, graph in pairs if session in partners)


def compared_graphs(reference: GraphModel, target: GraphModel) -> tuple[GraphSimilarity, ...]:
    """The same for two files that were named: without a session in common, the main graphs and sub-graphs by name."""
    found = similar_graphs(reference, target)
    if found or not (reference.graphs and target.graphs):
        return found
    partners = {graph.name: graph for graph in target.graphs[1:]}
    pairs = [Pair(reference.graphs[0], target.graphs[0])]
    pairs += [Pair(graph, partners[graph.name]) for graph in reference.graphs[1:] if graph.name in partners]
    return tuple(_compare(None, pair) for pair in pairs)


def session_graph(graph: Graph) -> str | None:
    """`0_11`: what the graph or its first operator that says so says."""
    for attributes in (graph.attributes, *(operator.attributes for operator in graph.operators)):
        stated = attributes.get(SESSION_GRAPH)
        if isinstance(stated, str) and stated:
            return stated
    return None


def _compare(session: str | None, graphs: Pair[Graph]) -> GraphSimilarity:
    reference, target = _computing(graphs.reference), _computing(graphs.target)
    both = [Pair(operator, target[name]) for name, operator in reference.items() if name in target]
    differences = [OperatorDifference(pair, found) for pair in both if (found := tuple(_tensors(pair)))]
    return GraphSimilarity(
        graphs=Pair(graphs.reference.name, graphs.target.name),
        session=session,
        compared=len(both),
        differences=tuple(differences),
        only_reference=tuple(name for name in reference if name not in target),
        only_target=tuple(name for name in target if name not in reference),
    )


def _computing(graph: Graph) -> dict[str, Operator]:
    return {operator.name: operator for operator in graph.operators if not operation(operator.type).has(Trait.INSERTED)}


def _tensors(operators: Pair[Operator]) -> Iterator[TensorDifference]:
    inputs = ([each.desc for each in operator.inputs] for operator in operators)
    outputs = (operator.outputs for operator in operators)
    for side, tensors in (("input", zip_longest(*inputs)), ("output", zip_longest(*outputs))):
        for index, descs in enumerate(tensors):
            if _form(descs[0]) != _form(descs[1]):
                yield TensorDifference(f"{side}.{index}", Pair(*descs))


def _form(desc: TensorDesc | None) -> tuple[str, str] | None:
    return None if desc is None else (desc.dtype, desc.layout)


CAST = "Cast"

DANGEROUS = frozenset({("float32", "int32")})
"""Types from which and to which: fractions go, and numbers from 2**31 on have no int32. As precision_tool warns."""


@dataclass(frozen=True, slots=True)
class DangerousCast:
    """An operator that casts so."""

    operator: Operator
    source: str
    target: str


def dangerous_casts(model: GraphModel) -> tuple[DangerousCast, ...]:
    """The dangerous casts of a model in the order of the file."""
    found = (_cast(operator) for operator in all_operators(model) if operator.type == CAST)
    return tuple(cast for cast in found if cast is not None and (cast.source, cast.target) in DANGEROUS)


def _cast(operator: Operator) -> DangerousCast | None:
    if not operator.inputs or operator.inputs[0].desc is None or not operator.outputs:
        return None
    return DangerousCast(operator, operator.inputs[0].desc.dtype, operator.outputs[0].dtype)
