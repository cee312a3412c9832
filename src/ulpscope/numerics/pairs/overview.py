"""Two arrays at a glance, from one exact read of both: how they are spread, where they differ and by how much."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.pairs.distributions import (
    ErrorCounts,
    ErrorHistogram,
    ErrorTotals,
    Histogram,
    LinearCounts,
    Magnitudes,
    Ranges,
)
from ulpscope.numerics.pairs.elements import Largest
from ulpscope.numerics.pairs.pieces import Box, PairBoxes
from ulpscope.records.pairs import Pair

Floats = NDArray[np.float64]
Advance = Callable[[float], None]
"""Is told the share of the work that is done, and may stop it by an exception."""

LISTED = 50
"""Elements of each list of those that differ most."""
RANKED = 4096
"""Blocks in which an axis is ranked: more nobody can look at."""
HEAT_CELLS = 256
"""Cells of a heat map along each of its axes."""


@dataclass(frozen=True, slots=True)
class PairElement:
    """One place of both arrays."""

    index: tuple[int, ...]
    texts: Pair[str]
    """As their own types write them."""
    absolute: float
    """inf where only one is finite, or they are other kinds of inf or nan."""
    relative: float
    """absolute / |reference|; inf where the reference is 0."""
    ulps: float | None
    """None for integers, and where one is not finite."""


@dataclass(frozen=True, slots=True)
class PairOverview:
    """What one read of both arrays tells."""

    elements: int
    different: int
    mismatched: int
    zeros: Pair[int]
    not_finite: Pair[int]
    magnitudes: Histogram | None
    errors: ErrorHistogram
    in_ulps: bool
    axes: tuple[ErrorTotals, ...]
    absolute: tuple[PairElement, ...]
    relative: tuple[PairElement, ...]
    ulps: tuple[PairElement, ...]
    broken: tuple[PairElement, ...]
    """Places where inf and nan do not agree, in their order."""


class _Pass:
    """What is gathered from box to box."""

    def __init__(self, pair: PairBoxes) -> None:
        self.pair = pair
        self.different = self.mismatched = 0
        self.not_finite = [0, 0]
        self.magnitudes, self.errors = Magnitudes(), ErrorCounts()
        self.axes = tuple(ErrorTotals(pair.shape, (axis,), most=RANKED) for axis in range(len(pair.shape)))
        self.absolute, self.relative, self.ulps = (Largest(LISTED) for _ in range(3))
        self.broken: list[int] = []
        self.in_ulps = False

    def add(self, box: Box) -> None:
        ulps = self.pair.ulps(box)
        self.in_ulps = ulps is not None
        self.magnitudes.add(box)
        self.errors.add(box, box.apart if ulps is None else ulps)
        for axis in self.axes:
            axis.add(box)
        if box.finite is not None:
            self._add_not_finite(box)
        if box.apart.any():
            self._add_largest(box, ulps)

    def _add_not_finite(self, box: Box) -> None:
        for side, numbers in enumerate((box.numbers.reference, box.numbers.target)):
            self.not_finite[side] += int(np.count_nonzero(~np.isfinite(numbers)))
        if box.mismatched is None:
            return
        places = np.flatnonzero(box.mismatched)
        self.mismatched += len(places)
        self.different += len(places)
        self.broken += (box.base + places[: LISTED - len(self.broken)]).tolist()

    def _add_largest(self, box: Box, ulps: Floats | None) -> None:
        apart, sizes = box.apart.reshape(-1), np.abs(box.numbers.reference).reshape(-1)
        self.different += int(np.count_nonzero(apart))
        self.absolute.add(apart, box.base)
        self.relative.add(np.where(apart > 0.0, apart / sizes, 0.0), box.base)
        if ulps is not None:
            self.ulps.add(ulps.reshape(-1), box.base)


def overview(pair: PairBoxes, advance: Advance) -> PairOverview:
    """Read all of both arrays once."""
    seen = _Pass(pair)
    _read(pair, seen.add, advance)
    return PairOverview(
        elements=pair.elements,
        different=seen.different,
        mismatched=seen.mismatched,
        zeros=Pair(*seen.magnitudes.zeros),
        not_finite=Pair(*seen.not_finite),
        magnitudes=seen.magnitudes.histogram(),
        errors=seen.errors.histogram(),
        in_ulps=seen.in_ulps,
        axes=seen.axes,
        absolute=_elements(pair, seen.absolute.places()),
        relative=_elements(pair, seen.relative.places()),
        ulps=_elements(pair, seen.ulps.places()),
        broken=_elements(pair, seen.broken),
    )


def linear_histogram(pair: PairBoxes, advance: Advance) -> Histogram | None:
    """Count the numbers of both arrays over equal bins of their range; None if all would be set aside. Two reads."""
    ranges = Ranges()
    _read(pair, ranges.add, lambda share: advance(share / 3))
    if ranges.low > ranges.high:
        return None
    counts = LinearCounts(ranges.low, ranges.high)
    _read(pair, counts.add, lambda share: advance((1 + 2 * share) / 3))
    return counts.histogram()


def heat(pair: PairBoxes, rows: int, columns: int | None, advance: Advance) -> ErrorTotals:
    """Errors over two axes, or along the only one, in at most HEAT_CELLS blocks each."""
    axes = (rows,) if columns is None else (rows, columns)
    totals = ErrorTotals(pair.shape, axes, most=HEAT_CELLS)
    _read(pair, totals.add, advance)
    return totals


def _read(pair: PairBoxes, add: Callable[[Box], None], advance: Advance) -> None:
    done = 0
    for box in pair.boxes():
        # Sums of float64 may leave their range; they are then told to be inf.
        with np.errstate(all="ignore"):
            add(box)
        done += box.apart.size
        advance(done / pair.elements)


def _elements(pair: PairBoxes, places: Iterable[int]) -> tuple[PairElement, ...]:
    return tuple(_element(pair, place) for place in places)


def _element(pair: PairBoxes, place: int) -> PairElement:
    index = tuple(int(number) for number in np.unravel_index(place, pair.shape))
    box = pair.box(tuple(slice(number, number + 1) for number in index))
    ulps = pair.ulps(box) if box.finite is None else None
    apart = float(box.apart.flat[0]) if box.mismatched is None else float("inf")
    size = abs(float(box.numbers.reference.flat[0]))
    both: Pair[Any] = pair.element(place)
    return PairElement(
        index=index,
        texts=Pair(str(both.reference), str(both.target)),
        absolute=apart,
        relative=apart / size if size else float("inf") if apart else 0.0,
        ulps=None if ulps is None else float(ulps.flat[0]),
    )
