"""Results of judging with what they say, a sentence a statistic, and the rules other than rounding: exact results,
invariants that are small beside a norm, and whether a random call did what it does as often as stated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ulpscope.judge.soundness.grid import Floats, Grid, Mask, finiteness_of
from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.checks import OutputEvidence, OutputResult, ShareEvidence, Verdict

Facts = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that shows an error best."""

    position: int
    """In the flat output."""
    ulp: float
    """Its error, in distances of neighbouring numbers."""


def output_result(
    evidence: OutputEvidence,
    verdict: Verdict,
    statistic: str,
    message: str,
    *,
    worst: int | None = None,
    metrics: Mapping[str, float] | None = None,
) -> OutputResult:
    """A result with what is known of the output; `worst` is the position of its worst element."""
    return OutputResult(
        place=evidence.place,
        direction=evidence.direction,
        verdict=verdict,
        statistic=statistic,
        message=message,
        dtype=evidence.dtype,
        shape=tuple(evidence.exact.shape),
        worst=None if worst is None else tuple(map(int, np.unravel_index(worst, evidence.exact.shape))),
        worst_computed=None if worst is None else float(evidence.computed.flat[worst]),
        worst_exact=None if worst is None else float(evidence.exact.flat[worst]),
        metrics=tuple((metrics or {}).items()),
    )


def result_of(
    evidence: OutputEvidence,
    verdict: Verdict,
    statistic: str,
    facts: Facts | None = None,
    *,
    worst: Worst | None = None,
) -> OutputResult:
    """A result that says what decided, and of the worst element, unless all is well."""
    known = {"elements": evidence.exact.size, **(facts or {})}
    message = SENTENCES[statistic].format(**known)
    figures = {name: float(fact) for name, fact in known.items() if not isinstance(fact, str)}
    if worst is None:
        return output_result(evidence, verdict, statistic, message, metrics=figures)
    figures["max_ulp"] = worst.ulp
    found = output_result(evidence, verdict, statistic, message, worst=worst.position, metrics=figures)
    if verdict is Verdict.PASS:
        return found
    place, computed, exact = ", ".join(map(str, found.worst or ())), found.worst_computed, found.worst_exact
    told = WORST.format(message=message, place=place, computed=computed, exact=exact, ulp=worst.ulp)
    return replace(found, message=told)


def not_finite(
    evidence: OutputEvidence, where: Mask, verdict: Verdict = Verdict.FAIL, facts: Facts | None = None
) -> OutputResult:
    """Inf or nan in these places, unlike the truth."""
    told = {**(facts or {}), "mismatched": int(np.count_nonzero(where))}
    return result_of(evidence, verdict, "not_finite", told, worst=Worst(int(np.argmax(where)), math.inf))


SENTENCES: Mapping[str, str] = {
    "identical": "all {elements} elements are the correctly rounded truth",
    "rounded": "all {elements} elements are within half an ulp of the truth",
    "sound": "the errors are those of a sound kernel: at most {noise:.2f} of the expected rms in any binade",
    "violation": "{violation}",
    "shape": "the output has the shape {computed_shape}, expected {exact_shape}",
    "not_finite": "{mismatched} of {elements} elements are inf or nan where the truth is not, or the other way round",
    "flushed": "{flushed} of {elements} elements too small for a normal number are flushed to zero",
    "underflow": (
        "underflow: the numbers lie below the normal ones of this dtype, and {lost:.2g} of their norm is lost"
    ),
    "unequal": "{unequal} of {elements} elements differ from the truth, which this operation gives exactly",
    "outlier": "outlier: a single error is {outlier:.3g} times what rounding can make it",
    "near": "outlier: a single error is {near:.3g} times what one stored intermediate result explains",
    "noise": "noise: the rms error is {noise:.3g} times the expected (limit {noise_limit:.2g}) near 2^{binade:g}",
    "bias": (
        "bias: {one_sided:.0%} of the inexact elements are {side}"
        " (mean error {bias:.2g} of the expected rms, limit {bias_limit:.2g})"
    ),
    "structure": (
        "structure: the errors of index {structure_index:g} of axis {structure_axis:g} have much in common"
        " ({structure:.2g} times what chance allows)"
    ),
    "norm": "norm: the error is {norm:.3g} times sqrt(n) roundoffs of the whole (limit {norm_limit:g})",
    "share": (
        "share: {successes} of {trials} ({observed:.4g}), expected {probability:g}: {z:.1f} standard deviations"
        " (limit {z_limit:g})"
    ),
    "empty": "the output is empty: there was nothing to judge",
    "all_not_finite": "every element is inf or nan, as it should be: there was nothing to judge",
    "saturated": "every element is constant or saturated: no other input would have given another output",
    "few_trials": "{trials} trials at probability {probability:g} are too few to tell a wrong share",
}
TOWARDS_ZERO, AWAY_FROM_ZERO = "off towards zero", "off away from zero"
WORST = "{message}; worst element [{place}]: {computed:.9g}, exact {exact:.9g}, {ulp:.3g} ulp"


def judge_exact(evidence: OutputEvidence) -> OutputResult:
    """Moved, chosen or whole numbers: the truth in the output's dtype, and nothing else."""
    if DTYPES[evidence.dtype].unit_roundoff == 0:
        return _unequal(evidence, evidence.computed.ravel() != evidence.exact.ravel(), flushed=0)
    # Flat, because numpy makes numbers of what has no axes.
    computed, exact = (np.asarray(each, np.float64).ravel() for each in (evidence.computed, evidence.exact))
    # What autocast computed may lie between the numbers of the dtype, and be the truth all the same.
    right = (computed == exact) | (np.isnan(computed) & np.isnan(exact))
    if right.all():
        return _unequal(evidence, ~right, flushed=0)
    rounded = Grid.of(evidence.dtype).nearest(exact)
    right |= (computed == rounded) | (np.isnan(computed) & np.isnan(rounded))
    tiny = np.abs(exact) < Grid.of(evidence.dtype).dtype.smallest_normal
    flushed = ~right & tiny & (computed == 0)
    return _unequal(evidence, ~(right | flushed), flushed=int(np.count_nonzero(flushed)))


def _unequal(evidence: OutputEvidence, wrong: Mask, *, flushed: int) -> OutputResult:
    unequal = int(np.count_nonzero(wrong))
    facts = {"unequal": unequal, "flushed": flushed}
    if unequal:
        return result_of(evidence, Verdict.FAIL, "unequal", facts, worst=_most_unequal(evidence, wrong))
    verdict, statistic = (Verdict.WARN, "flushed") if flushed else (Verdict.PASS, "identical")
    return result_of(evidence, verdict, statistic, facts)


def _most_unequal(evidence: OutputEvidence, wrong: Mask) -> Worst:
    computed, exact = (np.asarray(each, np.float64).ravel() for each in (evidence.computed, evidence.exact))
    with np.errstate(invalid="ignore"):
        distances = np.abs(computed - exact)
    distances = np.where(wrong, np.where(np.isnan(distances), np.inf, distances), -1.0)
    position = int(np.argmax(distances))
    if DTYPES[evidence.dtype].unit_roundoff == 0 or not np.isfinite(exact[position]):
        return Worst(position, float(distances[position]))
    return _in_ulp(evidence, distances, position)


def _in_ulp(evidence: OutputEvidence, distances: Floats, position: int) -> Worst:
    grid = Grid.of(evidence.dtype)
    truth = np.abs(np.asarray(evidence.exact, np.float64).ravel()[position : position + 1])
    return Worst(position, float(distances[position] / grid.spacing(grid.exponents(truth))[0]))


def judge_norm(evidence: OutputEvidence) -> OutputResult:
    """An invariant of a factorisation."""
    computed, exact = (np.asarray(each, np.float64).ravel() for each in (evidence.computed, evidence.exact))
    finite = finiteness_of(evidence)
    if finite.mismatched is not None:
        return not_finite(evidence, finite.mismatched)
    if finite.nothing_judged:
        return result_of(evidence, Verdict.UNTESTED, "all_not_finite")
    keep = slice(None) if finite.judged is None else finite.judged
    scale = float(np.linalg.norm(exact[keep])) if evidence.scale is None else evidence.scale
    roundoff = max(DTYPES[evidence.dtype].unit_roundoff, evidence.accumulation)
    unit = roundoff * math.sqrt(max(evidence.reduction, 1.0)) * scale
    error = float(np.linalg.norm(computed[keep] - exact[keep]))
    norm = error / unit if unit > 0 else (math.inf if error > 0 else 0.0)
    fails = norm > LIMITS.norm_fail
    limit = LIMITS.norm_fail if fails else LIMITS.norm_warn
    verdict = Verdict.FAIL if fails else Verdict.WARN
    if norm <= limit:
        verdict = Verdict.PASS
    with np.errstate(invalid="ignore"):
        distances = np.nan_to_num(np.abs(np.asarray(evidence.computed - evidence.exact, np.float64)).ravel())
    worst = _in_ulp(evidence, distances, int(np.argmax(distances)))
    facts = {"norm": norm, "norm_limit": limit, "limit_share": norm / LIMITS.norm_warn}
    return result_of(evidence, verdict, "norm", facts, worst=worst)


def judge_share(evidence: ShareEvidence) -> OutputResult:
    """A two-sided binomial test."""
    z = _deviation(evidence.successes, evidence.trials, evidence.probability)
    extremes = (_deviation(count, evidence.trials, evidence.probability) for count in (0, evidence.trials))
    verdict, statistic = Verdict.FAIL if z > LIMITS.share_z else Verdict.PASS, "share"
    if evidence.trials == 0 or max(extremes) <= LIMITS.share_z:
        verdict, statistic = Verdict.UNTESTED, "few_trials"
    facts = {
        "successes": evidence.successes,
        "trials": evidence.trials,
        "observed": evidence.successes / max(evidence.trials, 1),
        "probability": evidence.probability,
        "z": z,
        "z_limit": LIMITS.share_z,
    }
    return OutputResult(
        place=evidence.place,
        direction=evidence.direction,
        verdict=verdict,
        statistic=statistic,
        message=SENTENCES[statistic].format(**facts),
        metrics=tuple((name, float(fact)) for name, fact in facts.items()),
    )


def _deviation(successes: int, trials: int, probability: float) -> float:
    """How unlikely the count is, as standard deviations of a normal distribution."""
    expected = trials * probability
    variance = expected * (1.0 - probability)
    if variance <= 0:
        return 0.0 if successes == round(expected) else math.inf
    if variance >= LIMITS.normal_variance:
        return max(abs(successes - expected) - 0.5, 0.0) / math.sqrt(variance)
    return _normal_deviation(2.0 * _tail(successes, trials, probability))


def _tail(successes: int, trials: int, probability: float) -> float:
    """Probability of this count or one farther from the expected, on its side."""
    step = 1 if successes >= trials * probability else -1
    last = min(trials, successes + LIMITS.tail_terms) if step > 0 else max(0, successes - LIMITS.tail_terms)
    counts = range(successes, last + step, step)
    ways = (math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1) for count in counts)
    chances = (count * math.log(probability) + (trials - count) * math.log1p(-probability) for count in counts)
    return math.fsum(math.exp(way + chance) for way, chance in zip(ways, chances, strict=True))


def _normal_deviation(chance: float) -> float:
    """The deviation that a normal variable exceeds, on either side, with that chance."""
    if chance >= 1:
        return 0.0
    low, high = 0.0, 38.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) > chance else (low, middle)
    return low
