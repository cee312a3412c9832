"""Summaries at memory speed: numba's kernels if they work here, else the plain reference.

numba is imported at the first summary, not before; its machine code is cached on disk: only a first run compiles.
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics import summary
from ulpscope.numerics.constants import ROW_LENGTH
from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind, float8_values

AnyArray = NDArray[np.generic]
Floats = NDArray[np.float64]


Summarizer = Callable[[AnyArray, Floats], None]


@cache
def _kernels() -> ModuleType | None:
    try:
        from ulpscope.numerics import kernels

        kernels.widened(np.ones(1, dtype=np.int32), np.zeros(2, dtype=np.int32), np.zeros(ROW_LENGTH))
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a run
        return None
    return kernels


def compiled_available() -> bool:
    """Whether summaries run compiled here. Compiles, or loads, the float32 kernel."""
    return _kernels() is not None


def _code_of(number: float, item_size: int) -> int:
    if item_size == 8:
        return int(np.array([number]).view(np.int64)[0] >> 32)
    return int(np.array([number], dtype=np.float32).view(np.int32)[0])


def _plan(dtype: Dtype, kernels: ModuleType) -> NDArray[np.int32]:
    is_float8 = dtype.name.startswith("float8")
    form = kernels.FLOAT8 if is_float8 else getattr(kernels, dtype.name.upper(), kernels.FLOAT32)
    table = float8_values(dtype.name).view(np.int32) if is_float8 else ()
    return np.array([form, _code_of(dtype.smallest_normal, dtype.item_size), *table], dtype=np.int32)


def _float_summarizer(dtype: Dtype, kernels: ModuleType) -> Summarizer:
    run = kernels.float64 if dtype.item_size == 8 else kernels.widened
    bits = np.dtype(f"i{dtype.item_size}")
    plan = _plan(dtype, kernels)
    return lambda flat, row: run(flat.view(bits), plan, row)


def _integer_summarizer(dtype: Dtype, kernels: ModuleType) -> Summarizer:
    integer = np.dtype(np.uint8 if dtype.kind is DtypeKind.BOOL else dtype.name)
    return lambda flat, row: kernels.integers(flat.view(integer), row)


@cache
def _summarizer(dtype_name: str) -> Summarizer:
    dtype = DTYPES[dtype_name]
    kernels = _kernels()
    if kernels is None:
        return lambda flat, row: summary.summarize_into(flat, dtype_name, row)
    if dtype.has_sketch:
        return _float_summarizer(DTYPES[dtype.real or dtype.name], kernels)
    return _integer_summarizer(dtype, kernels)


def summarize_into(flat: AnyArray, dtype_name: str, row: Floats) -> None:
    """Writes the row of a contiguous 1-D array, in one read of it.

    The array holds elements of that type or integers with their bits; of a complex type its parts, real, imaginary, ...
    """
    _summarizer(dtype_name)(flat, row)
