"""GE's graphs as ONNX text: ge_onnx_*.pbtxt.

Operators are nodes of type `ge:Conv2D`. Everything else that GE knows about them is an attribute, also what it knows
about their tensors: `input_desc_shape:0`, `input_desc_attr_origin_format:0` for an attribute of such a tensor, and
`input_desc_attr_shape_range:0_1` for the second row of one that has rows. A node of type `subgraph` is no operator, but
holds a graph. Texts are there only if GE dumps everything (DUMP_GE_GRAPH=1).
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from ulpscope.dialects.graphs.dtypes import ge_dtype
from ulpscope.dialects.graphs.ge_model import desc_of, joined_inputs, operator_of, split_inputs
from ulpscope.dialects.graphs.messages import GraphFileError, Message, sub_message, text
from ulpscope.dialects.graphs.onnx_graph import Node, nodes_of
from ulpscope.records.graphs import Attributes, AttributeValue, Graph, GraphFormat, GraphModel, Operator, TensorDesc

_TYPE = "ge:"
_OF_TENSOR = "attr_"
_SUBGRAPH = "subgraph"
_SPARE = 64
"""Tensors of an operator that may lack any description; more would be made of a number that is damaged."""
_OF_DESC = re.compile(r"(input|output)_desc_(.+):(\d{1,4})(?:_(\d{1,4}))?", re.DOTALL)


def is_ge_onnx(message: Message) -> bool:
    """Whether a ModelProto's nodes were written by GE."""
    nodes = sub_message(message, "graph").get("node", ())
    return any(isinstance(node, Node) and node.type.startswith(_TYPE) for node in nodes)


def ge_onnx_model(message: Message) -> GraphModel:
    graph = sub_message(message, "graph")
    name = text(graph, "name")
    return GraphModel(name=name, format=GraphFormat.GE_ONNX, graphs=tuple(_graphs(graph, name)))


def _graphs(graph: Message, name: str) -> Iterator[Graph]:
    nodes = nodes_of(graph)
    operators = [replace(_operator(node), graph=name) for node in nodes if node.type != _SUBGRAPH]
    yield Graph(name=name, operators=tuple(operators))
    for node in nodes:
        for body in node.bodies.values():
            yield from _graphs(body, node.name)


def _operator(node: Node) -> Operator:
    sources, controls = split_inputs(node.inputs)
    inputs, outputs, own = _sorted_out(node.attributes)
    return operator_of(
        name=node.name,
        kind=node.type.removeprefix(_TYPE),
        number=_integer(own.get("id")),
        stream=_integer(own.get("stream_id")),
        inputs=joined_inputs(sources, inputs),
        outputs=outputs,
        controls=controls,
        subgraphs=(),
        attributes=own,
    )


def _sorted_out(attributes: Attributes) -> tuple[tuple[TensorDesc, ...], tuple[TensorDesc, ...], Attributes]:
    """What is said about inputs, about outputs, and about the operator itself."""
    own: dict[str, AttributeValue] = {}
    said: dict[str, dict[int, dict[str, AttributeValue]]] = {"input": {}, "output": {}}
    for key, value in attributes.items():
        match = _OF_DESC.fullmatch(key)
        if match is None:
            own[key] = value
            continue
        side, word, number, row = match.groups()
        if int(number) > len(attributes) + _SPARE:
            raise GraphFileError(f"describes {side} {number} of an operator with {len(attributes)} attributes")
        desc = said[side].setdefault(int(number), {})
        before = desc.get(word)
        # Rows are written in their order.
        desc[word] = value if row is None else (*(before if isinstance(before, tuple) else ()), value)
    return _descs(said["input"]), _descs(said["output"]), own


def _descs(said: dict[int, dict[str, AttributeValue]]) -> tuple[TensorDesc, ...]:
    return tuple([_desc(said.get(number, {})) for number in range(max(said, default=-1) + 1)])


def _desc(said: dict[str, AttributeValue]) -> TensorDesc:
    attributes = {key.removeprefix(_OF_TENSOR): value for key, value in said.items() if key.startswith(_OF_TENSOR)}
    # The origin's shape and layout stand both beside the tensor's own and among its attributes; lists of texts and
    # texts are left out of the latter unless everything is dumped.
    attributes.setdefault("origin_shape", said.get("origin_shape"))
    attributes.setdefault("origin_format", said.get("origin_layout"))
    shape = said.get("shape", ())
    return desc_of(
        name="",
        dtype=ge_dtype(str(said.get("dtype", "undefined"))),
        layout=str(said.get("layout", "")),
        shape=tuple([size for size in shape if isinstance(size, int)]) if isinstance(shape, tuple) else (),
        attributes={key: value for key, value in attributes.items() if value is not None},
    )


def _integer(value: AttributeValue) -> int:
    return value if isinstance(value, int) else 0
