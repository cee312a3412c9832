"""Draws numbers whose shares by size, mean, mean size and mean square are given, otherwise as plain as can be.

The range is cut into cells. Of all ways to spread the numbers over them that give the sizes' shares and the moments,
the one of greatest entropy is taken: each cell's weight is tilted by exp(a x + b |x| + c x^2). Normal data comes back
normal, exponential data exponential, and three numbers a, b, c are found by Newton's method on a convex function.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Floats

Ints = NDArray[np.int64]

_CELLS_PER_BINADE = 8
_LINEAR_CELLS = 64
_CELLS_PER_DEVIATION = 8
_DEVIATIONS = 6

_WIDTH_OF_BOUND = 1e-6
"""Share of the range that each bound stands for before it is tilted: many numbers may be the lowest or highest one."""

_NEWTON_STEPS = 60
_CONVERGED = 1e-20
"""Of twice the distance to the optimum; its square root bounds the relative error of a moment."""
_FULL_STEP_BELOW = 1e-6
_RIDGE = 1e-10
"""Keeps nearly dependent features apart: x and |x| where hardly any number is negative."""

# Another machine's exp differs in its last bit: the tilt and the weights are rounded far above that.
_TILT_STEP = 2.0**-30
_WEIGHT_STEPS = 2.0**32


@dataclass(frozen=True, slots=True)
class Stratum:
    """Numbers whose sizes lie between two bounds, and how many there are."""

    low: float
    high: float
    count: float
    slope: float = 1.0
    """Before it is tilted, the density goes like |x| ** (slope - 1): 1 is even, 0 even in the logarithm."""


@dataclass(frozen=True, slots=True)
class Moments:
    mean: float
    square: float
    size: float | None
    """The mean of |x|, where it is known."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Neighbouring intervals from the lowest to the highest, each inside one stratum; the bounds themselves are two."""

    low: Floats
    high: Floats
    stratum: Ints
    base: Floats

    @property
    def middle(self) -> Floats:
        return 0.5 * (self.low + self.high)

    @property
    def square(self) -> Floats:
        """The mean of x^2 over each."""
        return (self.low * self.low + self.low * self.high + self.high * self.high) / 3.0


def draw(
    count: int, strata: Sequence[Stratum], moments: Moments, *, bounds: tuple[float, float], random: np.random.Generator
) -> Floats:
    """`count` numbers within the bounds, which lie apart."""
    cells = _cells(strata, moments, bounds)
    present = np.bincount(cells.stratum, minlength=len(strata)) > 0
    weights = np.array([stratum.count for stratum in strata], dtype=np.float64) * present
    if not weights.any():
        return bounds[0] + (bounds[1] - bounds[0]) * random.random(count)
    return _sample(count, cells, _tilted(cells, weights / weights.sum(), moments), random)


def _cells(strata: Sequence[Stratum], moments: Moments, bounds: tuple[float, float]) -> Cells:
    sizes = np.array([strata[0].low, *(stratum.high for stratum in strata)])
    edges = _edges(sizes, moments, bounds)
    low, high = np.append(bounds[0], edges), np.append(edges, bounds[1])
    middle = 0.5 * (low + high)
    stratum = np.searchsorted(sizes, np.abs(middle), side="right") - 1
    filled = np.array([stratum.count > 0 for stratum in strata] + [False])
    kept = filled[np.where(stratum < 0, len(strata), stratum)]
    slopes = np.array([stratum.slope for stratum in strata])[stratum[kept]]
    widths = np.maximum(high - low, _WIDTH_OF_BOUND * (bounds[1] - bounds[0]))[kept]
    base = widths * np.maximum(np.abs(middle[kept]), sizes[0]) ** (slopes - 1.0)
    return Cells(low[kept], high[kept], stratum[kept], base)


def _edges(sizes: Floats, moments: Moments, bounds: tuple[float, float]) -> Floats:
    """Fine near 0 (for wide ranges), near the mean (for narrow ones) and in between."""
    exponents = np.arange(np.frexp(sizes[0])[1] - 1, np.frexp(sizes[-1])[1])
    steps = 1.0 + np.arange(_CELLS_PER_BINADE) / _CELLS_PER_BINADE
    dyadic = np.ldexp(steps[None, :], exponents[:, None]).ravel()
    dyadic = np.concatenate([dyadic[(dyadic > sizes[0]) & (dyadic < sizes[-1])], sizes])
    linear = bounds[0] + (bounds[1] - bounds[0]) * (np.arange(_LINEAR_CELLS + 1) / _LINEAR_CELLS)
    reach = _DEVIATIONS * _CELLS_PER_DEVIATION
    around = moments.mean + _deviation(moments) * (np.arange(-reach, reach + 1) / _CELLS_PER_DEVIATION)
    return np.unique(np.clip(np.concatenate([-dyadic, dyadic, linear, around]), *bounds))


def _deviation(moments: Moments) -> float:
    return float(np.sqrt(max(moments.square - moments.mean * moments.mean, 0.0)))


def _tilted(cells: Cells, shares: Floats, moments: Moments) -> Floats:
    """The weight of each cell, in sum 1."""
    order = np.argsort(cells.stratum, kind="stable")
    features, targets = _features(cells, moments)
    dual = _Dual(features[:, order], targets, np.log(cells.base[order]), cells.stratum[order], shares)
    tilt = np.rint(dual.solve() / _TILT_STEP) * _TILT_STEP
    weights = np.empty(len(order))
    weights[order] = dual.weights(tilt)[1]
    return weights


def _features(cells: Cells, moments: Moments) -> tuple[Floats, Floats]:
    """What is to be matched, per cell, and its targets; in units of the spread, about the mean."""
    mean, spread = moments.mean, max(_deviation(moments), float(np.finfo(np.float64).tiny))
    middle = cells.middle
    rows = [(middle - mean) / spread, (cells.square - 2.0 * mean * middle + mean * mean) / spread**2]
    targets = [0.0, 1.0]
    if moments.size is not None and cells.low[0] < 0.0 < cells.high[-1]:
        unit = float(np.sqrt(moments.square))
        rows.append(np.abs(middle) / unit)
        targets.append(moments.size / unit)
    return np.array(rows), np.array(targets)


class _Dual:
    """The convex function of the tilt whose minimum has the moments that are asked for."""

    def __init__(self, features: Floats, targets: Floats, base: Floats, stratum: Ints, shares: Floats) -> None:
        present, self._starts, counts = np.unique(stratum, return_index=True, return_counts=True)
        self._features, self._targets, self._base = features, targets, base
        self._shares = shares[present]
        self._place = np.repeat(np.arange(len(present)), counts)

    def weights(self, tilt: Floats) -> tuple[float, Floats]:
        """The function, and the weight of each cell."""
        logits = self._base + tilt @ self._features
        top = np.maximum.reduceat(logits, self._starts)
        raw = np.exp(logits - top[self._place])
        total = np.add.reduceat(raw, self._starts)
        value = float(self._shares @ (np.log(total) + top) - tilt @ self._targets)
        return value, raw * (self._shares / total)[self._place]

    def solve(self) -> Floats:
        tilt = np.zeros(len(self._targets))
        value, weights = self.weights(tilt)
        for _ in range(_NEWTON_STEPS):
            gradient = self._features @ weights - self._targets
            step: Floats = -np.linalg.solve(self._curvature(weights), gradient).astype(np.float64, copy=False)
            decrease = float(-gradient @ step)
            if decrease < _CONVERGED:
                break
            tilt, value, weights = self._move(tilt, step, value, decrease)
        return tilt

    def _curvature(self, weights: Floats) -> Floats:
        weighted = self._features * weights
        means = np.add.reduceat(weighted, self._starts, axis=1)
        between = (means / np.maximum(self._shares, 1e-300)) @ means.T
        curvature = weighted @ self._features.T - between
        return np.asarray(curvature + np.diag(_RIDGE * np.maximum(np.diag(curvature), _RIDGE)))

    def _move(self, tilt: Floats, step: Floats, value: float, decrease: float) -> tuple[Floats, float, Floats]:
        length = 1.0
        while True:
            moved = tilt + length * step
            there, weights = self.weights(moved)
            # Close to the minimum the function is flat to its last bit, and a full step is safe.
            if decrease < _FULL_STEP_BELOW or there <= value - 0.25 * length * decrease or length < 1e-6:
                return moved, there, weights
            length *= 0.5


def _sample(count: int, cells: Cells, weights: Floats, random: np.random.Generator) -> Floats:
    """Evenly spread over the weights, with one random number in each share: small values keep their moments too."""
    steps = np.cumsum(np.rint(weights * _WEIGHT_STEPS))
    places = (np.arange(count) + random.random(count)) / count * steps[-1]
    ends = np.append(np.searchsorted(places, steps[:-1], side="left"), count)
    counts = np.diff(ends, prepend=0)
    numbers = random.random(count)
    numbers *= np.repeat(cells.high - cells.low, counts)
    numbers += np.repeat(cells.low, counts)
    return numbers
