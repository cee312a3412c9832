"""numpy's arrays as tensors: for a framework that computes with them, or whose tensors are looked at as such.

An array that can be written has no version, so it is read each time; one that is read-only keeps its value.
"""

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.capture.recording.tensors import Copies, Described, HostRows, Key, Tensors
from ulpscope.numerics.summaries.compiled import summarizer_of

Array = NDArray[Any]


class ArrayTensors(Tensors):
    """numpy's arrays."""

    def address(self, tensor: Array) -> int:
        return id(_owner(tensor))

    def hold(self, tensor: Array) -> tuple[Any, bool]:
        return weakref.ref(_owner(tensor)), True

    def is_gone(self, held: Any) -> bool:
        return held() is None

    def local(self, tensor: Array) -> Array:
        """A copy of one whose elements do not lie at whole distances behind its first."""
        is_plain = all(stride >= 0 and stride % tensor.itemsize == 0 for stride in tensor.strides)
        return tensor if is_plain else tensor.copy()

    def key(self, tensor: Array) -> Key:
        size, first = tensor.itemsize, _owner(tensor)
        offset = (tensor.__array_interface__["data"][0] - first.__array_interface__["data"][0]) // size
        strides = tuple(stride // size for stride in tensor.strides)
        version = None if tensor.flags.writeable or first.flags.writeable else 0
        return version, offset, tensor.shape, strides, tensor.dtype, False, False

    def describe(self, tensor: Array) -> Described:
        return Described(str(tensor.dtype), tensor.shape, (), "cpu", "strided", False)

    def dtype_word(self, dtype: Any) -> str:
        return str(dtype)

    def nbytes(self, tensor: Array) -> int:
        return tensor.nbytes

    def storage_bytes(self, tensor: Array) -> int:
        return int(_owner(tensor).nbytes)

    def make_rows(self) -> HostRows:
        return HostRows(_write_row)

    def make_copies(self) -> Copies:
        return _ArrayCopies()


class _ArrayCopies(Copies):
    def begin(self, tensor: Array, run: tuple[int, int] | None, memory: Array) -> None:
        if run is not None:
            tensor = np.lib.stride_tricks.as_strided(tensor, (run[1],), (tensor.itemsize,))
        memory[:] = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


def _owner(tensor: Array) -> Array:
    """The array whose elements a view shows."""
    while isinstance(tensor.base, np.ndarray):
        tensor = tensor.base
    return tensor


def _write_row(tensor: Array, address: int) -> None:
    elements = np.ascontiguousarray(tensor)
    if elements.dtype.kind == "c":
        elements = elements.view(elements.real.dtype)
    summarizer_of(str(tensor.dtype))(elements.ctypes.data, elements.size, address)
