"""Summaries at memory speed: numba's kernels if they work here, else the plain reference.

numba is imported at the first summary, not before; its machine code is cached on disk: only a first run compiles.
"""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics import summary
from ulpscope.numerics.constants import BLOCK_ELEMENTS, ROW_LENGTH
from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind, float8_values

AnyArray = NDArray[np.generic]
Floats = NDArray[np.float64]

Summarizer = Callable[[int, int, Floats], None]
"""Address of the elements, their count, and the row to write."""


@cache
def _kernels() -> ModuleType | None:
    try:
        from ulpscope.numerics import kernels

        return kernels
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a run
        return None


def _agrees(summarizer: Summarizer, dtype: Dtype) -> bool:
    """Whether a kernel does as the reference: numba's cache does not notice constants that have changed."""
    sample = _sample(dtype)
    rows = np.zeros((2, ROW_LENGTH))
    try:
        summarizer(sample.ctypes.data, sample.size, rows[0])
    except Exception:  # a broken numba, as above
        return False
    summary.summarize_into(sample, dtype.name, rows[1])
    return bool(rows[0].tobytes() == rows[1].tobytes())


def _sample(dtype: Dtype) -> AnyArray:
    """Elements of this type, as integers with their bits: small numbers, whose sums are exact."""
    numbers = np.arange(2 * BLOCK_ELEMENTS) % 31
    if not dtype.has_sketch:
        return numbers.astype(_integer(dtype))
    if dtype.name.startswith("float8"):
        codes = np.flatnonzero(np.isin(float8_values(dtype.name), (1.0, 2.0, 4.0, 8.0)))
        return np.resize(codes, numbers.size).astype(np.uint8).view(np.int8)
    if dtype.name == "bfloat16":
        return (numbers.astype(np.float32).view(np.int32) >> 16).astype(np.int16)
    return numbers.astype(dtype.name).view(f"i{dtype.item_size}")


def compiled_available() -> bool:
    """Whether summaries run compiled here. Compiles, or loads, the float32 kernel."""
    kernels = _kernels()
    return kernels is not None and _agrees(kernels.float32, DTYPES["float32"])


def _float_summarizer(dtype: Dtype, kernels: ModuleType) -> Summarizer:
    if not dtype.name.startswith("float8"):
        return getattr(kernels, dtype.name)  # type: ignore[no-any-return]
    normal = int(np.float32(dtype.smallest_normal).view(np.int32))
    return partial(kernels.float8, float8_values(dtype.name).view(np.int32), normal)


def _integer_summarizer(dtype: Dtype, kernels: ModuleType) -> Summarizer:
    return partial(kernels.integers, np.empty(0, _integer(dtype)))


def _plain_summarizer(dtype: Dtype) -> Summarizer:
    element = np.dtype(f"i{dtype.item_size // dtype.parts}") if dtype.has_sketch else _integer(dtype)

    def summarize(address: int, count: int, row: Floats) -> None:
        memory = (ctypes.c_char * (count * element.itemsize)).from_address(address)
        summary.summarize_into(np.frombuffer(memoryview(memory), dtype=element), dtype.name, row)

    return summarize


def _integer(dtype: Dtype) -> np.dtype[np.generic]:
    return np.dtype(np.uint8 if dtype.kind is DtypeKind.BOOL else dtype.name)


@cache
def _summarizer(dtype_name: str) -> Summarizer:
    dtype = DTYPES[dtype_name]
    dtype = DTYPES[dtype.real or dtype.name]
    kernels = _kernels()
    if kernels is not None:
        summarizer = _float_summarizer(dtype, kernels) if dtype.has_sketch else _integer_summarizer(dtype, kernels)
        if _agrees(summarizer, dtype):
            return summarizer
    return _plain_summarizer(dtype)


def summarize_memory_into(address: int, count: int, dtype_name: str, row: Floats) -> None:
    """Writes the row of `count` elements in a row from that address on, in one read of them. The address may be odd.

    Elements of a complex type are its parts: real, imaginary, real, ...
    """
    _summarizer(dtype_name)(address, count, row)


def summarize_into(flat: AnyArray, dtype_name: str, row: Floats) -> None:
    """The same of a contiguous 1-D array. It holds elements of that type or integers with their bits."""
    summarize_memory_into(flat.__array_interface__["data"][0], flat.size, dtype_name, row)
