"""TensorFlow's GraphDef, meta graphs and saved models as graphs, binary or text, without TensorFlow.

An input is `name`, `name:1`, or `^name`, which is only waited for. Inside of a function it is `name:output:1`, counted
within the named output. What a function takes and gives stands in its signature: here as operators, as TensorFlow
itself makes them when it runs the function (`_Arg`, and `_Retval` called `name_RetVal`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ulpscope.dialects.graphs.messages import (
    SCALAR_KINDS,
    TENSORFLOW_DTYPES,
    GraphFileError,
    Kind,
    Message,
    all_by_kind,
    as_dtype,
    as_flag,
    as_text,
    by_kind,
    integer,
    integers_in,
    last,
    messages,
    of_message,
    read_message,
    size_of,
    sub_message,
    text,
    texts,
    unfit,
    words_in,
)
from ulpscope.dialects.wire import schemas_of
from ulpscope.records.graphs import (
    ARGUMENT,
    INDEX,
    RESULT,
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

_DTYPES = ("DstT", "output_type", "out_type", "dtype", "T")
"""Attributes that name the type of an operator's first output, the surest first."""


def tf_operator(message: Message) -> Operator:
    """A NodeDef that does not know yet which graph it belongs to, nor its number in it."""
    attributes = {
        text(entry, "key"): by_kind(_KINDS, sub_message(entry, "value")) for entry in messages(message, "attr")
    }
    entries, originals = texts(message, "input"), attributes.get("_datadump_original_op_names")
    device = text(message, "device")
    return Operator(
        name=text(message, "name"),
        type=text(message, "op"),
        graph="",
        id=0,
        inputs=tuple([Input(_source(entry)) for entry in entries if not entry.startswith("^")]),
        outputs=_outputs(attributes),
        controls=tuple([entry[1:] for entry in entries if entry.startswith("^")]),
        originals=words_in(originals) if isinstance(originals, tuple) else None,
        subgraphs=tuple(
            [str(each["function"]) for each in attributes.values() if isinstance(each, dict) and "function" in each]
        ),
        attributes={**attributes, "device": device} if device else attributes,
    )


_GRAPHS = ("", "graph_def.", "meta_graphs.graph_def.")
FINISHED = {f"{where}{field}": tf_operator for where in _GRAPHS for field in ("node", "library.function.node_def")}


def read_graph_def(data: memoryview) -> GraphModel:
    return graph_def_model(read_message(data, "GraphDef", schemas_of("tensorflow"), FINISHED))


def event_model(message: Message) -> GraphModel:
    """The graph that ran, as tfdbg dumps it beside its tensors: with what the debugger added."""
    (graph,) = messages(message, "graph_def")[-1:]
    return graph_def_model(graph)


def graph_def_model(message: Message) -> GraphModel:
    return GraphModel(name="", format=GraphFormat.TENSORFLOW, graphs=_graphs(message, ""))


def meta_graph_model(message: Message) -> GraphModel:
    info = sub_message(message, "meta_info_def")
    version, tags = text(info, "tensorflow_version"), tuple(texts(info, "tags"))
    attributes: Attributes = {"tensorflow_version": version, "tags": tags}
    graphs = _graphs(sub_message(message, "graph_def"), "")
    return GraphModel(name="", format=GraphFormat.TENSORFLOW_META, graphs=graphs, attributes=attributes)


def saved_model(message: Message) -> GraphModel:
    """The first of the meta graphs that a saved model holds: nearly all hold one."""
    found = messages(message, "meta_graphs")
    if not found:
        raise GraphFileError("is a saved model without a meta graph")
    return meta_graph_model(found[0])


def _graphs(graph: Message, name: str) -> tuple[Graph, ...]:
    functions = messages(sub_message(graph, "library"), "function")
    return (_graph(name, graph.get("node", [])), *map(_function, functions))


def _function(function: Message) -> Graph:
    signature = sub_message(function, "signature")
    given = {text(entry, "key"): text(entry, "value") for entry in messages(function, "ret")}
    arguments = [_argument(each, place) for place, each in enumerate(messages(signature, "input_arg"))]
    results = [_result(each, place, given) for place, each in enumerate(messages(signature, "output_arg"))]
    return _graph(text(signature, "name"), [*arguments, *function.get("node_def", []), *results])


def _argument(argument: Message, place: int) -> Operator:
    described = TensorDesc(dtype=_type_of(argument))
    return Operator(text(argument, "name"), ARGUMENT, "", 0, outputs=(described,), attributes={INDEX: place})


def _result(result: Message, place: int, given: Mapping[str, str]) -> Operator:
    name = text(result, "name")
    source = _source(given[name]) if given.get(name) else None
    described = TensorDesc(dtype=_type_of(result))
    return Operator(f"{name}_RetVal", RESULT, "", 0, inputs=(Input(source, described),), attributes={INDEX: place})


def _type_of(argument: Message) -> str:
    """None is told where the call decides."""
    return _dtype(last(argument, "type")) if argument.get("type") else ""


def _graph(name: str, operators: list[Any]) -> Graph:
    for operator in operators:
        if not isinstance(operator, Operator):
            raise unfit("node", operator, "a message")
    return Graph(name, tuple([replace(operator, graph=name, id=k) for k, operator in enumerate(operators)]))


def _source(entry: str) -> Source:
    name, *rest = entry.split(":")
    output = rest[-1] if rest else "0"
    if not output.isdecimal() or len(output) > 9:
        raise GraphFileError(f"has the input {entry[:80]!r}, which is not name:index")
    return Source(name, int(output))


def _outputs(attributes: Attributes) -> tuple[TensorDesc, ...]:
    """As far as attributes tell: TensorFlow keeps the number and types of outputs in its operators' definitions."""
    dtype = next((str(attributes[key]) for key in _DTYPES if isinstance(attributes.get(key), str)), "")
    shapes = attributes.get("_output_shapes")
    known = shapes if isinstance(shapes, tuple) and shapes else (attributes.get("shape"),)
    if not dtype and known == (None,):
        return ()
    return tuple([TensorDesc(dtype=dtype if k == 0 else "", shape=integers_in(shape)) for k, shape in enumerate(known)])


def _shape(shape: Message) -> AttributeValue:
    if as_flag(last(shape, "unknown_rank"), "unknown_rank"):
        return None
    return tuple([integer(dim, "size") for dim in messages(shape, "dim")])


_DTYPES_AND_REFERENCES = TENSORFLOW_DTYPES | {
    100 + number: name for number, name in TENSORFLOW_DTYPES.items() if number
}


def _dtype(value: Any, field: str = "type") -> str:
    return as_dtype(value, field, _DTYPES_AND_REFERENCES)


def _tensor(tensor: Message) -> Attributes:
    return {
        "dtype": _dtype(last(tensor, "dtype", 0)),
        "shape": _shape(sub_message(tensor, "tensor_shape")),
        "bytes": size_of(last(tensor, "tensor_content"), "tensor_content"),
    }


_KINDS: dict[str, Kind] = {
    **SCALAR_KINDS,
    "type": _dtype,
    "shape": of_message(_shape),
    "tensor": of_message(_tensor),
    "placeholder": as_text,
    "func": of_message(lambda function: {"function": text(function, "name")}),
    "list": of_message(lambda values: all_by_kind(_KINDS, values)),
}
