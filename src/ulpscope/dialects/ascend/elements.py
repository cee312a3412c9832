"""The elements of a dumped tensor, in the device's own order: from bytes to arrays.

Elements that numpy or ml_dtypes have a type for keep their bits. Those that share bytes are taken apart. HiFloat8 and
FLOAT4_E1M2 stay codes; `widened` makes float32 of them, of all other small floats and of bfloat16.
"""

import math
from typing import Any

import numpy as np

from ulpscope.dialects.ascend.dump_file.content import AnyArray, Content, Shape, bad_dump
from ulpscope.dialects.files.stored import COMPLEX32
from ulpscope.numerics.dtypes import (
    BITS,
    DTYPES,
    float4_e1m2_values,
    hifloat8_values,
    numpy_dtype,
    sign_extended,
    unpack,
)

ELEMENT_TYPES: dict[str, str] = {
    "UNDEFINED": "int8",
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT16": "int16",
    "UINT16": "uint16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "BOOL": "bool",
    "DOUBLE": "float64",
    "DUAL_SUB_INT8": "int8",
    "DUAL_SUB_UINT8": "uint8",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
    "QINT8": "int8",
    "QINT16": "int16",
    "QINT32": "int32",
    "QUINT8": "uint8",
    "QUINT16": "uint16",
    "RESOURCE": "int64",
    "BF16": "bfloat16",
    "INT4": "int4",
    "UINT1": "uint1",
    "INT2": "int2",
    "UINT2": "uint2",
    "COMPLEX32": "complex32",
    "HIFLOAT8": "hifloat8",
    "FLOAT8_E5M2": "float8_e5m2",
    "FLOAT8_E4M3FN": "float8_e4m3fn",
    "FLOAT8_E8M0": "float8_e8m0fnu",
    "FLOAT6_E3M2": "float6_e3m2fn",
    "FLOAT6_E2M3": "float6_e2m3fn",
    "FLOAT4_E2M1": "float4_e2m1fn",
    "FLOAT4_E1M2": "float4_e1m2",
}
"""What each data type's elements are here. Strings, variants and DUAL are bytes without a type that is known."""

_CODES = {"hifloat8": hifloat8_values, "float4_e1m2": float4_e1m2_values}


def elements_of(content: Content, kind: str, shape: Shape | None, *, what: str) -> AnyArray:
    """Elements of a type, in the shape in which they lie there; without a shape, all of them in a row."""
    bits = _bits(kind)
    held = content.size * 8 // bits
    if shape is None or (shape == () and held == 0):
        shape = (held,)
    count = math.prod(shape)
    needed = -(-count * bits // 8)
    if needed > content.size:
        raise bad_dump(content.path, f"{what} {list(shape)}, {needed} bytes; it has {content.size}")
    try:
        return _decoded(content, kind, count).reshape(shape)
    except ValueError as error:
        raise bad_dump(content.path, f"{what} {list(shape)} ({error})") from error


def widened(array: AnyArray, kind: str) -> AnyArray:
    """Numbers that any reader of .npy files knows: small floats and bfloat16 as float32, complex32 as complex64."""
    if kind in _CODES:
        return _CODES[kind]()[array]
    if kind == "complex32":
        return np.ascontiguousarray(array).view(np.float16).astype(np.float32).view(np.complex64)
    if kind == "bfloat16":
        # ml_dtypes converts element by element; the bits of a bfloat16 are the upper half of a float32.
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32) if kind.startswith(("float8_", "float6_", "float4_")) else array


def plain_type(kind: str) -> str:
    """The type of an array's elements, a name of numerics.dtypes: integers of few bits lie in bytes."""
    if kind in ("int4", "int2"):
        return "int8"
    if kind in ("uint1", "uint2"):
        return "uint8"
    return kind if kind in DTYPES else "float32"


def is_packed(kind: str | None) -> bool:
    """Whether elements share bytes."""
    return kind in BITS


def array_type(kind: str) -> np.dtype[Any]:
    """The type of an array's elements, as numpy knows it."""
    if kind == "complex32":
        return COMPLEX32
    if kind == "hifloat8" or kind == "float4_e1m2":
        return np.dtype(np.uint8)
    if kind.startswith(("float6_", "float4_")):
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, kind))
        return small
    return numpy_dtype(plain_type(kind))


def _bits(kind: str) -> int:
    return BITS[kind] if kind in BITS else 8 * array_type(kind).itemsize


def _decoded(content: Content, kind: str, count: int) -> AnyArray:
    try:
        raw = content.read()
    except (OSError, ValueError) as error:
        raise bad_dump(content.path, f"cannot be read any more ({error})") from error
    element = array_type(kind)
    if not is_packed(kind):
        return raw[: count * element.itemsize].view(element)
    codes = unpack(raw, bits=BITS[kind], count=count)
    return sign_extended(codes, bits=BITS[kind]) if kind.startswith("int") else codes.view(element)
