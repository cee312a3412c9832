"""What all forms of a dump file share: bytes that stay where they are until they are asked for, the numbers that stand
for element types and formats, and the error of a file that is not what it says it is.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ulpscope.records.errors import TraceError
from ulpscope.trace.files import Bytes, map_bytes

AnyArray: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

RANK_LIMIT = 64
"""Axes that numpy can hold; the product of millions of them would never be done."""


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

NANO_DATA_TYPES: dict[int, str] = {
    0: "FLOAT",
    1: "FLOAT16",
    2: "INT8",
    3: "INT32",
    4: "UINT8",
    6: "INT16",
    7: "UINT16",
    8: "UINT32",
    9: "INT64",
    10: "UINT64",
    11: "DOUBLE",
    12: "BOOL",
    13: "STRING",
    16: "COMPLEX64",
    17: "COMPLEX128",
    23: "RESOURCE",
    27: "BF16",
    30: "UINT1",
}
"""By code: ge::DataType, which nano files use."""

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
    if nano:
        return NANO_DATA_TYPES.get(code, f"data type {code}")
    return DATA_TYPES[code] if 0 <= code < len(DATA_TYPES) else f"data type {code}"


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
