"""Rules other than rounding: exact results, and invariants that are small beside a norm."""

import math

import numpy as np

from ulpscope.judge.soundness.finite import finiteness_of
from ulpscope.judge.soundness.grid import Grid, Mask
from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.judge.soundness.results import Worst, result_of
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.checks import OutputEvidence, OutputResult, Verdict


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
    if flushed:
        return result_of(evidence, Verdict.WARN, "flushed", facts)
    return result_of(evidence, Verdict.PASS, "identical", facts)


def _most_unequal(evidence: OutputEvidence, wrong: Mask) -> Worst:
    computed, exact = (np.asarray(each, np.float64).ravel() for each in (evidence.computed, evidence.exact))
    with np.errstate(invalid="ignore"):
        distances = np.abs(computed - exact)
    distances = np.where(wrong, np.where(np.isnan(distances), np.inf, distances), -1.0)
    position = int(np.argmax(distances))
    if DTYPES[evidence.dtype].unit_roundoff == 0 or not np.isfinite(exact[position]):
        return Worst(position, float(distances[position]))
    grid = Grid.of(evidence.dtype)
    ulp = grid.spacing(grid.exponents(np.abs(exact[position : position + 1])))
    return Worst(position, float(distances[position] / ulp[0]))


def judge_norm(evidence: OutputEvidence) -> OutputResult:
    """An invariant of a factorisation."""
    computed, exact = (np.asarray(each, np.float64).ravel() for each in (evidence.computed, evidence.exact))
    finite = finiteness_of(evidence)
    if finite.mismatched is not None:
        worst = Worst(int(np.argmax(finite.mismatched)), math.inf)
        facts = {"mismatched": int(np.count_nonzero(finite.mismatched))}
        return result_of(evidence, Verdict.FAIL, "not_finite", facts, worst=worst)
    if finite.nothing_judged:
        return result_of(evidence, Verdict.UNTESTED, "all_not_finite", {})
    keep = slice(None) if finite.judged is None else finite.judged
    scale = float(np.linalg.norm(exact[keep])) if evidence.scale is None else evidence.scale
    roundoff = max(DTYPES[evidence.dtype].unit_roundoff, evidence.accumulation)
    unit = roundoff * math.sqrt(max(evidence.reduction, 1.0)) * scale
    error = float(np.linalg.norm(computed[keep] - exact[keep]))
    return _norm_result(evidence, error / unit if unit > 0 else (math.inf if error > 0 else 0.0))


def _norm_result(evidence: OutputEvidence, norm: float) -> OutputResult:
    verdict = Verdict.PASS
    limit = LIMITS.norm_warn
    if norm > LIMITS.norm_fail:
        verdict, limit = Verdict.FAIL, LIMITS.norm_fail
    elif norm > LIMITS.norm_warn:
        verdict = Verdict.WARN
    with np.errstate(invalid="ignore"):
        distances = np.nan_to_num(np.abs(np.asarray(evidence.computed - evidence.exact, np.float64)).ravel())
    position = int(np.argmax(distances))
    grid = Grid.of(evidence.dtype)
    spacing = grid.spacing(
        grid.exponents(np.abs(np.asarray(evidence.exact, np.float64).ravel()[position : position + 1]))
    )
    worst = Worst(position, float(distances[position] / spacing[0]))
    facts = {"norm": norm, "norm_limit": limit, "limit_share": norm / LIMITS.norm_warn}
    return result_of(evidence, verdict, "norm", facts, worst=worst)
