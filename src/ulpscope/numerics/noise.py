"""Noise like rounding, in place: numbers move as far as a coarser type, or one more rounding in theirs, moves them.

The directions are left to chance: two runs of the same precision make errors of the same size, and other ones.
"""

import math
from collections.abc import Callable
from ctypes import c_double, c_int, c_int64, c_void_p
from functools import cache

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.compiled import entry

Mover = Callable[[int, int, int], None]
"""Address of the numbers, how many, and a seed."""

_INFINITIES = {"float64": 0x7FF << 52, "float32": 0xFF << 23, "float16": 0x1F << 10, "bfloat16": 0xFF << 7}


@cache
def noise_of(dtype: str, precision: str) -> Mover:
    """For numbers of a type that another run holds in a certain precision. Raises NotCompiledError."""
    own, other = DTYPES[dtype], DTYPES[precision]
    bits = 8 * own.item_size
    if own.unit_roundoff >= other.unit_roundoff:
        jitter = entry(f"jitter{bits}", c_void_p, c_int64, c_int64, c_int64)
        infinity = _INFINITIES[dtype]
        return lambda address, count, seed: jitter(address, count, infinity, seed)
    move = entry(f"noise{bits}", c_void_p, c_int64, c_int, c_int, c_double, c_int64)
    kept, lowest = round(-math.log2(2.0 * other.unit_roundoff)), round(math.log2(other.smallest_normal))
    return lambda address, count, seed: move(address, count, kept, lowest, other.largest, seed)
