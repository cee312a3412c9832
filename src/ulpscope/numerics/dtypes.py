"""One table of element types, by the short names that traces use ("float32", "bfloat16", "float8_e4m3fn").

Element types that numpy lacks: HiFloat8, FLOAT4_E1M2, and those that share a byte with their neighbours.

Packed elements lie one after the other, the first in the lowest bits of a byte; only UINT1 begins with the highest bit,
as numpy.unpackbits has it.
"""

import math
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.records.errors import UlpscopeError

AnyArray: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Counts: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Bools: TypeAlias = NDArray[np.bool_]
Shape: TypeAlias = tuple[int, ...]


class DtypeKind(str, Enum):
    FLOAT = "float"
    COMPLEX = "complex"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Dtype:
    """What arithmetic and files need to know about an element type."""

    name: str
    kind: DtypeKind
    item_size: int
    smallest_normal: float = 0.0
    unit_roundoff: float = 0.0
    """Half the distance from 1 to the next number; 0 for integers, which do not round."""
    largest: float = 0.0
    real: str | None = None
    """Of a complex type: the type of its two parts."""

    @property
    def has_sketch(self) -> bool:
        return self.kind in (DtypeKind.FLOAT, DtypeKind.COMPLEX)

    @property
    def is_double(self) -> bool:
        """Whether float32 does not hold its numbers: its sketches are stored more exactly."""
        return self.has_sketch and self.unit_roundoff < 2.0**-24

    @property
    def parts(self) -> int:
        """Numbers that one element holds: 2 for a complex type."""
        return 2 if self.kind is DtypeKind.COMPLEX else 1


def _float(name: str, *, size: int, significand: int, lowest: int, largest: float) -> Dtype:
    """A type of `significand` bits (the hidden one counted) whose smallest normal number is 2**lowest."""
    return Dtype(name, DtypeKind.FLOAT, size, 2.0**lowest, 2.0**-significand, largest)


_FLOATS = (
    _float("float64", size=8, significand=53, lowest=-1022, largest=1.7976931348623157e308),
    _float("float32", size=4, significand=24, lowest=-126, largest=(2 - 2.0**-23) * 2.0**127),
    _float("float16", size=2, significand=11, lowest=-14, largest=65504.0),
    _float("bfloat16", size=2, significand=8, lowest=-126, largest=(2 - 2.0**-7) * 2.0**127),
    _float("float8_e4m3fn", size=1, significand=4, lowest=-6, largest=448.0),
    _float("float8_e4m3fnuz", size=1, significand=4, lowest=-7, largest=240.0),
    _float("float8_e5m2", size=1, significand=3, lowest=-14, largest=57344.0),
    _float("float8_e5m2fnuz", size=1, significand=3, lowest=-15, largest=57344.0),
    _float("float8_e8m0fnu", size=1, significand=1, lowest=-127, largest=2.0**127),
)
_COMPLEXES = tuple(
    replace(
        real, name=f"complex{16 * real.item_size}", kind=DtypeKind.COMPLEX, item_size=2 * real.item_size, real=real.name
    )
    for real in reversed(_FLOATS[:3])
)
_INTS = tuple(Dtype(f"{prefix}{8 * size}", DtypeKind.INT, size) for prefix in ("int", "uint") for size in (1, 2, 4, 8))
DTYPES: dict[str, Dtype] = {
    dtype.name: dtype for dtype in (*_FLOATS, *_COMPLEXES, *_INTS, Dtype("bool", DtypeKind.BOOL, 1))
}


AUTOCAST_DTYPES = frozenset(("bfloat16", "float16"))
"""What autocast computes in."""
FLOATING = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in (DtypeKind.FLOAT, DtypeKind.COMPLEX))
"""Names of those that can hold inf and nan, in one part at least."""


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy element type of that name; small floats come from ml_dtypes. complex32 has none: its real parts do."""
    return small_dtype(name) if name == "bfloat16" or name.startswith("float8") else np.dtype(name)


def small_dtype(name: str) -> np.dtype[np.generic]:
    """A type of ml_dtypes. Version 0.3, which TensorFlow 2.15 asks for, lacks float8_e8m0fnu, float6 and float4."""
    import ml_dtypes

    try:
        found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    except AttributeError as error:
        raise UlpscopeError(
            f"elements of type {name}, which ml_dtypes {ml_dtypes.__version__} does not know",
            expected="ml_dtypes 0.5 or later",
            next_step="pip install 'ml_dtypes>=0.5', in an environment without TensorFlow 2.15, which needs 0.3",
        ) from error
    return found


@cache
def float8_values(name: str) -> NDArray[np.float32]:
    """What each of the 256 bytes stands for."""
    values = np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32)
    values.setflags(write=False)
    return values


HIFLOAT8_NAN, HIFLOAT8_INFINITY = 0x80, 0x6F

# HiFloat8 ("Ascend HiFloat8 Format for Deep Learning", 2024): a prefix code says how many bits the exponent has. By
# prefix: the exponent's bits, the mantissa's bits.
_HIFLOAT8_PREFIXES = (("11", 4, 1), ("10", 3, 2), ("01", 2, 3), ("001", 1, 3), ("0001", 0, 3))
_HIFLOAT8_SMALLEST = -23
"""The subnormals are 2**(mantissa - 23)."""

BITS = {
    "int4": 4,
    "int2": 2,
    "uint2": 2,
    "uint1": 1,
    "float6_e3m2fn": 6,
    "float6_e2m3fn": 6,
    "float4_e2m1fn": 4,
    "float4_e1m2": 4,
}
"""Bits of each type whose elements share bytes."""


@cache
def hifloat8_values() -> NDArray[np.float32]:
    """What each of the 256 bytes stands for."""
    return _frozen([_hifloat8(code) for code in range(256)])


@cache
def float4_e1m2_values() -> NDArray[np.float32]:
    """What each of the 16 codes stands for: a sign and steps of a quarter, for which exponent and mantissa add up."""
    return _frozen([(-1.0 if code & 8 else 1.0) * (code & 7) / 4 for code in range(16)])


def unpack(content: Bytes, *, bits: int, count: int) -> Bytes:
    """The first `count` codes of `bits` bits each; `content` holds at least that many."""
    needed = -(-count * bits // 8)
    if bits == 1:
        return np.unpackbits(content[:needed], count=count)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = (content[:needed, None] >> shifts) & np.uint8(2**bits - 1)
        return codes.reshape(-1)[:count]
    lowest_first = np.unpackbits(content[:needed], bitorder="little")[: count * bits].reshape(count, bits)
    return np.packbits(lowest_first, axis=1, bitorder="little").reshape(-1)


def sign_extended(codes: Bytes, *, bits: int) -> NDArray[np.int8]:
    """Codes of `bits` bits as the signed numbers that they are."""
    shift = np.uint8(8 - bits)
    return (codes << shift).view(np.int8) >> np.int8(8 - bits)


def _hifloat8(code: int) -> float:
    if code == HIFLOAT8_NAN:
        return float("nan")
    sign, rest = (-1.0 if code & 0x80 else 1.0), code & 0x7F
    if rest == HIFLOAT8_INFINITY:
        return sign * float("inf")
    for prefix, exponent_bits, mantissa_bits in _HIFLOAT8_PREFIXES:
        if f"{rest:07b}".startswith(prefix):
            steps, field, exponent = 1 << mantissa_bits, rest >> mantissa_bits, 0
            if exponent_bits:
                # A sign and a magnitude whose leading 1 is not written.
                leading = 1 << (exponent_bits - 1)
                exponent = (leading + (field & (leading - 1))) * (-1 if field & leading else 1)
            return math.ldexp(sign * (1 + (rest & (steps - 1)) / steps), exponent)
    return math.ldexp(sign, rest + _HIFLOAT8_SMALLEST) if rest else 0.0


def _frozen(numbers: list[float]) -> NDArray[np.float32]:
    values = np.array(numbers, np.float32)
    values.setflags(write=False)
    return values
