"""Attributes of GE's operators and tensors (AttrDef of ge.proto) as plain values."""

from collections.abc import Callable
from typing import Any

from ulpscope.dialects.graphs.dtypes import ge_dtype
from ulpscope.dialects.graphs.messages import (
    Message,
    as_choice,
    as_flag,
    as_integer,
    as_message,
    as_number,
    as_text,
    integers,
    last,
    messages,
    numbers,
    size_of,
    sub_message,
    text,
)
from ulpscope.records.graphs import Attributes, AttributeValue


def attributes_of(message: Message) -> dict[str, AttributeValue]:
    """The map `attr` of a model, graph, operator or tensor."""
    return {text(entry, "key"): _value(sub_message(entry, "value")) for entry in messages(message, "attr")}


def described_dtype(found: object) -> str:
    return ge_dtype(as_choice(found, "dtype"))


def _value(definition: Message) -> AttributeValue:
    """One of the kinds that an attribute may be; none if the file holds an empty one."""
    for kind, values in definition.items():
        read = _KINDS.get(kind)
        if read is not None and values:
            return read(values[-1])
    return None


def _list(definition: Any) -> AttributeValue:
    for kind, values in as_message(definition, "list").items():
        read = _KINDS.get(kind)
        if read is not None and values:
            return tuple([read(value) for value in values])
    return ()


def _number(value: Any) -> float:
    return as_number(value, "f")


def _flag(value: Any) -> bool:
    return as_flag(value, "b")


def _text(value: Any) -> str:
    return as_text(value, "s")


def _integer(value: Any) -> int:
    return as_integer(value, "i")


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


def _graph(value: Any) -> Attributes:
    graph = as_message(value, "attr")
    return {"graph": text(graph, "name"), "operators": len(graph.get("op", ()))}


_KINDS: dict[str, Callable[[Any], AttributeValue]] = {
    "s": _text,
    "i": _integer,
    "f": _number,
    "b": _flag,
    "bt": _bytes,
    "list": _list,
    "func": _named_attributes,
    "na": _named_attributes,
    "td": _tensor_desc,
    "t": _tensor,
    "g": _graph,
    "list_list_int": _rows("list_list_i", "list_i", integers),
    "list_list_float": _rows("list_list_f", "list_f", numbers),
    "dt": described_dtype,
}
