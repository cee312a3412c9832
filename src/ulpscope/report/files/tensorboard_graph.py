"""Graphs for TensorBoard's tab Graphs: calls as nodes in the groups of their modules, with what was found on them.

DIR/graph_target/events.out.tfevents.0.ulpscope      an Event with a GraphDef

GraphDef: 1 NodeDef, repeated      NodeDef: 1 name | 2 op | 3 input, repeated | 4 device | 5 attribute, repeated

They are made of the same graphs as those for Model Explorer. TensorBoard has no data on nodes: a node's error and
judgement are attributes of it, and the judgement is its device as well, by which the tab can colour.
"""

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ulpscope.dialects.tfrecord import record
from ulpscope.report.files.model_explorer import Json
from ulpscope.report.files.tensorboard import EVENTS, VERSION, bytes_field, event, text_field

GRAPH_DEF = 4
_NODE = 1
_NAME, _OP, _INPUT, _DEVICE, _ATTRIBUTE = 1, 2, 3, 4, 5
_KEY, _VALUE, _TEXT = 1, 2, 2

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.>/-]")


def write_graph(graph: Json, data: Mapping[str, Json], folder: Path, *, colour: str) -> Path:
    """Write a graph as a run of TensorBoard; `data` is what stands on its nodes, by the name of the quantity.

    `colour` is the quantity that a node's device tells."""
    nodes = b"".join(bytes_field(_NODE, node) for node in _nodes(graph, data, colour))
    now = time.time()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / EVENTS
    path.write_bytes(record(event(now, text_field(3, VERSION))) + record(event(now, bytes_field(GRAPH_DEF, nodes))))
    return path


def _nodes(graph: Json, data: Mapping[str, Json], colour: str) -> Iterator[bytes]:
    names = {node["id"]: _name(node) for node in graph["nodes"]}
    marks = {name: quantity["results"] for name, quantity in data.items()}
    for node in graph["nodes"]:
        own = {name: str(results[node["id"]]["value"]) for name, results in marks.items() if node["id"] in results}
        facts = {entry["key"]: entry["value"] for entry in node["attrs"]}
        yield b"".join(
            [
                text_field(_NAME, names[node["id"]]),
                text_field(_OP, node["label"]),
                *(text_field(_INPUT, _input(edge, names)) for edge in node["incomingEdges"]),
                text_field(_DEVICE, own.get(colour, "")),
                *(bytes_field(_ATTRIBUTE, _attribute(key, text)) for key, text in {**own, **facts}.items()),
            ]
        )


def _name(node: Json) -> str:
    """The groups that a node is in, what it is, and its number: no two nodes have the same."""
    return _NOT_IN_NAMES.sub("_", f"{node['namespace']}/{node['label']}_{node['id']}")


def _input(edge: Json, names: Mapping[str, str]) -> str:
    output = edge["sourceNodeOutputId"]
    name = names[edge["sourceNodeId"]]
    return name if output == "0" else f"{name}:{output}"


def _attribute(key: str, text: str) -> bytes:
    return text_field(_KEY, key) + bytes_field(_VALUE, text_field(_TEXT, text))
