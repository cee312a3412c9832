"""Errors of one output beside what a sound kernel of its dtype is expected to make.

expected  rms error of a kernel that rounds its result once, adds up in the precision of its accumulator in any
          order, and evaluates functions to about an ulp of that precision
stored    the same if one intermediate result was rounded to the inputs' precision on the way
bound     what no element of a sound kernel exceeds

What each element of an output may be off: the bounds behind the verdict, for those who measure errors themselves.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.rounding.masks import unmasked
from ulpscope.judge.soundness.grid import Floats, Grid, Mask, finiteness_of
from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.records.checks import OutputEvidence, Rule


@dataclass(frozen=True, slots=True)
class Field:
    """The elements of an output that can be judged by their errors, flat; the others count as free of error."""

    shape: tuple[int, ...]
    """Axes along which errors may have structure: of a complex output, without that of its parts."""
    parts: int
    grid: Grid
    exact: Floats
    magnitude: Floats
    """Of the element, or of the complex number that it is a part of."""
    lowest: int
    """The lowest binade."""
    bins: NDArray[np.int64]
    """The binade of each element, counted from the lowest."""
    ulp: Floats
    judged: Mask | None
    """None where all are."""
    largest: float
    """The largest magnitude; of what no attention mask sets aside, beside which any error would be small."""

    @property
    def count(self) -> int:
        return self.exact.size if self.judged is None else int(np.count_nonzero(self.judged))

    def errors(self, given: NDArray[np.generic]) -> Floats:
        errors: Floats = np.asarray(given, np.float64).ravel() - self.exact
        return errors if self.judged is None else np.where(self.judged, errors, 0.0)


def field_of(evidence: OutputEvidence, *, judged: Mask | None) -> Field:
    """`judged` tells which elements of the flat output are."""
    grid = Grid.of(evidence.dtype)
    is_complex = DTYPES[evidence.dtype].kind is DtypeKind.COMPLEX
    exact = np.ascontiguousarray(evidence.exact, np.float64).ravel()
    exact = exact if judged is None else np.where(judged, exact, 0.0)
    magnitude = _modulus(exact) if is_complex else np.abs(exact)
    exponents = grid.exponents(magnitude)
    lowest = int(exponents.min())
    return Field(
        shape=evidence.exact.shape[:-1] if is_complex else evidence.exact.shape,
        parts=2 if is_complex else 1,
        grid=grid,
        exact=exact,
        magnitude=magnitude,
        lowest=lowest,
        bins=exponents - lowest,
        ulp=grid.spacing(exponents),
        judged=judged,
        largest=float(magnitude.max() if is_complex else np.abs(unmasked(exact, evidence.dtype)).max()),
    )


def _modulus(parts: Floats) -> Floats:
    """Of each complex number, once for either part: neither is more accurate than the whole."""
    return np.repeat(np.hypot(parts[0::2], parts[1::2]), 2)


@dataclass(frozen=True, slots=True)
class Expected:
    """What each element of a sound output may be off."""

    rms: Floats
    stored: Floats
    near: Floats
    """What single elements exceed only where intermediate results were rounded to storage."""
    bound: Floats


def sensitivity_of(field: Field, given: NDArray[np.generic] | None) -> Floats:
    """RMS change of each element per unit relative change of what it is computed from; 0 where nothing is given.

    Without gaps: unknown ones are as large as any, and small ones not far below their binade's.
    """
    if given is None:
        return np.zeros_like(field.exact)
    found: Floats = np.asarray(given, np.float64).ravel()
    found = _modulus(found) if field.parts == 2 else np.abs(found)
    total = float(found.sum())
    if not math.isfinite(total):
        known = found[np.isfinite(found)]
        found = np.where(np.isfinite(found), found, known.max() if known.size else field.magnitude.max())
    if total == 0:
        return found
    squares = np.bincount(field.bins, weights=found * found) / np.maximum(np.bincount(field.bins), 1)
    return np.maximum(found, (LIMITS.smoothing * np.sqrt(squares))[field.bins])


def expected_of(field: Field, evidence: OutputEvidence) -> Expected:
    inputs, stored = sensitivity_of(field, evidence.sensitivity), evidence.intermediate_sensitivity
    accumulator = max(evidence.accumulation, LIMITS.truth_roundoff)
    floor = LIMITS.floor * accumulator * field.largest
    storing = max(evidence.input_roundoff, field.grid.dtype.unit_roundoff)
    # How errors of additions add up: at random, in any order; of a sum term by term that grows steadily to its result,
    # where its partial sums are rounded; and of one where all of them are rounded to one side, of terms that are alike.
    growth, terms = math.sqrt(1.0 + evidence.reduction / 2.0), evidence.reduction - 1.0
    walk, drift = math.sqrt(max(terms, 0.0)) / LIMITS.steady_walk, LIMITS.drift * min(terms, LIMITS.longest_drift)
    summing = (accumulator + LIMITS.truth_roundoff) * growth
    ulp = np.maximum(field.ulp, LIMITS.inner_underflow)
    # Rounding the result, adding up, evaluating functions, constants inside them, intermediate results handed on.
    variance = ulp**2 / 12.0 + (summing * inputs) ** 2 + floor**2
    variance += (math.hypot(LIMITS.evaluation, walk) * accumulator * field.magnitude) ** 2
    near = LIMITS.half_ulp * ulp
    near += (LIMITS.worst_evaluation + drift) * accumulator * field.magnitude
    near += (LIMITS.spread * summing + LIMITS.near_spread * storing) * inputs
    near += LIMITS.spread * floor + LIMITS.underflow * field.grid.smallest
    if stored is not None and np.any(stored):
        # Results that the operations of a composed call, or its forward, hand on in the precision of storage.
        intermediates = sensitivity_of(field, stored)
        variance += (math.hypot(storing, summing) * intermediates) ** 2
        near += LIMITS.spread * (storing + summing) * intermediates
    bound = near + (LIMITS.bound_spread - LIMITS.near_spread) * storing * inputs
    bound += LIMITS.near_spread * storing * field.magnitude + sloppiness(evidence, field)
    # Of the inputs' roundings, or of one intermediate result of the output's own size.
    rms_stored = np.sqrt(variance + storing**2 * (inputs**2 + field.magnitude**2))
    return Expected(rms=np.sqrt(variance), stored=rms_stored, near=near, bound=bound)


def sloppiness(evidence: OutputEvidence, field: Field) -> float:
    """An error beside the largest element, in the accumulator's precision: poor near zero, but not wrong."""
    return LIMITS.sloppy * evidence.accumulation * field.largest


def widened(expected: Expected, field: Field, ordinary: Floats) -> Expected:
    """Bounds that also explain what another sound kernel does, from its errors in the same and the next binades."""
    worst = np.zeros(int(field.bins.max()) + 1)
    np.maximum.at(worst, field.bins, np.abs(ordinary))
    padded = np.pad(worst, 2)
    worst = np.max([padded[shift : shift + worst.size] for shift in range(5)], axis=0)[field.bins]
    allowance = LIMITS.ordinary * np.where(worst > LIMITS.rounded_ulp * field.ulp, worst, 0.0)
    return Expected(expected.rms, expected.stored, expected.near + allowance, expected.bound + allowance)


@dataclass(frozen=True, slots=True)
class Noise:
    """RMS errors over the expected ones, in each binade that has enough elements, and last over all."""

    binades: NDArray[np.int64]
    counts: Floats
    rms: Floats
    stored: Floats
    """With a stored intermediate result."""
    left: Floats
    """The same, for what is left of errors after the allowance for being poor near zero."""


def beyond(errors: Floats, allowance: float) -> Floats:
    """What is left of errors after an allowance for each."""
    return errors - np.clip(errors, -allowance, allowance)


def capped(scaled: Floats) -> Floats:
    """Errors without the weight of single outliers, which are judged as such."""
    return np.clip(scaled, -LIMITS.spread, LIMITS.spread)


def noise_of(field: Field, scaled: Floats, stored: Floats, left: Floats) -> Noise:
    counts = np.bincount(field.bins, weights=field.judged).astype(np.float64)
    enough = np.flatnonzero(counts >= min(LIMITS.least_bin, field.count))
    sums = [np.bincount(field.bins, weights=each * each) for each in (scaled, stored, left)]
    counts = np.append(counts[enough], field.count)
    overall = int(field.bins[np.argmax(field.magnitude)])
    return Noise(
        np.append(enough, overall) + field.lowest,
        counts,
        *(np.sqrt(np.append(each[enough], each.sum()) / counts) for each in sums),
    )


@dataclass(frozen=True, slots=True)
class Bias:
    """Whether errors lean towards zero (below 0) or away from it."""

    mean: float
    """In expected rms errors."""
    z: float
    stored: float
    """The mean with a stored intermediate result."""
    stored_z: float
    one_sided: float
    """Share of the more frequent sign among errors that are not 0."""
    directed: bool
    """Whether every error is a rounding to one side."""


def bias_of(field: Field, errors: Floats, scaled: Floats, stored: Floats) -> Bias:
    signs = np.sign(field.exact)
    signed = signs * scaled
    below, above = (int(np.count_nonzero(side)) for side in (signed < 0, signed > 0))
    one_sided = max(below, above) / max(below + above, 1)
    mean, z = _leaning(signed, field.count)
    stored_mean, stored_z = _leaning(signs * stored, field.count)
    sided = below + above >= LIMITS.one_sided_elements and one_sided >= LIMITS.one_sided
    return Bias(mean, z, stored_mean, stored_z, one_sided, sided and _is_directed(field, errors, below + above))


def _is_directed(field: Field, errors: Floats, inexact: int) -> bool:
    """A factor that is off makes errors of one side too, but larger ones at the end of each binade."""
    ulps = np.abs(errors) / field.ulp
    within = np.count_nonzero(ulps > LIMITS.one_ulp) <= (1.0 - LIMITS.one_sided) * field.count
    return bool(within and ulps.sum() > LIMITS.directed_ulp * inexact)


def _leaning(signed: Floats, count: int) -> tuple[float, float]:
    """The mean, and how many standard errors it is from 0; few errors that are alike by chance make none."""
    mean = float(signed.sum()) / count
    variance = float(np.einsum("i,i->", signed, signed)) / count - mean * mean
    return mean, abs(mean) * math.sqrt(count / max(variance, LIMITS.bias_scatter**2))


@dataclass(frozen=True, slots=True)
class Structure:
    """The index of an axis whose errors stand out most."""

    ratio: float
    """Over what chance allows."""
    axis: int = -1
    index: int = -1


def structure_of(field: Field, stored: Floats) -> Structure:
    """`stored` are errors without the weight of single outliers."""
    worst = Structure(0.0)
    if len(field.shape) < 2 or not stored.any():
        return worst
    views = (stored, np.sign(field.exact) * stored, stored * stored)
    for axis, length in enumerate(field.shape):
        others = field.exact.size // max(length, 1)
        if length >= 2 and others >= LIMITS.structure_elements:
            worst = max(worst, _along(field, views, axis), key=lambda each: each.ratio)
    return worst


def _along(field: Field, views: tuple[Floats, Floats, Floats], axis: int) -> Structure:
    before = math.prod(field.shape[:axis])
    cut = (before, field.shape[axis], -1)
    if field.judged is None:
        counts = np.full(field.shape[axis], float(field.exact.size // field.shape[axis]))
    else:
        counts = np.maximum(field.judged.reshape(cut).sum(axis=(0, 2)), 1).astype(np.float64)
    plain, signed, squares = (view.reshape(cut).sum(axis=(0, 2)) / counts for view in views)
    means = np.maximum(np.abs(plain), np.abs(signed))
    spreads = np.sqrt(squares)
    ratios = np.maximum(
        means / np.maximum(LIMITS.structure, LIMITS.structure_z / np.sqrt(counts)),
        spreads / (LIMITS.structure_rms * (1.0 + LIMITS.noise_scatter / np.sqrt(2.0 * counts))),
    )
    ratios[counts < LIMITS.structure_elements] = 0.0
    index = int(np.argmax(ratios))
    return Structure(float(ratios[index]), axis, index)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Of the elements of a float output, flat."""

    judged: Mask
    """Finite, as the truth is."""
    mismatched: Mask
    """Inf or nan where the truth is not, or the other way round."""
    ulp: Floats
    expected: Floats
    """RMS error of a sound kernel that rounds one intermediate result to storage."""
    bound: Floats
    """What no element of a sound kernel exceeds."""
    sloppy: float
    """An error that is small beside the largest element."""


def tolerance_of(evidence: OutputEvidence) -> Tolerance:
    finite = finiteness_of(evidence)
    field = field_of(evidence, judged=finite.judged)
    expected = _expected(evidence, field)
    none = np.zeros(field.exact.size, np.bool_)
    return Tolerance(
        judged=~none if finite.judged is None else finite.judged,
        mismatched=none if finite.mismatched is None else finite.mismatched,
        ulp=field.ulp,
        expected=expected.stored,
        bound=expected.bound,
        sloppy=0.0 if evidence.rule is Rule.EXACT else sloppiness(evidence, field),
    )


def _expected(evidence: OutputEvidence, field: Field) -> Expected:
    if evidence.rule is Rule.EXACT:
        rms, half = field.ulp * LIMITS.uniform, field.ulp * LIMITS.half_ulp
        return Expected(rms=rms, stored=rms, near=half, bound=half)
    expected = expected_of(field, evidence)
    if evidence.ordinary is None:
        return expected
    errors = field.errors(evidence.ordinary)
    return widened(expected, field, np.where(np.isfinite(errors), errors, 0.0))
