"""Single elements of two arrays: how many lie outside of a tolerance, which differ most, and by how much."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import AnyArray, Floats
from ulpscope.numerics.pairs.pieces import PairPieces, SideBySide


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element is within if |target - reference| <= atol + rtol * |reference|."""

    atol: float
    rtol: float

    def exceeded(self, apart: Floats, sizes: Floats) -> NDArray[np.bool_]:
        """Which elements are not within, of what `apart_pieces` gives."""
        return np.asarray((apart > self.atol + self.rtol * sizes).any(axis=1))


class Largest:
    """Flat indices of the largest scores above 0, the largest first; of equal ones the first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._places: NDArray[np.int64] = np.empty(0, np.int64)
        self._scores: Floats = np.empty(0)

    def add(self, scores: Floats, base: int) -> None:
        """Scores of neighbouring elements, the first of which has the index `base`."""
        if not self._count:
            return
        floor = self._scores[-1] if len(self._scores) == self._count else 0.0
        found = np.flatnonzero(scores > floor)
        if len(found) > self._count:
            sizes = scores[found]
            found = found[sizes >= np.partition(sizes, -self._count)[-self._count]]
        joined = np.concatenate([self._scores, scores[found]])
        places = np.concatenate([self._places, base + found])
        order = np.argsort(-joined, kind="stable")[: self._count]
        self._scores, self._places = joined[order], places[order]

    def places(self) -> tuple[int, ...]:
        return tuple(self._places.tolist())


@dataclass(frozen=True, slots=True)
class ElementScan:
    outside: int
    """Elements that are not within the tolerance; nan is within of nan, and inf of inf of the same sign."""
    worst: tuple[int, ...]
    """Flat indices of those that differ most, the worst first: not finite on one side only, then by difference."""


def scan_elements(pieces: PairPieces, *, tolerance: Tolerance, worst: int) -> ElementScan:
    """Look at every element once more; of a complex element the part that differs more counts."""
    outside, base, largest = 0, 0, Largest(worst)
    with np.errstate(all="ignore"):
        for apart, magnitudes in apart_pieces(pieces):
            outside += int(np.count_nonzero(tolerance.exceeded(apart, magnitudes)))
            largest.add(apart.max(axis=1), base)
            base += len(apart)
    return ElementScan(outside, largest.places())


def first_outside(pieces: PairPieces, *, tolerance: Tolerance, count: int) -> tuple[int, ...]:
    """Flat indices, in their order, of the first `count` of those elements that scan_elements counts."""
    found: list[int] = []
    base = 0
    with np.errstate(all="ignore"):
        for apart, magnitudes in apart_pieces(pieces):
            found += (base + np.flatnonzero(tolerance.exceeded(apart, magnitudes))).tolist()
            base += len(apart)
            if len(found) >= count:
                break
    return tuple(found[:count])


def apart_pieces(pieces: PairPieces) -> Iterator[tuple[Floats, Floats]]:
    """Of each piece: differences, inf where only one side is finite, and |reference|; a row an element."""
    for raw in pieces.pieces():
        both = SideBySide.of(raw, pieces.parts)
        apart = np.where(both.finite, both.apart(), np.where(both.mismatched(), np.inf, 0.0))
        sizes = np.where(both.finite, np.abs(both.numbers.reference), 0.0)
        yield apart.reshape(-1, pieces.parts_an_element), sizes.reshape(-1, pieces.parts_an_element)


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
