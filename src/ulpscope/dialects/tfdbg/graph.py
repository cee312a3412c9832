"""The graph beside a dump: which type each operator has, and what it reads."""

from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.tfdbg.event import bad_event, read_graph_bytes
from ulpscope.dialects.wire import LENGTH, WireError, fields

# Fields of GraphDef and NodeDef (tensorflow/core/framework/graph.proto, node_def.proto).
NODE = 1
NAME, OP, INPUT = 1, 2, 3

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
    nodes: dict[str, Node] = {}
    try:
        for number, wire_type, content in fields(read_graph_bytes(path)):
            if number == NODE and wire_type == LENGTH and isinstance(content, memoryview):
                name, node = _node(content)
                nodes[name] = node
    except WireError as error:
        raise bad_event(path, str(error)) from error
    return {
        name: Node(node.type, tuple(_behind_copies(source, nodes) for source in node.inputs))
        for name, node in nodes.items()
    }


def _node(data: memoryview) -> tuple[str, Node]:
    texts: dict[int, list[str]] = {}
    for number, wire_type, content in fields(data):
        if number in (NAME, OP, INPUT) and wire_type == LENGTH and isinstance(content, memoryview):
            texts.setdefault(number, []).append(bytes(content).decode("utf-8", "replace"))
    inputs = tuple(_source(text) for text in texts.get(INPUT, ()) if not text.startswith("^"))
    return texts.get(NAME, [""])[-1], Node(texts.get(OP, [""])[-1], inputs)


def _source(text: str) -> tuple[str, int]:
    """`bn/Mul:1`; without a number it is output 0."""
    name, _, output = text.rpartition(":")
    return (name, int(output)) if name and output.isascii() and output.isdigit() and len(output) < 10 else (text, 0)


def _behind_copies(source: tuple[str, int], nodes: dict[str, Node]) -> tuple[str, int]:
    for _ in range(len(COPIES)):
        node = nodes.get(source[0])
        if node is None or node.type not in COPIES or not node.inputs:
            break
        source = node.inputs[0]
    return source
