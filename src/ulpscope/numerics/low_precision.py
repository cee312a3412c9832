"""Element types that numpy lacks: HiFloat8, FLOAT4_E1M2, and those that share a byte with their neighbours.

Packed elements lie one after the other, the first in the lowest bits of a byte; only UINT1 begins with the highest bit,
as numpy.unpackbits has it.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

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
            steps = 1 << mantissa_bits
            exponent = _hifloat8_exponent(rest >> mantissa_bits, exponent_bits)
            return math.ldexp(sign * (1 + (rest & (steps - 1)) / steps), exponent)
    return math.ldexp(sign, rest + _HIFLOAT8_SMALLEST) if rest else 0.0


def _hifloat8_exponent(field: int, bits: int) -> int:
    """A sign and a magnitude whose leading 1 is not written."""
    if bits == 0:
        return 0
    leading = 1 << (bits - 1)
    magnitude = leading + (field & (leading - 1))
    return -magnitude if field & leading else magnitude


def _frozen(numbers: list[float]) -> NDArray[np.float32]:
    values = np.array(numbers, np.float32)
    values.setflags(write=False)
    return values
