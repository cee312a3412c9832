"""Sums over two arrays as numpy's float32 sums give them, in pieces, so that memory stays bounded.

msaccucmp adds up whole arrays in float32, and prints more digits than float32 holds: its last digits depend on the
order of additions. numpy adds pairwise: a run of more than 128 numbers is the sum of its two halves, the first a
multiple of 8 long. The same halving down to pieces of LEAF numbers, each added up by numpy itself, gives the same bits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics import msaccucmp_plain as plain
from ulpscope.numerics.msaccucmp_plain import (
    APART,
    GOLDEN_SHARE,
    GOLDEN_SQUARES,
    MY_SHARE,
    PRODUCT,
    RELATIVE,
    SQUARES,
)

AnyArray = NDArray[Any]
Singles = NDArray[np.float32]
Single: TypeAlias = np.float32 | float
Leaf = Callable[[Singles, Singles], tuple[Any, ...]]

LEAF = 1 << 15
"""Numbers of a piece: both sides and four results of each fit a core's own cache."""
WORTH_COMPILING = 1 << 20
"""Numbers from which on loading the kernels costs less than it saves."""


@cache
def _kernels() -> ModuleType:
    try:
        from ulpscope.numerics import msaccucmp_kernels

        one = np.ones(1, np.float32)
        msaccucmp_kernels.differences(one, one, np.empty((4, 1), np.float32))
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a comparison
        return plain
    return msaccucmp_kernels


@dataclass(slots=True)
class Spread:
    """Range, mean and spread of one side."""

    shift: float
    """A number of that side: sums are of distances from it, which keeps their digits."""
    count: int = 0
    low: Single = math.inf
    high: Single = -math.inf
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        return self.shift + self.total / self.count

    @property
    def deviation(self) -> float:
        spread = self.squares - self.total * self.total / self.count
        return float(np.sqrt(np.maximum(spread, 0.0) / self.count))

    @property
    def norm(self) -> np.float32:
        """As float32 holds it: inf where the sum of squares is beyond its range."""
        squares = self.squares + 2.0 * self.shift * self.total + self.count * self.shift * self.shift
        return np.float32(np.sqrt(np.float32(max(squares, 0.0))))


@dataclass(slots=True)
class Gathered:
    """What the first read of both sides gives; sums in float32."""

    my: Spread
    golden: Spread
    largest: Single = 0.0
    """|my - golden|"""
    largest_relative: Single = 0.0
    distance: Single = 0.0
    """Sum of |my - golden|."""
    squares: Single = 0.0
    """Sum of (my - golden)**2."""
    golden_squares: Single = 0.0
    relative: Single = 0.0
    """Sum of |my / golden - 1| where golden is not zero."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What the second read gives."""

    cosine: np.float32
    my_sum: np.float32
    golden_sum: np.float32


@dataclass(frozen=True, slots=True)
class TwoSides:
    """Two flat arrays of equal size, read as float32 in pieces."""

    my: AnyArray
    golden: AnyArray
    kernels: ModuleType
    work: Singles = field(repr=False)
    """Four rows for what is computed of a piece, two for its sides."""

    @classmethod
    def of(cls, my: AnyArray, golden: AnyArray) -> "TwoSides":
        flat = [
            np.ascontiguousarray(side.real if side.dtype.kind == "c" else side).reshape(-1) for side in (my, golden)
        ]
        kernels = _kernels() if my.size >= WORTH_COMPILING else plain
        return cls(flat[0], flat[1], kernels, np.empty((6, min(max(my.size, 1), LEAF)), np.float32))

    def add_up(self, leaf: Leaf) -> tuple[Any, ...]:
        """What `leaf` gives of each piece, added up in numpy's order."""
        return self._add_up(leaf, 0, len(self.my))

    def rows(self, count: int) -> Singles:
        """The rows for the results of a piece of `count` numbers."""
        return self.work[:4, :count]

    def _add_up(self, leaf: Leaf, start: int, count: int) -> tuple[Any, ...]:
        if count <= LEAF:
            part = slice(start, start + count)
            widen = self.kernels.widen
            return leaf(widen(self.my[part], self.work[4, :count]), widen(self.golden[part], self.work[5, :count]))
        half = count // 2
        half -= half % 8
        first, second = self._add_up(leaf, start, half), self._add_up(leaf, start + half, count - half)
        return tuple(one + other for one, other in zip(first, second, strict=True))


def gather(sides: TwoSides) -> Gathered:
    """The first read."""
    found = Gathered(Spread(_first(sides.my)), Spread(_first(sides.golden)))

    def leaf(my: Singles, golden: Singles) -> tuple[Any, ...]:
        work = sides.rows(len(my))
        sides.kernels.differences(my, golden, work)
        for side, part in ((found.my, my), (found.golden, golden)):
            _add(side, part, sides.kernels)
        found.largest = np.maximum(found.largest, work[APART].max())
        found.largest_relative = np.maximum(found.largest_relative, work[RELATIVE].max())
        return tuple(work[row].sum() for row in (APART, SQUARES, GOLDEN_SQUARES, RELATIVE))

    if len(sides.my):
        found.distance, found.squares, found.golden_squares, found.relative = sides.add_up(leaf)
    return found


def share(sides: TwoSides, found: Gathered) -> Shares:
    """The second read: cosine similarity, and the sums that shares of the KL divergence are divided by."""
    plan = _plan(found, found.my.norm, found.golden.norm)

    def leaf(my: Singles, golden: Singles) -> tuple[Any, ...]:
        work = sides.rows(len(my))
        sides.kernels.shares(my, golden, plan, work)
        return tuple(work[row].sum() for row in (PRODUCT, MY_SHARE, GOLDEN_SHARE))

    return Shares(*map(np.float32, sides.add_up(leaf)))


def divergence(sides: TwoSides, found: Gathered, shares: Shares) -> np.float32:
    """The third read: the KL divergence of my shares from golden's."""
    plan = _plan(found, shares.my_sum, shares.golden_sum)

    def leaf(my: Singles, golden: Singles) -> tuple[Any, ...]:
        work = sides.rows(len(my))
        sides.kernels.ratios(my, golden, plan, work)
        p, q = work[MY_SHARE], work[GOLDEN_SHARE]
        np.log(q, out=q)
        p *= q
        return (p.sum(),)

    (total,) = sides.add_up(leaf)
    return np.float32(total)


def _first(side: AnyArray) -> float:
    """A finite number to measure from; nan and inf would make every distance nan."""
    number = float(side[0].astype(np.float32)) if len(side) else 0.0
    return number if math.isfinite(number) else 0.0


def _add(side: Spread, part: Singles, kernels: ModuleType) -> None:
    side.low, side.high = np.minimum(side.low, part.min()), np.maximum(side.high, part.max())
    total, squares = kernels.moments(part, side.shift)
    side.count, side.total, side.squares = side.count + len(part), side.total + total, side.squares + squares


def _plan(found: Gathered, my_scale: np.float32, golden_scale: np.float32) -> Singles:
    ranges = [found.my.low, found.my.high - found.my.low, found.golden.low, found.golden.high - found.golden.low]
    return np.array([*ranges, my_scale, golden_scale], np.float32)
