"""Is an overflow the dtype's own limit, or did only the device make it? Pure functions from evidence to a verdict."""

import math

from ulpscope.judge.soundness.grid import Grid
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.checks import DataSource, OutputResult, Verdict
from ulpscope.records.overflows import NotFinite, Overflow, OverflowEvidence

_VERDICTS = {
    Overflow.NORMAL: Verdict.PASS,
    Overflow.STATED: Verdict.PASS,
    Overflow.ABNORMAL: Verdict.FAIL,
    Overflow.UNCLEAR: Verdict.UNTESTED,
    Overflow.FINITE: Verdict.PASS,
}
SENTENCES = {
    "stated": "an argument of the call is inf itself, and the CPU gives the same",
    "stated_nan": "an argument of the call is nan itself, and the CPU gives the same; no mask needs nan",
    "limit": "the exact result reaches {exact:.4g}, the largest {dtype} is {largest:.4g}; the CPU gives {cpu} too",
    "limit_no_cpu": "the exact result reaches {exact:.4g}, the largest {dtype} is {largest:.4g}",
    "undefined": "the exact result is not finite either ({exact_not_finite})",
    "inside": "an intermediate result is beyond {dtype}, on the CPU too ({cpu}); the result itself reaches {exact:.4g}",
    "device": "the CPU gives finite numbers: the exact result reaches {exact:.4g}, {dtype} holds {largest:.4g}",
    "finite": "the CPU gives finite numbers, up to {exact:.4g}",
    "not_reproduced": "data made from stats is finite on the CPU (up to {exact:.4g}), the recorded data need not be",
}
ESTIMATE = "; an estimate from data made from stats"
UNRECORDED = "; what the run gave is not recorded"


def judge_overflow(evidence: OverflowEvidence) -> OutputResult:
    """normal, abnormal, stated, unclear or finite, as the statistic of the result."""
    overflow, key = _decide(evidence)
    message = SENTENCES[key].format(**_facts(evidence))
    if evidence.source is DataSource.RANDOM and overflow in (Overflow.NORMAL, Overflow.ABNORMAL):
        message += ESTIMATE
    if evidence.recorded is None:
        message += UNRECORDED
    return OutputResult(
        place=evidence.place,
        direction=evidence.direction,
        verdict=_VERDICTS[overflow],
        statistic=overflow.value,
        message=message,
        dtype=evidence.dtype,
        shape=evidence.shape,
        metrics=_metrics(evidence),
    )


def _decide(evidence: OverflowEvidence) -> tuple[Overflow, str]:
    beyond = (evidence.exact_largest or 0.0) >= Grid.of(evidence.dtype).overflow
    here = evidence.exact.total > 0 or beyond if evidence.cpu is None else evidence.cpu.total > 0
    if here:
        return _explained(evidence, beyond=beyond)
    if evidence.device is not None and evidence.device.total > 0:
        # The device itself overflows on the very data that the CPU does not overflow on.
        return Overflow.ABNORMAL, "device"
    if evidence.source is not DataSource.REAL and not _is_far_from_limit(evidence):
        return Overflow.UNCLEAR, "not_reproduced"
    return (Overflow.FINITE, "finite") if evidence.recorded is None else (Overflow.ABNORMAL, "device")


def _explained(evidence: OverflowEvidence, *, beyond: bool) -> tuple[Overflow, str]:
    if evidence.asked_for:
        seen = evidence.recorded or evidence.cpu
        return Overflow.STATED, "stated_nan" if seen is not None and seen.nan > 0 else "stated"
    if beyond:
        return Overflow.NORMAL, "limit" if evidence.cpu is not None else "limit_no_cpu"
    return Overflow.NORMAL, "undefined" if evidence.exact.total else "inside"


def _is_far_from_limit(evidence: OverflowEvidence) -> bool:
    """Whether no arrangement of such data overflows: terms that happen to be alike add up to `terms` times as much."""
    if evidence.exact_largest is None or (evidence.recorded is not None and evidence.recorded.nan):
        # Which element meets which decides over 0/0 and inf - inf; stats do not tell that.
        return False
    return evidence.exact_largest * max(evidence.terms, 1.0) < DTYPES[evidence.dtype].largest


def _facts(evidence: OverflowEvidence) -> dict[str, object]:
    return {
        "dtype": evidence.dtype,
        "largest": DTYPES[evidence.dtype].largest,
        "exact": math.nan if evidence.exact_largest is None else evidence.exact_largest,
        "exact_not_finite": evidence.exact,
        "cpu": evidence.cpu,
    }


def _metrics(evidence: OverflowEvidence) -> tuple[tuple[str, float], ...]:
    figures = {"exact_largest": math.nan if evidence.exact_largest is None else evidence.exact_largest}
    figures["dtype_largest"] = DTYPES[evidence.dtype].largest
    for name in ("recorded", "cpu", "device", "exact"):
        counts: NotFinite | None = getattr(evidence, name)
        for kind in ("nan", "pos_inf", "neg_inf") if counts is not None else ():
            figures[f"{name}_{kind}"] = getattr(counts, kind)
    return tuple(figures.items())
