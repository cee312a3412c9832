"""Noise like rounding, in place: numbers move as far as a coarser type, or one more rounding in theirs, moves them.

The directions are left to chance: two runs of the same precision make errors of the same size, and other ones.
"""

import math
from collections.abc import Callable
from ctypes import c_double, c_int, c_int64, c_void_p, cast
from dataclasses import dataclass
from functools import cache

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.compiled import entry

Mover = Callable[[int, int, int], None]
"""Address of the numbers, how many, and a seed."""

_INFINITIES = {"float64": 0x7FF << 52, "float32": 0xFF << 23, "float16": 0x1F << 10, "bfloat16": 0xFF << 7}


@dataclass(frozen=True, slots=True)
class NoiseParameters:
    """How far numbers of a type move that another run holds in a certain precision."""

    jitters: bool
    """By one step of their own type, now and then: the other precision is theirs."""
    infinity: int
    """Bits of it in their own type."""
    kept: int
    """Bits behind the hidden one in the other precision."""
    lowest: int
    """Exponent of its smallest normal number."""
    largest: float


@cache
def noise_parameters(dtype: str, precision: str) -> NoiseParameters:
    own, other = DTYPES[dtype], DTYPES[precision]
    return NoiseParameters(
        jitters=own.unit_roundoff >= other.unit_roundoff,
        infinity=_INFINITIES[dtype],
        kept=round(-math.log2(2.0 * other.unit_roundoff)),
        lowest=round(math.log2(other.smallest_normal)),
        largest=other.largest,
    )


@cache
def noise_of(dtype: str, precision: str) -> Mover:
    """For numbers in the memory of the CPU. Raises NotCompiledError."""
    how, move = noise_parameters(dtype, precision), _function(dtype, precision)
    if how.jitters:
        return lambda address, count, seed: move(address, count, how.infinity, seed)
    return lambda address, count, seed: move(address, count, how.kept, how.lowest, how.largest, seed)


def noise_address(dtype: str, precision: str) -> int:
    """Of the function that this calls, for those who call it from C. Raises NotCompiledError."""
    address = cast(_function(dtype, precision), c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


def _function(dtype: str, precision: str) -> Callable[..., None]:
    bits = 8 * DTYPES[dtype].item_size
    if noise_parameters(dtype, precision).jitters:
        return entry(f"jitter{bits}", c_void_p, c_int64, c_int64, c_int64)
    return entry(f"noise{bits}", c_void_p, c_int64, c_int, c_int, c_double, c_int64)
