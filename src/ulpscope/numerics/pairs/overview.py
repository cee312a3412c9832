"""Two arrays at a glance, from one exact read of both: how they are spread, where they differ and by how much.

Histograms have common edges; errors are told by channel, by row, or over two axes, reduced over all others. All is
gathered box by box.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Counts, Floats, Shape
from ulpscope.numerics.pairs.elements import Largest
from ulpscope.numerics.pairs.pieces import Box, PairBoxes
from ulpscope.records.pairs import Pair

MOST_BINS = 96
"""Of a histogram of magnitudes."""
LINEAR_BINS = 100
SET_ASIDE_FROM = 2.0**29
"""Larger numbers (masks hold finfo.min or -1e9) would leave one bin for all others; as in a trace's stats."""

_FIELDS, _BIAS, _MANTISSA_BITS = 1 << 11, 1023, 52
# The upper 16 bits of |x|: exponent and five bits of the mantissa.
_SHIFT = 47
_CODES = _FIELDS << 5
# In steps of 1/32, the numbers next to 1, 2**0.25, 2**0.5 and 2**0.75: nearly equal widths on a logarithmic axis.
_QUARTERS = (0, 6, 13, 22)
_BEGINS = np.add.outer(np.arange(_FIELDS - 1) << 5, _QUARTERS).reshape(-1)
_END = (_FIELDS - 1) << 5
"""Codes from here on are inf and nan."""

LOWEST_POWER, HIGHEST_POWER = -3, 64
"""Errors in units are binned by powers of two; what is smaller or larger falls into the first or last bin."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Both sides over common edges."""

    edges: Floats
    counts: Pair[Counts]


@dataclass(frozen=True, slots=True)
class ErrorHistogram:
    """Errors in units: ULP, or 1 for integers."""

    equal: int
    lows: Floats
    """Where each bin begins; it ends at twice that. The first also holds what is smaller."""
    below: Counts
    """Where the target is smaller than the reference."""
    above: Counts


class Magnitudes:
    """Counts |x| of both arrays on a fixed grid of 4 bins to the octave."""

    def __init__(self) -> None:
        self._counts = Pair(np.zeros(_CODES, np.int64), np.zeros(_CODES, np.int64))
        self.zeros = [0, 0]

    def add(self, box: Box) -> None:
        for side, (numbers, counts) in enumerate(zip(box.numbers, self._counts, strict=True)):
            codes = np.abs(numbers).reshape(-1).view(np.int64) >> _SHIFT
            counts += np.bincount(codes, minlength=_CODES)
            zeros = int(numbers.size - np.count_nonzero(numbers))
            self.zeros[side] += zeros
            counts[0] -= zeros

    def histogram(self) -> Histogram | None:
        """Of what is finite and not 0, in at most MOST_BINS bins; None if nothing is."""
        found = self._counts.map(lambda side: np.add.reduceat(side[:_END], _BEGINS))
        present = np.flatnonzero(found.reference + found.target)
        if not len(present):
            return None
        first, last = int(present[0]), int(present[-1])
        step = 1
        while last // step - first // step + 1 > MOST_BINS:
            step *= 2
        bins = np.arange(first // step, last // step + 1) * step
        edges = np.append(_BEGINS, _END)[np.minimum([*bins, bins[-1] + step], len(_BEGINS))]
        # Bins behind the last are empty, and the last one reaches over them.
        return Histogram((edges << _SHIFT).view(np.float64), found.map(lambda side: np.add.reduceat(side, bins)))


class ErrorCounts:
    """Counts errors by powers of two, the target's larger numbers apart from its smaller ones."""

    def __init__(self) -> None:
        self._equal = 0
        self._counts = np.zeros((2, _FIELDS), np.int64)

    def add(self, box: Box, units: Floats) -> None:
        """Add a box's errors in units; pairs that are not finite do not count."""
        # The exponent of a float64 is its upper bits: no logarithm has to be taken of it.
        codes = units.view(np.int64) >> _MANTISSA_BITS
        codes |= box.above.astype(np.int64) * _FIELDS
        self._counts += np.bincount(codes.reshape(-1), minlength=2 * _FIELDS).reshape(2, _FIELDS)
        self._equal -= 0 if box.finite is None else int(np.count_nonzero(~box.finite))

    def histogram(self) -> ErrorHistogram:
        """From the smallest to the largest error that there is."""
        counts = self._counts[:, _BIAS + LOWEST_POWER : _BIAS + HIGHEST_POWER + 1].copy()
        counts[:, 0] += self._counts[:, 1 : _BIAS + LOWEST_POWER].sum(axis=1)
        counts[:, -1] += self._counts[:, _BIAS + HIGHEST_POWER + 1 :].sum(axis=1)
        present = np.flatnonzero(counts.sum(axis=0))
        kept = slice(int(present[0]), int(present[-1]) + 1) if len(present) else slice(0, 0)
        lows = np.ldexp(1.0, np.arange(LOWEST_POWER, HIGHEST_POWER + 1))[kept]
        return ErrorHistogram(self._equal + int(self._counts[:, 0].sum()), lows, counts[0][kept], counts[1][kept])


@dataclass(frozen=True, slots=True)
class AxisBlocks:
    """An axis, in blocks of neighbouring indices where it is long."""

    axis: int
    size: int
    block: int
    """Indices of a block; the last one may have fewer."""

    @classmethod
    def of(cls, shape: Shape, axis: int, *, most: int) -> "AxisBlocks":
        return cls(axis, shape[axis], max(-(-shape[axis] // most), 1))

    @property
    def number(self) -> int:
        return -(-self.size // self.block)

    def lengths(self) -> Counts:
        """How many indices each block has."""
        starts = np.arange(self.number, dtype=np.int64) * self.block
        return np.minimum(self.size - starts, self.block)

    def places(self, start: int, count: int) -> tuple[slice, Counts]:
        """Which blocks some consecutive indices reach, and where among them each block begins."""
        first, last = start // self.block, (start + count - 1) // self.block
        begins = np.arange(first, last + 1, dtype=np.int64) * self.block - start
        return slice(first, last + 1), np.maximum(begins, 0)


class ErrorTotals:
    """What is gathered of errors, a cell for each block of the kept axes."""

    def __init__(self, shape: Shape, axes: tuple[int, ...], *, most: int) -> None:
        """Keep `axes`, each in at most `most` blocks."""
        self.axes = tuple(AxisBlocks.of(shape, axis, most=most) for axis in axes)
        self._elements = int(np.prod(shape, dtype=np.int64))
        cells = tuple(axis.number for axis in self.axes)
        self.largest: Floats = np.zeros(cells)
        self.total: Floats = np.zeros(cells)
        self.mismatched: Counts = np.zeros(cells, np.int64)
        self._not_finite: Counts = np.zeros(cells, np.int64)

    def add(self, box: Box) -> None:
        """Add a box; boxes may come in any order."""
        if box.apart.any():
            cells = self._cells(box)
            self.largest[cells] = np.maximum(self.largest[cells], self._reduced(np.maximum, box.apart, box))
            self.total[cells] += self._reduced(np.add, box.apart, box)
        if box.finite is not None:
            self._not_finite[self._cells(box)] += self._counted(~box.finite, box)
        if box.mismatched is not None:
            self.mismatched[self._cells(box)] += self._counted(box.mismatched, box)

    def mean(self) -> Floats:
        """Mean error over the pairs of finite numbers of each cell; nan where there are none."""
        counts = self._counts()
        means: Floats = np.full(counts.shape, np.nan)
        np.divide(self.total, counts, out=means, where=counts > 0)
        return means

    def _counts(self) -> Counts:
        kept = int(np.prod([axis.size for axis in self.axes], dtype=np.int64))
        counts: Any = np.int64(self._elements // kept if kept else 0)
        for axis in self.axes:
            counts = np.multiply.outer(counts, axis.lengths())
        return np.asarray(counts - self._not_finite)

    def _cells(self, box: Box) -> tuple[slice, ...]:
        return tuple(axis.places(box.start[axis.axis], box.apart.shape[axis.axis])[0] for axis in self.axes)

    def _reduced(self, operation: np.ufunc, numbers: NDArray[Any], box: Box) -> NDArray[Any]:
        kept = [axis.axis for axis in self.axes]
        others = tuple(axis for axis in range(numbers.ndim) if axis not in kept)
        found: NDArray[Any] = operation.reduce(numbers, axis=others) if others else numbers
        found = found.transpose([sorted(kept).index(axis) for axis in kept])
        for place, axis in enumerate(self.axes):
            if axis.block > 1:
                begins = axis.places(box.start[axis.axis], box.apart.shape[axis.axis])[1]
                found = operation.reduceat(found, begins, axis=place)
        return found

    def _counted(self, where: NDArray[np.bool_], box: Box) -> Counts:
        return self._reduced(np.add, where.astype(np.int64), box)


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


def overview(pair: PairBoxes, advance: Advance) -> PairOverview:
    """Read all of both arrays once."""
    different = mismatched = 0
    in_ulps, not_finite, broken = False, [0, 0], list[int]()
    magnitudes, errors = Magnitudes(), ErrorCounts()
    axes = tuple(ErrorTotals(pair.shape, (axis,), most=RANKED) for axis in range(len(pair.shape)))
    by_absolute, by_relative, by_ulps = (Largest(LISTED) for _ in range(3))

    def add(box: Box) -> None:
        nonlocal different, mismatched, in_ulps
        ulps = pair.ulps(box)
        in_ulps = ulps is not None
        magnitudes.add(box)
        errors.add(box, box.apart if ulps is None else ulps)
        for axis in axes:
            axis.add(box)
        for side, numbers in enumerate(box.numbers if box.finite is not None else ()):
            not_finite[side] += int(np.count_nonzero(~np.isfinite(numbers)))
        if box.mismatched is not None:
            places = np.flatnonzero(box.mismatched)
            mismatched += len(places)
            different += len(places)
            broken.extend((box.base + places[: LISTED - len(broken)]).tolist())
        if not box.apart.any():
            return
        apart, sizes = box.apart.reshape(-1), np.abs(box.numbers.reference).reshape(-1)
        different += int(np.count_nonzero(apart))
        by_absolute.add(apart, box.base)
        by_relative.add(np.where(apart > 0.0, apart / sizes, 0.0), box.base)
        if ulps is not None:
            by_ulps.add(ulps.reshape(-1), box.base)

    def elements(places: Iterable[int]) -> tuple[PairElement, ...]:
        return tuple(_element(pair, place) for place in places)

    _read(pair, add, advance)
    return PairOverview(
        elements=pair.elements,
        different=different,
        mismatched=mismatched,
        zeros=Pair(*magnitudes.zeros),
        not_finite=Pair(*not_finite),
        magnitudes=magnitudes.histogram(),
        errors=errors.histogram(),
        in_ulps=in_ulps,
        axes=axes,
        absolute=elements(by_absolute.places()),
        relative=elements(by_relative.places()),
        ulps=elements(by_ulps.places()),
        broken=elements(broken),
    )


def linear_histogram(pair: PairBoxes, advance: Advance) -> Histogram | None:
    """Count the numbers of both arrays over equal bins of their range; None if all would be set aside. Two reads."""
    low, high = math.inf, -math.inf
    counts = Pair(np.zeros(LINEAR_BINS, np.int64), np.zeros(LINEAR_BINS, np.int64))

    def widen(box: Box) -> None:
        nonlocal low, high
        for numbers in box.numbers:
            least, most = float(numbers.min()), float(numbers.max())
            if not (least > -SET_ASIDE_FROM and most < SET_ASIDE_FROM):
                usual = numbers[np.abs(numbers) < SET_ASIDE_FROM]
                least, most = float(usual.min(initial=math.inf)), float(usual.max(initial=-math.inf))
            low, high = min(low, least), max(high, most)

    def count(box: Box) -> None:
        for numbers, found in zip(box.numbers, counts, strict=True):
            found += np.histogram(numbers[np.isfinite(numbers)], bins=LINEAR_BINS, range=(low, high))[0]

    _read(pair, widen, lambda share: advance(share / 3))
    if low > high:
        return None
    # A range that can be cut into bins: wider where it holds only a few numbers of float64.
    least = 2 * LINEAR_BINS * float(np.spacing(max(abs(low), abs(high))))
    if low != high and high - low < least:
        low, high = low - least, high + least
    _read(pair, count, lambda share: advance((1 + 2 * share) / 3))
    return Histogram(np.histogram_bin_edges(np.empty(0), bins=LINEAR_BINS, range=(low, high)), counts)


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


def _element(pair: PairBoxes, place: int) -> PairElement:
    index = tuple(int(number) for number in np.unravel_index(place, pair.shape))
    box = pair.box(tuple(slice(number, number + 1) for number in index))
    ulps = pair.ulps(box) if box.finite is None else None
    apart = float(box.apart.flat[0]) if box.mismatched is None else float("inf")
    size = abs(float(box.numbers.reference.flat[0]))
    return PairElement(
        index=index,
        texts=pair.element(place).map(str),
        absolute=apart,
        relative=apart / size if size else float("inf") if apart else 0.0,
        ulps=None if ulps is None else float(ulps.flat[0]),
    )
