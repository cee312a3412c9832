"""Errors of two arrays element by element, and where the largest are.

The first elements of two arrays that differ by more than a tolerance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.pairs.element_differences import Tolerance, apart_pieces
from ulpscope.numerics.pairs.pieces import PairPieces

AnyArray = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ElementErrors:
    """Errors of flat arrays; of bools there are none (nan)."""

    absolute: AnyArray
    relative: AnyArray
    """|target - reference| / |reference|: inf or nan where the reference is 0."""
    equal: NDArray[np.bool_]
    """Where both are the same, also if that is inf or nan."""

    def largest_absolute(self, number: int) -> list[int]:
        """Places of the largest errors, the largest first; what is not finite on one side only is larger than any."""
        return _largest(np.where(np.isfinite(self.absolute), self.absolute, np.where(self.equal, 0.0, np.inf)), number)

    def largest_relative(self, number: int) -> list[int]:
        """The same by relative error, where there is one."""
        return _largest(_counted(self.relative), number)


def range_of(errors: AnyArray) -> tuple[float, float]:
    """Smallest and largest, inf and nan counted as 0."""
    counted = _counted(errors)
    return (float(counted.min()), float(counted.max())) if counted.size else (float("nan"), float("nan"))


def element_errors(target: AnyArray, reference: AnyArray) -> ElementErrors:
    """The errors of each element, in the finer type of the two; integers do not wrap around."""
    mine, theirs = _wide(target.reshape(-1)), _wide(reference.reshape(-1))
    equal = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    if target.dtype == reference.dtype == np.bool_:
        nothing = np.full(mine.size, np.nan)
        return ElementErrors(nothing, nothing, equal)
    with np.errstate(all="ignore"):
        absolute = np.abs(mine - theirs)
        return ElementErrors(absolute, np.true_divide(absolute, np.abs(theirs)), equal)


def _largest(counted: AnyArray, number: int) -> list[int]:
    """As msaccucmp lists them: of equal errors the later place first."""
    number = min(number, counted.size)
    if number == 0:
        return []
    least = np.partition(counted, -number)[-number]
    places = np.flatnonzero(counted >= least)
    order = np.lexsort((places, counted[places]))[::-1]
    return [int(place) for place in places[order[:number]]]


def _wide(array: AnyArray) -> AnyArray:
    if array.dtype.kind in "iu":
        return array.astype(np.float64 if array.dtype.itemsize == 8 and array.dtype.kind == "u" else np.int64)
    if array.dtype.kind == "c":
        return array.real
    return array.astype(np.float64) if array.dtype == np.float64 else array.astype(np.float32)


def _counted(errors: AnyArray) -> AnyArray:
    return np.where(np.isfinite(errors), errors, 0)


def first_outside(pieces: PairPieces, *, tolerance: Tolerance, count: int) -> tuple[int, ...]:
    """Flat indices, in their order, of the first `count` of those elements that scan_elements counts."""
    with np.errstate(all="ignore"):
        return tuple(islice(_outside(pieces, tolerance), count))


def _outside(pieces: PairPieces, tolerance: Tolerance) -> Iterator[int]:
    base = 0
    for apart, magnitudes in apart_pieces(pieces):
        yield from (base + np.flatnonzero(tolerance.exceeded(apart, magnitudes))).tolist()
        base += len(apart)
