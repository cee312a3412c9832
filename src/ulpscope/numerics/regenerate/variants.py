"""Regenerated numbers changed to provoke what ordinary ones hide. What is nan, infinite or set aside stays as it is."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Dtype
from ulpscope.numerics.regenerate.floats import SET_ASIDE_FROM
from ulpscope.records.checks import Variant

Floats = NDArray[np.float64]

TINY_SCALE = 2.0**-8
"""Squares of numbers about 1 become 1.5e-5: what normalisations add as epsilon (1e-5) is then half of the result."""
TINY_FLOOR = 16.0
"""In smallest normal numbers: a spread below this would test subnormal numbers instead of epsilons."""
OFFSET_SPREADS = 64.0
"""E[x^2] - E[x]^2 then loses 12 bits, which float32 survives and nothing coarser does."""
LARGE_SCALE = 2.0**10
LARGEST_SIZE = 2.0**40
"""Of types with float32's range: a square summed over 2^47 elements still fits."""
SHORT_RANGE = 2.0**20
"""Types that end below this overflow in ordinary sums."""
HEADROOM = 4.0
"""A single number stays this far below the largest of its type."""


def changed(numbers: Floats, variant: Variant, dtype: Dtype) -> Floats:
    """The numbers in their shape, as the variant has them."""
    change = _CHANGES.get(variant)
    ordinary = np.abs(numbers) < SET_ASIDE_FROM
    if change is None or not ordinary.any():
        return numbers
    return np.where(ordinary, change(np.where(ordinary, numbers, 0.0), ordinary, dtype), numbers)


def _tiny(numbers: Floats, ordinary: NDArray[np.bool_], dtype: Dtype) -> Floats:
    size = float(np.sqrt(np.mean(np.square(numbers[ordinary]))))
    scale = TINY_SCALE
    while scale < 1.0 and size * scale < TINY_FLOOR * dtype.smallest_normal:
        scale *= 2.0
    return numbers * scale


def _offset(numbers: Floats, ordinary: NDArray[np.bool_], dtype: Dtype) -> Floats:
    spread = float(np.std(numbers[ordinary]))
    centred = numbers - float(np.mean(numbers[ordinary]))
    highest = OFFSET_SPREADS * spread + float(np.max(np.abs(centred)))
    return (centred + OFFSET_SPREADS * spread) * _fitting(highest, _ceiling(dtype)) if spread else numbers


def _large(numbers: Floats, _: NDArray[np.bool_], dtype: Dtype) -> Floats:
    largest = float(np.max(np.abs(numbers)))
    if dtype.largest > SHORT_RANGE:
        return numbers * LARGE_SCALE * _fitting(largest * LARGE_SCALE, _ceiling(dtype))
    typical = float(np.median(np.sum(np.abs(numbers), axis=-1))) if numbers.ndim else largest
    scale = dtype.largest / typical if typical else 1.0
    return numbers * scale * _fitting(largest * scale, _ceiling(dtype))


def _ceiling(dtype: Dtype) -> float:
    return min(dtype.largest / HEADROOM, LARGEST_SIZE)


def _fitting(size: float, ceiling: float) -> float:
    return min(1.0, ceiling / size) if size else 1.0


_CHANGES: dict[Variant, Callable[[Floats, NDArray[np.bool_], Dtype], Floats]] = {
    Variant.TINY: _tiny,
    Variant.OFFSET: _offset,
    Variant.LARGE: _large,
}
