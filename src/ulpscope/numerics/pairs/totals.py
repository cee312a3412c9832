"""Errors of two arrays by channel, by row, or over two axes: reduced over all others, box by box."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.pairs.boxes import Box, Shape

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


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
