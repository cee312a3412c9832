"""Arguments and tensors in the form of dump.json, read and written.

[{tensor}, [{"type": "int", "value": 32}], null, {"type": "float", "value": 1e-05}]
<-> [{"$tensor": "args.0"}, [32], null, 1e-05]                              the closed JSON encoding of a trace

Max, Min, Mean and Norm are what torch itself would answer, made of a summary that leaves nan and inf aside.
"""

import json
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.records.calls import Stats, Value

Json: TypeAlias = Any
Found: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Tensors and their places, in order."""
Number: TypeAlias = float | int | bool | None
Elements: TypeAlias = Callable[[], NDArray[Any] | None]

STATS = ("Max", "Min", "Mean", "Norm")
DEEPEST = 32
PLAIN_TYPES = frozenset({"int", "float", "bool", "str", "NoneType"})
_LIST_FORMS = {"torch.Size": "$size", "slice": "$slice", "tuple": "$tuple"}

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


def tensors_in(items: Iterable[tuple[str, Json]]) -> Found:
    """The tensors among arguments, each of which has its place."""
    found: Found = []
    for place, item in items:
        if item is not None:
            encode(item, place, found)
    return found


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
    if kind in ("torch.dtype", "mindspore.dtype") and isinstance(value, str):
        return {"$dtype": short_dtype(value)}
    if kind == "torch.device" and isinstance(value, str):
        return {"$device": value}
    if kind in ("ellipsis", "Ellipsis") and isinstance(value, str):
        return {"$ellipsis": True}
    if kind in _LIST_FORMS and isinstance(value, list):
        return {_LIST_FORMS[kind]: [encode(inner, f"{place}.{i}", found, depth + 1) for i, inner in enumerate(value)]}
    if kind == "torch.memory_format" and isinstance(item.get("format"), str):
        return {"$memory_format": item["format"].removeprefix("torch.")}
    fields = [[key, encode(inner, f"{place}.{key}", found, depth + 1)] for key, inner in item.items() if key != "type"]
    return {"$object": kind, "fields": {"$dict": fields}}


def short_dtype(text: str) -> str:
    """`torch.bfloat16` and MindSpore's `BFloat16` as a trace has them."""
    return text.removeprefix("torch.").removeprefix("mindspore.").lower()


def decode(item: Json, name: str, tensor: Callable[[str, str], Json]) -> Json:
    """One argument in msprobe's form; `tensor` gives that of the tensor at a place, under a name."""
    if item is None:
        return None
    if isinstance(item, list):
        return [decode(part, f"{name}.{i}", tensor) for i, part in enumerate(item)]
    if not isinstance(item, dict):
        return {"type": type(item).__name__, "value": item}
    kind, content = next(iter(item.items()))
    if kind == "$tensor":
        return tensor(content, name)
    if kind == "$tuple":
        return decode(content, name, tensor)
    if kind == "$dict":
        return {str(key): decode(part, f"{name}.{key}", tensor) for key, part in content}
    if kind == "$float":
        return {"type": "float", "value": float(content)}
    if kind == "$size":
        return {"type": "torch.Size", "value": content}
    if kind == "$slice":
        return {"type": "slice", "value": [part if isinstance(part, int) else None for part in content]}
    if kind == "$ellipsis":
        return {"type": "ellipsis", "value": "..."}
    if kind == "$dtype":
        return {"type": "torch.dtype", "value": f"torch.{content}"}
    if kind == "$device":
        return {"type": "torch.device", "value": content}
    if kind == "$memory_format":
        return {"type": "torch.memory_format", "format": content}
    return {"type": kind.removeprefix("$"), "value": str(content)}


def four_numbers(value: Value, elements: Elements) -> dict[str, Number]:
    """The four statistics of a tensor; null where msprobe has none or the trace cannot tell."""
    return dict(zip(STATS, _numbers(value, elements), strict=True))


def _numbers(value: Value, elements: Elements) -> tuple[Number, Number, Number, Number]:
    stats = value.stats
    if stats is None or not value.initialized or 0 in value.shape:
        return None, None, None, None
    if value.dtype.startswith("complex"):
        return _of_complex(value, elements)
    if not value.dtype.startswith(("float", "bfloat")):
        return _of_whole(value, stats)
    return _of_float(value, stats, elements)


def _of_whole(value: Value, stats: Stats) -> tuple[Number, Number, Number, Number]:
    kind = bool if value.dtype == "bool" else int
    high = None if stats.max is None else kind(stats.max)
    low = None if stats.min is None else kind(stats.min)
    return (high, high, high, high) if value.shape == () else (high, low, None, None)


def _of_float(value: Value, stats: Stats, elements: Elements) -> tuple[Number, Number, Number, Number]:
    if stats.nan:
        return math.nan, math.nan, math.nan, math.nan
    high = math.inf if stats.pos_inf else -math.inf if stats.max is None else stats.max
    low = -math.inf if stats.neg_inf else math.inf if stats.min is None else stats.min
    if value.shape == ():
        return high, high, high, high
    return high, low, *_mean_and_norm(stats, elements)


def _mean_and_norm(stats: Stats, elements: Elements) -> tuple[Number, Number]:
    if stats.pos_inf or stats.neg_inf:
        both = stats.pos_inf and stats.neg_inf
        return math.nan if both else math.inf if stats.pos_inf else -math.inf, math.inf
    if not stats.set_aside:
        return stats.mean, stats.norm
    # Huge finite elements are not in our sums, but they are in torch's.
    data = elements()
    if data is None:
        return None, None
    wide = data.astype(np.float64)
    return float(wide.mean()), float(np.linalg.norm(wide))


def _of_complex(value: Value, elements: Elements) -> tuple[Number, Number, Number, Number]:
    data = elements()
    if data is None or value.shape == () or data.dtype.kind != "c":
        return None, None, None, None
    size = np.abs(data)
    return float(size.max()), float(size.min()), None, None
