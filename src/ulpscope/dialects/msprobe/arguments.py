"""Arguments of an entry: tensors with their places, everything else in the closed JSON encoding of a trace.

[{tensor}, [{"type": "int", "value": 32}], null, {"type": "float", "value": 1e-05}]
-> [{"$tensor": "args.0"}, [32], null, 1e-05]
"""

import json
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

Json: TypeAlias = Any
Found: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Tensors and their places, in order."""

DEEPEST = 32
PLAIN_TYPES = frozenset({"int", "float", "bool", "str", "NoneType"})

_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_arguments(args: list[Any], kwargs: dict[str, Any] | None, extra: dict[str, Json]) -> tuple[str, Found]:
    """The JSON text of a call's arguments and of what else is told of it, and the tensors among them."""
    found: Found = []
    # A dump has many calls, and most arguments are tensors or numbers: texts are joined, and rarely encoded.
    listed = ",".join([_text(item, place, found) for item, place in zip(args, places("args", len(args)), strict=True)])
    if kwargs:
        extra = {"kwargs": {key: encode(item, f"kwargs.{key}", found) for key, item in kwargs.items()}} | extra
    return f'{{"args":[{listed}]{"," + _encode_json(extra)[1:-1] if extra else ""}}}', found


@lru_cache(maxsize=1024)
def places(word: str, count: int) -> tuple[str, ...]:
    """`args.0`, `args.1`, ..."""
    return tuple(f"{word}.{index}" for index in range(count))


def _text(item: Json, place: str, found: Found) -> str:
    if type(item) is dict:
        if "shape" in item and "dtype" in item:
            found.append((place, item))
            return f'{{"$tensor":"{place}"}}'
        value = item.get("value")
        if item.get("type") in ("int", "float") and (
            type(value) is int or (type(value) is float and value - value == 0.0)
        ):
            return repr(value)
    return "null" if item is None else _encode_json(encode(item, place, found))


def encode(item: Json, place: str, found: Found, depth: int = 0) -> Json:
    """One argument; its tensors are added to `found`."""
    if type(item) is dict:
        if "shape" in item and "dtype" in item:
            found.append((place, item))
            return {"$tensor": place}
        kind = item.get("type")
        if isinstance(kind, str) and kind in PLAIN_TYPES and "value" in item:
            return plain(item["value"])
        if depth >= DEEPEST:
            return {"$truncated": 1}
        if isinstance(kind, str):
            return _typed(kind, item, place, found, depth)
        return {"$dict": [[key, encode(inner, f"{place}.{key}", found, depth + 1)] for key, inner in item.items()]}
    if type(item) is list:
        if depth >= DEEPEST:
            return {"$truncated": 1}
        return [encode(inner, f"{place}.{index}", found, depth + 1) for index, inner in enumerate(item)]
    return plain(item)


def returned_value(output: Json) -> Json:
    """What a call returned, if that is a plain number or text."""
    if type(output) is not dict or "shape" in output or "value" not in output:
        return None
    encoded = encode(output, "", [])
    return encoded if not isinstance(encoded, dict) or "$float" in encoded else None


def plain(value: Json) -> Json:
    """A number or text; what JSON has no number for is written as text, and anything else by its kind."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    return {"$object": type(value).__name__}


def _typed(kind: str, item: dict[str, Any], place: str, found: Found, depth: int) -> Json:
    value = item.get("value")
    if kind in _TEXT_FORMS and isinstance(value, str):
        return _TEXT_FORMS[kind](value)
    if kind in _LIST_FORMS and isinstance(value, list):
        return {_LIST_FORMS[kind]: [encode(inner, f"{place}.{i}", found, depth + 1) for i, inner in enumerate(value)]}
    if kind == "torch.memory_format" and isinstance(item.get("format"), str):
        return {"$memory_format": item["format"].removeprefix("torch.")}
    fields = [[key, encode(inner, f"{place}.{key}", found, depth + 1)] for key, inner in item.items() if key != "type"]
    return {"$object": kind, "fields": {"$dict": fields}}


def _dtype(text: str) -> Json:
    return {"$dtype": short_dtype(text)}


def _ellipsis(text: str) -> Json:
    return {"$ellipsis": True}


def short_dtype(text: str) -> str:
    """`torch.bfloat16` and MindSpore's `BFloat16` as a trace has them."""
    return text.removeprefix("torch.").removeprefix("mindspore.").lower()


_TEXT_FORMS: dict[str, Callable[[str], Json]] = {
    "torch.dtype": _dtype,
    "mindspore.dtype": _dtype,
    "torch.device": lambda text: {"$device": text},
    "ellipsis": _ellipsis,
    "Ellipsis": _ellipsis,
}
_LIST_FORMS = {"torch.Size": "$size", "slice": "$slice", "tuple": "$tuple"}
