"""Is a difference explained by rounding and by what came in? docs/compare.md tells the rule in words.

    identical  the same bits
    rounding   at most a few times the error that rounding in these dtypes makes, or that correct arithmetic makes
               of operands which themselves differ by rounding only
    inherited  explained by operands that are wrong
    made here  not explained

All errors are relative L2 distances of whole tensors.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.constants import SET_ASIDE_EXPONENT
from ulpscope.operations.registry import Family, Operation, Trait
from ulpscope.records.pairs import Measured


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers of the rule: what healthy pairs of the fault zoo need, rounded up (docs/benchmarks.md, Fault zoo); gains
    of most families of operations are measured (MEASURED_GAINS).

    Gains are ratios of errors, and shares are parts of 1; another unit is named.
    """

    rounding: float = 0.6
    """RMS error of a sound result, in unit roundoffs: sqrt(1/3) for one rounding, a little more for two."""
    sure: float = 1.2
    """Times what is explained that an error must be to be told. Of 190 errors of numbers in faults of models that
    nobody had looked at three are below, of eleven alarms in 220 healthy pairs of theirs four."""
    gain: float = 4.0
    """Output error over incoming error of a sound operation, each counted as at least its rounding. Of contractions 3.6
    is the largest in 114 models (docs/gains.md)."""
    loose_gain: float = 7.0
    """The same where operands may be divided by what is small, or cancel inside: logarithms, losses of differences,
    which 5 and 18 models have (1.0 and 1.7 at most), and updates."""
    solution_gain: float = 1000.0
    """Of what solves equations: the condition number, which nobody has recorded. Chosen."""
    attention_gain: float = 15.0
    """Fused attention: its backward subtracts products of what its forward has rounded. 2.8 at most in 25 models, all
    of which have hardly been trained: scores grow with training, and the gain with them. Chosen."""
    recurrent_gain: float = 100.0
    """1.9 at most in 4 models, which says nothing of other loops. Chosen."""
    saturated: float = 0.25
    """An operand with a larger error explains anything."""
    gap_gain: float = 8.0
    """The same over several operations whose partners are unknown."""
    few_calls: int = 4
    one_sided_gain: float = 2.5
    """The same where only one run has such operations: casts and copies change next to nothing."""
    momentum: float = 0.1
    """Share by which running stats usually move."""
    kink: float = 2.5
    """A kinked backward under an operand error e: about sqrt(0.4 e) of the gradient moves."""
    kinked_element: float = 3.0
    """The size of a single gradient that moves, in average elements."""
    in_common: float = 0.5
    """Share of the errors of rows that is the same in all, which a sum over them adds up like one."""
    in_common_gain: float = 16.0
    """The most that such a sum may pass on."""
    norm_roundings: float = 2.0
    """Roundings in the coarsest type of the runs that a norm may make of any error: rows of small norm amplify it."""
    adaptive: float = 4.0
    """An adaptive optimizer's update under a gradient error e: about sqrt(2 e) of it changes sign."""
    update_cap: float = 1.5
    """Updates that differ by more are opposed: no noise of gradients explains that."""
    argument: float = 0.3
    """Share of the incoming error above which a differing argument is held responsible."""
    peer_ratio: float = 3.0
    """How much worse than its peers in other layers a call may be."""
    peer_scatter: float = 4.0
    """The same in mean absolute deviations of the peers' logarithms."""
    least_gain: float = 4.0
    """What any call may have, however much better its peers are; less where its family has less."""
    plain_outlier: float = 1.7
    """How far beyond what its peers allow a call with less than that must be."""
    least_outlier: float = 2.0
    least_peers: int = 3
    stats_factor: float = 4.0
    """How much worse guesses from min, max, mean and norm are than sketches."""


LIMITS = Limits()

# A sketch is stored in float32: estimates of smaller distances are its own rounding.
SKETCH_FLOOR = 2.0e-7
# One of doubles is stored whole. Its sums, made in another order, differ by so much relative to the norm, and more of
# many elements (measured: 2.4e-16 of 20,000 elements, 7.5e-16 of 200,000, 2.5e-15 of 20 million).
DOUBLE_SKETCH_FLOOR = 4.0 * 2.0**-53
ELEMENTS_SUMMED_ALIKE = 40_000
STATS_FLOOR = 1.0e-6
# TF32 keeps 10 bits of the significand beside the hidden one.
TF32_ROUNDOFF = 2.0**-11
# Unit roundoff of float32, in which matrix units accumulate, whatever the dtype of the operands.
# From here on a number is the end of an element type, whatever it was divided by since: no score is so large.
ONLY_MASKS = 1e30
SCARCE = 0.1
"""Draws beyond those of which a deviation's mean of 1 / deviation^4 is infinite, where there are none. Chosen."""
RARE_DEVIATIONS, MANY_VECTORS = 3.09, 64.0
"""Standard deviations that one in a thousand exceeds; vectors, at least, in calls whose gains were measured."""
ACCUMULATOR = 2.0**-24
DRAWS = 3
"""How often the operands of an operation on single elements are moved; the largest movement counts."""
DERIVATIVE_STEP = 1e-6
"""Relative step of a derivative by differences, about the cube root of float64's unit roundoff."""
# What is masked is less than the one, all else smaller than the other: scores have two digits, masks five and more.
MASK, SCORES = -4096.0, 256.0
# From here on elements are set aside in summaries; float16 ends before.
FAR = 2.0**SET_ASIDE_EXPONENT
# How far bfloat16 may be from the number that is meant, relative to it.
COARSEST_STEP = 2.0**-7
# Extremes that differ by a larger share say by themselves that two values differ, whatever has crossed 2**29.
PLAIN = 0.25
# Share of all bools above which rounding would have to have met nearly every element at the threshold.
FLIPPED = 0.9
# They lie apart if their standard deviation is more than so many errors, and more than their range over the second
# number (chosen: numbers that are spread evenly have a range of 3.5 standard deviations, normal ones of less than 12).
APART, NARROW = 10.0, 12.0
# Elements that are widened at a time: 8 MiB of doubles.
BLOCK = 2**20


def unit_roundoff(dtype: str) -> float:
    """Of an element type by name; 0 for integers and what is not known."""
    return DTYPES[dtype].unit_roundoff if dtype in DTYPES else 0.0


def subnormal_spacing(dtype: str) -> float:
    """Distance of the smallest numbers of an element type, in which what underflows is rounded."""
    return 2.0 * DTYPES[dtype].smallest_normal * DTYPES[dtype].unit_roundoff if dtype in DTYPES else 0.0


def sketch_floors(elements: NDArray[np.float64], *, whole: NDArray[np.bool_]) -> NDArray[np.float64]:
    """What estimates from sketches of so many elements do not resolve, relative to the norm; `whole` are doubles'."""
    summed = DOUBLE_SKETCH_FLOOR * np.sqrt(1.0 + elements / ELEMENTS_SUMMED_ALIKE)
    return np.where(whole, summed, SKETCH_FLOOR)


def floor_of(
    roundoff: float, measured: Measured | None, limits: Limits = LIMITS, *, sketch_floor: float = SKETCH_FLOOR
) -> float:
    """The error below which nothing can be told from rounding."""
    resolution = {Measured.SKETCH: sketch_floor, Measured.STATS: STATS_FLOOR}.get(measured, 0.0) if measured else 0.0
    return max(limits.rounding * roundoff, resolution)


MEASURED_GAINS: Mapping[Family, float] = MappingProxyType({
    Family.AVERAGE: 2.5, Family.CONVOLUTION: 2.5, Family.EXPONENTIAL: 2.5, Family.REDUCTION: 2.5,
    Family.OTHER: 3.0, Family.PRODUCT: 3.0, Family.NORMALIZATION: 3.5, Family.SELECTION: 4.0, Family.SUM: 4.0,
    Family.DIVISION: 4.5,
})  # fmt: skip
"""1.35 times the largest gain that sound calls have in 119 healthy models (docs/gains.md), to the nearest half. With
`sure` that is 1.6 times; of models that had no part in such a measurement about one in a hundred has more anywhere."""
LOOSE = frozenset((Family.LOGARITHM, Family.DIFFERENCE_LOSS))
"""They, or their backwards, divide by what may be small."""


@cache
def default_gain(operation: Operation, limits: Limits = LIMITS) -> float:
    """The gain a sound operation may have."""
    if operation.family is Family.RECURRENT:
        return limits.recurrent_gain
    if operation.family is Family.SOLUTION:
        return limits.solution_gain
    if operation.family is Family.ATTENTION:
        return limits.attention_gain
    loose = operation.family in LOOSE
    return limits.loose_gain if loose else MEASURED_GAINS.get(operation.family, limits.gain)


def kink_error(operation: Operation, forward_error: float, elements: float, limits: Limits = LIMITS) -> float:
    """Error that a backward may have because operands moved across a kink."""
    if not operation.has(Trait.KINKED) or forward_error <= 0:
        return 0.0
    return limits.kink * math.sqrt(min(forward_error, 1.0)) + limits.kinked_element / math.sqrt(max(elements, 1.0))


def update_error(base: float, gain: float, limits: Limits = LIMITS, *, lost: float = 0.0) -> float:
    """What an optimizer may make of a gradient's error: an adaptive one amplifies what is uncertain."""
    return max(gain * base, min(max(limits.adaptive * math.sqrt(base), lost), limits.update_cap))


def sum_floor(length: float, roundoff: float = ACCUMULATOR) -> float:
    """Error of a sum of that many terms of this unit roundoff, added up in any order: in float32, or more exactly."""
    return min(roundoff, ACCUMULATOR) * math.sqrt(1.0 + length / 2.0) if length > 1 else 0.0


def gap_gain(calls: int, *, one_sided: bool, limits: Limits = LIMITS) -> float:
    """The gain over that many operations without partners."""
    if one_sided and calls <= limits.few_calls:
        return limits.one_sided_gain
    return limits.gap_gain


_NUMBERS = re.compile(r"\d+")


def layer_pattern(module: str | None) -> str:
    """The module's path with numbers left open: its place in every layer."""
    return "" if module is None else _NUMBERS.sub("#", module)
