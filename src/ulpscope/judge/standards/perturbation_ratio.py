"""The fixed standard of older perturbation tests: the ratio of an output before and after, by dtype.

Elements smaller than a noise level count as that level; a changed sign counts where both are larger.
"""

import math

import numpy as np

from ulpscope.judge.soundness.grid import Floats
from ulpscope.judge.standards.limits import MOST_UNBALANCED, PERTURBATIONS, SMALLEST_GRADIENT, PerturbationLimits
from ulpscope.records.checks import Direction, OutputResult, Perturbation, PerturbedEvidence, Verdict

SIGN_CHANGED = math.inf


def judge_ratio(evidence: PerturbedEvidence) -> OutputResult:
    """PASS or FAIL by the fixed limit; what it has no limit for is UNTESTED."""
    before = evidence.before
    limits = PERTURBATIONS.get(before.dtype)
    if limits is None:
        return _result(evidence, Verdict.UNTESTED, f"no limit for {before.dtype}", 1.0)
    if evidence.mode is Perturbation.TO_CPU:
        return _judge_cpu(evidence, limits)
    ratio = largest_ratio(evidence)
    limit = 1.0 if evidence.mode is Perturbation.NO_CHANGE else limits.ratio
    told = "the sign changed" if ratio == SIGN_CHANGED else f"ratio {ratio:.6g}"
    return _result(evidence, Verdict.FAIL if ratio > limit else Verdict.PASS, f"{told}, limit {limit:g}", ratio)


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


def _judge_cpu(evidence: PerturbedEvidence, limits: PerturbationLimits) -> OutputResult:
    device, cpu = (np.asarray(each.computed, np.float64).ravel() for each in (evidence.before, evidence.after))
    with np.errstate(invalid="ignore"):
        errors: Floats = np.nan_to_num(np.abs(device - cpu) / np.maximum(np.abs(cpu), 1.0))
    worst = float(errors.max())
    unbalanced = abs(int(np.count_nonzero(device > cpu)) - int(np.count_nonzero(device < cpu))) / device.size
    fails = worst > limits.on_cpu or unbalanced > MOST_UNBALANCED
    told = f"error {worst:.3g}, limit {limits.on_cpu:.3g}; unbalanced {unbalanced:.3g}, limit {MOST_UNBALANCED:g}"
    return _result(evidence, Verdict.FAIL if fails else Verdict.PASS, told, largest_ratio(evidence))


def _result(evidence: PerturbedEvidence, verdict: Verdict, message: str, ratio: float) -> OutputResult:
    before = evidence.before
    return OutputResult(
        place=before.place,
        direction=before.direction,
        verdict=verdict,
        statistic="ratio",
        message=message,
        dtype=before.dtype,
        shape=tuple(before.computed.shape),
        metrics=(("max_rel", ratio - 1.0),),
    )
