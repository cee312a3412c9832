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
from ulpscope.numerics.summaries.constants import SET_ASIDE_EXPONENT

Mover = Callable[[int, int, int], None]
"""Address of the numbers, how many, and a seed."""

_STAYING = {"float64": (1023 + 29) << 52, "float32": (127 + 29) << 23, "bfloat16": (127 + 29) << 7, "float16": 0x7BFF}
"""Bits of the first number that stays: 2^29, from where on summaries set numbers aside, or the type's largest. A mask
is no result of rounding: in a row of nothing else, the least difference would choose one."""


@dataclass(frozen=True, slots=True)
class NoiseParameters:
    """How far numbers of a type move that another run holds in a certain precision."""

    jitters: bool
    """By one step of their own type, now and then: the other precision is theirs."""
    staying: int
    """Bits, in their own type, from which on numbers stay as they are, masks that they are."""
    kept: int
    """Bits behind the hidden one in the other precision."""
    lowest: int
    """Exponent of its smallest normal number."""
    largest: float


@cache
def noise_parameters(dtype: str, precision: str, scale: int = 0) -> NoiseParameters:
    """`scale`: binary exponent of the factor by which the other run's numbers are larger."""
    own, other = DTYPES[dtype], DTYPES[precision]
    return NoiseParameters(
        jitters=own.unit_roundoff >= other.unit_roundoff,
        staying=_STAYING[dtype],
        kept=round(-math.log2(2.0 * other.unit_roundoff)),
        lowest=round(math.log2(other.smallest_normal)) - scale,
        largest=min(math.ldexp(other.largest, -scale), math.nextafter(2.0**SET_ASIDE_EXPONENT, 0.0)),
    )


@cache
def noise_of(dtype: str, precision: str, scale: int = 0) -> Mover:
    """For numbers in the memory of the CPU. Raises NotCompiledError."""
    how, move = noise_parameters(dtype, precision, scale), _function(dtype, precision)
    if how.jitters:
        return lambda address, count, seed: move(address, count, how.staying, seed)
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
