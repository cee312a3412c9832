"""Summaries at memory speed: by what the system's compiler makes here, else by numba's kernels, else by the reference.

The first takes a second to compile; numba's takes five and is five times slower; the reference is a hundred times
slower. What is compiled is kept on disk, so that only a first run compiles. numba is imported where there is no
compiler, and not before the first summary.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache, partial
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind, float8_values
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.numerics.summaries import native, summary
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS, ROW_LENGTH

AnyArray = NDArray[np.generic]
Floats = NDArray[np.float64]

Summarizer = Callable[[int, int, int], None]
"""Address of the elements, their count, and the address of the row to write."""


@cache
def _kernels() -> ModuleType | None:
    try:
        from ulpscope.numerics.summaries import kernels

        return kernels
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a run
        return None


def _agrees(summarizer: Summarizer, dtype: Dtype) -> bool:
    """Whether a kernel does as the reference: numba's cache does not notice constants that have changed."""
    sample = _sample(dtype)
    rows = np.zeros((2, ROW_LENGTH))
    try:
        summarizer(sample.ctypes.data, sample.size, rows.ctypes.data)
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


class Found(Enum):
    """How compiled summaries were come by."""

    KEPT = "kept by an earlier run"
    COMPILED = "compiled just now"
    NONE = "nothing can compile them here"


def find_compiled() -> Found:
    """Compiles, or loads, the kernel of float32."""
    kept = native.is_built()
    summarizer = _compiled_summarizer(DTYPES["float32"])
    if summarizer is None:
        return Found.NONE
    kernels = summarizer.args[0] if isinstance(summarizer, partial) else None
    if isinstance(kernels, ModuleType):
        kept = kernels.were_kept()
    return Found.KEPT if kept else Found.COMPILED


def _compiled_summarizer(dtype: Dtype) -> Summarizer | None:
    return next((summarizer for summarizer in _compiled_here(dtype) if _agrees(summarizer, dtype)), None)


def _compiled_here(dtype: Dtype) -> Iterator[Summarizer]:
    """The fastest first; each is made when it is asked for."""
    with contextlib.suppress(NotCompiledError):
        yield _native_summarizer(dtype)
    kernels = _kernels()
    if kernels is not None:
        yield partial(_by_numba, kernels, dtype)


def _native_summarizer(dtype: Dtype) -> Summarizer:
    if dtype.name.startswith("float8"):
        table, normal = _float8_table(dtype)
        return partial(native.float8_summarizer(), table.ctypes.data, normal)
    return native.summarizer(dtype.name if dtype.has_sketch else _integer(dtype).name)


@cache
def _float8_table(dtype: Dtype) -> tuple[NDArray[np.int32], int]:
    """The bits of what the 256 bytes stand for, and of the smallest normal one."""
    return float8_values(dtype.name).view(np.int32), int(np.float32(dtype.smallest_normal).view(np.int32))


def _by_numba(kernels: ModuleType, dtype: Dtype, address: int, count: int, place: int) -> None:
    kernels.summarize_into(_memory(address, count * dtype.item_size), dtype, _memory(place, 8 * ROW_LENGTH).view("f8"))


def _by_numpy(dtype: Dtype, address: int, count: int, place: int) -> None:
    element = np.dtype(f"i{dtype.item_size}") if dtype.has_sketch else _integer(dtype)
    elements = _memory(address, count * dtype.item_size).view(element)
    summary.summarize_into(elements, dtype.name, _memory(place, 8 * ROW_LENGTH).view(np.float64))


def _memory(address: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(memoryview((ctypes.c_char * size).from_address(address)), dtype=np.uint8)


def _integer(dtype: Dtype) -> np.dtype[np.generic]:
    return np.dtype(np.uint8 if dtype.kind is DtypeKind.BOOL else dtype.name)


@cache
def summarizer_of(dtype_name: str) -> Summarizer:
    """Reads elements of that type once, one behind the other, and writes their row. The address may be odd.

    Elements of a complex type are its parts: real, imaginary, real, ...
    """
    dtype = DTYPES[dtype_name]
    dtype = DTYPES[dtype.real or dtype.name]
    return _compiled_summarizer(dtype) or partial(_by_numpy, dtype)


def summarize_into(flat: AnyArray, dtype_name: str, row: Floats) -> None:
    """The same of a contiguous 1-D array. It holds elements of that type or integers with their bits."""
    summarizer_of(dtype_name)(flat.__array_interface__["data"][0], flat.size, row.__array_interface__["data"][0])
