"""float64 bits made by integer arithmetic, for devices that have no float64 (Apple's, for one)."""

import torch
from torch import Tensor

_EXPONENT = 52
_BIAS = 1023
_FLOAT32_BIAS = 127
_FLOAT32_FRACTION = 23
_NORM = 3


def row_bits(sums: Tensor, counts: Tensor, sketch: Tensor, digest: Tensor) -> Tensor:
    """A summary row's bits. `sums` holds the norm where the row holds its square, which float32 could not hold."""
    bits = double_bits(sums)
    bits[_NORM].copy_(double_bits_of_square(sums[_NORM]))
    return torch.cat([bits, double_bits_of_integers(counts), double_bits(sketch), digest])


def _fields(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sign, biased exponent and fraction of float32 numbers, as int64."""
    bits = numbers.view(torch.int32).to(torch.int64)
    return (bits >> 31) & 1, (bits >> _FLOAT32_FRACTION) & 0xFF, bits & ((1 << _FLOAT32_FRACTION) - 1)


def double_bits(numbers: Tensor) -> Tensor:
    """The float64 bits of float32 numbers; subnormal ones become 0."""
    sign, exponent, fraction = _fields(numbers)
    wide = (exponent + _BIAS - _FLOAT32_BIAS).masked_fill(exponent == 0xFF, 0x7FF)
    size = (wide << _EXPONENT) | (fraction << (_EXPONENT - _FLOAT32_FRACTION))
    return (sign << 63) | size.masked_fill(exponent == 0, 0)


def double_bits_of_integers(numbers: Tensor) -> Tensor:
    """The float64 bits of integers from 0 to 2**52, exactly."""
    power = _fields(numbers.to(torch.float32))[1] - _FLOAT32_BIAS
    power = power.clamp(min=0)
    power = power - (numbers < (torch.ones_like(power) << power)).to(torch.int64)  # float32 may have rounded up
    power = power.clamp(min=0)
    fraction = (numbers << (_EXPONENT - power)) & ((1 << _EXPONENT) - 1)
    return (((power + _BIAS) << _EXPONENT) | fraction).masked_fill(numbers == 0, 0)


def double_bits_of_square(number: Tensor) -> Tensor:
    """The float64 bits of a float32 number's exact square."""
    _, exponent, fraction = _fields(number)
    whole = fraction | (1 << _FLOAT32_FRACTION)
    scale = 2 * (exponent - _FLOAT32_BIAS - _FLOAT32_FRACTION)
    bits = double_bits_of_integers(whole * whole) + (scale << _EXPONENT)
    return bits.masked_fill(exponent == 0, 0)
