"""splitmix64: the one source of signs, rotations and keys, on numpy's wrapping uint64."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.summaries.constants import SPLITMIX_GAMMA, SPLITMIX_MUL_1, SPLITMIX_MUL_2

UInt64s: TypeAlias = NDArray[np.uint64]

_GAMMA = np.uint64(SPLITMIX_GAMMA)
_MUL_1 = np.uint64(SPLITMIX_MUL_1)
_MUL_2 = np.uint64(SPLITMIX_MUL_2)


def mix(words: UInt64s) -> UInt64s:
    """splitmix64's finalizer, a bijection of 64 bits."""
    words = (words ^ (words >> np.uint64(30))) * _MUL_1
    words = (words ^ (words >> np.uint64(27))) * _MUL_2
    return words ^ (words >> np.uint64(31))


def weyl(numbers: UInt64s) -> UInt64s:
    """(k + 1) * GAMMA: splitmix64's counter after k + 1 steps."""
    return (numbers + np.uint64(1)) * _GAMMA


def hash64(salt: int, numbers: UInt64s) -> UInt64s:
    """Outputs number k of a splitmix64 generator that was seeded with the salt."""
    return mix(np.uint64(salt) + weyl(numbers))


def count_up(start: int, stop: int) -> UInt64s:
    return np.arange(start, stop, dtype=np.uint64)
