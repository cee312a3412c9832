"""Is an output what a sound kernel gives, or what no rounding explains? Pure functions from evidence to a verdict.

PASS      the errors of a kernel that rounds its result once and adds up in its accumulator's precision
WARN      explained by intermediate results rounded to the precision of storage, by flushing subnormal numbers to
          zero, or poor near zero only
FAIL      no rounding explains it
UNTESTED  nothing in the output could have shown a fault
"""

from dataclasses import dataclass, replace

import numpy as np

from ulpscope.judge.soundness.exact import (
    AWAY_FROM_ZERO,
    TOWARDS_ZERO,
    Facts,
    Worst,
    judge_exact,
    judge_norm,
    judge_share,
    not_finite,
    result_of,
)
from ulpscope.judge.soundness.grid import Finiteness, Floats, Mask, finiteness_of
from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.judge.soundness.statistics import (
    Bias,
    Expected,
    Field,
    Noise,
    Structure,
    beyond,
    bias_of,
    capped,
    expected_of,
    field_of,
    noise_of,
    sensitivity_of,
    sloppiness,
    structure_of,
    widened,
)
from ulpscope.records.checks import OutputEvidence, OutputResult, Rule, Verdict

__all__ = ["judge_output", "judge_share"]


def judge_output(evidence: OutputEvidence) -> OutputResult | None:
    """The verdict; none if it takes the sensitivity to decide."""
    if evidence.violation is not None:
        return result_of(evidence, Verdict.FAIL, "violation", {"violation": evidence.violation})
    if evidence.computed.shape != evidence.exact.shape:
        shapes = {"computed_shape": str(evidence.computed.shape), "exact_shape": str(evidence.exact.shape)}
        return result_of(evidence, Verdict.FAIL, "shape", shapes)
    if evidence.exact.size == 0:
        return result_of(evidence, Verdict.UNTESTED, "empty")
    if evidence.rule is Rule.EXACT or evidence.exact.dtype.kind in "biu":
        return judge_exact(evidence)
    if evidence.rule is Rule.NORMWISE:
        return judge_norm(evidence)
    return judge_rounded(evidence)


def judge_rounded(evidence: OutputEvidence) -> OutputResult | None:
    """The verdict; none if it takes the sensitivity to decide."""
    finite = finiteness_of(evidence)
    if evidence.sensitivity is None and (finite.mismatched is not None or finite.flushed is not None):
        return None
    if finite.mismatched is not None:
        return not_finite(evidence, finite.mismatched)
    if finite.nothing_judged:
        return _nothing_judged(evidence, finite)
    field = field_of(evidence, judged=finite.judged)
    errors = field.errors(evidence.computed)
    worst = _worst(errors, field.ulp)
    rounded = worst.ulp <= LIMITS.half_ulp and finite.flushed is None and finite.overflowed is None
    if rounded and not _plain(field):
        return _rounded(evidence, worst)
    if evidence.sensitivity is None:
        return None
    if rounded:
        moved = bool(np.any(sensitivity_of(field, evidence.sensitivity) >= LIMITS.saturated * field.ulp))
        return _rounded(evidence, worst) if moved else result_of(evidence, Verdict.UNTESTED, "saturated")
    return _judge_errors(evidence, field, errors, expected_of(field, evidence), finite)


def _nothing_judged(evidence: OutputEvidence, finite: Finiteness) -> OutputResult:
    if finite.overflowed is not None:
        return not_finite(evidence, finite.overflowed, Verdict.WARN)
    if finite.flushed is None:
        return result_of(evidence, Verdict.UNTESTED, "all_not_finite")
    flushed = _unlike_others(evidence, finite.flushed)
    if not flushed.any():
        return result_of(evidence, Verdict.UNTESTED, "saturated")
    return result_of(evidence, Verdict.WARN, "flushed", {"flushed": int(np.count_nonzero(flushed))})


def _flushed(evidence: OutputEvidence, finite: Finiteness, expected: Expected) -> int:
    """Elements that came out as 0 and that nothing but flushing explains."""
    if finite.flushed is None:
        return 0
    flushed = _unlike_others(evidence, finite.flushed)
    sizes = np.abs(np.asarray(evidence.exact, np.float64).ravel()[flushed])
    return int(np.count_nonzero(sizes > expected.near[flushed]))


def _unlike_others(evidence: OutputEvidence, flushed: Mask) -> Mask:
    """Without what underflows in ideal kernels, too, because of how the call is composed."""
    if evidence.ordinary is None:
        return flushed
    kept: Mask = flushed & (np.asarray(evidence.ordinary, np.float64).ravel() != 0)
    return kept


def _worst(errors: Floats, units: Floats) -> Worst:
    ratios = np.abs(errors) / units
    position = int(np.argmax(ratios))
    return Worst(position, float(ratios[position]))


def _plain(field: Field) -> bool:
    """Whether the truth is so plain, in its dtype, that a wrong kernel may well give it: one number, or 0 and 1."""
    ones = np.abs(field.magnitude - 1.0) <= field.grid.dtype.unit_roundoff
    zeros = field.magnitude < field.ulp * LIMITS.half_ulp
    return bool(np.all(ones | zeros)) or (field.count > 1 and bool(np.all(field.exact == field.exact[0])))


def _rounded(evidence: OutputEvidence, worst: Worst) -> OutputResult:
    """Every element that can be judged is as near to the truth as its dtype allows."""
    return result_of(evidence, Verdict.PASS, "rounded" if worst.ulp else "identical", worst=worst)


@dataclass(frozen=True, slots=True)
class _Figures:
    """Statistics of one output, and the limits that hold for it."""

    outlier: Worst
    """In units of the bound."""
    near: Worst
    """In units of what roundings of known intermediate results explain."""
    noise: float
    noise_limit: float
    stored: float
    left: float
    left_limit: float
    binade: int
    bias: Bias
    bias_factor: float
    """How much farther another sound kernel's bias moves the limits."""
    elements: int
    widely_computed: bool
    """Sums inside are more precise than the result."""
    directed: bool
    """The result was rounded to one side, from something more precise."""
    lone: bool
    """A few elements are off while all others are as good as those of a kernel that stores nothing inside."""
    structure: Structure
    outliers_sloppy: bool
    """The outliers are few, and roundings of the largest element to storage."""

    def leans(self, limit: float) -> bool:
        return self.bias.z > LIMITS.bias_z and abs(self.bias.mean) > limit * self.bias_factor

    def leans_wholly(self) -> bool:
        """More than intermediate results explain that kernels of such a call are known to hand on."""
        if not self.widely_computed or abs(self.bias.stored) <= LIMITS.bias_cancelled:
            return False
        if self.elements < LIMITS.bias_elements:
            return self.leans(LIMITS.bias_shared_fail)
        sided = self.bias.one_sided >= LIMITS.one_sided
        return self.leans(LIMITS.bias_sided_fail if sided else LIMITS.bias_fail)

    def failing(self) -> list[str]:
        """What no rounding explains, most telling first."""
        noisy = self.noise > LIMITS.noise_fail / LIMITS.noise_warn * self.noise_limit
        stored, stored_limit = abs(self.bias.stored), LIMITS.bias_stored_fail * self.bias_factor
        tests = (
            ("bias", self.directed or (self.bias.stored_z > LIMITS.bias_z and stored > stored_limit)),
            ("structure", self.structure.ratio > 1),
            ("outlier", (self.outlier.ulp > 1 and not self.outliers_sloppy) or self.lone),
            ("bias", self.leans_wholly()),
            ("noise", noisy and self.left > self.left_limit),
        )
        return [statistic for statistic, fails in tests if fails]

    def limit_share(self) -> float:
        """How near the figure that is nearest to its limit is to it: from 1 on it is told."""
        leaning = min(self.bias.z / LIMITS.bias_z, abs(self.bias.mean) / (LIMITS.bias_warn * self.bias_factor))
        noisy = min(self.noise / self.noise_limit, self.stored / LIMITS.storage_warn)
        return float(max(leaning, self.outlier.ulp, self.near.ulp, noisy, self.structure.ratio))

    def warning(self) -> list[str]:
        tests = {
            "bias": self.leans(LIMITS.bias_warn),
            "outlier": self.outlier.ulp > 1,
            "near": self.near.ulp > 1,
            "noise": self.noise > self.noise_limit and self.stored > LIMITS.storage_warn,
        }
        return [statistic for statistic, warns in tests.items() if warns]


def _judge_errors(
    evidence: OutputEvidence, field: Field, errors: Floats, expected: Expected, finite: Finiteness
) -> OutputResult:
    figures = _figures(evidence, field, errors, expected)
    facts = {**_facts(figures), "flushed": _flushed(evidence, finite, expected)}
    failing = figures.failing()
    position = (figures.outlier if failing else figures.near).position
    worst = Worst(position, float(abs(errors[position]) / field.ulp[position]))
    if failing and _is_lost(evidence, field, errors):
        lost = float(np.linalg.norm(errors) / np.linalg.norm(field.magnitude))
        return result_of(evidence, Verdict.WARN, "underflow", {**facts, "lost": lost}, worst=worst)
    if failing:
        facts = {**facts, "bias_limit": LIMITS.bias_fail * figures.bias_factor}
        return result_of(evidence, Verdict.FAIL, failing[0], facts, worst=worst)
    if finite.overflowed is not None:
        return not_finite(evidence, finite.overflowed, Verdict.WARN, facts)
    if warning := [*figures.warning(), *(["flushed"] if facts["flushed"] else [])]:
        return result_of(evidence, Verdict.WARN, warning[0], facts, worst=worst)
    return result_of(evidence, Verdict.PASS, "sound", facts, worst=worst)


def _is_lost(evidence: OutputEvidence, field: Field, errors: Floats) -> bool:
    """Whether it is a sum of what kernels could only hand on below the normal numbers of their type."""
    size = float(np.linalg.norm(field.magnitude))
    small = size < field.grid.dtype.smallest_normal * field.count**0.5
    return small and evidence.reduction > 1 and float(np.linalg.norm(errors)) <= LIMITS.lost * size


def _figures(evidence: OutputEvidence, field: Field, errors: Floats, expected: Expected) -> _Figures:
    other = _errors_of_another(evidence, field)
    if other is not None:
        expected = widened(expected, field, other)
    scaled, stored = errors / expected.rms, capped(errors / expected.stored)
    left = capped(beyond(errors, sloppiness(evidence, field)) / expected.stored)
    noise, structure, factor = noise_of(field, scaled, stored, left), structure_of(field, left), 1.0
    if other is not None:
        noise, structure, factor = _beside(field, expected, other, (noise, structure))
    scatter = 1.0 + LIMITS.noise_scatter / np.sqrt(2.0 * noise.counts)
    top, top_left = int(np.argmax(noise.rms / scatter)), int(np.argmax(noise.left / scatter))
    bias, sizes = bias_of(field, errors, scaled, stored), np.abs(errors)
    widely = evidence.accumulation < field.grid.dtype.unit_roundoff
    return _Figures(
        outlier=_worst(sizes, expected.bound),
        near=_worst(sizes, expected.near),
        noise=float(noise.rms[top]),
        noise_limit=float(LIMITS.noise_warn * scatter[top]),
        stored=float((noise.stored / scatter).max()),
        left=float(noise.left[top_left]),
        left_limit=float(LIMITS.storage_fail * scatter[top_left]),
        binade=int(noise.binades[top]),
        bias=bias,
        elements=field.count,
        widely_computed=widely,
        directed=bias.directed and widely,
        lone=widely and _are_lone(sizes, scaled, expected, field),
        bias_factor=factor,
        structure=structure,
        outliers_sloppy=_are_sloppy(sizes, expected.bound, evidence, field),
    )


def _are_sloppy(sizes: Floats, bound: Floats, evidence: OutputEvidence, field: Field) -> bool:
    outliers = sizes > bound
    if np.count_nonzero(outliers) > max(LIMITS.sloppy_share * field.count, LIMITS.sloppy_elements):
        return False
    storing = max(evidence.input_roundoff, field.grid.dtype.unit_roundoff)
    return bool(np.all(sizes[outliers] <= storing * field.largest))


def _are_lone(sizes: Floats, scaled: Floats, expected: Expected, field: Field) -> bool:
    """A kernel that stores intermediate results does so for every element, which makes all of them noisy."""
    off = sizes > LIMITS.lone * expected.near
    if not 0 < np.count_nonzero(off) <= LIMITS.lone_share * field.count:
        return False
    others = scaled[sizes <= expected.near]
    return float(np.einsum("i,i->", others, others)) <= LIMITS.noise_warn**2 * field.count


def _errors_of_another(evidence: OutputEvidence, field: Field) -> Floats | None:
    """Of another sound kernel; none where it gives the rounded truth, which excuses nothing."""
    if evidence.ordinary is None:
        return None
    errors = field.errors(evidence.ordinary)
    errors = np.where(np.isfinite(errors), errors, 0.0)
    return errors if np.any(np.abs(errors) > LIMITS.rounded_ulp * field.ulp) else None


def _beside(
    field: Field, expected: Expected, other: Floats, own: tuple[Noise, Structure]
) -> tuple[Noise, Structure, float]:
    """Figures over those of another sound kernel, where that one is worse than expected."""
    scaled, stored = other / expected.rms, capped(other / expected.stored)
    noise, structure = noise_of(field, scaled, stored, stored), structure_of(field, stored)
    mine = own[0]
    relative = Noise(
        mine.binades,
        mine.counts,
        mine.rms / np.maximum(noise.rms, 1.0),
        mine.stored / np.maximum(noise.stored, 1.0),
        mine.left / np.maximum(noise.stored, 1.0),
    )
    ratio = own[1].ratio / max(1.0, LIMITS.ordinary_ratio * structure.ratio)
    bias = LIMITS.ordinary_ratio * abs(bias_of(field, other, scaled, stored).mean) / LIMITS.bias_unit
    return relative, replace(own[1], ratio=ratio), max(1.0, bias)


def _facts(figures: _Figures) -> Facts:
    return {
        "outlier": figures.outlier.ulp,
        "near": figures.near.ulp,
        "noise": figures.noise,
        "noise_limit": figures.noise_limit,
        "noise_stored": figures.stored,
        "noise_left": figures.left,
        "binade": figures.binade,
        "bias": figures.bias.mean,
        "bias_stored": figures.bias.stored,
        "bias_stored_z": figures.bias.stored_z,
        "bias_limit": LIMITS.bias_warn * figures.bias_factor,
        "bias_z": figures.bias.z,
        "one_sided": figures.bias.one_sided,
        "side": TOWARDS_ZERO if figures.bias.mean < 0 else AWAY_FROM_ZERO,
        "structure": figures.structure.ratio,
        "structure_axis": figures.structure.axis,
        "structure_index": figures.structure.index,
        "limit_share": figures.limit_share(),
    }
