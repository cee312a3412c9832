"""How errors scatter, and how likely two mean squares of normal ones are so far apart: Fisher's distribution."""

import math
from functools import cache

import numpy as np

from ulpscope.numerics.dtypes import Floats

NORMAL_DEVIATION = 1.4826
"""Standard deviations of normal numbers in their median absolute deviation."""
TERMS = 300
"""Of the continued fraction; it settles within some tens for what is asked here."""
SMALLEST = 1e-300


def ratio_chance(ratio: float, first: float, second: float) -> float:
    """How likely the mean square of `first` errors is at least `ratio` times that of `second` others."""
    if ratio <= 0:
        return 1.0
    return _incomplete_beta(second / 2.0, first / 2.0, second / (second + first * ratio))


def median_deviation(numbers: Floats) -> float:
    """The standard deviation that the median absolute one tells, whatever a few of the numbers are."""
    return float(NORMAL_DEVIATION * np.median(np.abs(numbers - np.median(numbers))))


@cache
def largest_ratio(chance: float, first: float, second: float) -> float:
    """The ratio that is reached with this chance."""
    low, high = 0.0, 1.0
    while ratio_chance(high, first, second) > chance:
        low, high = high, 2.0 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if ratio_chance(middle, first, second) > chance else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function: its continued fraction, where it settles fast, or one minus it."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's way through the continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8)."""
    above, below = 1.0, 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    value = below
    for m in range(1, TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            below = 1.0 / _not_zero(1.0 + term * below)
            above = _not_zero(1.0 + term / above)
            value *= above * below
        if abs(above * below - 1.0) < 1e-12:
            break
    return value


def _not_zero(number: float) -> float:
    return number if abs(number) > SMALLEST else SMALLEST
