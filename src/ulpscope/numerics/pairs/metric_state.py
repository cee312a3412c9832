"""What is gathered while two arrays are read side by side: a row of float64, and how blocks of numbers add to it.

Sums of a side's numbers x are kept as sums of x * 2**-e and (x * 2**-e)**2 with the exponent e beside them: 0 but for
float64 numbers whose squares would leave the range of float64. These functions run as they are and compiled by numba.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FINITE, DIFFERENT, MISMATCHED = range(3)
# Of a side: the sum, the sum of squares about the mean, the exponent.
REFERENCE, TARGET = 3, 6
PRODUCT = 9
"""Sum of reference * target, with both exponents."""
# Of |target - reference|: the sum, the sum of squares, the exponent.
DIFFERENCE = 10
MAX_ABS, WORST = 13, 14
MAX_REL, SUM_REL, NONZERO, LOST, WITHIN_THOUSANDTH, WITHIN_FIVE = range(15, 21)
"""NONZERO: where the reference is not 0. LOST: where it is 0 and the target is not."""
MAX_ULP, SUM_ULP = 21, 22
LOW, HIGH = 23, 25
"""Smallest and largest number; the target's are one slot further."""
LENGTH = 27

# Plan of the detailed metrics: whether they are wanted, whether ulps are, and how a difference becomes ulps.
WANTED, ULPS, FLOOR_FIELD, ULP_FACTOR = range(4)

# Squares of numbers within, and sums of 2**40 of them, neither overflow nor lose precision to underflow.
LARGE, SMALL = 2.0**480, 2.0**-400
UNSET = -4000.0
"""The exponent of sums to which only zeros were added."""


def new_state() -> Floats:
    state = np.zeros(LENGTH)
    state[[slot + 2 for slot in (REFERENCE, TARGET, DIFFERENCE)]] = UNSET
    state[LOW : LOW + 2] = math.inf
    state[HIGH : HIGH + 2] = -math.inf
    return state


def exponent_for(largest: float, known: float) -> float:
    """The exponent that suits a block with this largest size; of one that holds only zeros, the one in use."""
    if largest == 0.0:
        return known
    if SMALL < largest < LARGE or largest == math.inf:
        return 0.0
    # 2**-e must be a float64; squares of what is then left above 1 still are.
    return float(max(-1000, min(1000, math.frexp(largest)[1])))


def raise_exponent(state: Floats, slot: int, exponent: float) -> tuple[float, float]:
    """Give the sums in `slot` the larger of their exponent and this one; returns factors for them and for a block's."""
    known = state[slot + 2]
    if known == exponent:
        return 1.0, 1.0
    if known > exponent:
        return 1.0, math.ldexp(1.0, int(exponent - known))
    factor = math.ldexp(1.0, int(known - exponent))
    state[slot] *= factor
    state[slot + 1] *= factor * factor
    state[slot + 2] = exponent
    return factor, 1.0


def merge_side(state: Floats, slot: int, count: float, total: float, squares: float) -> None:
    """Add a block of one side: count, sum and squares about the block's mean, with the slot's exponent."""
    before = state[FINITE]
    if before > 0.0:
        apart = total / count - state[slot] / before
        squares += apart * apart * (before * count / (before + count))
    state[slot] += total
    state[slot + 1] += squares
