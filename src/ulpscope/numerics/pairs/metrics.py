"""How two arrays of equal shape differ: every metric from one read of both, in pieces, so that memory stays bounded.

Numbers are widened to float64; of complex elements the real and imaginary parts are compared, a bool is 0 or 1, and
64-bit integers are subtracted as integers. Only pairs of finite numbers count, but in `different` and `mismatched`.

- relative error of an element: |t - r| / |r|. Where r is 0 and t is not, it is inf: max_rel says so, the element is
  outside of every thousandth, and mean_rel and accumulated_rel leave it out: they are over elements with r != 0.
- relative_distance: distance / reference_norm, 0 if both are 0, inf if only the norm is.
- cosine: 1 if both arrays are zero, None if one is.
- standard deviations are those of the whole population.
- worst: None if no finite pair differs.
- ulps of an element: |t - r| in units in the last place at the larger of |r| and |t|, of the type that is coarser;
  below a type's smallest normal number its unit stays the same. Within a binade of one type that is how many steps
  through its numbers lead from r to t. Never more than 2**(significand bits + 1), so that an element next to 0 cannot
  drown the mean. None if neither type is a floating-point type.
- kl_divergence: sum of p * ln(p / q), p from the reference and q from the target: each mapped linearly to 0..1 (a
  constant side is uniform), raised to float32's epsilon where below, and divided by its sum. A second read. (msaccucmp
  takes p from the side under test: for its figure swap the arrays.)

Where a difference itself is too large for float64 (1e308 against -1e308), whatever it enters is inf.
"""

import math
import sys
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, AnyArray, Bytes, Dtype, Floats
from ulpscope.numerics.pairs import metric_state as at
from ulpscope.numerics.pairs.metric_state import (
    FINITE,
    HIGH,
    LOW,
    exponent_for,
    finish,
    merge_side,
    new_state,
    raise_exponent,
    ulp_plan,
)
from ulpscope.numerics.pairs.pieces import PairPieces, SideBySide
from ulpscope.records.pairs import Pair, PairMetrics

FLOOR = 2.0**-23
"""Share below which no element falls in the KL divergence: float32's epsilon."""


def compare_arrays(
    reference: AnyArray, target: AnyArray, *, reference_dtype: str, target_dtype: str, detailed: bool = False
) -> PairMetrics:
    """All metrics of two arrays of equal shape; with `detailed` also ulps and the KL divergence.

    Arrays hold elements of the named types or integers with their bits; they may be mapped, read-only and strided.
    """
    job = PairPieces.of(reference, target, reference_dtype=reference_dtype, target_dtype=target_dtype)
    plan, state, base = ulp_plan(job.dtypes, detailed=detailed), new_state(), 0
    for raw in job.pieces():
        _engine().accumulate(raw, job.parts, base=base, plan=plan, state=state)
        base += len(raw.reference) // job.parts.reference.item_size
    kl_divergence = _kl_divergence(job, state) if detailed and state[FINITE] else None
    return finish(state, plan, elements=base, parts=job.parts_an_element, kl_divergence=kl_divergence)


@cache
def _engine() -> ModuleType:
    """What reads both arrays: compiled, or plain numpy, which is below."""
    try:
        from ulpscope.numerics.pairs import metric_kernels

        one, dtype = np.zeros(8, np.uint8), DTYPES["float64"]
        one.setflags(write=False)
        metric_kernels.accumulate(Pair(one, one), Pair(dtype, dtype), base=0, plan=np.zeros(4), state=new_state())
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a comparison
        return sys.modules[__name__]
    return metric_kernels


def compiled_available() -> bool:
    """Whether metrics run compiled here. Loads the kernels, or compiles them: about ten seconds, once a machine."""
    return _engine().__name__ != __name__


def _kl_divergence(job: PairPieces, state: Floats) -> float:
    shares, sums = np.stack([_share(state, side) for side in (0, 1)]), np.zeros(3)
    for raw in job.pieces():
        _engine().divergence(raw, job.parts, shares=shares, floor=FLOOR, sums=sums)
    p, q, total = (float(number) for number in sums)
    return max(total / p + math.log(q / p), 0.0)


def _share(state: Floats, side: int) -> Floats:
    """(a, b, c) such that (x * a - b) * c maps the side's range to 0..1; a power of two keeps it within float64."""
    low, high = float(state[LOW + side]), float(state[HIGH + side])
    if low == high:
        return np.array([0.0, -1.0, 1.0])
    # Halves of the smallest numbers are 0, differences of the largest are inf.
    width = high - low if math.isfinite(high - low) else high / 2 - low / 2
    exponent = math.frexp(width)[1]
    a = math.ldexp(1.0, max(-1000, min(1000, -exponent)))
    return np.array([a, low * a, 1.0 / (high * a - low * a)])


_BIAS = 1023


# The same in plain numpy: what the compiled kernels must equal, and what runs where numba does not.


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
