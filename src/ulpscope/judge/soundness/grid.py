"""The numbers that a float type has: their distances, rounding to the nearest of them, and which elements of an output
have errors that can be judged: no inf, nan, nor what is too large or too small for the dtype.

Everything is computed on float64 arrays: casting would round twice on the way to the small types.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.numerics.dtypes import DTYPES, Dtype
from ulpscope.records.checks import OutputEvidence

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


@dataclass(frozen=True, slots=True)
class Finiteness:
    """Which elements of a flat output are wrong, or right, for not being ordinary numbers."""

    judged: Mask | None
    """Finite on both sides; none where all are."""
    mismatched: Mask | None
    """Inf, nan or beyond the largest number on one side only; none where there are none."""
    flushed: Mask | None
    """Subnormal truths that came out as 0; none where there are none."""
    overflowed: Mask | None = None
    """Inf or nan only because a result inside the call overflows before it is handed on; none where there are none."""

    @property
    def nothing_judged(self) -> bool:
        return self.judged is not None and not self.judged.any()


def finiteness_of(evidence: OutputEvidence) -> Finiteness:
    grid = Grid.of(evidence.dtype)
    computed, exact = (np.asarray(each, np.float64).ravel() for each in (evidence.computed, evidence.exact))
    magnitude = np.abs(exact)
    ordinary = np.isfinite(computed) & (magnitude < grid.overflow)
    flushed = _flushed(computed, magnitude, grid)
    if ordinary.all():
        return Finiteness(None if flushed is None else ~flushed, None, flushed)
    mismatched = ~ordinary & ~_agreeing(computed, exact, grid) & ~_on_the_edge(computed, magnitude, grid, evidence)
    composed = np.zeros_like(mismatched)
    if evidence.ordinary is not None:
        # Ideal kernels, composed in the same way, give no number either.
        other = np.asarray(evidence.ordinary, np.float64).ravel()
        composed = mismatched & ~np.isfinite(other) & ~np.isfinite(computed) & np.isfinite(magnitude)
    mismatched &= ~composed
    judged = ordinary if flushed is None else ordinary & ~flushed
    return Finiteness(judged, _some(mismatched), flushed, _some(composed))


def _some(mask: Mask) -> Mask | None:
    return mask if mask.any() else None


def _flushed(computed: Floats, magnitude: Floats, grid: Grid) -> Mask | None:
    tiny = magnitude < grid.dtype.smallest_normal
    if not tiny.any():
        return None
    found: Mask = tiny & (computed == 0) & (magnitude > LIMITS.half_ulp * grid.smallest)
    return _some(found)


def _agreeing(computed: Floats, exact: Floats, grid: Grid) -> Mask:
    """The same inf, both nan, or an overflow that the dtype has no other answer to."""
    beyond = np.abs(exact) >= grid.overflow
    overflowed = beyond & np.isinf(computed) & (np.signbit(computed) == np.signbit(exact))
    if not grid.has_infinity:
        overflowed = beyond & (np.isnan(computed) | (np.abs(computed) == grid.dtype.largest))
    agreeing: Mask = (np.isnan(computed) & np.isnan(exact)) | overflowed
    return agreeing


def _on_the_edge(computed: Floats, magnitude: Floats, grid: Grid, evidence: OutputEvidence) -> Mask:
    """So near the largest number that rounding decides."""
    # Relative error that an element may have.
    margin = np.full(magnitude.shape, LIMITS.overflow_margin * grid.dtype.unit_roundoff)
    if evidence.sensitivity is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.asarray(evidence.sensitivity, np.float64).ravel() / magnitude
        moved = LIMITS.spread * evidence.input_roundoff * np.nan_to_num(change, nan=0.0, posinf=0.0)
        margin = np.maximum(margin, np.minimum(moved, LIMITS.widest_margin))
    near = np.abs(magnitude / grid.dtype.largest - 1.0) < margin
    excused: Mask = near & (np.abs(computed) > grid.dtype.largest * (1.0 - 2.0 * margin))
    return excused
