"""A few whole numbers, found again from what a trace keeps of them: their digest tells them exactly.

TensorFlow hands an op the axes, shapes and orders that it works with as tensors. With other numbers in their place it
would be another op, so that none are drawn if these can be found.
"""

from collections.abc import Iterable
from math import prod

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, DtypeKind, numpy_dtype
from ulpscope.numerics.summaries.rows import raw_digest_of_row
from ulpscope.numerics.summaries.summary import finish_digest, summarize
from ulpscope.records.calls import Stats, Value

MOST_NUMBERS = 8
"""What says how an op works has an entry an axis, or two."""
MOST_GUESSES = 1_000_000
"""Lists of numbers between the ends, in memory at once."""
MOST_TRIED = 10_000
"""Of these, lists with the right sum whose digest is made: half a second."""
NEAR = 8
"""Between ends that are so near each other, all numbers are tried."""

Whole = NDArray[np.int64]


def whole_numbers(value: Value, *, sizes: Iterable[int] = ()) -> NDArray[np.generic] | None:
    """The elements of a small value of whole numbers; none where they cannot be told. `sizes` they may well be."""
    dtype, count = DTYPES.get(value.dtype), prod(value.shape)
    if dtype is None or dtype.kind is not DtypeKind.INT or count > MOST_NUMBERS:
        return None
    kind, stats = numpy_dtype(value.dtype), value.stats
    if not count:
        return np.zeros(value.shape, kind)
    if stats is None or stats.min is None or stats.max is None:
        return None
    if stats.min == stats.max:
        return np.full(value.shape, int(stats.min), kind)
    guessed = (numbers.astype(kind).reshape(value.shape) for numbers in _guesses(stats, count, sizes))
    return next((array for array in guessed if _digest(array, value.dtype) == value.digest), None)


def _guesses(stats: Stats, count: int, sizes: Iterable[int]) -> Whole:
    """Lists of numbers with these ends, this sum and so many zeros."""
    low, high = int(stats.min or 0), int(stats.max or 0)
    between = range(low, high + 1) if high - low <= NEAR else {-1, 0, 1, *sizes}
    known = np.array(sorted({low, high, *(number for number in between if low < number < high)}), np.int64)
    if len(known) ** count > MOST_GUESSES or stats.mean is None:
        return np.zeros((0, count), np.int64)
    lists = known[np.indices((len(known),) * count).reshape(count, -1).T]
    fits = (lists.min(axis=1) == low) & (lists.max(axis=1) == high) & (lists.sum(axis=1) == round(stats.mean * count))
    if stats.zero is not None:
        fits &= np.count_nonzero(lists == 0, axis=1) == stats.zero
    found: Whole = lists[fits][:MOST_TRIED]
    return found


def _digest(array: NDArray[np.generic], dtype: str) -> int:
    return finish_digest(raw_digest_of_row(summarize(array, dtype)), dtype, array.shape)
