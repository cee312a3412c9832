"""The verdict on an executed call made small enough for a script of its own: three statistics with fixed limits.

What differs from element to element (conditions, the length of sums, subnormal numbers) goes into one array, the error
that is expected of a sound kernel; errors of elements that are correctly rounded count as 0.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.soundness.grid import Floats, Grid
from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.judge.soundness.statistics import Tolerance, tolerance_of
from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.checks import OutputEvidence, Rule, ScriptLimits, Verdict

NOT_LIMITED = 1.0


def script_limits(evidence: Sequence[OutputEvidence]) -> ScriptLimits:
    """What all outputs of a call are held to."""
    leaning = max((_ordinary_side(each) for each in evidence), default=0.0)
    return ScriptLimits(
        largest=LIMITS.spread,
        floor=max((max(each.input_roundoff, DTYPES[each.dtype].unit_roundoff) for each in evidence), default=0.0),
        rms=LIMITS.storage_fail,
        rms_scatter=round(LIMITS.storage_fail * LIMITS.noise_scatter / math.sqrt(2.0), 1),
        one_sided=NOT_LIMITED if leaning > LIMITS.script_one_sided / 2 else LIMITS.script_one_sided,
        one_sided_scatter=LIMITS.bias_z / 2,
    )


def expected_error(evidence: OutputEvidence) -> NDArray[np.float64]:
    """RMS error that is expected of each element; a sixth of what no sound kernel exceeds, where that is more."""
    if DTYPES[evidence.dtype].unit_roundoff == 0:
        return np.full(evidence.exact.shape, LIMITS.script_none)
    tolerance = tolerance_of(evidence)
    found = tolerance.ulp * LIMITS.script_none
    if evidence.rule is not Rule.EXACT:
        bound = (tolerance.bound + tolerance.sloppy) / LIMITS.spread
        found = np.maximum(tolerance.expected * _excess(evidence, tolerance), bound)
    smallest = Grid.of(evidence.dtype).dtype.smallest_normal
    magnitude = np.abs(np.asarray(evidence.exact, np.float64).ravel())
    # What is too small for a normal number may be flushed to zero.
    found = np.where(magnitude < smallest, np.maximum(found, smallest / LIMITS.spread), found)
    return (found * _strictness(evidence, found)).reshape(evidence.exact.shape)


def _strictness(evidence: OutputEvidence, expected: Floats) -> float:
    """At most 1: a fault that here only finer statistics see must exceed the script's rms, too."""
    result = judge_output(evidence)
    if result is None or result.verdict is not Verdict.FAIL or evidence.computed.shape != evidence.exact.shape:
        return 1.0
    with np.errstate(invalid="ignore"):
        errors = (np.asarray(evidence.computed, np.float64) - np.asarray(evidence.exact, np.float64)).ravel()
    rms = float(np.sqrt(np.mean(np.square(np.where(np.isfinite(errors), errors, 0.0) / expected))))
    limit = LIMITS.storage_fail * (1.0 + LIMITS.noise_scatter / math.sqrt(2.0 * errors.size))
    return min(1.0, rms / (LIMITS.script_clearly * limit)) if rms else 1.0


def _excess(evidence: OutputEvidence, tolerance: Tolerance) -> float:
    """How many times the expected error another sound kernel makes; 1 at least."""
    if evidence.ordinary is None:
        return 1.0
    scaled = _ordinary_errors(evidence)[tolerance.judged] / tolerance.expected[tolerance.judged]
    return max(1.0, float(np.sqrt(np.mean(np.square(scaled))))) if scaled.size else 1.0


def _ordinary_errors(evidence: OutputEvidence) -> Floats:
    with np.errstate(invalid="ignore"):
        errors = (np.asarray(evidence.ordinary, np.float64) - np.asarray(evidence.exact, np.float64)).ravel()
    return np.where(np.isfinite(errors), errors, 0.0)


def _ordinary_side(evidence: OutputEvidence) -> float:
    if evidence.ordinary is None or not evidence.exact.size:
        return 0.0
    exact = np.asarray(evidence.exact, np.float64).ravel()
    ordinary = np.asarray(evidence.ordinary, np.float64).ravel()
    errors = np.where(ordinary == Grid.of(evidence.dtype).nearest(exact), 0.0, _ordinary_errors(evidence))
    return abs(float(np.sum(np.sign(errors * exact)))) / exact.size
