"""Rebuilds a call's arguments from their recorded form."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ulpscope.replay.recorded import CannotReplayError

Tensors = Mapping[str, Tensor]

_FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32))
_COMPLEXES = frozenset((torch.complex32, torch.complex64))


def raised(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a reference computes what has this one."""
    if dtype in _FLOATS:
        return torch.float64
    return torch.complex128 if dtype in _COMPLEXES else dtype


class Decoder:
    """Gives arguments for one execution of a call."""

    def __init__(
        self, tensors: Tensors, *, device: str, precise: bool = False, scalars: torch.dtype | None = None
    ) -> None:
        self._tensors = tensors
        self._device = device
        self._precise = precise
        self._scalars = scalars
        """The dtype to which a kernel rounds plain numbers; none leaves them as they are."""

    def arguments(self, encoded: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args = [self.decode(item) for item in encoded.get("args", [])]
        return args, {name: self.decode(item) for name, item in encoded.get("kwargs", {}).items()}

    def decode(self, encoded: Any) -> Any:
        if isinstance(encoded, float):
            return self._number(encoded)
        if isinstance(encoded, list):
            return [self.decode(item) for item in encoded]
        if not isinstance(encoded, dict):
            return encoded
        ((word, content), *_) = encoded.items()
        if word == "$object" and "fields" in encoded:
            return self._options(content, encoded["fields"])
        decode = _DECODERS.get(word)
        if decode is None:
            raise CannotReplayError(f"an argument is {_described(word, content)}")
        return decode(self, content)

    def _number(self, number: float) -> float:
        return number if self._scalars is None else float(torch.tensor(number, dtype=self._scalars))

    def _options(self, name: str, fields: Any) -> Any:
        """An object of torch that holds nothing but options of a function."""
        module, _, kind = name.rpartition(".")
        found = getattr(sys.modules.get(module), kind, None) if module.startswith("torch.nn.") else None
        if not isinstance(found, type) or not dataclasses.is_dataclass(found):
            raise CannotReplayError(f"an argument is an object {name}")
        return found(**self.decode(fields))

    def _tensor(self, place: str) -> Tensor:
        if place not in self._tensors:
            raise CannotReplayError(f"no value was recorded for {place}")
        return self._tensors[place]

    def _dtype(self, name: str) -> torch.dtype:
        found = _torch_word(torch.dtype, name)
        return raised(found) if self._precise else found

    def _where(self, _content: str) -> torch.device:
        return torch.device(self._device)

    def _generator(self, _content: str) -> torch.Generator:
        return torch.Generator(self._device)


def _described(word: str, content: Any) -> str:
    named = f" {content}" if isinstance(content, str) else ""
    kind = word.removeprefix("$")
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}{named}"


def _torch_word(kind: type, name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise CannotReplayError(f"this torch has no {kind.__name__} {name}")
    return found


_DECODERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "$tensor": Decoder._tensor,
    "$tuple": lambda decoder, content: tuple(decoder.decode(item) for item in content),
    "$size": lambda decoder, content: torch.Size(decoder.decode(item) for item in content),
    "$dict": lambda decoder, content: {key: decoder.decode(item) for key, item in content},
    "$slice": lambda decoder, content: slice(*(decoder.decode(item) for item in content)),
    "$complex": lambda decoder, content: complex(*(decoder.decode(item) for item in content)),
    "$float": lambda _decoder, content: float(content),
    "$ellipsis": lambda _decoder, _content: Ellipsis,
    "$device": Decoder._where,
    "$dtype": Decoder._dtype,
    "$generator": Decoder._generator,
    "$layout": lambda _decoder, content: _torch_word(torch.layout, content),
    "$memory_format": lambda _decoder, content: _torch_word(torch.memory_format, content),
}
