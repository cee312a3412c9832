"""GE's ModelDef (ge.proto) as a graph, from whichever encoding its messages were read.

Edges are rebuilt from `input`: "producer:0" reads an output, "producer:-1" only waits, "" is an optional input with
nothing connected. `dst_name` counts connected outputs only and cannot tell which output it means.
Attributes (AttrDef) become plain values.

In ONNX text, ge_onnx_*.pbtxt, operators are nodes of type `ge:Conv2D`. All else that GE knows about them is an
attribute, also what it knows about their tensors: `input_desc_shape:0`, `input_desc_attr_origin_format:0` for an
attribute of such a tensor, and `input_desc_attr_shape_range:0_1` for the second row of one that has rows. A node of
type `subgraph` is no operator, but holds a graph. Texts are there only if GE dumps everything (DUMP_GE_GRAPH=1).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeAlias

from ulpscope.dialects.graphs.messages import (
    GE_DTYPES,
    SCALAR_KINDS,
    GraphFileError,
    Kind,
    Message,
    all_by_kind,
    as_dtype,
    as_message,
    by_kind,
    integer,
    integers,
    integers_in,
    last,
    messages,
    named_dtype,
    numbers,
    of_message,
    size_of,
    sub_message,
    text,
    texts,
    words_in,
)
from ulpscope.dialects.graphs.onnx_graph import Node, nodes_of
from ulpscope.records.graphs import (
    Attributes,
    AttributeValue,
    Graph,
    GraphFormat,
    GraphModel,
    Input,
    Operator,
    Origin,
    Ranges,
    Source,
    TensorDesc,
)

_KERNEL_NAME = "_kernelname"
_ORIGINALS = "_datadump_original_op_names"
"""An operator that the compiler inserted has it, too, without a name in it."""
_PASSES = ("pass_name", "pass_name_ub")


def ge_model(model: Message) -> GraphModel:
    """The graphs of a ModelDef whose operators at `graph.op` were made by `ge_operator` already."""
    graphs = tuple(_graph(message) for message in messages(model, "graph"))
    name = text(model, "name") or (graphs[0].name if graphs else "")
    return GraphModel(name=name, format=GraphFormat.GE_TEXT, graphs=graphs, attributes=attributes_of(model))


def ge_operator(message: Message) -> Operator:
    """An operator that does not know yet which graph it belongs to."""
    name = text(message, "name")
    inputs, controls = _inputs(texts(message, "input"), [_desc(desc) for desc in messages(message, "input_desc")])
    return Operator(
        name=name,
        type=text(message, "type"),
        graph="",
        id=integer(message, "id"),
        stream=integer(message, "stream_id"),
        inputs=inputs,
        outputs=tuple([_desc(desc) for desc in messages(message, "output_desc")]),
        controls=controls,
        subgraphs=tuple([name for name in texts(message, "subgraph_name") if name]),
        **_told_of_operator(name, attributes_of(message)),
    )


def _told_of_operator(name: str, attributes: Attributes) -> dict[str, Any]:
    """What GE's attributes say about an operator, by the fields that hold it."""
    return {
        "kernel": _kernel(name, attributes),
        "kernel_library": _text(attributes.get("_ge_attr_op_kernel_lib_name")),
        "passes": tuple(dict.fromkeys(word for key in _PASSES for word in words_in(attributes.get(key)))),
        "originals": tuple(dict.fromkeys(words_in(attributes[_ORIGINALS]))) if _ORIGINALS in attributes else None,
        "multiple": bool(attributes.get("_datadump_is_multiop", False)),
        "l1_fusion": _text(attributes.get("_L1_fusion_sub_graph_no")),
        "attributes": attributes,
    }


def _inputs(entries: Iterable[str], descs: Sequence[TensorDesc]) -> tuple[tuple[Input, ...], tuple[str, ...]]:
    """The data inputs, without a source where nothing is connected, and the operators that are only waited for."""
    sources: list[Source | None] = []
    controls: list[str] = []
    for entry in entries:
        name, _, number = entry.rpartition(":")
        if not entry:
            sources.append(None)
        elif number == "-1":
            controls.append(name)
        elif number.isdecimal() and name and len(number) < 10:
            sources.append(Source(name, int(number)))
        else:
            raise GraphFileError(f"has the input {entry[:80]!r}, which is not name:index")
    return tuple([Input(source, desc) for source, desc in zip_longest(sources, descs)]), tuple(controls)


def _desc(message: Message) -> TensorDesc:
    """TensorDescriptor, with what its attributes say in fields of their own."""
    return TensorDesc(
        name=text(message, "name"),
        dtype=as_dtype(last(message, "dtype", "undefined"), "dtype", GE_DTYPES),
        layout=text(message, "layout"),
        shape=integers(sub_message(message, "shape"), "dim"),
        **_told_of_tensor(attributes_of(message)),
    )


def _told_of_tensor(attributes: Attributes) -> dict[str, Any]:
    """What GE's attributes say about a tensor, by the fields that hold it."""
    origin_layout = _text(attributes.get("_datadump_origin_format")) or _text(attributes.get("origin_format"))
    return {
        "origin_shape": integers_in(attributes.get("origin_shape")),
        "origin_layout": origin_layout,
        "value_range": _ranges(attributes.get("value_range")),
        "shape_range": _ranges(attributes.get("shape_range")),
        "origin": _origin("_datadump_origin", attributes),
        "fusion_origin": _origin("_fusion_origin", attributes),
        "attributes": attributes,
    }


def _graph(message: Message) -> Graph:
    name = text(message, "name")
    operators = message.get("op", [])
    for operator in operators:
        if not isinstance(operator, Operator):
            raise GraphFileError("has an op that is no message")
    return Graph(name, tuple([replace(operator, graph=name) for operator in operators]), attributes_of(message))


def _origin(prefix: str, attributes: Attributes) -> Origin | None:
    name = attributes.get(f"{prefix}_name")
    if not isinstance(name, str):
        return None
    output, dtype = attributes.get(f"{prefix}_output_index"), _text(attributes.get(f"{prefix}_data_type"))
    return Origin(
        name=name,
        output=output if isinstance(output, int) else None,
        layout=_text(attributes.get(f"{prefix}_format")),
        dtype=None if dtype is None else as_dtype(dtype, "dtype", GE_DTYPES),
    )


def _kernel(name: str, attributes: Attributes) -> str | None:
    own = _text(attributes.get(f"{name}{_KERNEL_NAME}"))
    if own is not None:
        return own
    return next((_text(value) for key, value in attributes.items() if key.endswith(_KERNEL_NAME)), None)


def _text(value: AttributeValue) -> str | None:
    return value if isinstance(value, str) and value else None


def _ranges(value: AttributeValue) -> Ranges:
    rows = value if isinstance(value, tuple) else ()
    return tuple([integers_in(row) or () for row in rows])


def attributes_of(message: Message) -> dict[str, AttributeValue]:
    """The map `attr` of a model, graph, operator or tensor."""
    return {text(entry, "key"): by_kind(_KINDS, sub_message(entry, "value")) for entry in messages(message, "attr")}


def _rows(field: str, item: str, read: Callable[[Message, str], AttributeValue]) -> Kind:
    return of_message(lambda value: tuple([read(row, item) for row in messages(value, field)]))


def _named_attributes(function: Message) -> Attributes:
    return {"name": text(function, "name"), "attr": attributes_of(function)}


def _tensor_desc(desc: Message) -> Attributes:
    return {
        "dtype": as_dtype(last(desc, "dtype", "undefined"), "dtype", GE_DTYPES),
        "layout": text(desc, "layout"),
        "shape": integers(sub_message(desc, "shape"), "dim"),
    }


def _tensor(tensor: Message) -> Attributes:
    return {**_tensor_desc(sub_message(tensor, "desc")), "bytes": size_of(last(tensor, "data"), "data")}


def _graph_attribute(graph: Message) -> Attributes:
    return {"graph": text(graph, "name"), "operators": len(graph.get("op", ()))}


_KINDS: dict[str, Kind] = {
    **SCALAR_KINDS,
    "bt": lambda value, field: {"bytes": size_of(value, field)},
    "list": lambda value, field: all_by_kind(_KINDS, as_message(value, field)),
    "func": of_message(_named_attributes),
    "na": of_message(_named_attributes),
    "td": of_message(_tensor_desc),
    "t": of_message(_tensor),
    "g": of_message(_graph_attribute),
    "list_list_int": _rows("list_list_i", "list_i", integers),
    "list_list_float": _rows("list_list_f", "list_f", numbers),
    "dt": lambda value, _: as_dtype(value, "dtype", GE_DTYPES),
}


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
    return GraphModel(name=name, format=GraphFormat.GE_ONNX, graphs=tuple(_node_graphs(graph, name)))


def _node_graphs(graph: Message, name: str) -> Iterator[Graph]:
    nodes = nodes_of(graph)
    yield Graph(name, tuple([_operator_of_node(node, name) for node in nodes if node.type != _SUBGRAPH]))
    for node in nodes:
        for body in node.bodies.values():
            yield from _node_graphs(body, node.name)


def _operator_of_node(node: Node, graph: str) -> Operator:
    said, own = _sorted_out(node.attributes)
    # Attributes may leave out tensors in between.
    read, made = ([_desc_of_words(each.get(k, {})) for k in range(max(each, default=-1) + 1)] for each in said)
    inputs, controls = _inputs(node.inputs, read)
    number, stream = (value if isinstance(value, int) else 0 for value in (own.get("id"), own.get("stream_id")))
    return Operator(
        name=node.name,
        type=node.type.removeprefix(_TYPE),
        graph=graph,
        id=number,
        stream=stream,
        inputs=inputs,
        outputs=tuple(made),
        controls=controls,
        **_told_of_operator(node.name, own),
    )


_Words: TypeAlias = dict[str, AttributeValue]


def _sorted_out(attributes: Attributes) -> tuple[tuple[dict[int, _Words], dict[int, _Words]], _Words]:
    """What is said about inputs and outputs, by their number, and about the operator itself."""
    own: _Words = {}
    said: dict[str, dict[int, _Words]] = {"input": {}, "output": {}}
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
    return (said["input"], said["output"]), own


def _desc_of_words(said: _Words) -> TensorDesc:
    attributes = {key.removeprefix(_OF_TENSOR): value for key, value in said.items() if key.startswith(_OF_TENSOR)}
    # The origin's shape and layout stand both beside the tensor's own and among its attributes; lists of texts and
    # texts are left out of the latter unless everything is dumped.
    attributes.setdefault("origin_shape", said.get("origin_shape"))
    attributes.setdefault("origin_format", said.get("origin_layout"))
    return TensorDesc(
        dtype=named_dtype(str(said.get("dtype", "undefined"))),
        layout=str(said.get("layout", "")),
        shape=integers_in(said.get("shape")) or (),
        **_told_of_tensor({key: value for key, value in attributes.items() if value is not None}),
    )
