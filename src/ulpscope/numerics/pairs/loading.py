"""Elements of two arrays as float64, side by side: the first step of all that compares them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Dtype, DtypeKind
from ulpscope.numerics.summaries.summary import decode
from ulpscope.records.pairs import Pair

AnyArray = NDArray[Any]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_WIDE_INTEGERS = ("int64", "uint64")


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
        names = self.dtypes.reference.name, self.dtypes.target.name
        if not all(name in _WIDE_INTEGERS for name in names):
            return np.abs(self.numbers.target - self.numbers.reference)
        left, right = self.raw.reference.view(names[0]), self.raw.target.view(names[1])
        if names[0] != names[1]:
            return _mixed_differences(*((left, right) if names[0] == "int64" else (right, left)))
        sizes: NDArray[np.uint64] = np.maximum(left, right).view(np.uint64) - np.minimum(left, right).view(np.uint64)
        return sizes.astype(np.float64)

    def above(self) -> Bools:
        """Where the target is larger; integers by themselves: as float64, neighbours beyond 2**53 are equal."""
        dtypes = self.dtypes
        if all(dtype.kind is DtypeKind.INT for dtype in (dtypes.reference, dtypes.target)):
            integers: Bools = self.raw.target.view(dtypes.target.name) > self.raw.reference.view(dtypes.reference.name)
            return integers
        return self.numbers.target > self.numbers.reference

    def mismatched(self) -> Bools:
        """Where one is not finite and the other is finite, or another kind of inf or nan."""
        reference, target = self.numbers.reference, self.numbers.target
        same: Bools = (reference == target) | (np.isnan(reference) & np.isnan(target))
        return ~self.finite & ~same


def numbers_of(raw: Bytes, dtype: Dtype) -> Floats:
    """The numbers that these bytes of a real type stand for."""
    if dtype.kind is DtypeKind.FLOAT:
        return decode(raw.view(f"u{dtype.item_size}"), dtype)
    integers = raw.astype(np.bool_) if dtype.kind is DtypeKind.BOOL else raw.view(dtype.name)
    numbers: Floats = integers.astype(np.float64)
    return numbers


def _mixed_differences(signed: NDArray[np.int64], unsigned: NDArray[np.uint64]) -> Floats:
    size = signed.view(np.uint64)
    near = np.maximum(size, unsigned) - np.minimum(size, unsigned)
    return np.where(signed < 0, unsigned.astype(np.float64) - signed.astype(np.float64), near.astype(np.float64))
