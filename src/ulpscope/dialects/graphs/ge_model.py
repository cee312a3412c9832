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
from typing import Any

from ulpscope.dialects.graphs.messages import (
    GraphFileError,
    Message,
    all_by_kind,
    as_choice,
    as_flag,
    as_integer,
    as_message,
    as_number,
    as_text,
    by_kind,
    ge_dtype,
    integer,
    integers,
    last,
    messages,
    numbers,
    size_of,
    sub_message,
    text,
    texts,
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

OPERATOR_PATH = "graph.op"

_KERNEL_NAME = "_kernelname"
_ORIGINALS = "_datadump_original_op_names"
"""An operator that the compiler inserted has it, too, without a name in it."""
_PASSES = ("pass_name", "pass_name_ub")


def ge_model(model: Message, file_format: GraphFormat) -> GraphModel:
    """The graphs of a model whose operators at `graph.op` were made by `ge_operator` already."""
    graphs = tuple(_graph(message) for message in messages(model, "graph"))
    return GraphModel(
        name=text(model, "name") or (graphs[0].name if graphs else ""),
        format=file_format,
        graphs=graphs,
        attributes=attributes_of(model),
    )


def ge_operator(message: Message) -> Operator:
    """An operator that does not know yet which graph it belongs to."""
    descs = [tensor_desc(desc) for desc in messages(message, "input_desc")]
    sources, controls = split_inputs(texts(message, "input"))
    return operator_of(
        name=text(message, "name"),
        kind=text(message, "type"),
        number=integer(message, "id"),
        stream=integer(message, "stream_id"),
        inputs=joined_inputs(sources, descs),
        outputs=tuple([tensor_desc(desc) for desc in messages(message, "output_desc")]),
        controls=controls,
        subgraphs=tuple([name for name in texts(message, "subgraph_name") if name]),
        attributes=attributes_of(message),
    )


def operator_of(
    *,
    name: str,
    kind: str,
    number: int,
    stream: int,
    inputs: tuple[Input, ...],
    outputs: tuple[TensorDesc, ...],
    controls: tuple[str, ...],
    subgraphs: tuple[str, ...],
    attributes: Attributes,
) -> Operator:
    """An operator with everything that GE's attributes say about it."""
    return Operator(
        name=name,
        type=kind,
        graph="",
        id=number,
        stream=stream,
        inputs=inputs,
        outputs=outputs,
        controls=controls,
        kernel=_kernel(name, attributes),
        kernel_library=_text(attributes.get("_ge_attr_op_kernel_lib_name")),
        passes=tuple(dict.fromkeys(word for key in _PASSES for word in _words(attributes.get(key)))),
        originals=tuple(dict.fromkeys(_words(attributes[_ORIGINALS]))) if _ORIGINALS in attributes else None,
        multiple=bool(attributes.get("_datadump_is_multiop", False)),
        l1_fusion=_text(attributes.get("_L1_fusion_sub_graph_no")),
        subgraphs=subgraphs,
        attributes=attributes,
    )


def split_inputs(entries: Iterable[str]) -> tuple[list[Source | None], tuple[str, ...]]:
    """Sources of the data inputs, none where nothing is connected, and the operators that are only waited for."""
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
    return sources, tuple(controls)


def joined_inputs(sources: Sequence[Source | None], descs: Sequence[TensorDesc | None]) -> tuple[Input, ...]:
    return tuple([Input(source, desc) for source, desc in zip_longest(sources, descs)])


def tensor_desc(message: Message) -> TensorDesc:
    """TensorDescriptor, with what its attributes say in fields of their own."""
    return desc_of(
        name=text(message, "name"),
        dtype=described_dtype(last(message, "dtype", "undefined")),
        layout=text(message, "layout"),
        shape=integers(sub_message(message, "shape"), "dim"),
        attributes=attributes_of(message),
    )


def desc_of(*, name: str, dtype: str, layout: str, shape: tuple[int, ...], attributes: Attributes) -> TensorDesc:
    origin_layout = _text(attributes.get("origin_format"))
    return TensorDesc(
        name=name,
        dtype=dtype,
        layout=layout,
        shape=shape,
        origin_shape=_integers(attributes.get("origin_shape")),
        origin_layout=_text(attributes.get("_datadump_origin_format")) or origin_layout,
        value_range=_ranges(attributes.get("value_range")),
        shape_range=_ranges(attributes.get("shape_range")),
        origin=_origin("_datadump_origin", attributes),
        fusion_origin=_origin("_fusion_origin", attributes),
        attributes=attributes,
    )


def _graph(message: Message) -> Graph:
    name = text(message, "name")
    operators = message.get("op", [])
    for operator in operators:
        if not isinstance(operator, Operator):
            raise GraphFileError("has an op that is no message")
    return Graph(
        name=name,
        operators=tuple([replace(operator, graph=name) for operator in operators]),
        attributes=attributes_of(message),
    )


def _origin(prefix: str, attributes: Attributes) -> Origin | None:
    name = attributes.get(f"{prefix}_name")
    if not isinstance(name, str):
        return None
    output, dtype = attributes.get(f"{prefix}_output_index"), _text(attributes.get(f"{prefix}_data_type"))
    return Origin(
        name=name,
        output=output if isinstance(output, int) else None,
        layout=_text(attributes.get(f"{prefix}_format")),
        dtype=None if dtype is None else described_dtype(dtype),
    )


def _kernel(name: str, attributes: Attributes) -> str | None:
    own = _text(attributes.get(f"{name}{_KERNEL_NAME}"))
    if own is not None:
        return own
    return next((_text(value) for key, value in attributes.items() if key.endswith(_KERNEL_NAME)), None)


def _text(value: AttributeValue) -> str | None:
    return value if isinstance(value, str) and value else None


def _words(value: AttributeValue) -> tuple[str, ...]:
    """A text or a list of texts: older compilers write one, newer ones the other."""
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple([word for word in value if isinstance(word, str) and word]) if isinstance(value, tuple) else ()


def _integers(value: AttributeValue) -> tuple[int, ...] | None:
    if not isinstance(value, tuple):
        return None
    return tuple([number for number in value if isinstance(number, int)])


def _ranges(value: AttributeValue) -> Ranges:
    rows = value if isinstance(value, tuple) else ()
    return tuple([_integers(row) or () for row in rows])


FINISHED = {OPERATOR_PATH: ge_operator}


def is_ge_text(message: Message) -> bool:
    """Whether a message that was read with FINISHED is a ModelDef."""
    return any(isinstance(graph, dict) and "op" in graph for graph in message.get("graph", ()))


def ge_text_model(message: Message) -> GraphModel:
    return ge_model(message, GraphFormat.GE_TEXT)


def attributes_of(message: Message) -> dict[str, AttributeValue]:
    """The map `attr` of a model, graph, operator or tensor."""
    return {text(entry, "key"): by_kind(_KINDS, sub_message(entry, "value")) for entry in messages(message, "attr")}


def described_dtype(found: object) -> str:
    return ge_dtype(as_choice(found, "dtype"))


def _bytes(value: Any) -> Attributes:
    return {"bytes": size_of({"bt": [value]}, "bt")}


def _rows(field: str, item: str, read: Callable[[Message, str], AttributeValue]) -> Callable[[Any], AttributeValue]:
    return lambda value: tuple([read(row, item) for row in messages(as_message(value, "attr"), field)])


def _named_attributes(value: Any) -> Attributes:
    function = as_message(value, "attr")
    return {"name": text(function, "name"), "attr": attributes_of(function)}


def _tensor_desc(value: Any) -> Attributes:
    desc = as_message(value, "attr")
    shape = integers(sub_message(desc, "shape"), "dim")
    return {
        "dtype": described_dtype(last(desc, "dtype", "undefined")),
        "layout": text(desc, "layout"),
        "shape": shape,
    }


def _tensor(value: Any) -> Attributes:
    tensor = as_message(value, "attr")
    return {**_tensor_desc(sub_message(tensor, "desc")), "bytes": size_of(tensor, "data")}


def _graph_attribute(value: Any) -> Attributes:
    graph = as_message(value, "attr")
    return {"graph": text(graph, "name"), "operators": len(graph.get("op", ()))}


_KINDS: dict[str, Callable[[Any], AttributeValue]] = {
    "s": lambda value: as_text(value, "s"),
    "i": lambda value: as_integer(value, "i"),
    "f": lambda value: as_number(value, "f"),
    "b": lambda value: as_flag(value, "b"),
    "bt": _bytes,
    "list": lambda value: all_by_kind(_KINDS, as_message(value, "list")),
    "func": _named_attributes,
    "na": _named_attributes,
    "td": _tensor_desc,
    "t": _tensor,
    "g": _graph_attribute,
    "list_list_int": _rows("list_list_i", "list_i", integers),
    "list_list_float": _rows("list_list_f", "list_f", numbers),
    "dt": described_dtype,
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
