"""Encoded arguments, kept by what tells them apart: a layer's calls look like those of the layer before.

torch.add(x, y, alpha=2) and torch.add(y, z, alpha=2) have one signature and one text; torch.add(x, x, alpha=2) has
another.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ulpscope.capture.torch.arguments import MAX_ALIASED, Placed, encode_call, to_json

MAX_KEPT = 4096
MAX_PARTS = 64
MAX_LENGTH = 512

# Equal objects of one of these types have equal encodings; not so floats, of which two are zero.
_HASHED = frozenset({int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_SEQUENCES = frozenset({tuple, list, torch.Size})
_TENSOR = "$tensor"


class Encodings:
    """The JSON of arguments, each made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[str, tuple[str, ...]]] = {}

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool | None = None
    ) -> tuple[Placed, str]:
        """Tensors with their places, and the text of everything; `training` is told of modules."""
        key: list[Any] = [training, len(args)]
        tensors: list[torch.Tensor] = []
        if not (_sign_all(args, key, tensors) and (not kwargs or _sign_named(kwargs, key, tensors))):
            return encode_anew(args, kwargs, training)
        signature = tuple(key)
        known = self._known.get(signature)
        if known is None:
            placed, text = encode_anew(args, kwargs, training)
            if len(self._known) >= MAX_KEPT:  # arguments that differ each time
                self._known.clear()
            self._known[signature] = text, tuple(place for place, _ in placed)
            return placed, text
        return list(zip(known[1], tensors, strict=True)), known[0]


def with_entry(text: str, name: str, entry: Any) -> str:
    """An encoded call with one more entry."""
    return f"{text[:-1]},{to_json({name: entry})[1:]}"


def encode_anew(args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None) -> tuple[Placed, str]:
    placed, encoded = encode_call(args, kwargs)
    if training is not None:
        encoded["training"] = training
    return placed, to_json(encoded)


def _sign_all(items: Any, key: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Put into the key what tells the items' encodings apart; False if nothing but encoding them can tell."""
    for item in items:
        kind = type(item)
        if isinstance(item, torch.Tensor):
            _sign_tensor(item, key, tensors)
        elif kind in _HASHED:
            key.append(kind)
            key.append(item)
        elif kind is float:
            key.append(float)
            key.append(item if item < 0.0 or item > 0.0 else repr(item))  # two zeros, and NaN, which equals nothing
        elif kind in _SEQUENCES and len(item) <= MAX_PARTS and len(key) <= MAX_LENGTH:  # a list may hold itself
            key.append(kind)
            key.append(len(item))
            if not _sign_all(item, key, tensors):
                return False
        elif kind is slice:
            key.append(slice)
            if not _sign_all((item.start, item.stop, item.step), key, tensors):
                return False
        else:
            return False
    return True


def _sign_named(kwargs: Mapping[str, Any], key: list[Any], tensors: list[torch.Tensor]) -> bool:
    key.extend(kwargs)
    return _sign_all(kwargs.values(), key, tensors)


def _sign_tensor(item: torch.Tensor, key: list[Any], tensors: list[torch.Tensor]) -> None:
    key.append(_TENSOR)
    for position, tensor in enumerate(tensors):
        if tensor is item and position < MAX_ALIASED:
            key.append(position)
            break
    tensors.append(item)
