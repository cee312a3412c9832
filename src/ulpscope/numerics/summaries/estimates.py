"""How far apart two values are, told from their summaries alone.

With sketches the distance of large values is known to 9 %. Of a few elements only as many sums are filled as there are
pairs of them, and errors of a pair may cancel; there the stats tell what the distance is at least. With nothing but
min, max, mean and norm it is guessed: an error that is spread over all elements moves each of the extremes by about its
own size, and the mean by its size over sqrt(n).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Floats
from ulpscope.numerics.summaries.constants import SKETCH_LENGTH
from ulpscope.numerics.summaries.summary import estimate_distance

# Pairs at a time: a sketch in float64, three times, stays within a few megabytes.
PIECE = 4096
# Error of a norm, and of a sum beside it: 16 rows may be added up in float32 (docs/trace-format.md, Stats).
STATS_ROUNDING = 1.0e-6

# Of fewer than ten elements no more is reckoned with than of those: there the stats tell more. Chosen.
LARGEST_SHORTFALL = 4.0


@dataclass(frozen=True, slots=True)
class Summaries:
    """Stats of many values as columns; nan where a number is not known."""

    elements: Floats
    min: Floats
    max: Floats
    mean: Floats
    norm: Floats
    sketch: NDArray[np.floating[Any]] | None


def sketch_distances(reference: NDArray[np.floating[Any]], target: NDArray[np.floating[Any]]) -> Floats:
    """Estimated L2 distances, a row a pair; nan where a sketch is missing (nan)."""
    pieces = [slice(start, start + PIECE) for start in range(0, len(reference), PIECE)]
    return np.concatenate([np.empty(0), *(estimate_distance(reference[rows], target[rows]) for rows in pieces)])


def mean_squared_cosines(errors: Sequence[Floats]) -> Floats:
    """How alike several errors of the same values are, told from sketches of the errors, a row a value: the mean over
    all pairs of errors; 0 where no two are known."""
    known = [np.square(_cosines(one, other)) for one, other in combinations(errors, 2)]
    told = np.isfinite(known)
    found: Floats = np.where(told, known, 0.0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
    return found


def _cosines(one: Floats, other: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        found: Floats = (one * other).sum(axis=-1) / np.sqrt(
            np.square(one).sum(axis=-1) * np.square(other).sum(axis=-1)
        )
    return found


def scatter_of_few(elements: float) -> float:
    """How much more an estimate of so few elements may be too large than one of many, at three standard deviations."""
    if elements <= 1 or elements >= 2 * SKETCH_LENGTH:
        return 1.0
    # Two elements share a sum: (a + b)^2 is at most twice what a^2 + b^2 is.
    return min(_furthest(elements / 2.0) / _furthest(SKETCH_LENGTH), math.sqrt(2.0))


def shortfall_of_few(elements: float) -> float:
    """How many times more a distance of so few elements may be than its estimate, beyond what it may be of many, at
    three standard deviations: errors of a pair may cancel."""
    if elements <= 1 or elements >= 2 * SKETCH_LENGTH:
        return 1.0
    nearest = _nearest(elements / 2.0)
    return min(_nearest(SKETCH_LENGTH) / nearest, LARGEST_SHORTFALL) if nearest > 0 else LARGEST_SHORTFALL


def _nearest(sums: float) -> float:
    """The root of a mean of so many squares of normal numbers, three standard deviations below (Wilson, Hilferty)."""
    part = 2.0 / (9.0 * sums)
    return float(max(1.0 - part - 3.0 * math.sqrt(part), 0.0) ** 1.5)


def _furthest(sums: float) -> float:
    return 1.0 + 3.0 / math.sqrt(2.0 * sums)


def least_distances(reference: Summaries, target: Summaries, counted: Floats) -> Floats:
    """What L2 distances are at least, by means, norms and extremes; 0 where these tell nothing.

    `counted` are the elements that means and norms are of; 0 where they are not the same ones on both sides.
    """
    with np.errstate(invalid="ignore"):
        # Sorting brings two values nearest to each other: their ends are then still so far apart.
        ends = np.hypot(target.min - reference.min, np.where(counted > 1, target.max - reference.max, 0.0))
        means = np.sqrt(counted) * np.abs(target.mean - reference.mean)
        # The extremes are those of all elements.
        apart = np.fmax(
            np.fmax(means, np.abs(target.norm - reference.norm)), np.where(counted == reference.elements, ends, 0.0)
        )
        certain = np.where(counted > 0, apart - STATS_ROUNDING * np.fmax(reference.norm, target.norm), 0.0)
    least: Floats = np.nan_to_num(np.maximum(certain, 0.0), posinf=0.0)
    return least


def stats_distances(reference: Summaries, target: Summaries) -> Floats:
    """L2 distances guessed from extremes, mean and norm; nan where none of them is known on both sides."""
    root = np.sqrt(np.maximum(reference.elements, 1))
    extreme = np.fmax(
        np.fmax(np.abs(reference.min), np.abs(reference.max)), np.fmax(np.abs(target.min), np.abs(target.max))
    )
    scale = np.fmax(reference.norm, target.norm)
    spread = np.stack(
        [
            scale * _ratio(np.abs(target.min - reference.min), extreme),
            scale * _ratio(np.abs(target.max - reference.max), extreme),
            root * np.abs(target.mean - reference.mean),
        ]
    )
    known = ~np.isnan(spread)
    count = known.sum(axis=0)
    total = np.sqrt(np.where(known, spread, 0.0).__pow__(2).sum(axis=0) / np.maximum(count, 1))
    guessed = np.where(count > 0, total, np.nan)
    return np.fmax(guessed, np.abs(target.norm - reference.norm))


def cosines(reference_norm: Floats, target_norm: Floats, distance: Floats) -> Floats:
    """Cosine similarity by the law of cosines."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        inner = (reference_norm / target_norm + target_norm / reference_norm) / 2
        cosine = inner - np.square(distance) / (2 * reference_norm * target_norm)
    both_zero = (reference_norm == 0) & (target_norm == 0)
    return np.where(both_zero, 1.0, np.clip(cosine, -1.0, 1.0))


def standard_deviations(summaries: Summaries) -> Floats:
    """Population standard deviation from norm and mean."""
    count = np.maximum(summaries.elements, 1)
    deviation: Floats = np.sqrt(np.maximum(np.square(summaries.norm) / count - np.square(summaries.mean), 0.0))
    return deviation


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.where(numerator == 0, 0.0, np.nan))
