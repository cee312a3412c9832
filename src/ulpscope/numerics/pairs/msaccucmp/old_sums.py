"""What msaccucmp of 2022 computes otherwise than its successors: plain divisions, no floor below shares."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.pairs.msaccucmp.plain import AnyArray, Singles, readable
from ulpscope.numerics.pairs.msaccucmp.sums import PIECE, Gathered, Spread, TwoSides

Doubles = NDArray[np.float64]


def accumulated_relative(sides: TwoSides) -> float:
    """Sum of |my - golden| / |golden| in float64, where golden is not zero."""
    total = 0.0
    for my, golden in _pieces(sides):
        counted = (golden != 0.0) & ~np.isnan(golden)
        wide = golden[counted].astype(np.float64)
        total += float((np.abs(my[counted] - wide) / np.abs(wide)).sum())
    return total


def plain_relative(sides: TwoSides) -> tuple[np.float32, np.float32]:
    """Largest and sum of |my - golden| / |golden|: inf where only golden is zero, nan where both are."""
    largest = np.float32(0.0)

    def leaf(my: AnyArray, golden: AnyArray) -> np.float32:
        nonlocal largest
        wide = readable(golden)
        errors = np.abs(readable(my) - wide) / np.abs(wide)
        largest = np.maximum(largest, errors.max())
        return errors.sum()  # type: ignore[no-any-return]

    total = sides.add_up(leaf, PIECE)
    return largest, total


def divergence(sides: TwoSides, found: Gathered) -> float:
    """KL divergence without a floor: inf where golden's share is 0 and my own is not."""
    my_sum, golden_sum, total = 0.0, 0.0, 0.0
    for my, golden in _pieces(sides):
        my_sum += float(_share(my, found.my).sum())
        golden_sum += float(_share(golden, found.golden).sum())
    if my_sum == 0.0 or golden_sum == 0.0:
        return 0.0 if my_sum == golden_sum else float("inf")
    for my, golden in _pieces(sides):
        p, q = _share(my, found.my) / my_sum, _share(golden, found.golden) / golden_sum
        terms = p * np.log(p / q)
        total += float(np.where(p == 0.0, 0.0, terms).sum())
    return total


def _share(part: Singles, side: Spread) -> Doubles:
    wide = part.astype(np.float64)
    low, width = float(side.low), float(side.high) - float(side.low)
    return wide if width == 0.0 else (wide - low) / width


def _pieces(sides: TwoSides) -> Iterator[tuple[Singles, Singles]]:
    for start in range(0, len(sides.my), PIECE):
        part = slice(start, start + PIECE)
        yield sides.my[part].astype(np.float32), sides.golden[part].astype(np.float32)
