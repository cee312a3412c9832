"""Pair metrics in plain numpy: what the compiled kernels must equal, and what runs where numba does not."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Dtype, DtypeKind
from ulpscope.numerics.pairs import metric_state as at
from ulpscope.numerics.pairs.metric_state import exponent_for, merge_side, raise_exponent
from ulpscope.numerics.summaries.summary import decode
from ulpscope.records.pairs import Pair

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
AnyArray = NDArray[Any]

_PART = 1 << 16
_BIAS = 1023
_WIDE_INTEGERS = ("int64", "uint64")


def numbers_of(raw: Bytes, dtype: Dtype) -> Floats:
    """The numbers that these bytes of a real type stand for."""
    if dtype.kind is DtypeKind.FLOAT:
        return decode(raw.view(f"u{dtype.item_size}"), dtype)
    integers = raw.astype(np.bool_) if dtype.kind is DtypeKind.BOOL else raw.view(dtype.name)
    numbers: Floats = integers.astype(np.float64)
    return numbers


def accumulate(pair: Pair[Bytes], dtypes: Pair[Dtype], *, base: int, plan: Floats, state: Floats) -> None:
    """Adds numbers of both arrays, given as bytes; `base` is the index of the first of them."""
    count = len(pair.reference) // dtypes.reference.item_size
    with np.errstate(all="ignore"):
        for start in range(0, count, _PART):
            _add_part(_cut(pair, dtypes, start), dtypes, base=base + start, plan=plan, state=state)


def divergence(pair: Pair[Bytes], dtypes: Pair[Dtype], *, shares: Floats, floor: float, sums: Floats) -> None:
    """Adds sums of p, q and p * ln(p / q), where a side's x becomes (x * a - b) * c, and no less than the floor."""
    count = len(pair.reference) // dtypes.reference.item_size
    with np.errstate(all="ignore"):
        for start in range(0, count, _PART):
            part = _cut(pair, dtypes, start)
            reference, target = numbers_of(part.reference, dtypes.reference), numbers_of(part.target, dtypes.target)
            finite = np.isfinite(reference) & np.isfinite(target)
            p, q = (
                np.maximum((side[finite] * share[0] - share[1]) * share[2], floor)
                for side, share in zip((reference, target), shares, strict=True)
            )
            sums += (p.sum(), q.sum(), (p * np.log(p / q)).sum())


def _cut(pair: Pair[Bytes], dtypes: Pair[Dtype], start: int) -> Pair[Bytes]:
    left, right = dtypes.reference.item_size, dtypes.target.item_size
    return Pair(
        pair.reference[start * left : (start + _PART) * left],
        pair.target[start * right : (start + _PART) * right],
    )


def _add_part(pair: Pair[Bytes], dtypes: Pair[Dtype], *, base: int, plan: Floats, state: Floats) -> None:
    reference, target = numbers_of(pair.reference, dtypes.reference), numbers_of(pair.target, dtypes.target)
    apart = differences(pair, dtypes, reference, target)
    finite = np.isfinite(reference) & np.isfinite(target)
    if not finite.all():
        _count_mismatches(reference[~finite], target[~finite], state)
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


def differences(pair: Pair[Bytes], dtypes: Pair[Dtype], reference: Floats, target: Floats) -> Floats:
    """|target - reference|; of 64-bit integers exactly, before it becomes float64."""
    names = dtypes.reference.name, dtypes.target.name
    if not all(name in _WIDE_INTEGERS for name in names):
        return np.abs(target - reference)
    left, right = pair.reference.view(names[0]), pair.target.view(names[1])
    if names[0] != names[1]:
        return _mixed_differences(*((left, right) if names[0] == "int64" else (right, left)))
    sizes: NDArray[np.uint64] = np.maximum(left, right).view(np.uint64) - np.minimum(left, right).view(np.uint64)
    return sizes.astype(np.float64)


def _mixed_differences(signed: NDArray[np.int64], unsigned: NDArray[np.uint64]) -> Floats:
    size = signed.view(np.uint64)
    near = np.maximum(size, unsigned) - np.minimum(size, unsigned)
    return np.where(signed < 0, unsigned.astype(np.float64) - signed.astype(np.float64), near.astype(np.float64))


def _count_mismatches(reference: Floats, target: Floats, state: Floats) -> None:
    same = (reference == target) | (np.isnan(reference) & np.isnan(target))
    state[at.MISMATCHED] += np.count_nonzero(~same)
    state[at.DIFFERENT] += np.count_nonzero(~same)


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
