"""Two arrays side by side, in pieces, and their elements as float64: the first step of all that compares them.

    pair = PairBoxes.of(reference, target, reference_dtype="float32", target_dtype="bfloat16")
    for box in pair.boxes():
        box.apart.max(axis=0)

A box is a piece that keeps its axes, so that an error can be told by channel and row. Mapped memory is read in order.
What lies together in memory is read together: elements of a strided array are first copied in the order in which they
lie, and put into row-major order within that copy, which a cache holds. Copied at once, each of them would fetch a
cache line of its own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, AnyArray, Bools, Bytes, Dtype, DtypeKind, Floats, Shape
from ulpscope.numerics.pairs.metric_state import FLOOR_FIELD, ULP_FACTOR, ULPS, ulp_plan
from ulpscope.numerics.summaries.summary import decode
from ulpscope.records.pairs import Pair

Pieces = Iterator[Pair[Bytes]]

PIECE = 1 << 18
"""Most elements of a piece."""
_WIDE_INTEGERS = ("int64", "uint64")


@dataclass(frozen=True, slots=True)
class PairPieces:
    """Two arrays of equal shape, to be read side by side."""

    arrays: Pair[AnyArray]
    dtypes: Pair[Dtype]

    @classmethod
    def of(cls, reference: AnyArray, target: AnyArray, *, reference_dtype: str, target_dtype: str) -> "PairPieces":
        """ValueError if shapes differ or an array does not hold what its type says."""
        arrays = Pair(np.asarray(reference), np.asarray(target))
        dtypes = Pair(DTYPES[reference_dtype], DTYPES[target_dtype])
        if arrays.reference.shape != arrays.target.shape:
            raise ValueError(f"shapes differ: reference {arrays.reference.shape}, target {arrays.target.shape}")
        for array, dtype in zip(arrays, dtypes, strict=True):
            if array.dtype.itemsize != dtype.item_size or not array.dtype.isnative:
                raise ValueError(f"an array of {array.dtype} does not hold elements of {dtype.name}")
        return cls(arrays, dtypes)

    @property
    def parts_an_element(self) -> int:
        return max(self.dtypes.reference.parts, self.dtypes.target.parts)

    @property
    def parts(self) -> Pair[Dtype]:
        """The types of the numbers that pieces hold."""
        return self.dtypes.map(lambda dtype: DTYPES["float64" if self._is_widened(dtype) else dtype.real or dtype.name])

    def _is_widened(self, dtype: Dtype) -> bool:
        """Whether pieces hold float64: short integers, which it holds exactly, and real numbers beside complex ones."""
        short = dtype.kind is DtypeKind.INT and dtype.item_size < 8
        return short or dtype.parts < self.parts_an_element

    def same_bits(self) -> bool:
        """Whether elements are of one type and equal to the bit; nothing is read beyond the first piece that is not."""
        if self.dtypes.reference is not self.dtypes.target:
            return False
        return all(np.array_equal(pair.reference, pair.target) for pair in _pieces(self.arrays))

    def pieces(self) -> Pieces:
        """Equal pieces of both arrays, as aligned bytes, each valid until the next."""
        for pair in _pieces(self.arrays):
            yield Pair(self._piece(pair.reference, self.dtypes.reference), self._piece(pair.target, self.dtypes.target))

    def _piece(self, raw: Bytes, dtype: Dtype) -> Bytes:
        piece = aligned(raw, dtype.item_size // dtype.parts)
        if not self._is_widened(dtype):
            return piece
        parts = np.zeros((len(raw) // dtype.item_size, self.parts_an_element))
        parts[:, 0] = numbers_of(piece, dtype)
        return aligned(parts.reshape(-1).view(np.uint8), parts.itemsize)


def _pieces(arrays: Pair[AnyArray]) -> Pieces:
    if all(array.flags.c_contiguous for array in arrays):
        flat = arrays.map(lambda array: array.reshape(-1))
        for start in range(0, flat.reference.size, PIECE):
            part = slice(start, start + PIECE)
            yield Pair(flat.reference[part].view(np.uint8), flat.target[part].view(np.uint8))
        return
    # Elements are copied without a look at them only if they are opaque bytes.
    sides = [array.view(f"V{array.dtype.itemsize}") for array in arrays]
    packers = [Packer(side.dtype, PIECE) for side in sides]
    for box in boxes(arrays.reference.shape, PIECE):
        reference, target = (packer.packed(side[box]) for packer, side in zip(packers, sides, strict=True))
        yield Pair(reference.view(np.uint8), target.view(np.uint8))


def aligned(array: AnyArray, size: int) -> AnyArray:
    """Where numbers of that size may lie, and read-only: so kernels are compiled once."""
    piece = array.copy() if array.ctypes.data % size else array.view()
    piece.setflags(write=False)
    return piece


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The same part of two arrays, of real types."""

    raw: Pair[Bytes]
    dtypes: Pair[Dtype]
    numbers: Pair[Floats]
    finite: Bools
    """Where both are."""

    @classmethod
    def of(cls, raw: Pair[Bytes], dtypes: Pair[Dtype]) -> "SideBySide":
        numbers = Pair(numbers_of(raw.reference, dtypes.reference), numbers_of(raw.target, dtypes.target))
        return cls(raw, dtypes, numbers, np.isfinite(numbers.reference) & np.isfinite(numbers.target))

    def apart(self) -> Floats:
        """|target - reference|; of 64-bit integers exactly, before it becomes float64."""
        names = [dtype.name for dtype in self.dtypes]
        if not all(name in _WIDE_INTEGERS for name in names):
            return np.abs(self.numbers.target - self.numbers.reference)
        left, right = self.raw.reference.view(names[0]), self.raw.target.view(names[1])
        if names[0] == names[1]:
            return _distances(np.maximum(left, right), np.minimum(left, right))
        signed, unsigned = (left, right) if names[0] == "int64" else (right, left)
        size = signed.view(np.uint64)
        near = _distances(np.maximum(size, unsigned), np.minimum(size, unsigned))
        return np.where(signed < 0, unsigned.astype(np.float64) - signed.astype(np.float64), near)

    def above(self) -> Bools:
        """Where the target is larger; integers by themselves: as float64, neighbours beyond 2**53 are equal."""
        if all(dtype.kind is DtypeKind.INT for dtype in self.dtypes):
            reference, target = (raw.view(dtype.name) for raw, dtype in zip(self.raw, self.dtypes, strict=True))
            return np.asarray(target > reference)
        return self.numbers.target > self.numbers.reference

    def mismatched(self) -> Bools:
        """Where one is not finite and the other is finite, or another kind of inf or nan."""
        reference, target = self.numbers
        same: Bools = (reference == target) | (np.isnan(reference) & np.isnan(target))
        return ~self.finite & ~same


def numbers_of(raw: Bytes, dtype: Dtype) -> Floats:
    """The numbers that these bytes of a real type stand for."""
    if dtype.kind is DtypeKind.FLOAT:
        return decode(raw.view(f"u{dtype.item_size}"), dtype)
    integers = raw.astype(np.bool_) if dtype.kind is DtypeKind.BOOL else raw.view(dtype.name)
    numbers: Floats = integers.astype(np.float64)
    return numbers


def _distances(larger: AnyArray, smaller: AnyArray) -> Floats:
    """Of 64-bit integers: the larger minus the smaller fits in 64 bits."""
    sizes: NDArray[np.uint64] = larger.view(np.uint64) - smaller.view(np.uint64)
    return sizes.astype(np.float64)


def boxes(shape: Shape, most: int) -> Iterator[tuple[slice, ...]]:
    """Parts of at most `most` elements, in row-major order: one index of each leading axis, some of the next one, all
    of the rest, so that each is a range of flat indices."""
    if 0 in shape:
        return
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= most:
        inner *= shape[axis]
        axis -= 1
    step = max(most // inner, 1)
    rest = tuple(slice(0, size) for size in shape[axis + 1 :])
    for leading in np.ndindex(*shape[:axis]):
        lead = tuple(slice(place, place + 1) for place in leading)
        for start in range(0, shape[axis], step):
            yield (*lead, slice(start, min(start + step, shape[axis])), *rest)


class Packer:
    """Memory for one box, used again for every box: pages that are new cost more than the copy."""

    def __init__(self, dtype: np.dtype[Any], most: int) -> None:
        self._as_it_lies, self._in_order = np.empty(most, dtype), np.empty(most, dtype)

    def packed(self, part: AnyArray) -> AnyArray:
        """Its elements in row-major order; valid until the next call."""
        if part.flags.c_contiguous:
            return part.reshape(-1)
        axes = np.argsort([-abs(stride) for stride in part.strides], kind="stable")
        lying = part.transpose(axes)
        copied = self._as_it_lies[: part.size].reshape(lying.shape)
        np.copyto(copied, lying)
        ordered = self._in_order[: part.size]
        np.copyto(ordered.reshape(part.shape), copied.transpose(np.argsort(axes)))
        return ordered


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
        dtypes = types.map(lambda dtype: DTYPES[dtype.real or dtype.name])
        shape = _common_shape(arrays)
        return cls(arrays.map(lambda array: _fitted(array, shape)), dtypes, shape, types.reference.parts > 1)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def boxes(self) -> Iterator[Box]:
        """All of both arrays, in row-major order."""
        for index in boxes(self.shape, BOX):
            yield self.box(index)

    def box(self, index: tuple[slice, ...]) -> Box:
        """A box at slices of consecutive indices."""

        def raw(array: AnyArray) -> Bytes:
            part = array[index] if array.shape == self.shape else array.flat[index[0]]
            return Packer(part.dtype, part.size).packed(part).view(np.uint8)

        shape = tuple(part.stop - part.start for part in index)
        start = tuple(part.start for part in index)
        base = int(np.ravel_multi_index(start, self.shape)) if self.elements else 0
        both = SideBySide.of(self.arrays.map(raw), self.dtypes)
        with np.errstate(all="ignore"):
            apart, above = both.apart().reshape(shape), both.above().reshape(shape)
        numbers = both.numbers.map(lambda side: side.reshape(shape))
        if both.finite.all():
            return Box(start, base, numbers, apart, None, None, above)
        finite, mismatched = both.finite.reshape(shape), both.mismatched().reshape(shape)
        broken = mismatched if mismatched.any() else None
        return Box(start, base, numbers, np.where(finite, apart, 0.0), finite, broken, above)

    def element(self, place: int) -> Pair[Any]:
        """Both elements at a flat index, of their own types."""
        index = np.unravel_index(place, self.shape)
        return self.arrays.map(lambda array: array[index] if array.shape == self.shape else array.flat[place])

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
