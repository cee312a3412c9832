"""What a dump file of an Ascend NPU says: one operator's inputs, outputs, buffers and workspaces.

Bytes stay where they are until they are asked for. Elements that numpy or ml_dtypes have a type for keep their bits, in
the device's own order. Those that share bytes are taken apart. HiFloat8 and FLOAT4_E1M2 stay codes; `widened` makes
float32 of them, of all other small floats and of bfloat16.
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.files.stored import COMPLEX32
from ulpscope.dialects.wire import Values
from ulpscope.numerics.dtypes import (
    BITS,
    DTYPES,
    float4_e1m2_values,
    hifloat8_values,
    numpy_dtype,
    sign_extended,
    small_dtype,
    unpack,
)
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.trace.files import Bytes, map_bytes

AnyArray: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of a file that are mapped when they are asked for, or bytes in memory."""

    path: Path
    start: int
    size: int
    memory: Bytes | None = field(default=None, compare=False, repr=False)
    """Of a dump that is not a file: all of its bytes."""

    def read(self) -> Bytes:
        """The bytes, read-only; mapped, so that only what is looked at is read."""
        if self.memory is not None:
            return self.memory[self.start : self.start + self.size]
        return map_bytes(self.path, start=self.start, length=self.size)


DATA_TYPES: tuple[str, ...] = tuple(
    "UNDEFINED FLOAT FLOAT16 INT8 UINT8 INT16 UINT16 INT32 INT64 UINT32 UINT64 BOOL DOUBLE STRING DUAL_SUB_INT8 "
    "DUAL_SUB_UINT8 COMPLEX64 COMPLEX128 QINT8 QINT16 QINT32 QUINT8 QUINT16 RESOURCE STRING_REF DUAL VARIANT BF16 INT4 "
    "UINT1 INT2 UINT2 COMPLEX32 HIFLOAT8 FLOAT8_E5M2 FLOAT8_E4M3FN FLOAT8_E8M0 FLOAT6_E3M2 FLOAT6_E2M3 FLOAT4_E2M1 "
    "FLOAT4_E1M2".split()
)
"""By code: toolkit.dumpdata.OutputDataType."""
_DATA_TYPES = dict(enumerate(DATA_TYPES))

_NANO_DATA_TYPES = dict(
    enumerate(
        "FLOAT FLOAT16 INT8 INT32 UINT8 - INT16 UINT16 UINT32 INT64 UINT64 DOUBLE BOOL STRING - - COMPLEX64 COMPLEX128 "
        "- - - - - RESOURCE - - - BF16 - - UINT1".split()
    )
)
"""By code: ge::DataType, which nano files use; - for those that none has."""

FORMATS: tuple[str, ...] = tuple(
    "NCHW NHWC ND NC1HWC0 FRACTAL_Z NC1C0HWPAD NHWC1C0 FSR_NCHW FRACTAL_DECONV C1HWNC0 FRACTAL_DECONV_TRANSPOSE "
    "FRACTAL_DECONV_SP_STRIDE_TRANS NC1HWC0_C04 FRACTAL_Z_C04 CHWN FRACTAL_DECONV_SP_STRIDE8_TRANS HWCN NC1KHKWHWC0 "
    "BN_WEIGHT FILTER_HWCK HASHTABLE_LOOKUP_LOOKUPS HASHTABLE_LOOKUP_KEYS HASHTABLE_LOOKUP_VALUE "
    "HASHTABLE_LOOKUP_OUTPUT HASHTABLE_LOOKUP_HITS C1HWNCoC0 MD NDHWC FRACTAL_ZZ FRACTAL_NZ NCDHW DHWCN NDC1HWC0 "
    "FRACTAL_Z_3D CN NC DHWNC FRACTAL_Z_3D_TRANSPOSE FRACTAL_ZN_LSTM FRACTAL_Z_G RESERVED ALL NULL ND_RNN_BIAS "
    "FRACTAL_ZN_RNN YUV YUV_A NCL FRACTAL_Z_WINO C1HWC0".split()
)
"""By code: toolkit.dumpdata.OutputFormat; 255 is MAX."""

_FORMAT_MAX = 255


def data_type_name(code: int, *, nano: bool = False) -> str:
    """`FLOAT16`; a code that no version known here uses is told as a number."""
    name = (_NANO_DATA_TYPES if nano else _DATA_TYPES).get(code, "-")
    return f"data type {code}" if name == "-" else name


def format_name(code: int) -> str:
    """`NC1HWC0`."""
    if code == _FORMAT_MAX:
        return "MAX"
    return FORMATS[code] if 0 <= code < len(FORMATS) else f"format {code}"


def bad_dump(path: Path, problem: str, *, next_step: str = "") -> TraceError:
    """A file that cannot be read as a dump."""
    return TraceError(
        f"{path}: {problem}",
        expected="a dump file as an Ascend NPU wrote it, whole",
        next_step=next_step or "copy the file again from the machine that wrote it, or dump again",
    )


_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "DOUBLE": "float64",
    "BF16": "bfloat16",
    "FLOAT8_E8M0": "float8_e8m0fnu",
    "FLOAT6_E3M2": "float6_e3m2fn",
    "FLOAT6_E2M3": "float6_e2m3fn",
    "FLOAT4_E2M1": "float4_e2m1fn",
}


def dtype_of_name(name: str) -> str:
    """`FLOAT` as float32; what has no other name of ours is only written in small letters."""
    return _DTYPES.get(name.upper(), name.lower())


QUANTISED = {f"q{kind}": kind for kind in ("int8", "int16", "int32", "uint8", "uint16")}
"""Quantised types are integers, in every framework."""
_STORED_AS = QUANTISED | {
    "undefined": "int8",
    "dual_sub_int8": "int8",
    "dual_sub_uint8": "uint8",
    "resource": "int64",
}
_UNTYPED = ("STRING", "STRING_REF", "DUAL", "VARIANT")
ELEMENT_TYPES = {name: _STORED_AS.get(name.lower(), dtype_of_name(name)) for name in DATA_TYPES if name not in _UNTYPED}
"""What each data type's elements are here. Strings, variants and DUAL are bytes without a type that is known."""

_CODES = {"hifloat8": hifloat8_values, "float4_e1m2": float4_e1m2_values}


def elements_of(content: Content, kind: str, shape: Shape | None, *, what: str) -> AnyArray:
    """Elements of a type, in the shape in which they lie there; without a shape, all of them in a row."""
    bits = BITS[kind] if kind in BITS else 8 * array_type(kind).itemsize
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


def array_type(kind: str) -> np.dtype[Any]:
    """The type of an array's elements, as numpy knows it."""
    if kind == "complex32":
        return COMPLEX32
    if kind == "hifloat8" or kind == "float4_e1m2":
        return np.dtype(np.uint8)
    if kind.startswith(("float6_", "float4_")):
        return small_dtype(kind)
    return numpy_dtype(plain_type(kind))


def _decoded(content: Content, kind: str, count: int) -> AnyArray:
    try:
        raw = content.read()
    except (OSError, ValueError) as error:
        raise bad_dump(content.path, f"cannot be read any more ({error})") from error
    element = array_type(kind)
    if kind not in BITS:
        return raw[: count * element.itemsize].view(element)
    codes = unpack(raw, bits=BITS[kind], count=count)
    return sign_extended(codes, bits=BITS[kind]) if kind.startswith("int") else codes.view(element)


class Side(str, Enum):
    """Whether an operator read or made a tensor."""

    INPUT = "input"
    OUTPUT = "output"


class Container(str, Enum):
    """How a dump file is built."""

    HEADER_AND_DATA = "header and data"
    INLINE = "inline"
    """The whole file is one message, data inside (version 1)."""
    NANO = "nano"
    """A head of tag, length, value records."""


@dataclass(frozen=True, slots=True)
class OriginalOp:
    """The operator of the user's own network that an output stands for."""

    name: str
    output_index: int = 0
    data_type: int = 0
    format: int = 0
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class DumpTensor:
    """One input or output of an operator."""

    side: Side
    index: int
    data_type: int
    """The code in the file; `type_name` says what it means."""
    format: int
    shape: Shape | None
    """As the data lies on the device; none if the file does not say."""
    original_shape: Shape | None
    size: int
    """Bytes; may be more than the shape needs."""
    content: Content
    sub_format: int = 0
    """Number of groups of a convolution whose weight is FRACTAL_Z."""
    address: int = 0
    offset: int = 0
    original_op: OriginalOp | None = None
    dim_ranges: tuple[Values, ...] = ()
    nano: tuple[int, ...] | None = None
    """Of a nano file, what only it tells: the address' type, and of an output its original index, type and format."""
    unknown: bytes = b""
    """Fields of a newer version, as they are."""

    @property
    def name(self) -> str:
        """`output.0`."""
        return f"{self.side.value}.{self.index}"

    @property
    def type_name(self) -> str:
        """`FLOAT16`; a nano file has codes of its own."""
        return data_type_name(self.data_type, nano=self.nano is not None)

    @property
    def format_name(self) -> str:
        """`NC1HWC0`."""
        return format_name(self.format)

    @property
    def element_type(self) -> str | None:
        """`float16`, as ELEMENT_TYPES has it; none for what has no elements, such as strings."""
        return ELEMENT_TYPES.get(self.type_name)

    @property
    def groups(self) -> int:
        return max(self.sub_format, 1)

    def array(self) -> AnyArray:
        """The elements in the device's own order, bit for bit; UlpscopeError if the bytes do not fill the shape."""
        if self.element_type is None:
            raise UlpscopeError(
                f"{self.name} of {self.content.path} holds {self.type_name}",
                expected="elements that are numbers",
                next_step=f"take its bytes: ulpscope convert {self.content.path} --to bin -o DIR",
            )
        return elements_of(self.content, self.element_type, self.shape, what=f"{self.name} is {self.type_name}")


@dataclass(frozen=True, slots=True)
class DumpBlock:
    """Bytes without a type: an L1 buffer or a workspace."""

    kind: int
    size: int
    content: Content
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One dump file."""

    path: Path
    container: Container
    version: str = ""
    dump_time: int = 0
    op_name: str = ""
    attrs: tuple[Values, ...] = ()
    inputs: tuple[DumpTensor, ...] = ()
    outputs: tuple[DumpTensor, ...] = ()
    buffers: tuple[DumpBlock, ...] = ()
    spaces: tuple[DumpBlock, ...] = ()
    nano_version: int = 0
    unknown: bytes = b""

    @property
    def tensors(self) -> tuple[DumpTensor, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *self.outputs)
