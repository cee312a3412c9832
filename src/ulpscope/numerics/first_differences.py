"""The first elements of two arrays that differ by more than a tolerance."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from ulpscope.numerics.element_differences import Tolerance, apart_pieces
from ulpscope.numerics.pair_pieces import PairPieces


def first_outside(pieces: PairPieces, *, tolerance: Tolerance, count: int) -> tuple[int, ...]:
    """Flat indices, in their order, of the first `count` of those elements that scan_elements counts."""
    with np.errstate(all="ignore"):
        return tuple(islice(_outside(pieces, tolerance), count))


def _outside(pieces: PairPieces, tolerance: Tolerance) -> Iterator[int]:
    base = 0
    for apart, magnitudes in apart_pieces(pieces):
        yield from (base + np.flatnonzero(tolerance.exceeded(apart, magnitudes))).tolist()
        base += len(apart)
