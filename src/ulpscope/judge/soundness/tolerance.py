"""What each element of an output may be off: the bounds behind the verdict, for those who measure errors themselves."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.soundness.finite import finiteness_of
from ulpscope.judge.soundness.grid import Floats, Mask
from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.judge.soundness.statistics import (
    Expected,
    Field,
    expected_of,
    field_of,
    sensitivity_of,
    sloppiness,
    widened,
)
from ulpscope.records.checks import OutputEvidence, Rule

# RMS of errors that are uniform within half an ulp.
_UNIFORM = 1.0 / math.sqrt(12.0)


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
        rms, half = field.ulp * _UNIFORM, field.ulp * LIMITS.half_ulp
        return Expected(rms=rms, stored=rms, near=half, bound=half)
    expected = expected_of(field, evidence, sensitivity_of(field, evidence))
    if evidence.ordinary is None:
        return expected
    return widened(expected, field, _finite(field.errors(evidence.ordinary)))


def _finite(errors: NDArray[np.float64]) -> Floats:
    return np.where(np.isfinite(errors), errors, 0.0)
