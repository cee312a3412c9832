"""Tensors for a recorded call: its saved data, or data that looks like what was recorded."""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.numerics.dtypes import DTYPES, FLOATING
from ulpscope.numerics.regenerate.values import regenerate
from ulpscope.records.checks import CaseId, DataSource, Variant
from ulpscope.records.values import Value
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.trace.reader import RankTrace


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CannotReplayError(f"this torch has no dtype {name}")
    return dtype


def saved_tensor(rank: RankTrace, value: Value) -> Tensor:
    """A value's saved elements in a tensor of its own, laid out as they were."""
    array = rank.data(value)
    if array is None:
        raise CannotReplayError("its data was not saved" if value.initialized else "it reads uninitialized memory")
    return laid_out(to_tensor(np.asarray(array), value.dtype).reshape(value.shape), value)


def random_tensor(case: CaseId, place: str, value: Value, *, seed: int, variant: Variant) -> Tensor:
    """Elements like those recorded; the seed depends on the case alone, not on what ran before it."""
    if value.layout != "strided":
        raise CannotReplayError(f"an input is {value.layout}")
    if DTYPES.get(value.dtype) is None or value.dtype == "complex32":
        raise CannotReplayError(f"no random data of dtype {value.dtype}")
    named = f"{seed}/{case.name}/{case.variant.value}/{place}".encode()
    number = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little")
    return laid_out(to_tensor(regenerate(value, seed=number, variant=variant), value.dtype), value)


def case_tensor(case: CaseId, place: str, value: Value, *, rank: RankTrace, seed: int, variant: Variant) -> Tensor:
    if not value.initialized:
        # It is only written: planning leaves what is read.
        return laid_out(torch.zeros(value.shape, dtype=torch_dtype(value.dtype)), value)
    if case.source is DataSource.REAL:
        return saved_tensor(rank, value)
    return random_tensor(case, place, value, seed=seed, variant=variant)


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
    if len(strides) != tensor.dim() or tensor.stride() == strides or tensor.numel() < 2 or _overlaps(value):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _overlaps(value: Value) -> bool:
    """Whether elements may share memory: a stride is shorter than what lies within it."""
    reach = 1
    for stride, size in sorted(zip(value.strides, value.shape, strict=True)):
        if size > 1 and stride < reach:
            return True
        reach = max(reach, stride * size)
    return False


def is_float(dtype: str) -> bool:
    return dtype in FLOATING
