"""Random elements that look like a recorded value: from its stats alone, the same from the same seed everywhere.

regenerate(value, seed=7) of a bfloat16 activation with mean 0.02, norm 361 over 131072 elements, max 5.4 and half of it
-inf gives an array of that shape and dtype with these numbers within a few per cent, the 5.4, and half of it -inf.

Regenerated numbers changed to provoke what ordinary ones hide. What is nan, infinite or set aside stays as it is.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind, Floats, numpy_dtype
from ulpscope.numerics.regenerate.floats import SET_ASIDE_FROM, regenerate_numbers
from ulpscope.records.calls import Stats, Value
from ulpscope.records.checks import Variant
from ulpscope.records.errors import UlpscopeError

IGNORED_LABEL = -100
"""The label that torch's losses ignore unless told otherwise: not one of the classes."""


def regenerate(value: Value, *, seed: int, variant: Variant = Variant.RECORDED) -> NDArray[Any]:
    """Elements of the value's shape and dtype, drawn from its stats.

    Without stats floats are standard normal, integers 0 and bools false. Variants change floats; a long reduction is
    made by whoever changes the shape, and is drawn like what was recorded.
    """
    dtype = DTYPES.get(value.dtype)
    if dtype is None or value.dtype == "complex32" or any(size < 0 for size in value.shape):
        raise UlpscopeError(
            f"value {value.id} has dtype {value.dtype} and shape {list(value.shape)}",
            expected="a dense value of a float, complex64, complex128, integer or bool type",
            next_step="capture with --save tensors, so that this value's own data is used",
        )
    random = np.random.Generator(np.random.PCG64(seed))
    count = prod(value.shape)
    if dtype.has_sketch:
        return _floats(value, dtype, variant, random)
    draw = _bools if dtype.kind is DtypeKind.BOOL else _integers
    elements = np.zeros(count, dtype=numpy_dtype(dtype.name))
    if count and value.stats:
        elements = draw(value.stats, count, dtype, random)
    return elements.reshape(value.shape)


def _floats(value: Value, dtype: Dtype, variant: Variant, random: np.random.Generator) -> NDArray[Any]:
    real = DTYPES[dtype.real] if dtype.real else dtype
    count = prod(value.shape) * dtype.parts
    if value.stats is None or not count:
        numbers = random.standard_normal(count)
    else:
        numbers = regenerate_numbers(value.stats, count, real, random)
    shape = value.shape if dtype.real is None else (*value.shape, 2)
    numbers = changed(numbers.reshape(shape), variant, real)
    with np.errstate(over="ignore", invalid="ignore"):
        elements = np.ascontiguousarray(numbers.astype(numpy_dtype(real.name)))
    return elements.reshape(-1).view(numpy_dtype(dtype.name)).reshape(value.shape)


def _bools(stats: Stats, count: int, _: Dtype, random: np.random.Generator) -> NDArray[Any]:
    share, ends = 0.5, {stats.min, stats.max} - {None}
    if stats.mean is not None:
        share = stats.mean
    elif stats.zero is not None:
        share = 1.0 - min(stats.zero / count, 1.0)
    elif len(ends) == 1:
        share = float(ends.pop() or 0.0)
    elements = np.arange(count) < round(share * count)
    random.shuffle(elements)
    return elements


def _integers(stats: Stats, count: int, dtype: Dtype, random: np.random.Generator) -> NDArray[Any]:
    """Within the recorded range, so that indices stay valid; both ends and zeros as recorded."""
    low, high = _range(stats, dtype)
    ends = sorted({low, high})[:count]
    labels = low == IGNORED_LABEL and high >= 0
    rest = count - len(ends)
    elements = random.integers(0 if labels else low, high, size=rest, endpoint=True, dtype=dtype.name)
    if labels:
        # How many are the ignored one, if the others are spread evenly over the classes.
        share = 0.0 if stats.mean is None else (high / 2 - stats.mean) / (high / 2 - IGNORED_LABEL)
        elements[: round(min(max(share, 0.0), 1.0) * rest)] = IGNORED_LABEL
    else:
        _put_zeros(elements, stats, count, random)
    elements = np.concatenate([np.array(ends, dtype=elements.dtype), elements])
    random.shuffle(elements)
    return elements


def _range(stats: Stats, dtype: Dtype) -> tuple[int, int]:
    """As Python integers: a float64 beside 2^63 may round out of the type."""
    limits = np.iinfo(dtype.name)
    low = int(stats.min if stats.min is not None else stats.max or 0)
    high = int(stats.max if stats.max is not None else low)
    return tuple(min(max(end, int(limits.min)), int(limits.max)) for end in (low, high))  # type: ignore[return-value]


def _put_zeros(elements: NDArray[Any], stats: Stats, count: int, random: np.random.Generator) -> None:
    """A counted zero share (padding, a mask of 0 and 1) is kept; the others are not zero then."""
    if not stats.zero or stats.min is None or stats.max is None or stats.max <= 0:
        return
    others = elements == 0
    elements[others] = random.integers(1, int(stats.max), size=int(others.sum()), endpoint=True, dtype=elements.dtype)
    at_ends = int(stats.min == 0)
    elements[: max(min(stats.zero, count) - at_ends, 0)] = 0


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
    return (centred + OFFSET_SPREADS * spread) * _fitting(highest, dtype) if spread else numbers


def _large(numbers: Floats, _: NDArray[np.bool_], dtype: Dtype) -> Floats:
    largest = float(np.max(np.abs(numbers)))
    if dtype.largest > SHORT_RANGE:
        return numbers * LARGE_SCALE * _fitting(largest * LARGE_SCALE, dtype)
    typical = float(np.median(np.sum(np.abs(numbers), axis=-1))) if numbers.ndim else largest
    scale = dtype.largest / typical if typical else 1.0
    return numbers * scale * _fitting(largest * scale, dtype)


def _fitting(size: float, dtype: Dtype) -> float:
    """What numbers of this size are multiplied by so that the type holds them."""
    return min(1.0, min(dtype.largest / HEADROOM, LARGEST_SIZE) / size) if size else 1.0


_CHANGES: dict[Variant, Callable[[Floats, NDArray[np.bool_], Dtype], Floats]] = {
    Variant.TINY: _tiny,
    Variant.OFFSET: _offset,
    Variant.LARGE: _large,
}
