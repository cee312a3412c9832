"""The first elements of two arrays that differ by more than a tolerance."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.element_differences import Tolerance
from ulpscope.records.pairs import Pair

AnyArray = NDArray[Any]

PIECE = 1 << 18
"""Elements that are looked at together."""


def first_outside(arrays: Pair[AnyArray], *, tolerance: Tolerance, count: int) -> tuple[int, ...]:
    """Flat indices, in their order, of the first `count` elements outside of a tolerance.

    As in element_differences: nan is within of nan, and inf of inf of the same sign.
    """
    found: list[int] = []
    flat = Pair(arrays.reference.flat, arrays.target.flat)
    with np.errstate(all="ignore"):
        for start in range(0, arrays.reference.size, PIECE):
            if len(found) >= count:
                break
            part = slice(start, start + PIECE)
            outside = _outside(_wide(flat.reference[part]), _wide(flat.target[part]), tolerance)
            found += (start + np.flatnonzero(outside)[: count - len(found)]).tolist()
    return tuple(found)


def _outside(reference: AnyArray, target: AnyArray, tolerance: Tolerance) -> NDArray[np.bool_]:
    finite = np.isfinite(reference) & np.isfinite(target)
    same = (reference == target) | (np.isnan(reference) & np.isnan(target))
    apart = np.abs(target - reference) > tolerance.atol + tolerance.rtol * np.abs(reference)
    outside: NDArray[np.bool_] = np.where(finite, apart, ~same)
    return outside


def _wide(part: AnyArray) -> AnyArray:
    """In a type that holds every element; of 64-bit integers, the longest float that there is."""
    if part.dtype.names is not None:
        return part["real"].astype(np.float64) + 1j * part["imag"].astype(np.float64)
    if part.dtype.kind in "iu" and part.dtype.itemsize == 8:
        return part.astype(np.longdouble)
    return part.astype(np.complex128 if part.dtype.kind == "c" else np.float64)
