"""Does an output move more than it should when its inputs move a little? Pure functions from evidence to a verdict.

condition        the exact result moves too, and rounding adds something at either end: what is beyond is instability
free-benchmark   the ratio of both results, within a fixed limit of the dtype: elements smaller than a noise level count
                 as that level; a changed sign counts where both are larger
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ulpscope.judge.soundness.exact import judge_norm, output_result
from ulpscope.judge.soundness.grid import Floats, Mask
from ulpscope.judge.soundness.statistics import tolerance_of
from ulpscope.judge.standards.limits import MOST_UNBALANCED, PERTURBATIONS, SMALLEST_GRADIENT, PerturbationLimits
from ulpscope.records.checks import (
    Direction,
    OutputEvidence,
    OutputResult,
    Perturbation,
    PerturbedEvidence,
    PerturbStandard,
    Rule,
    Verdict,
)

SENTENCES = {
    "shape": "the shape changed from {before_shape} to {after_shape}",
    "empty": "the output is empty: there was nothing to judge",
    "identical": "the same bits",
    "stable": "it moved as the exact result does, within {ratio:.2f} of what rounding explains",
    "unstable": "it moved by {moved:.3g} where the exact result moves by {moved_exact:.3g}: {ratio:.3g} times what"
    " rounding explains",
    "poor": "it moved by {moved:.3g} where the exact result moves by {moved_exact:.3g}, which is small beside the"
    " largest element only",
    "nondeterministic": "two runs with the same inputs differ in {changed} of {elements} elements, within rounding",
    "not_finite": "{mismatched} of {elements} elements became inf or nan, or ceased to be, unlike the exact result",
    "flipped": "{mismatched} of {elements} elements changed where the exact result did not, or the other way round",
    "norm": "an invariant of the factorisation does not hold any more: {norm:.3g} times sqrt(n) roundoffs of the whole",
}
WORST = "; worst element [{place}]: {before:.9g} became {after:.9g}"


def judge_perturbed(evidence: PerturbedEvidence, standard: PerturbStandard) -> OutputResult:
    """PASS as stable as the exact function, WARN within rounding but not repeatable, FAIL unstable."""
    before, after = evidence.before, evidence.after
    if before.computed.shape != after.computed.shape:
        shapes = {"before_shape": list(before.computed.shape), "after_shape": list(after.computed.shape)}
        return _result(evidence, Verdict.FAIL, "shape", shapes)
    if not before.computed.size:
        return _result(evidence, Verdict.UNTESTED, "empty", {})
    if standard is PerturbStandard.FREE_BENCHMARK:
        return judge_ratio(evidence)
    if np.array_equal(before.computed, after.computed, equal_nan=_is_float(before)) and _truth_stays(evidence):
        return _result(evidence, Verdict.PASS, "identical", {})
    if not _is_float(before):
        return _judge_choice(evidence)
    if before.rule is Rule.NORMWISE:
        return _judge_invariant(evidence)
    return _judge_movement(evidence)


def _is_float(evidence: OutputEvidence) -> bool:
    return evidence.computed.dtype.kind == "f"


def _truth_stays(evidence: PerturbedEvidence) -> bool:
    return evidence.mode in (Perturbation.NO_CHANGE, Perturbation.TO_CPU) or np.array_equal(
        evidence.before.exact, evidence.after.exact
    )


def _judge_choice(evidence: PerturbedEvidence) -> OutputResult:
    before, after = evidence.before, evidence.after
    wrong = (before.computed != after.computed) != (before.exact != after.exact)
    if not wrong.any():
        return _result(evidence, Verdict.PASS, "stable", {"ratio": 0.0})
    return _mismatched(evidence, "flipped", wrong)


def _judge_invariant(evidence: PerturbedEvidence) -> OutputResult:
    found = judge_norm(evidence.after)
    if found.verdict is not Verdict.FAIL:
        return _result(evidence, Verdict.PASS, "stable", {"ratio": 0.0})
    return _result(evidence, Verdict.FAIL, "norm", {"norm": dict(found.metrics).get("norm", math.inf)})


def _judge_movement(evidence: PerturbedEvidence) -> OutputResult:
    before, after = tolerance_of(evidence.before), tolerance_of(evidence.after)
    lost: Mask = after.mismatched & ~before.mismatched
    if lost.any():
        return _mismatched(evidence, "not_finite", lost)
    with np.errstate(invalid="ignore"):
        changes = evidence.after.computed - evidence.before.computed, evidence.after.exact - evidence.before.exact
    judged = before.judged & after.judged
    moved, exact = (np.where(judged, each.astype(np.float64).ravel(), 0.0) for each in changes)
    excess = np.abs(moved - exact)
    ratios = excess / (before.bound + after.bound)
    worst = int(np.argmax(ratios))
    facts: dict[str, object] = {
        "ratio": float(ratios[worst]),
        "moved": abs(float(moved[worst])),
        "moved_exact": abs(float(exact[worst])),
        "moved_rms": _rms(moved),
        "moved_exact_rms": _rms(exact),
        "changed": int(np.count_nonzero(moved)),
    }
    if ratios[worst] > 1:
        poor = float(excess.max()) <= before.sloppy + after.sloppy
        verdict = (Verdict.WARN, "poor") if poor else (Verdict.FAIL, "unstable")
        return _result(evidence, *verdict, facts, worst=worst)
    if evidence.mode is Perturbation.NO_CHANGE and facts["changed"]:
        return _result(evidence, Verdict.WARN, "nondeterministic", facts, worst=int(np.argmax(np.abs(moved))))
    return _result(evidence, Verdict.PASS, "stable", facts)


def _mismatched(evidence: PerturbedEvidence, statistic: str, where: Mask) -> OutputResult:
    facts = {"mismatched": int(np.count_nonzero(where))}
    return _result(evidence, Verdict.FAIL, statistic, facts, worst=int(np.argmax(where)))


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _result(
    evidence: PerturbedEvidence,
    verdict: Verdict,
    statistic: str,
    facts: Mapping[str, object],
    *,
    worst: int | None = None,
) -> OutputResult:
    before, after = evidence.before, evidence.after
    known: dict[str, object] = {"elements": before.computed.size, **facts}
    message = SENTENCES[statistic].format(**known)
    figures = {name: float(fact) for name, fact in known.items() if isinstance(fact, int | float)}
    figures["max_rel"] = largest_ratio(evidence) - 1.0
    found = output_result(after, verdict, statistic, message, worst=worst, metrics=figures)
    if worst is not None:
        place, was, became = ", ".join(map(str, found.worst or ())), before.computed.flat[worst], found.worst_computed
        message += WORST.format(place=place, before=float(was), after=became)
    return replace(found, message=message, dtype=before.dtype, shape=tuple(before.computed.shape))


SIGN_CHANGED = math.inf


def judge_ratio(evidence: PerturbedEvidence) -> OutputResult:
    """PASS or FAIL by the fixed limit; what it has no limit for is UNTESTED."""
    before, ratio = evidence.before, largest_ratio(evidence)
    limits = PERTURBATIONS.get(before.dtype)
    if limits is None:
        verdict, message = Verdict.UNTESTED, f"no limit for {before.dtype}"
    elif evidence.mode is Perturbation.TO_CPU:
        verdict, message = _judge_cpu(evidence, limits)
    else:
        limit = 1.0 if evidence.mode is Perturbation.NO_CHANGE else limits.ratio
        told = "the sign changed" if ratio == SIGN_CHANGED else f"ratio {ratio:.6g}"
        verdict, message = Verdict.FAIL if ratio > limit else Verdict.PASS, f"{told}, limit {limit:g}"
    return output_result(before, verdict, "ratio", message, metrics={"max_rel": ratio - 1.0})


def largest_ratio(evidence: PerturbedEvidence) -> float:
    """The larger over the smaller result, of the element where they differ most; infinite if a sign changed."""
    limits = PERTURBATIONS.get(evidence.before.dtype)
    sizes = evidence.before.computed.size, evidence.after.computed.size
    if limits is None or 0 in sizes or sizes[0] != sizes[1]:
        return 1.0
    smallest = SMALLEST_GRADIENT if evidence.before.direction is Direction.BACKWARD else math.sqrt(limits.noise)
    before, after = (np.asarray(each.computed, np.float64).ravel() for each in (evidence.before, evidence.after))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if bool(np.any(before * after < -(smallest**2))):
            return SIGN_CHANGED
        raised = [np.maximum(np.abs(each), smallest) for each in (before, after)]
        ratios = np.maximum(raised[0] / raised[1], raised[1] / raised[0])
    return float(np.max(np.where(np.isnan(ratios), 1.0, ratios)))


def _judge_cpu(evidence: PerturbedEvidence, limits: PerturbationLimits) -> tuple[Verdict, str]:
    device, cpu = (np.asarray(each.computed, np.float64).ravel() for each in (evidence.before, evidence.after))
    with np.errstate(invalid="ignore"):
        errors: Floats = np.nan_to_num(np.abs(device - cpu) / np.maximum(np.abs(cpu), 1.0))
    worst = float(errors.max())
    unbalanced = abs(int(np.count_nonzero(device > cpu)) - int(np.count_nonzero(device < cpu))) / device.size
    fails = worst > limits.on_cpu or unbalanced > MOST_UNBALANCED
    told = f"error {worst:.3g}, limit {limits.on_cpu:.3g}; unbalanced {unbalanced:.3g}, limit {MOST_UNBALANCED:g}"
    return Verdict.FAIL if fails else Verdict.PASS, told
