"""Attention scores beside their masks, which drown everything else, and other numbers that summaries set aside.

Networks add a large negative number to what is to be left out, and a softmax makes 0 of that. float16 rounds -10000 to
steps of 8, which is more than most scores are; and the number is another one in another type: -65504 for -3.4e38. So
scores are compared where no mask is. That hides nothing: the mask is in the same places on both sides, and what stands
there is one number each, which is told where it is not the same.

Mean, norm and sketch are without numbers of 2**29 and more, because masks would drown all else in these. Known are how
many there are, the least and the largest number of the value, its exponents, and whether any bit differs. So the
extremes of what is large are compared, beside the sketches of the rest; where these are equal and bits differ, the
difference lies between them, and how large it is nobody knows. Of masks only the rest counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.rounding.limits import COARSEST_STEP, FAR, MASK, ONLY_MASKS, PLAIN, SCORES
from ulpscope.judge.rounding.values import Bools, Floats, Values
from ulpscope.numerics.dtypes import DTYPES, DtypeKind, numpy_dtype
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.numerics.summaries.constants import EXPONENT_BIAS, EXPONENT_BIN_SHIFT, SET_ASIDE_EXPONENT
from ulpscope.records.calls import Stats
from ulpscope.records.pairs import Pair, PairMetrics

AnyArray = NDArray[Any]

_LEAST = tuple(-DTYPES[name].largest for name in ("float16", "bfloat16", "float32", "float64"))
_USUAL = (-np.inf, *_LEAST, *(-(10.0**digits) for digits in range(4, 39)))
"""Masks that networks use: the least number of a type (Hugging Face), -10000 (BERT), -1e9 (T5), other powers of ten."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Which elements are masked, and by which number on each side."""

    where: NDArray[np.bool_]
    numbers: Pair[float]


def masks_differ(numbers: Pair[float]) -> bool:
    """Whether a mask is not the same number on both sides, as far as scores and rounding allow."""
    return not _near(numbers.reference, numbers.target)


def usual_masks(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which numbers are masks that networks use, or twice such a one (two that overlap), or a type's end, scaled."""
    return _are_near(numbers, _USUAL) | (numbers <= -ONLY_MASKS)


def _are_near(numbers: NDArray[np.float64], masks: Sequence[float]) -> NDArray[np.bool_]:
    known = [times * each for each in masks for times in (1, 2) if np.isfinite(times * each)]
    near = [np.abs(numbers - each) <= _allowance(each) for each in known]
    return np.asarray(np.any(near, axis=0), dtype=np.bool_)


def may_be_masked(stats: Stats | None, dtype: str) -> bool:
    """Whether a tensor may be scores with a mask, as far as its stats tell."""
    if dtype not in DTYPES or DTYPES[dtype].kind is not DtypeKind.FLOAT:
        return False
    if stats is None or stats.max is None or stats.min is None or stats.nan or stats.pos_inf:
        return False
    return (stats.min <= MASK or bool(stats.neg_inf)) and stats.max < SCORES


def attention_mask(arrays: Pair[AnyArray], dtypes: Pair[str]) -> Mask | None:
    """What is masked on both sides; none if that is not all that is far away.

    Nor if all of a row is masked: what a softmax makes of that depends on how the mask was rounded.
    """
    reference, target = map(as_numbers, arrays, dtypes)
    where: NDArray[np.bool_] = np.asarray(reference <= MASK, dtype=np.bool_)
    if not where.ndim or not np.array_equal(where, target <= MASK) or not where.any() or where.all(axis=-1).any():
        return None
    if not all(bool(np.all(np.abs(side[~where]) < SCORES)) for side in (reference, target)):
        return None
    one, other = _number(reference[where], dtypes.reference), _number(target[where], dtypes.target)
    if one is None or other is None:
        return None
    # Two numbers may be the same mask: usual ones, in types that differ.
    explained = dtypes.reference != dtypes.target and one in _USUAL and other in _USUAL
    return Mask(where, Pair(one, other)) if _near(one, other) or explained else None


def far_on_one_side(arrays: Pair[AnyArray], dtypes: Pair[str]) -> bool:
    """Whether elements are far away that the other side's mask does not explain: not masked there, or far upwards."""
    reference, target = map(as_numbers, arrays, dtypes)
    for numbers, beside, dtype in ((reference, target, dtypes.reference), (target, reference, dtypes.target)):
        far = min(FAR, DTYPES[dtype].largest)
        if np.any(numbers >= far) or np.any((numbers <= -far) & (beside > MASK)):
            return True
    return False


def unmasked(values: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """The elements of one tensor that no mask sets aside: all, if it has none."""
    where = values <= MASK
    if not where.any() or where.all() or not bool(np.all(np.abs(values[~where]) < SCORES)):
        return values
    return values if _number(values[where], dtype) is None else values[~where]


def compare_unmasked(arrays: Pair[AnyArray], mask: Mask, dtypes: Pair[str], *, detailed: bool) -> PairMetrics:
    """The metrics of what is not masked; how many elements differ, and where the worst is, are told of the whole."""
    found = compare_arrays(
        arrays.reference[~mask.where],
        arrays.target[~mask.where],
        reference_dtype=dtypes.reference,
        target_dtype=dtypes.target,
        detailed=detailed,
    )
    hidden = (side[mask.where].astype(np.float64) for side in map(as_numbers, arrays, dtypes))
    worst = None if found.worst is None else int(np.flatnonzero(~mask.where)[found.worst])
    different = found.different + int(np.not_equal(*hidden).sum())
    return replace(found, elements=mask.where.size, different=different, worst=worst)


def as_numbers(array: AnyArray, dtype: str) -> AnyArray:
    """An array as numbers: traces have the bits of small types as integers."""
    kind = numpy_dtype(dtype)
    return array.view(kind) if array.dtype.kind == "u" and array.dtype.itemsize == kind.itemsize else array


def _number(masked: AnyArray, dtype: str) -> float | None:
    """The number that makes these, with scores added, once or twice (two masks that overlap); none if it is not one."""
    wide = masked.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    if not finite.size:
        return -np.inf
    nearest = float(finite.max())
    usual = (each for each in _USUAL if _near(each, nearest))
    number = min(usual, key=lambda each: abs(each - nearest), default=nearest)
    if len(finite) < len(wide) and 2 * number > -DTYPES[dtype].largest:
        return None
    made = [times * number for times in (1, 2) if np.isfinite(times * number)]
    near = np.any([np.abs(finite - each) <= _allowance(each) for each in made], axis=0)
    return number if bool(np.all(near)) else None


def _near(one: float, other: float) -> bool:
    return one == other or (bool(np.isfinite([one, other]).all()) and abs(one - other) <= _allowance(one))


def _allowance(number: float) -> float:
    return 2 * SCORES + COARSEST_STEP * abs(number)


# The bin of exponents in which numbers begin to be set aside, and the first that holds none of what masks leave.
FAR_BIN = (SET_ASIDE_EXPONENT + EXPONENT_BIAS) >> EXPONENT_BIN_SHIFT
MASK_BIN = (int(SCORES).bit_length() + EXPONENT_BIAS) >> EXPONENT_BIN_SHIFT


@dataclass(frozen=True, slots=True)
class LargeParts:
    """Of pairs of values, what their large numbers tell."""

    masked: Bools
    """What is large is an attention mask on both sides."""
    told: Bools
    """Large numbers that are compared by their extremes."""
    error: Floats
    """Of these, the difference of the extremes relative to the largest; 0 where nothing is told."""


def large_parts(reference: Values, target: Values, *, rescaled: bool = False) -> LargeParts:
    """Compare what is large; row i of one belongs to row i of the other.

    `rescaled` are values of which one was scaled since, so that the same numbers may be large on one side only.
    """
    counts = reference.large(), target.large()
    masked = masked_rows(reference) & masked_rows(target)
    some = np.maximum(*counts) > 0
    alike = counts[0] == counts[1]
    if not some.any():
        return LargeParts(masked, some, np.zeros(len(some)))
    whole = _extreme_errors(reference, target, np.ones_like(some), np.ones_like(some))
    all_large = alike & (reference.set_aside == reference.summaries.elements)
    low = all_large | (np.fmin(reference.summaries.min, target.summaries.min) <= -FAR)
    high = all_large | (np.fmax(reference.summaries.max, target.summaries.max) >= FAR)
    error = np.where(alike, _extreme_errors(reference, target, low, high), whole)
    told = some & ~masked & (alike | _crossed(reference, target) | (whole >= PLAIN) | rescaled)
    return LargeParts(masked, told, np.where(told, error, 0.0))


def masked_rows(values: Values) -> Bools:
    """Values that may be attention scores with a mask, as far as their stats tell."""
    least, most = values.summaries.min, values.summaries.max
    masked: Bools = (np.nan_to_num(least, nan=0.0) <= MASK) | (values.neg_inf > 0)
    masked &= (most < SCORES) & (values.nan == 0) & (values.pos_inf == 0)
    if values.exponents is not None:
        far = values.exponents[:, MASK_BIN:].sum(axis=1)
        some_scores = values.summaries.elements - values.not_finite() > far
        # Or the mask alone, one number, before scores are added to it.
        masked &= some_scores | ((least == most) & usual_masks(least))
    large = np.flatnonzero(masked & (values.large() > 0))
    masked[large] = usual_masks(least[large])
    return masked


def of_other_types(reference: Values, target: Values) -> Bools:
    """Where each side may have the mask that its own type uses, or the least number of the type it was made in."""
    least = reference.summaries.min, target.summaries.min
    limits = ~_are_near(least[0] - least[1], (0.0,)) & _are_near(least[0], _LEAST) & _are_near(least[1], _LEAST)
    return np.asarray((reference.dtype != target.dtype) | limits, dtype=np.bool_)


def largest(values: Values) -> Floats:
    """The largest finite |x| of each value."""
    return np.fmax(np.abs(values.summaries.min), np.abs(values.summaries.max))


def _extreme_errors(reference: Values, target: Values, low: Bools, high: Bools) -> Floats:
    """How far apart min (where `low`) and max (where `high`) are, relative to the largest number of the reference."""
    one, other = reference.summaries, target.summaries
    sizes = largest(reference), largest(target)
    size = np.where(sizes[0] > 0, sizes[0], sizes[1])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        least = np.where(low, np.abs(other.min / size - one.min / size), 0.0)
        most = np.where(high, np.abs(other.max / size - one.max / size), 0.0)
    apart: Floats = np.nan_to_num(np.fmax(least, most), nan=0.0)
    return apart


def _crossed(reference: Values, target: Values) -> Bools:
    """Where the counts of large numbers differ by no more than what lies near 2**29 on the side that has fewer."""
    if reference.exponents is None or target.exponents is None:
        return np.zeros(len(reference.id), dtype=np.bool_)
    counts = reference.large(), target.large()
    near = [
        side.exponents[:, FAR_BIN].astype(np.int64) - (count - side.exponents[:, FAR_BIN + 1 :].sum(axis=1))
        for side, count in zip((reference, target), counts, strict=True)
        if side.exponents is not None
    ]
    fewer = np.where(counts[0] < counts[1], near[0], near[1])
    crossed: Bools = fewer >= np.abs(counts[0] - counts[1])
    return crossed
