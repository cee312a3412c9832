"""Pair metrics in plain numpy: what the compiled kernels must equal, and what runs where numba does not."""

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Dtype
from ulpscope.numerics.pairs import metric_state as at
from ulpscope.numerics.pairs.metric_state import exponent_for, merge_side, raise_exponent
from ulpscope.numerics.pairs.pieces import Bytes, Floats, SideBySide
from ulpscope.records.pairs import Pair

_BIAS = 1023


@np.errstate(all="ignore")
def accumulate(raw: Pair[Bytes], dtypes: Pair[Dtype], *, base: int, plan: Floats, state: Floats) -> None:
    """Adds numbers of both arrays, given as bytes; `base` is the index of the first of them."""
    both = SideBySide.of(raw, dtypes)
    finite, apart = both.finite, both.apart()
    reference, target = both.numbers.reference, both.numbers.target
    if not finite.all():
        mismatched = np.count_nonzero(both.mismatched())
        state[at.MISMATCHED] += mismatched
        state[at.DIFFERENT] += mismatched
        reference, target, apart = reference[finite], target[finite], apart[finite]
    if not len(apart):
        return
    state[at.DIFFERENT] += np.count_nonzero(apart)
    _add_worst(apart, np.flatnonzero(finite), base=base, state=state)
    _add_sums(reference, target, apart, state)
    _add_relatives(np.abs(reference), apart, state)
    if plan[at.WANTED]:
        _add_details(reference, target, apart, plan, state)
    state[at.FINITE] += len(apart)


@np.errstate(all="ignore")
def divergence(raw: Pair[Bytes], dtypes: Pair[Dtype], *, shares: Floats, floor: float, sums: Floats) -> None:
    """Adds sums of p, q and p * ln(p / q), where a side's x becomes (x * a - b) * c, and no less than the floor."""
    both = SideBySide.of(raw, dtypes)
    p, q = (
        np.maximum((side[both.finite] * share[0] - share[1]) * share[2], floor)
        for side, share in zip((both.numbers.reference, both.numbers.target), shares, strict=True)
    )
    sums += (p.sum(), q.sum(), (p * np.log(p / q)).sum())


def _add_worst(apart: Floats, places: NDArray[np.int64], *, base: int, state: Floats) -> None:
    place = int(np.argmax(apart))
    if apart[place] > state[at.MAX_ABS]:
        state[at.MAX_ABS] = apart[place]
        state[at.WORST] = base + places[place]


def _scaled(numbers: Floats, slot: int, state: Floats) -> tuple[Floats, float]:
    exponent = exponent_for(float(np.abs(numbers).max()), float(state[slot + 2]))
    return (numbers if exponent in (0.0, at.UNSET) else np.ldexp(numbers, int(-exponent))), exponent


def _add_sums(reference: Floats, target: Floats, apart: Floats, state: Floats) -> None:
    apart, exponent = _scaled(apart, at.DIFFERENCE, state)
    _, factor = raise_exponent(state, at.DIFFERENCE, exponent)
    state[at.DIFFERENCE] += apart.sum() * factor
    state[at.DIFFERENCE + 1] += np.square(apart).sum() * factor * factor
    left, exponent = _scaled(reference, at.REFERENCE, state)
    kept_left, factor_left = raise_exponent(state, at.REFERENCE, exponent)
    right, exponent = _scaled(target, at.TARGET, state)
    kept_right, factor_right = raise_exponent(state, at.TARGET, exponent)
    product = (left * right).sum() * factor_left * factor_right
    state[at.PRODUCT] = state[at.PRODUCT] * kept_left * kept_right + product
    _add_side(left, at.REFERENCE, factor_left, state)
    _add_side(right, at.TARGET, factor_right, state)


def _add_side(numbers: Floats, slot: int, factor: float, state: Floats) -> None:
    squares = float(np.square(numbers - numbers.mean()).sum())
    merge_side(state, slot, len(numbers), float(numbers.sum()) * factor, squares * factor * factor)


def _add_relatives(sizes: Floats, apart: Floats, state: Floats) -> None:
    some = sizes != 0.0
    relative = apart[some] / sizes[some]
    lost = np.count_nonzero(apart[~some])
    both_zero = len(apart) - len(relative) - lost
    state[at.MAX_REL] = max(state[at.MAX_REL], relative.max(initial=0.0))
    state[at.SUM_REL] += relative.sum()
    state[at.NONZERO] += len(relative)
    state[at.LOST] += lost
    state[at.WITHIN_THOUSANDTH] += np.count_nonzero(relative < 0.001) + both_zero
    state[at.WITHIN_FIVE] += np.count_nonzero(relative < 0.005) + both_zero


def _add_details(reference: Floats, target: Floats, apart: Floats, plan: Floats, state: Floats) -> None:
    for side, numbers in enumerate((reference, target)):
        state[at.LOW + side] = min(state[at.LOW + side], numbers.min())
        state[at.HIGH + side] = max(state[at.HIGH + side], numbers.max())
    if plan[at.ULPS]:
        sizes = np.maximum(np.abs(reference), np.abs(target))
        fields = np.maximum(np.frexp(sizes)[1] - 1 + _BIAS, plan[at.FLOOR_FIELD]).astype(np.int64)
        fields[sizes == 0.0] = plan[at.FLOOR_FIELD]
        ulps = np.ldexp(apart, _BIAS + 1 - fields)
        state[at.MAX_ULP] = max(state[at.MAX_ULP], ulps.max())
        state[at.SUM_ULP] += ulps.sum()
