"""Tensors and arguments for a recorded call: saved data, or data that looks like what was recorded."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.records.calls import Value
from ulpscope.records.checks import CaseId, DataSource, Variant
from ulpscope.replay.data import drawn_array, saved_array
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.trace.reader import RankTrace


def _torch_word(kind: type, name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise CannotReplayError(f"this torch has no {kind.__name__} {name}")
    return found


def torch_dtype(name: str) -> torch.dtype:
    return _torch_word(torch.dtype, name)  # type: ignore[no-any-return]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def saved_tensor(rank: RankTrace, value: Value) -> Tensor:
    """A value's saved elements in a tensor of its own, laid out as they were."""
    return laid_out(to_tensor(saved_array(rank, value), value.dtype), value)


def case_tensor(case: CaseId, place: str, value: Value, *, rank: RankTrace, seed: int, variant: Variant) -> Tensor:
    """Saved elements, or some like those recorded: their seed depends on the case alone, not on what ran before it."""
    if not value.initialized:
        # It is only written: planning leaves what is read.
        return laid_out(torch.zeros(value.shape, dtype=torch_dtype(value.dtype)), value)
    if case.source is DataSource.REAL:
        return saved_tensor(rank, value)
    return laid_out(to_tensor(drawn_array(case, place, value, seed=seed, variant=variant), value.dtype), value)


def to_tensor(array: NDArray[np.generic], dtype: str) -> Tensor:
    if not array.size:
        # Its strides are 0, and no bytes can be looked at as another type.
        return torch.empty(array.shape, dtype=torch_dtype(dtype))
    flat = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
    return flat.view(torch_dtype(dtype)).reshape(array.shape)


def to_array(tensor: Tensor) -> NDArray[np.generic]:
    """Elements as numpy has them: floats as float64, a complex number as two of them along a last axis."""
    plain = tensor.detach().to("cpu").resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    # Forced: torch keeps some zeros without memory.
    found: NDArray[np.generic] = (plain.to(torch.float64) if plain.is_floating_point() else plain).numpy(force=True)
    return found


def laid_out(tensor: Tensor, value: Value) -> Tensor:
    """The same elements with the recorded strides; contiguous where elements would share memory."""
    strides = value.strides
    if len(strides) != tensor.dim() or tensor.stride() == strides or tensor.numel() < 2:
        return tensor
    reach = 1
    for stride, size in sorted(zip(strides, value.shape, strict=True)):
        if size > 1 and stride < reach:  # shorter than what lies within it
            return tensor
        reach = max(reach, stride * size)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


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
        self.device = device
        self._precise = precise
        self._scalars = scalars
        """The dtype to which a kernel rounds plain numbers; none leaves them as they are."""

    def arguments(self, encoded: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args = [self.decode(item) for item in encoded.get("args", [])]
        return args, {name: self.decode(item) for name, item in encoded.get("kwargs", {}).items()}

    def decode(self, encoded: Any) -> Any:
        if isinstance(encoded, float):
            return encoded if self._scalars is None else float(torch.tensor(encoded, dtype=self._scalars))
        if isinstance(encoded, list):
            return [self.decode(item) for item in encoded]
        if not isinstance(encoded, dict):
            return encoded
        ((word, content), *_) = encoded.items()
        if word == "$object" and "fields" in encoded:
            return self._options(content, encoded["fields"])
        decode = _DECODERS.get(word)
        if decode is None:
            kind, named = word.removeprefix("$"), f" {content}" if isinstance(content, str) else ""
            raise CannotReplayError(f"an argument is {'an' if kind[:1] in 'aeiou' else 'a'} {kind}{named}")
        return decode(self, content)

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
        found = torch_dtype(name)
        return raised(found) if self._precise else found


_DECODERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "$tensor": Decoder._tensor,
    "$tuple": lambda decoder, content: tuple(decoder.decode(item) for item in content),
    "$size": lambda decoder, content: torch.Size(decoder.decode(item) for item in content),
    "$dict": lambda decoder, content: {key: decoder.decode(item) for key, item in content},
    "$slice": lambda decoder, content: slice(*(decoder.decode(item) for item in content)),
    "$complex": lambda decoder, content: complex(*(decoder.decode(item) for item in content)),
    "$float": lambda _decoder, content: float(content),
    "$ellipsis": lambda _decoder, _content: Ellipsis,
    "$device": lambda decoder, _content: torch.device(decoder.device),
    "$dtype": Decoder._dtype,
    "$generator": lambda decoder, _content: torch.Generator(decoder.device),
    "$layout": lambda _decoder, content: _torch_word(torch.layout, content),
    "$memory_format": lambda _decoder, content: _torch_word(torch.memory_format, content),
}
