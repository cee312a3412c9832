"""The graph beside a dump: which type each operator has, and what it reads."""

from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.graphs.messages import GraphFileError
from ulpscope.dialects.graphs.tf_graph import read_graph_def
from ulpscope.dialects.tfdbg.event import bad_event, read_graph_bytes
from ulpscope.records.graphs import Operator

COPIES = ("Copy", "CopyHost")
"""What the debugger puts between an operator and its readers."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph."""

    type: str
    inputs: tuple[tuple[str, int], ...]
    """Operators and their outputs, without control edges."""


def read_nodes(path: Path) -> dict[str, Node]:
    """Operators by name, without what the debugger added; UlpscopeError if the file is no graph."""
    try:
        model = read_graph_def(read_graph_bytes(path))
    except GraphFileError as problem:
        raise bad_event(path, str(problem)) from problem
    nodes = {operator.name: _node(operator) for operator in model.graphs[0].operators}
    return {
        name: Node(node.type, tuple(_behind_copies(source, nodes) for source in node.inputs))
        for name, node in nodes.items()
    }


def _node(operator: Operator) -> Node:
    sources = [each.source for each in operator.inputs]
    return Node(operator.type, tuple((source.operator, source.output) for source in sources if source is not None))


def _behind_copies(source: tuple[str, int], nodes: dict[str, Node]) -> tuple[str, int]:
    for _ in range(len(COPIES)):
        node = nodes.get(source[0])
        if node is None or node.type not in COPIES or not node.inputs:
            break
        source = node.inputs[0]
    return source
