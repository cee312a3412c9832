"""Single elements of two arrays: how many lie outside of a tolerance, and which differ most."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.pairs.metric_plain import differences, numbers_of
from ulpscope.numerics.pairs.pieces import PairPieces

AnyArray = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element is within if |target - reference| <= atol + rtol * |reference|."""

    atol: float
    rtol: float

    def exceeded(self, apart: Floats, sizes: Floats) -> NDArray[np.bool_]:
        """Which elements are not within, of what `apart_pieces` gives."""
        return np.asarray((apart > self.atol + self.rtol * sizes).any(axis=1))


@dataclass(frozen=True, slots=True)
class ElementScan:
    outside: int
    """Elements that are not within the tolerance; nan is within of nan, and inf of inf of the same sign."""
    worst: tuple[int, ...]
    """Flat indices of those that differ most, the worst first: not finite on one side only, then by difference."""


def scan_elements(pieces: PairPieces, *, tolerance: Tolerance, worst: int) -> ElementScan:
    """Look at every element once more; of a complex element the part that differs more counts."""
    outside, base = 0, 0
    places, sizes = np.empty(0, np.int64), np.empty(0)
    with np.errstate(all="ignore"):
        for apart, magnitudes in apart_pieces(pieces):
            outside += int(np.count_nonzero(tolerance.exceeded(apart, magnitudes)))
            largest = apart.max(axis=1)
            found = _largest(largest, worst)
            places, sizes = np.concatenate([places, base + found]), np.concatenate([sizes, largest[found]])
            kept = _largest(sizes, worst)
            places, sizes = places[kept], sizes[kept]
            base += len(apart)
    return ElementScan(outside, tuple(places.tolist()))


def apart_pieces(pieces: PairPieces) -> Iterator[tuple[Floats, Floats]]:
    """Of each piece: differences, inf where only one side is finite, and |reference|; a row an element."""
    parts, width = pieces.parts, pieces.parts_an_element
    for pair in pieces.pieces():
        reference, target = numbers_of(pair.reference, parts.reference), numbers_of(pair.target, parts.target)
        apart = differences(pair, parts, reference, target)
        finite = np.isfinite(reference) & np.isfinite(target)
        same = (reference == target) | (np.isnan(reference) & np.isnan(target))
        apart = np.where(finite, apart, np.where(same, 0.0, np.inf))
        sizes = np.where(finite, np.abs(reference), 0.0)
        yield apart.reshape(-1, width), sizes.reshape(-1, width)


def _largest(sizes: Floats, count: int) -> NDArray[np.int64]:
    """Where the `count` largest are that are not 0, the largest first; of equal ones the first."""
    if count < len(sizes):
        border = np.partition(sizes, len(sizes) - count)[len(sizes) - count] if count else np.inf
        places = np.flatnonzero((sizes >= border) & (sizes > 0.0)) if count else np.empty(0, np.int64)
    else:
        places = np.flatnonzero(sizes > 0.0)
    order = np.argsort(-sizes[places], kind="stable")
    return places[order][:count]
