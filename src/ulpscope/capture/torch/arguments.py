"""Arguments of torch's calls, and the state of the generator that a call draws from, as a digest."""

from collections.abc import Mapping
from typing import Any

import torch

from ulpscope.capture.recording.arguments import Arguments
from ulpscope.capture.recording.environment import state_digest
from ulpscope.capture.recording.tensors import Placed

_WORDS: tuple[tuple[type, str], ...] = (
    (torch.dtype, "$dtype"),
    (torch.layout, "$layout"),
    (torch.memory_format, "$memory_format"),
    (torch.device, "$device"),
)


def _word(item: Any) -> dict[str, str] | None:
    for kind, word in _WORDS:
        if isinstance(item, kind):
            return {word: str(item).removeprefix("torch.")}
    if isinstance(item, torch.Generator):
        return {"$generator": str(item.device)}
    if isinstance(item, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {"$object": str(item)}
    return None


ARGUMENTS = Arguments(
    torch.Tensor,
    words=_word,
    hashed=frozenset({torch.dtype, torch.device, torch.layout, torch.memory_format}),
    sequences={torch.Size: "$size"},
    opaque=(torch.nn.Module,),
)
encode_call = ARGUMENTS.encode_call
find_tensors = ARGUMENTS.find_tensors
encode_scalar = ARGUMENTS.encode_scalar


def generator_digest(tensors: Placed, kwargs: Mapping[str, Any]) -> str | None:
    """Digest of the state of the generator this call would use; None if that cannot be told."""
    generator = _generator_of(tensors, kwargs)
    if generator is None:
        return None
    return state_digest(generator.get_state().numpy().tobytes())


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
