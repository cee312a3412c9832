"""The numbers that a float type has: their distances, and rounding to the nearest of them.

Everything is computed on float64 arrays: casting would round twice on the way to the small types.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_EXPONENT_BITS, _BIAS = 52, 1023


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers of one float type."""

    dtype: Dtype

    @classmethod
    def of(cls, name: str) -> "Grid":
        """Of a float type, or of the parts of a complex one."""
        return cls(DTYPES[DTYPES[name].real or name])

    @property
    def significand(self) -> int:
        return -int(np.log2(self.dtype.unit_roundoff))

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return 2.0 * self.dtype.smallest_normal * self.dtype.unit_roundoff

    @property
    def has_infinity(self) -> bool:
        return not self.dtype.name.endswith(("fn", "fnuz", "fnu"))

    @property
    def overflow(self) -> float:
        """The least magnitude that rounds to infinity."""
        _, exponent = np.frexp(self.dtype.largest)
        return float(self.dtype.largest + np.ldexp(0.5, int(exponent) - self.significand))

    def exponents(self, magnitudes: Floats) -> NDArray[np.int64]:
        """floor(log2) of each, that of the smallest normal number for what is below it."""
        lowest = int(np.log2(self.dtype.smallest_normal))
        raised: NDArray[np.int64] = (magnitudes.view(np.int64) >> _EXPONENT_BITS) - _BIAS
        return np.maximum(raised, lowest)

    def spacing(self, exponents: NDArray[np.int64]) -> Floats:
        """Distance of neighbouring numbers in each of these binades."""
        if self.dtype.name == "float64":
            return np.ldexp(1.0, exponents - 52)
        bits = exponents + (_BIAS + 1 - self.significand)
        bits <<= _EXPONENT_BITS
        return bits.view(np.float64)

    def nearest(self, values: Floats) -> Floats:
        """Each value rounded to nearest, ties to even; beyond the largest number infinity, or nan if there is none."""
        if self.dtype.name == "float64":
            return values
        finite = np.where(np.isfinite(values), values, 0.0)
        spacing = self.spacing(self.exponents(np.abs(finite)))
        rounded = np.rint(finite / spacing) * spacing
        beyond = np.copysign(np.inf if self.has_infinity else np.nan, finite)
        rounded = np.where(np.abs(rounded) > self.dtype.largest, beyond, rounded)
        return np.where(np.isfinite(values), rounded, values)
