"""ONNX models as graphs, binary or text, without the onnx package.

Nodes name the tensors they read and make; an edge joins nodes that name the same one. A weight or an input of the graph
is a source that no operator makes. Contents of tensors are passed over.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ulpscope.dialects.graphs.messages import (
    ONNX_DTYPES,
    GraphFileError,
    Message,
    as_choice,
    as_dtype,
    integer,
    integers,
    last,
    messages,
    numbers,
    sub_message,
    text,
    texts,
    unfit,
)
from ulpscope.records.graphs import (
    Attributes,
    AttributeValue,
    Graph,
    GraphFormat,
    GraphModel,
    Input,
    Operator,
    Source,
    TensorDesc,
)

_MAIN_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Node:
    """A node before it is known which tensors the graph's other parts describe."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    bodies: Mapping[str, Message]
    """Graphs among its attributes, by name."""


def onnx_node(message: Message) -> Node:
    attributes: dict[str, AttributeValue] = {}
    bodies: dict[str, Message] = {}
    for attribute in messages(message, "attribute"):
        name = text(attribute, "name")
        attributes[name] = _attribute(attribute)
        graphs = [*messages(attribute, "g"), *messages(attribute, "graphs")]
        bodies.update({name if len(graphs) == 1 else f"{name}.{k}": graph for k, graph in enumerate(graphs)})
    return Node(
        name=text(message, "name"),
        type=_type(message),
        inputs=tuple(texts(message, "input")),
        outputs=tuple(texts(message, "output")),
        attributes=attributes,
        bodies=bodies,
    )


def onnx_model(message: Message) -> GraphModel:
    """A ModelProto whose nodes at `graph.node` were made by `onnx_node` already."""
    main = sub_message(message, "graph")
    graphs = list(_graphs(main, name=text(main, "name")))
    for function in messages(message, "functions"):
        # A function's inputs and outputs are names, not descriptions.
        described: Message = {field: function.get(field, []) for field in ("node", "value_info")}
        graphs += _graphs(described, name=_type(function, field="name"))
    return GraphModel(
        name=text(main, "name"), format=GraphFormat.ONNX, graphs=tuple(graphs), attributes=_model_attributes(message)
    )


def nodes_of(graph: Message) -> list[Node]:
    """Those of the main graph are made already, those of graphs inside of them are messages."""
    found = graph.get("node", ())
    for node in found:
        if not isinstance(node, Node | dict):
            raise unfit("node", node, "a message")
    return [node if isinstance(node, Node) else onnx_node(node) for node in found]


def _graphs(message: Message, *, name: str) -> Iterator[Graph]:
    """A graph, and those that its nodes run."""
    nodes = nodes_of(message)
    names = _unique_names(nodes)
    makers = {
        tensor: Source(names[position], output)
        for position, node in enumerate(nodes)
        for output, tensor in enumerate(node.outputs)
        if tensor
    }
    descs = _descs(message)
    bodies = [{key: f"{own}/{key}" for key in node.bodies} for own, node in zip(names, nodes, strict=True)]
    operators = [
        Operator(
            name=names[position],
            type=node.type,
            graph=name,
            id=position,
            inputs=tuple([_input(tensor, makers, descs) for tensor in node.inputs]),
            outputs=tuple([descs.get(tensor) or TensorDesc(name=tensor) for tensor in node.outputs]),
            subgraphs=tuple(bodies[position].values()),
            attributes=node.attributes,
        )
        for position, node in enumerate(nodes)
    ]
    yield Graph(name=name, operators=tuple(operators))
    for node, body_names in zip(nodes, bodies, strict=True):
        for key, body in node.bodies.items():
            yield from _graphs(body, name=body_names[key])


def _unique_names(nodes: list[Node]) -> list[str]:
    """ONNX lets nodes do without a name, or share one; a position tells them apart."""
    names: dict[str, None] = {}
    for position, node in enumerate(nodes):
        name = node.name or f"{node.type}_{position}"
        while name in names:
            name = f"{name}_{position}"
        names[name] = None
    return list(names)


def _input(tensor: str, makers: Mapping[str, Source], descs: Mapping[str, TensorDesc]) -> Input:
    if not tensor:
        return Input(None)
    return Input(makers.get(tensor) or Source(tensor, 0), descs.get(tensor))


def _descs(graph: Message) -> dict[str, TensorDesc]:
    """What the graph says about tensors, by name; weights last, for they are certain."""
    fields = ("input", "output", "value_info")
    described = [_value_info(info) for field in fields for info in messages(graph, field) if text(info, "name")]
    described += [_weight(tensor) for tensor in messages(graph, "initializer")]
    return {desc.name: desc for desc in described}


def _value_info(info: Message) -> TensorDesc:
    tensor = sub_message(sub_message(info, "type"), "tensor_type")
    shape = messages(tensor, "shape")
    dims = None if not shape else tuple([integer(dim, "dim_value", -1) for dim in messages(shape[-1], "dim")])
    return TensorDesc(name=text(info, "name"), dtype=_dtype(tensor, "elem_type"), shape=dims)


def _weight(tensor: Message) -> TensorDesc:
    dtype = _dtype(tensor, "data_type")
    return TensorDesc(name=text(tensor, "name"), dtype=dtype, shape=integers(tensor, "dims"))


def _dtype(message: Message, field: str) -> str:
    return as_dtype(last(message, field), field, ONNX_DTYPES)


def _type(message: Message, *, field: str = "op_type") -> str:
    """Operators outside of ONNX's own domain bear its name."""
    domain = text(message, "domain")
    return text(message, field) if domain in _MAIN_DOMAINS else f"{domain}.{text(message, field)}"


def _tensor(tensor: Message) -> Attributes:
    return {"dtype": _dtype(tensor, "data_type"), "shape": integers(tensor, "dims")}


def _graph_words(graph: Message) -> Attributes:
    return {"graph": text(graph, "name"), "operators": len(graph.get("node", ()))}


_KINDS: dict[str, tuple[str, Callable[[Message, str], AttributeValue]]] = {
    "STRING": ("s", text),
    "INT": ("i", integer),
    "FLOAT": ("f", lambda attribute, field: (numbers(attribute, field) or (0.0,))[-1]),
    "TENSOR": ("t", lambda attribute, field: _tensor(sub_message(attribute, field))),
    "GRAPH": ("g", lambda attribute, field: _graph_words(sub_message(attribute, field))),
    "STRINGS": ("strings", lambda attribute, field: tuple(texts(attribute, field))),
    "INTS": ("ints", integers),
    "FLOATS": ("floats", numbers),
    "TENSORS": ("tensors", lambda attribute, field: tuple(map(_tensor, messages(attribute, field)))),
    "GRAPHS": ("graphs", lambda attribute, field: tuple(map(_graph_words, messages(attribute, field)))),
}
"""The field of each kind of attribute, and what reads it."""


def _attribute(attribute: Message) -> AttributeValue:
    kind = _kind(attribute)
    reference = text(attribute, "ref_attr_name")
    if reference:
        return f"(argument {reference} of the function)"
    if kind not in _KINDS:
        return f"({kind.lower()})"
    field, read = _KINDS[kind]
    return read(attribute, field)


def _kind(attribute: Message) -> str:
    """Which kind it says it is; files of the first versions leave that to what is filled in."""
    stated = as_choice(last(attribute, "type"), "type")
    if isinstance(stated, str):
        return stated
    if not 0 <= stated < len(ATTRIBUTE_KINDS):
        raise GraphFileError(f"has an attribute of the unknown type {stated}")
    if stated:
        return ATTRIBUTE_KINDS[stated]
    return next((kind for kind, (field, _) in _KINDS.items() if field in attribute), "UNDEFINED")


def _model_attributes(message: Message) -> Attributes:
    opsets = {
        text(opset, "domain") or "ai.onnx": integer(opset, "version") for opset in messages(message, "opset_import")
    }
    return {
        "ir_version": integer(message, "ir_version"),
        "producer_name": text(message, "producer_name"),
        "producer_version": text(message, "producer_version"),
        "opsets": opsets,
        **{text(entry, "key"): text(entry, "value") for entry in messages(message, "metadata_props")},
    }


ATTRIBUTE_KINDS = (
    "UNDEFINED FLOAT INT STRING TENSOR GRAPH FLOATS INTS STRINGS TENSORS GRAPHS SPARSE_TENSOR SPARSE_TENSORS "
    "TYPE_PROTO TYPE_PROTOS"
).split()
"""AttributeProto.AttributeType by number."""
