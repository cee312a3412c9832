"""Arguments of a call: the tensors in them, each with its place, and the rest as closed JSON values.

torch.clamp(x, min=0.0)  ->  [("args.0", x)],  {"args": [{"$tensor": "args.0"}], "kwargs": {"min": 0.0}}

Texts are kept by what tells them apart: a layer's calls look like those of the layer before. torch.add(x, y, alpha=2)
and torch.add(y, z, alpha=2) have one signature and one text; torch.add(x, x, alpha=2) has another.
"""

import base64
import dataclasses
import enum
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ulpscope.capture.recording.tensors import Placed

MAX_ITEMS = 4096
MAX_TEXT = 4096
MAX_DEPTH = 12
# Repeated tensors are looked for among this many; a list of all parameters would cost its length squared.
MAX_ALIASED = 32

# Of signatures.
MAX_KEPT = 4096
MAX_PARTS = 64
MAX_LENGTH = 512

_PLAIN = (bool, int, str, type(None))
_TENSOR = "$tensor"


def _no_words(item: Any) -> None:
    """A framework without kinds of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """How a framework's arguments are encoded."""

    tensor: type
    """The class of its tensors."""
    words: Callable[[Any], Any] = _no_words
    """Gives the encoding of what the framework has kinds of its own for (a dtype, a device); None for anything else."""
    hashed: frozenset[type] = frozenset()
    """Such kinds of which equal objects have equal encodings."""
    sequences: Mapping[type, str] = dataclasses.field(default_factory=dict)
    """Tuples of the framework's own, with their words."""
    opaque: tuple[type, ...] = ()
    """What can be called, and is told by its class (a module)."""

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Placed, dict[str, Any]]:
        """Tensors with their places, and the JSON form of everything."""
        tensors: Placed = []
        encode = self._encode
        encoded: dict[str, Any] = {"args": [encode(item, f"args.{i}", tensors, 0) for i, item in enumerate(args)]}
        if kwargs:
            encoded["kwargs"] = {key: encode(item, f"kwargs.{key}", tensors, 0) for key, item in kwargs.items()}
        return tensors, encoded

    def find_tensors(self, result: Any, place: str) -> Placed:
        """Tensors of a result: `output.0` for one alone, `output.0`, `output.1.key` for nested ones."""
        if isinstance(result, self.tensor):
            return [(f"{place}.0", result)]
        tensors: Placed = []
        self._encode(result, place, tensors, 0)
        return tensors

    def encode_scalar(self, result: Any) -> Any:
        """A plain number or text that a call returned, or None for anything else."""
        if isinstance(result, (_PLAIN, float | complex)):
            return self._encode(result, "returned", [], 0)
        return None

    def to_text(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None = None
    ) -> tuple[Placed, str]:
        """Tensors with their places, and the text of everything; `training` is told of modules."""
        placed, encoded = self.encode_call(args, kwargs)
        if training is not None:
            encoded["training"] = training
        return placed, to_json(encoded)

    def _encode(self, item: Any, place: str, tensors: Placed, depth: int) -> Any:
        if isinstance(item, self.tensor):
            first = next((known for known, tensor in tensors[:MAX_ALIASED] if tensor is item), None)
            tensors.append((place, item))
            return {_TENSOR: place} if first is None else {_TENSOR: place, "as": first}
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
            return self._encode_sequence(item, place, tensors, depth)
        if isinstance(item, dict):  # not any Mapping: reading one may run the user's code
            return self._encode_mapping(item, place, tensors, depth)
        word = self.words(item)
        return self._encode_other(item, place, tensors, depth) if word is None else word

    def _encode_sequence(self, item: list[Any] | tuple[Any, ...], place: str, tensors: Placed, depth: int) -> Any:
        holds_tensors = bool(item) and isinstance(item[0], self.tensor)
        kept = item if holds_tensors else item[:MAX_ITEMS]
        inner = [self._encode(part, f"{place}.{i}", tensors, depth + 1) for i, part in enumerate(kept)]
        if len(item) > len(kept):
            inner.append({"$truncated": len(item) - len(kept)})
        if isinstance(item, list):
            return inner
        return {self.sequences.get(type(item), "$tuple"): inner}

    def _encode_mapping(self, item: Mapping[Any, Any], place: str, tensors: Placed, depth: int) -> Any:
        pairs = list(item.items())[:MAX_ITEMS]
        encoded = ((key, self._encode(part, f"{place}.{key}", tensors, depth + 1)) for key, part in pairs)
        return {"$dict": [[key if isinstance(key, _PLAIN) else str(key), part] for key, part in encoded]}

    def _encode_other(self, item: Any, place: str, tensors: Placed, depth: int) -> Any:
        if isinstance(item, slice):
            parts = (item.start, item.stop, item.step)
            return {"$slice": [self._encode(part, place, tensors, depth + 1) for part in parts]}
        if item is Ellipsis:
            return {"$ellipsis": True}
        if isinstance(item, complex):
            return {"$complex": [self._encode(part, place, tensors, depth) for part in (item.real, item.imag)]}
        if isinstance(item, enum.Enum):
            return {"$object": f"{_class_name(type(item))}.{item.name}"}
        if isinstance(item, int | float):  # numpy scalars and other subclasses
            return self._encode(float(item) if isinstance(item, float) else int(item), place, tensors, depth)
        if isinstance(item, bytes | bytearray):
            return {"$bytes": base64.b64encode(item[:MAX_TEXT]).decode()}
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            fields = {field.name: getattr(item, field.name, None) for field in dataclasses.fields(item)}
            return {"$object": _class_name(type(item)), "fields": self._encode_mapping(fields, place, tensors, depth)}
        if callable(item) and not isinstance(item, self.opaque):
            name = getattr(item, "__qualname__", type(item).__name__)
            return {"$callable": f"{getattr(item, '__module__', '?')}.{name}"}
        if type(item).__module__ == "numpy" and getattr(item, "ndim", None) == 0:
            return self._encode(item.item(), place, tensors, depth + 1)
        return {"$object": _class_name(type(item))}


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def to_json(encoded: dict[str, Any]) -> str:
    return _JSON.encode(encoded)


def with_entry(text: str, name: str, entry: Any) -> str:
    """An encoded call with one more entry."""
    return f"{text[:-1]},{to_json({name: entry})[1:]}"


class Encodings:
    """The JSON of arguments, each made once."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._tensor = arguments.tensor
        # Equal objects of one of these types have equal encodings; not so floats, of which two are zero.
        self._hashed = arguments.hashed | {int, bool, str, type(None)}
        self._sequences = frozenset({tuple, list, *arguments.sequences})
        self._known: dict[tuple[Any, ...], tuple[str, tuple[str, ...]]] = {}

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool | None = None
    ) -> tuple[Placed, str]:
        """As Arguments.to_text."""
        key: list[Any] = [training, len(args)]
        tensors: list[Any] = []
        if not self._sign_all(args, key, tensors):
            return self._arguments.to_text(args, kwargs, training)
        if kwargs:
            key.extend(kwargs)
            if not self._sign_all(kwargs.values(), key, tensors):
                return self._arguments.to_text(args, kwargs, training)
        signature = tuple(key)
        known = self._known.get(signature)
        if known is None:
            placed, text = self._arguments.to_text(args, kwargs, training)
            if len(self._known) >= MAX_KEPT:  # arguments that differ each time
                self._known.clear()
            self._known[signature] = text, tuple(place for place, _ in placed)
            return placed, text
        return list(zip(known[1], tensors, strict=True)), known[0]

    def _sign_all(self, items: Any, key: list[Any], tensors: list[Any]) -> bool:
        """Put into the key what tells the items' encodings apart; False if nothing but encoding them can tell."""
        tensor, hashed = self._tensor, self._hashed
        for item in items:
            kind = type(item)
            if isinstance(item, tensor):
                key.append(_TENSOR)
                for position, known in enumerate(tensors):
                    if known is item and position < MAX_ALIASED:
                        key.append(position)
                        break
                tensors.append(item)
            elif kind in hashed:
                key.append(kind)
                key.append(item)
            elif kind is float:
                key.append(float)
                key.append(item if item < 0.0 or item > 0.0 else repr(item))  # two zeros, and NaN, which equals nothing
            elif kind in self._sequences and len(item) <= MAX_PARTS and len(key) <= MAX_LENGTH:  # it may hold itself
                key.append(kind)
                key.append(len(item))
                if not self._sign_all(item, key, tensors):
                    return False
            elif kind is slice:
                key.append(slice)
                if not self._sign_all((item.start, item.stop, item.step), key, tensors):
                    return False
            else:
                return False
        return True
