"""Random calls: the state of the generator that a call draws from, as a digest."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from ulpscope.capture.torch.arguments import Placed


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
