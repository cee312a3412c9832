"""What is gathered while two arrays are read side by side: a row of float64, and how blocks of numbers add to it.

Sums of a side's numbers x are kept as sums of x * 2**-e and (x * 2**-e)**2 with the exponent e beside them: 0 but for
float64 numbers whose squares would leave the range of float64. These functions run as they are and compiled by numba.

From what was gathered to PairMetrics, and what units in the last place are for a pair of types.
"""

import math
from dataclasses import fields
from typing import Any

import numpy as np

from ulpscope.numerics.dtypes import Dtype, DtypeKind, Floats
from ulpscope.records.pairs import Pair, PairMetrics

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


_BIAS = 1023


def ulp_plan(dtypes: Pair[Dtype], *, detailed: bool) -> Floats:
    """How ulps are counted: the unit at x is the larger of both types', 2**max(e(x) + 1 - p, lowest + 1 - p)."""
    plan = np.zeros(4)
    floats = [
        dtype for dtype in (dtypes.reference, dtypes.target) if dtype.kind in (DtypeKind.FLOAT, DtypeKind.COMPLEX)
    ]
    plan[WANTED], plan[ULPS] = detailed, detailed and bool(floats)
    if floats:
        precisions = [-int(math.log2(dtype.unit_roundoff)) for dtype in floats]
        units = [
            int(math.log2(dtype.smallest_normal)) + 1 - precision
            for dtype, precision in zip(floats, precisions, strict=True)
        ]
        coarse = min(precisions)
        plan[FLOOR_FIELD] = max(units) + coarse - 1 + _BIAS
        plan[ULP_FACTOR] = 2.0 ** (coarse - 2)
    return plan


def finish(state: Floats, plan: Floats, *, elements: int, parts: int, kl_divergence: float | None) -> PairMetrics:
    """The metrics of `elements` numbers; `parts` of them are one element of the arrays."""
    slots = [float(number) for number in state]
    finite = int(slots[FINITE])
    counts = {"elements": elements, "different": int(slots[DIFFERENT]), "mismatched": int(slots[MISMATCHED])}
    if not finite:
        unknown: dict[str, Any] = {field.name: None for field in fields(PairMetrics)}
        return PairMetrics(**unknown | counts | dict.fromkeys(("distance", "reference_norm", "target_norm"), 0.0))
    ulps, factor = plan[ULPS] != 0.0, float(plan[ULP_FACTOR])
    return PairMetrics(
        **counts,
        distance=_power(math.sqrt(slots[DIFFERENCE + 1]), slots[DIFFERENCE + 2]),
        reference_norm=_power(_norm(slots, REFERENCE), slots[REFERENCE + 2]),
        target_norm=_power(_norm(slots, TARGET), slots[TARGET + 2]),
        cosine=_cosine(slots),
        max_abs=slots[MAX_ABS],
        max_rel=math.inf if slots[LOST] else slots[MAX_REL],
        mean_rel=slots[SUM_REL] / slots[NONZERO] if slots[NONZERO] else None,
        accumulated_rel=slots[SUM_REL] if slots[NONZERO] else None,
        relative_distance=_relative_distance(slots),
        rmse=_power(math.sqrt(slots[DIFFERENCE + 1] / finite), slots[DIFFERENCE + 2]),
        mae=_power(slots[DIFFERENCE] / finite, slots[DIFFERENCE + 2]),
        reference_mean=_power(slots[REFERENCE] / finite, slots[REFERENCE + 2]),
        target_mean=_power(slots[TARGET] / finite, slots[TARGET + 2]),
        reference_std=_power(math.sqrt(slots[REFERENCE + 1] / finite), slots[REFERENCE + 2]),
        target_std=_power(math.sqrt(slots[TARGET + 1] / finite), slots[TARGET + 2]),
        within_thousandth=slots[WITHIN_THOUSANDTH] / finite,
        within_five_thousandths=slots[WITHIN_FIVE] / finite,
        worst=int(slots[WORST]) // parts if slots[MAX_ABS] else None,
        max_ulp=slots[MAX_ULP] * factor if ulps else None,
        mean_ulp=slots[SUM_ULP] / finite * factor if ulps else None,
        kl_divergence=kl_divergence,
    )


def _power(number: float, exponent: float) -> float:
    """number * 2**exponent."""
    try:
        return math.ldexp(number, int(exponent)) if exponent != UNSET else number
    except OverflowError:
        return math.copysign(math.inf, number)


def _norm(slots: list[float], side: int) -> float:
    """With the side's exponent: squares about the mean, and the mean's own."""
    return math.sqrt(slots[side + 1] + slots[side] * slots[side] / slots[FINITE])


def _cosine(slots: list[float]) -> float | None:
    left, right = _norm(slots, REFERENCE), _norm(slots, TARGET)
    if left == 0.0 and right == 0.0:
        return 1.0
    if left == 0.0 or right == 0.0:
        return None
    if slots[DIFFERENCE + 1] == 0.0:
        return 1.0
    return max(-1.0, min(1.0, slots[PRODUCT] / left / right))


def _relative_distance(slots: list[float]) -> float:
    norm, distance = _norm(slots, REFERENCE), math.sqrt(slots[DIFFERENCE + 1])
    if distance == 0.0:
        return 0.0
    return _power(distance / norm, slots[DIFFERENCE + 2] - slots[REFERENCE + 2]) if norm else math.inf
