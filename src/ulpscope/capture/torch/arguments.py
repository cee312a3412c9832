"""Arguments of a call: the tensors in them, each with its place, and the rest as closed JSON values.

torch.clamp(x, min=0.0)  ->  [("args.0", x)],  {"args": [{"$tensor": "args.0"}], "kwargs": {"min": 0.0}}

And the state of the generator that a call draws from, as a digest.
"""

import base64
import dataclasses
import enum
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import torch

Placed = list[tuple[str, torch.Tensor]]

MAX_ITEMS = 4096
MAX_TEXT = 4096
MAX_DEPTH = 12
# Repeated tensors are looked for among this many; a list of all parameters would cost its length squared.
MAX_ALIASED = 32

_PLAIN = (bool, int, str, type(None))
_TORCH_WORDS: tuple[tuple[type, str], ...] = (
    (torch.dtype, "$dtype"),
    (torch.layout, "$layout"),
    (torch.memory_format, "$memory_format"),
)


def encode_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Placed, dict[str, Any]]:
    """Tensors with their places, and the JSON form of everything."""
    tensors: Placed = []
    encoded: dict[str, Any] = {"args": [_encode(item, f"args.{i}", tensors, 0) for i, item in enumerate(args)]}
    if kwargs:
        encoded["kwargs"] = {key: _encode(item, f"kwargs.{key}", tensors, 0) for key, item in kwargs.items()}
    return tensors, encoded


def find_tensors(result: Any, place: str) -> Placed:
    """Tensors of a result: `output.0` for one alone, `output.0`, `output.1.key` for nested ones."""
    if isinstance(result, torch.Tensor):
        return [(f"{place}.0", result)]
    tensors: Placed = []
    _encode(result, place, tensors, 0)
    return tensors


def encode_scalar(result: Any) -> Any:
    """A plain number or text that a call returned, or None for anything else."""
    if isinstance(result, (_PLAIN, float | complex)):
        return _encode(result, "returned", [], 0)
    return None


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def to_json(encoded: dict[str, Any]) -> str:
    return _JSON.encode(encoded)


def _encode(item: Any, place: str, tensors: Placed, depth: int) -> Any:
    if isinstance(item, torch.Tensor):
        return _encode_tensor(item, place, tensors)
    kind = type(item)
    if kind is str:
        return item if len(item) <= MAX_TEXT else {"$truncated": len(item)}
    if kind in _PLAIN:
        return item
    if kind is float:
        return item if math.isfinite(item) else {"$float": repr(item)}
    if depth >= MAX_DEPTH:
        return {"$truncated": depth}
    if isinstance(item, list | tuple):
        return _encode_sequence(item, place, tensors, depth)
    if isinstance(item, dict):  # not any Mapping: reading one may run the user's code
        return _encode_mapping(item, place, tensors, depth)
    return _encode_word(item, place, tensors, depth)


def _encode_tensor(item: torch.Tensor, place: str, tensors: Placed) -> dict[str, str]:
    first = next((known for known, tensor in tensors[:MAX_ALIASED] if tensor is item), None)
    tensors.append((place, item))
    return {"$tensor": place} if first is None else {"$tensor": place, "as": first}


def _encode_sequence(item: list[Any] | tuple[Any, ...], place: str, tensors: Placed, depth: int) -> Any:
    holds_tensors = bool(item) and isinstance(item[0], torch.Tensor)
    kept = item if holds_tensors else item[:MAX_ITEMS]
    inner = [_encode(part, f"{place}.{i}", tensors, depth + 1) for i, part in enumerate(kept)]
    if len(item) > len(kept):
        inner.append({"$truncated": len(item) - len(kept)})
    if isinstance(item, torch.Size):
        return {"$size": inner}
    return inner if isinstance(item, list) else {"$tuple": inner}


def _encode_mapping(item: Mapping[Any, Any], place: str, tensors: Placed, depth: int) -> Any:
    pairs = list(item.items())[:MAX_ITEMS]
    return {"$dict": [[_key(key), _encode(part, f"{place}.{key}", tensors, depth + 1)] for key, part in pairs]}


def _key(key: Any) -> Any:
    return key if isinstance(key, _PLAIN) else str(key)


def _encode_word(item: Any, place: str, tensors: Placed, depth: int) -> Any:
    for kind, word in _TORCH_WORDS:
        if isinstance(item, kind):
            return {word: str(item).removeprefix("torch.")}
    if isinstance(item, torch.device):
        return {"$device": str(item)}
    if isinstance(item, slice):
        return {"$slice": [_encode(part, place, tensors, depth + 1) for part in (item.start, item.stop, item.step)]}
    if item is Ellipsis:
        return {"$ellipsis": True}
    if isinstance(item, torch.Generator):
        return {"$generator": str(item.device)}
    return _encode_other(item, place, tensors, depth)


def _encode_other(item: Any, place: str, tensors: Placed, depth: int) -> Any:
    if isinstance(item, complex):
        return {"$complex": [_encode(item.real, place, tensors, depth), _encode(item.imag, place, tensors, depth)]}
    if isinstance(item, enum.Enum):
        return {"$object": f"{_class_name(type(item))}.{item.name}"}
    if isinstance(item, int | float):  # numpy scalars and other subclasses
        return _encode(float(item) if isinstance(item, float) else int(item), place, tensors, depth)
    if isinstance(item, bytes | bytearray):
        return {"$bytes": base64.b64encode(item[:MAX_TEXT]).decode()}
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        fields = {field.name: getattr(item, field.name, None) for field in dataclasses.fields(item)}
        return {"$object": _class_name(type(item)), "fields": _encode_mapping(fields, place, tensors, depth)}
    if callable(item) and not isinstance(item, torch.nn.Module):
        return {"$callable": f"{getattr(item, '__module__', '?')}.{getattr(item, '__qualname__', type(item).__name__)}"}
    return _encode_number_like(item, place, tensors, depth)


def _encode_number_like(item: Any, place: str, tensors: Placed, depth: int) -> Any:
    if type(item).__module__ == "numpy" and getattr(item, "ndim", None) == 0:
        return _encode(item.item(), place, tensors, depth + 1)
    if isinstance(item, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {"$object": str(item)}
    return {"$object": _class_name(type(item))}


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def generator_digest(tensors: Placed, kwargs: Mapping[str, Any]) -> str | None:
    """Digest of the state of the generator this call would use; None if that cannot be told."""
    generator = _generator_of(tensors, kwargs)
    if generator is None:
        return None
    return state_digest(generator.get_state().numpy().tobytes())


def state_digest(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=8).hexdigest()


def _generator_of(tensors: Placed, kwargs: Mapping[str, Any]) -> torch.Generator | None:
    given = kwargs.get("generator")
    if isinstance(given, torch.Generator):
        return given
    device = _device_of(tensors, kwargs)
    if device.type == "cpu":
        return torch.default_generator
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    index = device.index or 0
    return generators[index] if index < len(generators) else None


def _device_of(tensors: Placed, kwargs: Mapping[str, Any]) -> torch.device:
    given = kwargs.get("device")
    if given is not None:
        return torch.device(given)
    return tensors[0][1].device if tensors else torch.get_default_device()
