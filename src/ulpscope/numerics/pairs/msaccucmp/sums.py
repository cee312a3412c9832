"""Sums over two arrays as numpy's float32 sums give them, in pieces, so that memory stays bounded.

msaccucmp adds up whole arrays in float32, and prints more digits than float32 holds: its last digits depend on the
order of additions. numpy adds pairwise: a run of more than 128 numbers is the sum of its two halves, the first a
multiple of 8 long. The same halving down to pieces, each added up in that order, gives the same bits.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from ulpscope.numerics.dtypes import AnyArray, Floats, Singles

Single: TypeAlias = np.float32 | float
Leaf = Callable[[Singles, Singles, Singles], Any]
"""Of my side, golden's, and two rows of memory as long."""

EPSILON = float(np.finfo(np.float64).eps)
"""What msaccucmp takes for zero."""
FLOOR = np.finfo(np.float32).eps
"""Below this no number falls in its KL divergence."""

AT_ONCE = 1 << 15
"""Numbers of which what is computed fits a core's own cache."""

MY_LOW, MY_WIDTH, GOLDEN_LOW, GOLDEN_WIDTH, MY_SCALE, GOLDEN_SCALE = range(6)
"""Of a plan: each side's range, and what its numbers (or shares) are divided by."""
APART, SQUARES, GOLDEN_SQUARES, RELATIVE, PRODUCT, MY_SHARE, GOLDEN_SHARE = range(7)
"""Of sums."""
SUMS = 7

_PLAIN = sys.modules[__name__]
"""What the compiled kernels must equal to the bit: the functions below, in float32 but for `moments`."""
PIECE = 1 << 15
"""Numbers of one side that are read at a time."""
WORTH_COMPILING = 1 << 16
"""Numbers from which on compiled kernels are used: a network of small tensors need not load or compile them."""
_NOTHING = np.float32(0.0)
"""numpy begins its sums with it: none is -0.0."""


@cache
def _kernels() -> ModuleType:
    try:
        from ulpscope.numerics.pairs.msaccucmp import kernels as msaccucmp_kernels

        return msaccucmp_kernels if _agrees(msaccucmp_kernels) else _PLAIN
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a comparison
        return _PLAIN


def _agrees(kernels: ModuleType) -> bool:
    """Whether the kernels do as numpy: their cache does not notice what has changed elsewhere."""
    golden = np.linspace(-2.0, 5.0, 1001, dtype=np.float32)
    compiled, usual = (TwoSides(golden.astype(np.float16), golden, each) for each in (kernels, _PLAIN))
    known = spreads(usual)
    found, wanted = gather(compiled, *known), gather(usual, *known)
    figures = [
        (*each.sums, each.largest, each.largest_relative, kl_divergence(sides, found))
        for sides, each in ((compiled, found), (usual, wanted))
    ]
    return figures[0] == figures[1]


@dataclass(frozen=True, slots=True)
class Spread:
    """Range, mean and spread of one side's numbers as float32."""

    low: np.float32
    high: np.float32
    mean: float
    deviation: float
    norm: np.float32

    @classmethod
    def of(cls, *, low: Single, high: Single, mean: float, deviation: float, squares: float) -> "Spread":
        """`squares` is the sum of squares. Its root is inf where it is beyond float32's range."""
        with np.errstate(over="ignore"):
            norm = np.float32(np.sqrt(np.float32(max(squares, 0.0))))
        return cls(np.float32(low), np.float32(high), mean, deviation, norm)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What reading both sides side by side gives; sums in float32."""

    my: Spread
    golden: Spread
    sums: Singles
    """As the function of that name gives them."""
    largest: Single
    """|my - golden|"""
    largest_relative: Single


@dataclass(frozen=True, slots=True)
class TwoSides:
    """Two flat arrays of equal size, read in pieces."""

    my: AnyArray
    golden: AnyArray
    kernels: ModuleType

    @classmethod
    def of(cls, my: AnyArray, golden: AnyArray) -> "TwoSides":
        flat = [
            np.ascontiguousarray(side.real if side.dtype.kind == "c" else side).reshape(-1) for side in (my, golden)
        ]
        return cls(flat[0], flat[1], _kernels() if my.size >= WORTH_COMPILING else _PLAIN)

    def add_up(self, leaf: Leaf) -> Any:
        """What `leaf` gives of each piece of both sides as float32, added up in numpy's order."""
        kernels = self.kernels
        # Of every piece the same memory: of new memory each page has to be had from the system first.
        memory = np.empty((4, min(kernels.AT_ONCE, len(self.my))), np.float32)

        def added(start: int, count: int) -> Any:
            if count <= kernels.AT_ONCE:
                part = slice(start, start + count)
                mine = kernels.readable(self.my[part], memory[0])
                return leaf(mine, kernels.readable(self.golden[part], memory[1]), memory[2:])
            half = count // 2
            half -= half % 8
            return added(start, half) + added(start + half, count - half)

        return added(0, len(self.my))


def spreads(sides: TwoSides) -> tuple[Spread, Spread]:
    """Of either side, by a read of its own."""
    return _spread(sides.my, sides.kernels), _spread(sides.golden, sides.kernels)


def gather(sides: TwoSides, my: Spread, golden: Spread) -> Gathered:
    """All that one read of both sides gives."""
    plan, largest = _plan(my, golden, my.norm, golden.norm), np.zeros(2, np.float32)

    def leaf(mine: Singles, theirs: Singles, _: Singles) -> Singles:
        nonlocal largest
        sums, tops = sides.kernels.sums(mine, theirs, plan)
        largest = np.maximum(largest, tops)
        return sums  # type: ignore[no-any-return]

    sums = sides.add_up(leaf) if len(sides.my) else np.zeros(SUMS, np.float32)
    return Gathered(my, golden, sums + _NOTHING, *largest)


def kl_divergence(sides: TwoSides, found: Gathered) -> np.float32:
    """The second read: the KL divergence of my shares from golden's."""
    plan = _plan(found.my, found.golden, found.sums[MY_SHARE], found.sums[GOLDEN_SHARE])
    return np.float32(sides.add_up(lambda *given: sides.kernels.divergence(*given[:2], plan, given[2])) + _NOTHING)


def _spread(side: AnyArray, kernels: ModuleType) -> Spread:
    """Sums are of distances from a number of that side, which keeps their digits."""
    low, high, total, squares, count = math.inf, -math.inf, 0.0, 0.0, len(side)
    # A finite number to measure from; nan and inf would make every distance nan.
    first = float(side[0].astype(np.float32)) if count else 0.0
    shift = first if math.isfinite(first) else 0.0
    for start in range(0, count, PIECE):
        part = side[start : start + PIECE].astype(np.float32)
        low, high = np.minimum(low, part.min()), np.maximum(high, part.max())
        found = kernels.moments(part, shift)
        total, squares = total + found[0], squares + found[1]
    if not count:
        return Spread.of(low=low, high=high, mean=math.nan, deviation=math.nan, squares=0.0)
    return Spread.of(
        low=low,
        high=high,
        mean=shift + total / count,
        deviation=float(np.sqrt(np.maximum(squares - total * total / count, 0.0) / count)),
        squares=squares + 2.0 * shift * total + count * shift * shift,
    )


def _plan(my: Spread, golden: Spread, my_scale: np.float32, golden_scale: np.float32) -> Singles:
    """A side that is constant is its own share: nothing is taken from it, and it is divided by 1."""
    widths = ((side.low, side.high - side.low) for side in (my, golden))
    ranges = [(0.0, 1.0) if width == 0.0 else (low, width) for low, width in widths]
    return np.array([*ranges[0], *ranges[1], my_scale, golden_scale], np.float32)


def old_accumulated_relative(sides: TwoSides) -> float:
    """Of msaccucmp of 2022: sum of |my - golden| / |golden| in float64, where golden is not zero."""
    total = 0.0
    for my, golden in _pieces(sides):
        counted = (golden != 0.0) & ~np.isnan(golden)
        wide = golden[counted].astype(np.float64)
        total += float((np.abs(my[counted] - wide) / np.abs(wide)).sum())
    return total


def old_relative(sides: TwoSides) -> tuple[np.float32, np.float32]:
    """Of 2022: largest and sum of |my - golden| / |golden|: inf where only golden is zero, nan where both are."""
    largest = np.float32(0.0)

    def leaf(my: Singles, golden: Singles, _: Singles) -> Any:
        nonlocal largest
        errors = np.abs(my - golden) / np.abs(golden)
        largest = np.maximum(largest, errors.max())
        return errors.sum()

    total = sides.add_up(leaf)
    return largest, total


def old_divergence(sides: TwoSides, found: Gathered) -> float:
    """Of 2022: KL divergence without a floor: inf where golden's share is 0 and my own is not."""
    my_sum, golden_sum, total = 0.0, 0.0, 0.0
    for my, golden in _pieces(sides):
        my_sum += float(_old_share(my, found.my).sum())
        golden_sum += float(_old_share(golden, found.golden).sum())
    if my_sum == 0.0 or golden_sum == 0.0:
        return 0.0 if my_sum == golden_sum else float("inf")
    for my, golden in _pieces(sides):
        p, q = _old_share(my, found.my) / my_sum, _old_share(golden, found.golden) / golden_sum
        terms = p * np.log(p / q)
        total += float(np.where(p == 0.0, 0.0, terms).sum())
    return total


def _old_share(part: Singles, side: Spread) -> Floats:
    wide = part.astype(np.float64)
    low, width = float(side.low), float(side.high) - float(side.low)
    return wide if width == 0.0 else (wide - low) / width


def _pieces(sides: TwoSides) -> Iterator[tuple[Singles, Singles]]:
    for start in range(0, len(sides.my), PIECE):
        part = slice(start, start + PIECE)
        yield sides.my[part].astype(np.float32), sides.golden[part].astype(np.float32)


def readable(part: AnyArray, memory: Singles) -> AnyArray:
    """The part as the functions below take it: float32. `memory` is for those who compute in place."""
    return part if part.dtype == np.float32 else part.astype(np.float32)


def moments(part: AnyArray, shift: float) -> tuple[float, float]:
    """Sum and sum of squares of the part minus `shift`, in float64."""
    wide = part.astype(np.float64)
    wide -= shift
    return float(wide.sum()), float(np.dot(wide, wide))


def sums(my: AnyArray, golden: AnyArray, plan: Singles) -> tuple[Singles, Singles]:
    """Sums of |my - golden|, its square, golden's square, |my / golden - 1| (0 where golden is zero or nan), both sides
    divided by their scales and multiplied, and each side's shares; then the largest of the first and of the fourth."""
    apart = np.abs(my - golden)
    relative = np.abs(my / golden - np.float32(1.0))
    relative[~(np.abs(golden) > EPSILON)] = 0.0
    product = (my / plan[MY_SCALE]) * (golden / plan[GOLDEN_SCALE])
    rows = (apart, np.square(apart), np.square(golden), relative, product, *_shares(my, golden, plan))
    return np.array([row.sum() for row in rows]), np.array([apart.max(), relative.max()])


def divergence(my: AnyArray, golden: AnyArray, plan: Singles, memory: Singles) -> np.float32:
    """Sum of p * ln(p / q), p and q being the sides' shares divided by their scales."""
    p, q = _shares(my, golden, plan)
    p /= plan[MY_SCALE]
    q /= plan[GOLDEN_SCALE]
    return np.float32((p * np.log(p / q)).sum())


def _shares(my: AnyArray, golden: AnyArray, plan: Singles) -> tuple[Singles, Singles]:
    return _share(my, plan[MY_LOW], plan[MY_WIDTH]), _share(golden, plan[GOLDEN_LOW], plan[GOLDEN_WIDTH])


def _share(part: AnyArray, low: np.float32, width: np.float32) -> Singles:
    """Mapped to 0..1, and raised to FLOOR."""
    shares: Singles = np.maximum((part - low) / width, FLOOR)
    return shares
