"""Two arrays side by side, in pieces: mapped memory is read in order, a strided array copied little by little."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind
from ulpscope.numerics.packing import Packer, boxes
from ulpscope.numerics.pairs.metric_plain import numbers_of
from ulpscope.records.pairs import Pair

AnyArray = NDArray[Any]
Bytes = NDArray[np.uint8]
Pieces = Iterator[Pair[Bytes]]

PIECE = 1 << 18
"""Most elements of a piece."""


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
        _check(arrays, dtypes)
        return cls(arrays, dtypes)

    @property
    def parts_an_element(self) -> int:
        return max(self.dtypes.reference.parts, self.dtypes.target.parts)

    @property
    def parts(self) -> Pair[Dtype]:
        """The types of the numbers that pieces hold."""
        return Pair(self._part(self.dtypes.reference), self._part(self.dtypes.target))

    def _part(self, dtype: Dtype) -> Dtype:
        if self._is_widened(dtype):
            return DTYPES["float64"]
        return DTYPES[dtype.real] if dtype.real else dtype

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
        piece = _aligned(raw, dtype.item_size // dtype.parts)
        if not self._is_widened(dtype):
            return piece
        parts = np.zeros((len(raw) // dtype.item_size, self.parts_an_element))
        parts[:, 0] = numbers_of(piece, dtype)
        return _aligned(parts.reshape(-1).view(np.uint8), parts.itemsize)


def _check(arrays: Pair[AnyArray], dtypes: Pair[Dtype]) -> None:
    if arrays.reference.shape != arrays.target.shape:
        raise ValueError(f"shapes differ: reference {arrays.reference.shape}, target {arrays.target.shape}")
    for array, dtype in ((arrays.reference, dtypes.reference), (arrays.target, dtypes.target)):
        if array.dtype.itemsize != dtype.item_size or not array.dtype.isnative:
            raise ValueError(f"an array of {array.dtype} does not hold elements of {dtype.name}")


def _pieces(arrays: Pair[AnyArray]) -> Pieces:
    if arrays.reference.flags.c_contiguous and arrays.target.flags.c_contiguous:
        return _contiguous_pieces(arrays)
    return _strided_pieces(arrays)


def _contiguous_pieces(arrays: Pair[AnyArray]) -> Pieces:
    flat = Pair(arrays.reference.reshape(-1), arrays.target.reshape(-1))
    for start in range(0, flat.reference.size, PIECE):
        part = slice(start, start + PIECE)
        yield Pair(flat.reference[part].view(np.uint8), flat.target[part].view(np.uint8))


def _strided_pieces(arrays: Pair[AnyArray]) -> Pieces:
    # Elements are copied without a look at them only if they are opaque bytes.
    sides = [array.view(f"V{array.dtype.itemsize}") for array in (arrays.reference, arrays.target)]
    packers = [Packer(side.dtype, PIECE) for side in sides]
    for box in boxes(arrays.reference.shape, PIECE):
        reference, target = (packer.packed(side[box]) for packer, side in zip(packers, sides, strict=True))
        yield Pair(reference.view(np.uint8), target.view(np.uint8))


def _aligned(raw: Bytes, size: int) -> Bytes:
    """Where numbers of that size may lie, and read-only: so the kernels are compiled once."""
    piece = raw.copy() if raw.ctypes.data % size else raw.view()
    piece.setflags(write=False)
    return piece
