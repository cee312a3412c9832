"""What can be told of numbers of 2**29 and more, which summaries set aside.

Mean, norm and sketch are without them, because attention masks would drown all else in these. Known are how many there
are, the least and the largest number of the value, its exponents, and whether any bit differs. So the extremes of what
is large are compared, beside the sketches of the rest; where these are equal and bits differ, the difference lies
between them, and how large it is nobody knows. Of masks only the rest counts.
"""

from dataclasses import dataclass

import numpy as np

from ulpscope.judge.rounding.limits import FAR, MASK, PLAIN, SCORES
from ulpscope.judge.rounding.masks import usual_masks
from ulpscope.judge.rounding.values import Bools, Floats, Values
from ulpscope.numerics.summaries.constants import EXPONENT_BIAS, EXPONENT_BIN_SHIFT, SET_ASIDE_EXPONENT

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
