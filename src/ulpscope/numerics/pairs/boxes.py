"""Two arrays side by side, in boxes: pieces that keep their axes, so that an error can be told by channel and row.

    pair = PairBoxes.of(reference, target, reference_dtype="float32", target_dtype="bfloat16")
    for box in pair.boxes():
        box.apart.max(axis=0)

Arrays may be mapped and strided; only a box of each is in memory at a time. A complex array has one axis more at its
end, for the real and the imaginary part.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind
from ulpscope.numerics.packing import Packer, boxes
from ulpscope.numerics.pairs.metric_plain import differences, numbers_of
from ulpscope.numerics.pairs.metric_results import ulp_plan
from ulpscope.numerics.pairs.metric_state import FLOOR_FIELD, ULP_FACTOR, ULPS
from ulpscope.records.pairs import Pair

AnyArray = NDArray[Any]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shape = tuple[int, ...]

BOX = 1 << 17
"""Most elements of a box."""

_MANTISSA_BITS = 52
_FIELD = 0x7FF


@dataclass(frozen=True, slots=True)
class Box:
    """The same part of both arrays, as float64."""

    start: Shape
    base: int
    """Flat index of its first element; a box is a range of flat indices."""
    numbers: Pair[Floats]
    apart: Floats
    """|target - reference| where both are finite, 0 elsewhere."""
    finite: Bools | None
    """Where both are finite; None if they are everywhere."""
    mismatched: Bools | None
    """Where one is not finite and the other is finite, or another kind of inf or nan; None if nowhere."""
    above: Bools
    """Where the target is larger."""


@dataclass(frozen=True, slots=True)
class PairBoxes:
    """Two arrays of one shape, to be read box by box."""

    arrays: Pair[AnyArray]
    dtypes: Pair[Dtype]
    shape: Shape
    """Of both; an array of another shape and as many elements is read in its own row-major order."""
    complex_parts: bool

    @classmethod
    def of(cls, reference: AnyArray, target: AnyArray, *, reference_dtype: str, target_dtype: str) -> "PairBoxes":
        """ValueError if there are not as many numbers on both sides."""
        types = Pair(DTYPES[reference_dtype], DTYPES[target_dtype])
        if types.reference.parts != types.target.parts:
            raise ValueError(f"{reference_dtype} and {target_dtype}: only one of them is complex")
        arrays = Pair(_parts(reference, types.reference), _parts(target, types.target))
        dtypes = Pair(_real(types.reference), _real(types.target))
        shape = _common_shape(arrays)
        fitted = Pair(_fitted(arrays.reference, shape), _fitted(arrays.target, shape))
        return cls(fitted, dtypes, shape, complex_parts=types.reference.parts > 1)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def boxes(self) -> Iterator[Box]:
        """All of both arrays, in row-major order."""
        for index in boxes(self.shape, BOX):
            yield self.box(index)

    def box(self, index: tuple[slice, ...]) -> Box:
        """A box at slices of consecutive indices."""
        raw = Pair(_raw(self.arrays.reference, index, self.shape), _raw(self.arrays.target, index, self.shape))
        shape = tuple(part.stop - part.start for part in index)
        start = tuple(part.start for part in index)
        numbers = Pair(numbers_of(raw.reference, self.dtypes.reference), numbers_of(raw.target, self.dtypes.target))
        with np.errstate(all="ignore"):
            apart = differences(raw, self.dtypes, numbers.reference, numbers.target).reshape(shape)
            above = _is_above(raw, self.dtypes, numbers).reshape(shape)
        numbers = Pair(numbers.reference.reshape(shape), numbers.target.reshape(shape))
        finite = np.isfinite(numbers.reference) & np.isfinite(numbers.target)
        base = int(np.ravel_multi_index(start, self.shape)) if self.elements else 0
        if finite.all():
            return Box(start, base, numbers, apart, None, None, above)
        same = (numbers.reference == numbers.target) | (np.isnan(numbers.reference) & np.isnan(numbers.target))
        mismatched = ~finite & ~same
        broken = mismatched if mismatched.any() else None
        return Box(start, base, numbers, np.where(finite, apart, 0.0), finite, broken, above)

    def element(self, place: int) -> Pair[Any]:
        """Both elements at a flat index, of their own types."""
        index = np.unravel_index(place, self.shape)
        return Pair(*(array[index] if array.shape == self.shape else array.flat[place] for array in self._both()))

    def ulps(self, box: Box) -> Floats | None:
        """Differences in units in the last place, as numerics.metrics counts them; None for integers."""
        plan = ulp_plan(self.dtypes, detailed=True)
        if not plan[ULPS]:
            return None
        sizes = np.maximum(np.abs(box.numbers.reference), np.abs(box.numbers.target))
        fields = np.clip(sizes.view(np.int64) >> _MANTISSA_BITS, int(plan[FLOOR_FIELD]), _FIELD - 1)
        # A power of two, made of its exponent: 2**(1024 - field).
        scales = ((_FIELD - fields) << _MANTISSA_BITS).view(np.float64)
        ulps: Floats = box.apart * scales * plan[ULP_FACTOR]
        return ulps

    def _both(self) -> tuple[AnyArray, AnyArray]:
        return self.arrays.reference, self.arrays.target


def _real(dtype: Dtype) -> Dtype:
    return DTYPES[dtype.real] if dtype.real else dtype


def _parts(array: AnyArray, dtype: Dtype) -> AnyArray:
    if array.dtype.itemsize != dtype.item_size:
        raise ValueError(f"an array of {array.dtype} does not hold elements of {dtype.name}")
    if dtype.parts == 1:
        return array
    first = array["real"] if array.dtype.names else array.real
    return as_strided(first, (*array.shape, 2), (*array.strides, dtype.item_size // 2), writeable=False)


def _common_shape(arrays: Pair[AnyArray]) -> Shape:
    left, right = arrays.reference.shape, arrays.target.shape
    if left == right:
        return left or (1,)
    if math.prod(left) != math.prod(right):
        raise ValueError(f"{list(left)} and {list(right)}: not as many elements")
    squeezed = _squeezed(left)
    return squeezed if squeezed == _squeezed(right) else (math.prod(left),)


def _squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1) or (1,)


def _fitted(array: AnyArray, shape: Shape) -> AnyArray:
    """Without axes of length 1 where that gives the shape; never a copy."""
    if array.shape != shape and _squeezed(array.shape) == shape:
        squeezed = np.squeeze(array)
        return squeezed if squeezed.ndim else squeezed[None]
    return array


def _is_above(raw: Pair[Bytes], dtypes: Pair[Dtype], numbers: Pair[Floats]) -> Bools:
    """Integers by themselves: as float64, neighbours beyond 2**53 are equal."""
    if all(dtype.kind is DtypeKind.INT for dtype in (dtypes.reference, dtypes.target)):
        integers: Bools = raw.target.view(dtypes.target.name) > raw.reference.view(dtypes.reference.name)
        return integers
    return numbers.target > numbers.reference


def _raw(array: AnyArray, index: tuple[slice, ...], shape: Shape) -> Bytes:
    part = array[index] if array.shape == shape else array.flat[index[0]]
    return Packer(part.dtype, part.size).packed(part).view(np.uint8)
