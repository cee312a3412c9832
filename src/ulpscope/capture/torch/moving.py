"""One tensor of torch, moved as far as a precision rounds it: noise of twins, and what `check --perturb` changes."""

import torch
from torch import Tensor

from ulpscope.capture.torch.summaries.launching import move_on_device, usable
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.numerics.noise import noise_of, noise_parameters

MOVED = {getattr(torch, name): name for name in ("float64", "float32", "float16", "bfloat16")}
"""Dtypes of numbers that noise moves, with their names."""
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}

_WORD = 0xFFFFFFFF


def move(tensor: Tensor, precision: str, seed: int, *, scale: int = 0) -> None:
    """In place: by that precision's rounding, or now and then to a neighbour where it is the tensor's own.

    `scale`: binary exponent of the factor by which the numbers are larger where they are rounded.
    """
    if not tensor.numel() or tensor.is_meta:
        return
    own = MOVED[tensor.dtype]
    compact = tensor if tensor.is_contiguous() or _is_dense(tensor) else tensor.contiguous()
    try:
        if tensor.device.type == "cpu":
            noise_of(own, precision, scale)(compact.data_ptr(), compact.numel(), seed)
        elif usable(tensor.device):
            move_on_device(compact, noise_parameters(own, precision, scale), seed)
        else:
            move_by_torch(compact, precision, seed, scale=scale)
    except NotCompiledError:
        move_by_torch(compact, precision, seed, scale=scale)
    if compact is not tensor:
        tensor.copy_(compact)


def _is_dense(tensor: Tensor) -> bool:
    dense: bool = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return dense


def move_by_torch(tensor: Tensor, precision: str, seed: int, *, scale: int = 0) -> None:
    """The same by torch's own operations, on any device."""
    how = noise_parameters(MOVED[tensor.dtype], precision, scale)
    if how.jitters:
        generator = torch.Generator(tensor.device).manual_seed(seed)
        chance = torch.randint(0, 8, tensor.shape, generator=generator, device=tensor.device)
        bits = tensor.view(_BITS[tensor.dtype])
        steps = (chance == 0).to(bits.dtype) - (chance == 1).to(bits.dtype)
        end = (1 << (4 * tensor.element_size() - 4)) - 1
        steps.mul_((tensor.abs() <= how.largest) & (bits & end != 0))
        bits.add_(steps)
        return
    exponents = (torch.frexp(tensor).exponent - 1).clamp_(min=how.lowest)
    step = torch.ldexp(torch.ones_like(tensor), exponents - how.kept)
    place = torch.where(tensor.abs() <= how.largest, tensor.abs() / step, 0.0)
    nearest = place.round()
    numbers = nearest.long() ^ (exponents.long() << 24)
    along = (_scrambled(numbers ^ _scrambled(torch.tensor(seed, device=tensor.device))) >> 31) == (tensor < 0)
    way = (nearest - place) * step
    tensor.copy_(torch.where(nearest == place, tensor, torch.where(along, tensor + way, tensor - way)))


def _scrambled(words: Tensor) -> Tensor:
    """32 bits of each number, mixed: as numerics/summaries/cpp/noise.h does it."""
    words = words & _WORD
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = ((words ^ (words >> shift)) * factor) & _WORD
    return words ^ (words >> 16)
