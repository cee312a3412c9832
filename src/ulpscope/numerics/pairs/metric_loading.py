"""Elements of any type as float64, compiled by numba: the first step of the kernels of pair metrics.

numba's `view` of a number needs that number's type spelt out, hence casts that look needless.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Bytes, Dtype, Floats, float8_values
from ulpscope.numerics.machine_code import by_numba
from ulpscope.records.pairs import Pair

FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INT64, UINT64, TABLE = range(7)
"""Forms: a type without one of its own name, such as float8 and bool, is looked up in a table."""

NO_TABLE = np.zeros(256)
_FORMS = {
    "float64": FLOAT64,
    "float32": FLOAT32,
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "int64": INT64,
    "uint64": UINT64,
}
_SIZE_32 = np.int32(0x7FFF)


compiled = by_numba(kept=True)


@compiled
def _convert(source, start, n, numbers):
    part = source[start : start + n]
    for i in range(n):
        numbers[i] = np.float64(part[i])


@compiled
def _convert_bfloat16(source, start, n, numbers):
    part = source[start : start + n]
    for i in range(n):
        numbers[i] = np.float64(np.int32(np.int32(part[i]) << np.int32(16)).view(np.float32))


@compiled
def _convert_float16(source, start, n, numbers):
    """Rebiases the exponent; a subnormal is an integer times 2**-24."""
    part = source[start : start + n]
    for i in range(n):
        bits = np.int32(part[i])
        size = np.int32(bits & _SIZE_32)
        wide = np.int32((size << np.int32(13)) + np.int32(112 << 23))
        wide = wide if size < np.int32(0x7C00) else np.int32(wide | np.int32(0x7F800000))
        normal = np.float64(np.int32(wide).view(np.float32))
        number = normal if size >= np.int32(0x400) else np.float64(size) * 2.0**-24
        numbers[i] = -number if bits < np.int32(0) else number


@compiled
def _convert_bytes(source, start, n, table, numbers):
    part = source[start : start + n]
    for i in range(n):
        numbers[i] = table[part[i]]


@compiled
def load(raw, form, table, start, n, numbers):
    """Numbers start to start + n of an array that is given as bytes; a type of one byte by its table."""
    if form == FLOAT32:
        _convert(raw.view(np.float32), start, n, numbers)
    elif form == BFLOAT16:
        _convert_bfloat16(raw.view(np.int16), start, n, numbers)
    elif form == FLOAT16:
        _convert_float16(raw.view(np.int16), start, n, numbers)
    elif form == FLOAT64:
        _convert(raw.view(np.float64), start, n, numbers)
    elif form == INT64:
        _convert(raw.view(np.int64), start, n, numbers)
    elif form == UINT64:
        _convert(raw.view(np.uint64), start, n, numbers)
    else:
        _convert_bytes(raw, start, n, table, numbers)


def given(raw: Pair[Bytes], dtypes: Pair[Dtype]) -> tuple[Any, ...]:
    """How kernels are given a part of both arrays: bytes, forms, tables, and how many numbers there are."""
    forms, tables = _forms(dtypes.reference.name, dtypes.target.name)
    return raw.reference, raw.target, forms, tables, len(raw.reference) // dtypes.reference.item_size


@cache
def _forms(*names: str) -> tuple[NDArray[np.int64], Floats]:
    forms, tables = zip(*map(form_and_table, names), strict=True)
    return np.array(forms, dtype=np.int64), np.stack(tables)


@cache
def form_and_table(name: str) -> tuple[int, Floats]:
    """How `load` is told of a type."""
    if name.startswith("float8"):
        return TABLE, float8_values(name).astype(np.float64)
    return _FORMS.get(name, TABLE), np.minimum(np.arange(256.0), 1.0) if name == "bool" else NO_TABLE
