"""Floats from recorded stats: how many of each kind there were, and what the ordinary ones looked like.

nan, inf, zeros and what was set aside come back at the recorded share, the lowest and highest number themselves; the
rest is drawn (density.py) from the bins of exponents and the moments, or from as much of that as is known.
"""

from dataclasses import replace
from math import inf, log, pi, sqrt
from typing import NamedTuple

import numpy as np

from ulpscope.numerics.dtypes import Dtype, Floats
from ulpscope.numerics.regenerate.density import Moments, Stratum, draw
from ulpscope.numerics.summaries.constants import EXPONENT_BIAS, EXPONENT_BIN_SHIFT, EXPONENT_BINS, SET_ASIDE_EXPONENT
from ulpscope.records.calls import Stats

SET_ASIDE_FROM = 2.0**SET_ASIDE_EXPONENT
_BIN_RATIO = 2.0 ** (1 << EXPONENT_BIN_SHIFT)
_UNKNOWN_BINADES = 40
"""Where no exponents were recorded: sizes reach this far below the largest."""
_EVEN_FROM = 0.75
"""Shares of neighbouring bins that grow nearly as fast as their widths mean an even density."""
_SLOPES = (-1.0, 1.0)
_LEAST_SHAPE = 0.05
_EQUAL_SIZES = 1e-10
"""Relative variance of sizes below which they are one number: a mask, a gradient of a mean."""
_TWO_NUMBERS = 1e-5
"""Relative lack of variance, below the widest there can be, that is put down to rounding of recorded moments."""
_NARROW = 1.0 / 16
"""A positive value whose min is at least this share of its max is taken to lie about their middle."""
_EULER = 0.5772156649


class Kinds(NamedTuple):
    """How many numbers of each kind there are."""

    nan: int
    pos_inf: int
    neg_inf: int
    set_aside: int
    """The finite ones only."""
    zero: int
    ordinary: int

    def scaled(self, total: int) -> "Kinds":
        """The same shares of another total; what was there at all stays there, if there is room."""
        if total == sum(self):
            return self
        *rare, ordinary = self
        counts = [max(round(count * total / sum(self)), 1) if count else 0 for count in rare]
        if not ordinary:
            counts[counts.index(max(counts))] += total - sum(counts)
        if sum(counts) > total or min(counts) < 0:
            return Kinds(0, 0, 0, 0, 0, total)
        return Kinds._make([*counts, total - sum(counts)])


def regenerate_numbers(stats: Stats, count: int, dtype: Dtype, random: np.random.Generator) -> Floats:
    """`count` numbers in random order. float64, but not yet rounded to the dtype."""
    recorded = _recorded_kinds(stats, count)
    kinds = recorded.scaled(count)
    parts = [
        np.full(kinds.nan, np.nan),
        np.full(kinds.pos_inf, inf),
        np.full(kinds.neg_inf, -inf),
        np.zeros(kinds.zero),
        _set_aside(kinds.set_aside, stats, dtype, random),
        _ordinary(kinds.ordinary, recorded, stats, dtype, random),
    ]
    numbers = np.concatenate(parts)
    random.shuffle(numbers)
    return numbers


def _recorded_kinds(stats: Stats, count: int) -> Kinds:
    """Another tool's dump knows no counts: then the count is that of the shape."""
    not_finite = stats.nan + stats.pos_inf + stats.neg_inf
    aside = max(stats.set_aside - not_finite, 0)
    zero = stats.zero or 0
    if any(stats.exponents):
        ordinary = sum(stats.exponents) - aside
    elif stats.zero is not None:
        ordinary = max(count - not_finite - zero, 0) if stats.min != stats.max else 0
    else:
        aside = 0
        if _min_is_aside(stats):
            # Another tool's mean holds the masked numbers too, and they are nearly all of it.
            aside = max(round((stats.mean or 0.0) / (stats.min or 1.0) * count), 1)
        aside = min(aside, count - not_finite)
        ordinary = max(count - not_finite - aside, 0)
    return Kinds(stats.nan, stats.pos_inf, stats.neg_inf, aside, zero, ordinary)


def _min_is_aside(stats: Stats) -> bool:
    """Without exponents only a mask is told from large numbers: far below 0, and nothing far above."""
    alone = any(stats.exponents) or stats.max is None or stats.max < SET_ASIDE_FROM
    return stats.min is not None and stats.min <= -SET_ASIDE_FROM and alone


def _max_is_aside(stats: Stats) -> bool:
    return any(stats.exponents) and stats.max is not None and stats.max >= SET_ASIDE_FROM


def _set_aside(count: int, stats: Stats, dtype: Dtype, random: np.random.Generator) -> Floats:
    """A mask holds one large number; only sizes in several bins are spread."""
    low, high = stats.min or 0.0, stats.max or 0.0
    ends = [end for end in (low, high) if abs(end) >= SET_ASIDE_FROM] or [SET_ASIDE_FROM]
    numbers = np.array(ends, dtype=np.float64)[random.integers(len(ends), size=count)]
    bins = [bin for bin, filled in enumerate(stats.exponents) if filled and _bin_bounds(bin, dtype)[1] > SET_ASIDE_FROM]
    if len(bins) > 1:
        least = max(SET_ASIDE_FROM, _bin_bounds(bins[0], dtype)[0])
        numbers = np.sign(numbers) * least * (np.abs(numbers) / least) ** random.random(count)
        numbers = np.clip(numbers, low, high)
    numbers[: len(ends)] = ends[:count]
    return numbers


def _ordinary(count: int, recorded: Kinds, stats: Stats, dtype: Dtype, random: np.random.Generator) -> Floats:
    if not count:
        return np.zeros(0)
    if stats.min is not None and stats.min == stats.max:
        return np.full(count, stats.min)
    if not any(stats.exponents) and _ends(stats) == [0.0]:
        return np.zeros(count)
    strata = _strata(stats, recorded, dtype)
    bounds = _bounds(stats, strata)
    if bounds[0] >= bounds[1]:
        return np.full(count, bounds[1])
    moments = _moments(stats, recorded, bounds)
    ends = _ends(stats)[:count]
    rest = _without(ends, strata, moments, recorded.ordinary)
    if count == len(ends) or rest is None or not rest[1].square:
        return np.resize(np.array(ends or [0.0]), count)
    strata, moments = rest
    left, (low, high), size = count - len(ends), bounds, abs(moments.mean) if moments.size is None else moments.size
    # No spread is wider than that of numbers that are either the lowest or the highest: one-hot rows, signs.
    widest = (moments.mean - low) * (high - moments.mean)
    if moments.square - moments.mean**2 >= (1.0 - _TWO_NUMBERS) * widest:
        drawn = np.where(_spread(left, random) < (moments.mean - low) / (high - low), high, low)
    elif moments.square - size * size <= _EQUAL_SIZES * moments.square:
        drawn = _of_one_size(left, moments, ends, random)
    else:
        drawn = draw(left, _sloped(strata, moments, bounds), moments, bounds=bounds, random=random)
    return np.concatenate([np.array(ends, dtype=np.float64), drawn])


def _bin_bounds(bin: int, dtype: Dtype) -> tuple[float, float]:
    low = _least(dtype) if bin == 0 else 2.0 ** ((bin << EXPONENT_BIN_SHIFT) - EXPONENT_BIAS)
    high = dtype.largest if bin == EXPONENT_BINS - 1 else 2.0 ** (((bin + 1) << EXPONENT_BIN_SHIFT) - EXPONENT_BIAS)
    return max(low, _least(dtype)), max(high, 2.0 * _least(dtype))


def _least(dtype: Dtype) -> float:
    """The smallest positive number; not below what every float64 function handles at full speed."""
    return max(dtype.smallest_normal * 2.0 * dtype.unit_roundoff, 2.0**-1000)


def _strata(stats: Stats, recorded: Kinds, dtype: Dtype) -> list[Stratum]:
    """The filled bins without what was set aside, cut where subnormal numbers end."""
    top = max(map(abs, _ends(stats)), default=1.0) or 1.0
    if not any(stats.exponents):
        least = max(top * 2.0**-_UNKNOWN_BINADES, _least(dtype))
        return [Stratum(least, max(top, 2.0 * least), 1.0)]
    counts, aside = list(stats.exponents), recorded.set_aside
    for bin in reversed(range(len(counts))):
        taken = min(aside, counts[bin])
        counts[bin] -= taken
        aside -= taken
    filled = [bin for bin, count in enumerate(counts) if count] or [EXPONENT_BINS // 2]
    subnormal = stats.subnormal
    strata: list[Stratum] = []
    for bin in range(filled[0], filled[-1] + 1):
        low, high = _bin_bounds(bin, dtype)
        low = max(low, min(high, top) * 2.0**-_UNKNOWN_BINADES)
        below = min(subnormal, counts[bin])
        subnormal -= below
        if low < dtype.smallest_normal < high:
            strata.append(Stratum(low, dtype.smallest_normal, below))
            strata.append(Stratum(dtype.smallest_normal, high, counts[bin] - below))
        elif low < high:
            strata.append(Stratum(low, high, counts[bin]))
    return strata


def _bounds(stats: Stats, strata: list[Stratum]) -> tuple[float, float]:
    """The range of the ordinary numbers; that of their sizes where an end was set aside or is not known."""
    top = strata[-1].high
    low = -top if stats.min is None or _min_is_aside(stats) else max(stats.min, -top)
    high = top if stats.max is None or _max_is_aside(stats) else min(stats.max, top)
    return low, high


def _ends(stats: Stats) -> list[float]:
    """The lowest and highest number, where they are ordinary; a counted zero comes back with the zeros."""
    # Where ordinary numbers end.
    highest = SET_ASIDE_FROM if any(stats.exponents) else inf
    low = [] if stats.min is None or _min_is_aside(stats) or stats.min >= highest else [stats.min]
    high = [] if stats.max is None or _max_is_aside(stats) or stats.max <= -highest else [stats.max]
    return [end for end in (*low, *high) if end != 0.0 or stats.zero is None]


def _moments(stats: Stats, recorded: Kinds, bounds: tuple[float, float]) -> Moments:
    count = recorded.ordinary
    masked_in_sums = recorded.set_aside and not any(stats.exponents)
    if stats.mean is None or stats.norm is None or masked_in_sums:
        return _assumed_moments(*bounds, count)
    share = (count + recorded.zero) / count
    size = None if stats.abs_sum is None else stats.abs_sum / count
    return Moments(stats.mean * share, stats.norm * stats.norm / count, size)


def _assumed_moments(low: float, high: float, count: int) -> Moments:
    """Only the range is known: the spread is such that as many ordinary numbers would have just this range.

    Numbers spread evenly over the range would be 3 to 12 times too large, as recorded gradients show.
    """
    if low < 0.0 < high:
        below, above = -low / _normal_reach(count), high / _normal_reach(count)
        half = sqrt(2 / pi) / 2
        return Moments(half * (above - below), (above**2 + below**2) / 2, half * (above + below))
    near, far = sorted((low, high), key=abs)
    if near >= _NARROW * far if far > 0 else near <= _NARROW * far:
        middle, spread = (low + high) / 2, (high - low) / 2 / _normal_reach(count)
        return Moments(middle, middle**2 + spread**2, None)
    mean = far / (log(max(count, 2)) + _EULER)
    return Moments(mean, 2 * mean**2, None)


def _normal_reach(count: int) -> float:
    """About the largest of `count` standard normal numbers (extreme value theory)."""
    root = sqrt(2 * log(max(count, 3)))
    return max(root - (log(log(max(count, 3))) + log(4 * pi)) / (2 * root), 1.0)


def _without(
    ends: list[float], strata: list[Stratum], moments: Moments, count: int
) -> tuple[list[Stratum], Moments] | None:
    """What is left for the others once the ends are taken out; None if nothing is."""
    rest = count - len(ends)
    if rest <= 0:
        return None
    counts = [stratum.count - sum(stratum.low <= abs(end) < stratum.high for end in ends) for stratum in strata]
    if len(strata) > 1 and any(count > 0 for count in counts):
        strata = [replace(each, count=max(left, 0)) for each, left in zip(strata, counts, strict=True)]
    size = None if moments.size is None else max(moments.size * count - sum(map(abs, ends)), 0.0) / rest
    square = max(moments.square * count - sum(end * end for end in ends), 0.0) / rest
    mean = (moments.mean * count - sum(ends)) / rest
    return strata, Moments(mean, max(square, mean * mean), size)


def _spread(count: int, random: np.random.Generator) -> Floats:
    """Numbers from 0 to 1, one in each `count`-th."""
    spread: Floats = (np.arange(count) + random.random(count)) / count
    return spread


def _of_one_size(count: int, moments: Moments, ends: list[float], random: np.random.Generator) -> Floats:
    size = sqrt(moments.square)
    near = [abs(end) for end in ends if abs(abs(end) - size) <= sqrt(_EQUAL_SIZES) * size]
    positive = 0.5 * (1.0 + moments.mean / size) if size else 1.0
    signs = np.where(_spread(count, random) < positive, 1.0, -1.0)
    return signs * (near[0] if near else size)


def _sloped(strata: list[Stratum], moments: Moments, bounds: tuple[float, float]) -> list[Stratum]:
    if len(strata) == 1:
        return [replace(strata[0], slope=_shape(moments, bounds))]
    counts = [0.0, *(stratum.count for stratum in strata)]
    return [replace(each, slope=_slope(counts[place], each)) for place, each in enumerate(strata)]


def _slope(count_below: float, stratum: Stratum) -> float:
    if not (count_below and stratum.count):
        return 1.0
    slope = log(stratum.count / count_below) / log(_BIN_RATIO)
    return 1.0 if slope > _EVEN_FROM else min(max(slope, _SLOPES[0]), _SLOPES[1])


def _shape(moments: Moments, bounds: tuple[float, float]) -> float:
    """Numbers of one sign that spread wider than exponential ones look like a gamma distribution."""
    variance = moments.square - moments.mean**2
    if bounds[0] < 0.0 < bounds[1] or variance <= moments.mean**2:
        return 1.0
    return max(moments.mean**2 / variance, _LEAST_SHAPE)
