"""Older standards for an executed call, by name, for users who must report against them.

    thousandth   cosine above 0.99; double thousandth for float16 and bfloat16, double ten-thousandth for float32
    msprobe-a    the cascade of msprobe's acc_check (26.2)
    msprobe-b    two devices' results, by check_ratios

Their rules are kept as they are: correctly rounded bfloat16 is a warning of msprobe-a, and a small gradient off by a
factor of two passes it.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from ulpscope.judge.standards.check_metrics import Metrics, metrics_of
from ulpscope.judge.standards.limits import LEAST_COSINE, MOST_ABSOLUTE, THRESHOLDS
from ulpscope.records.checks import OutputEvidence, OutputResult, Verdict

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
# Other integers are an unexpected type to msprobe, which is an error.
EXACT = ("bool", "uint8", "int8", "int32", "int64")

SENTENCES: Mapping[str, str] = {
    "violation": "{violation}",
    "shape": "the output has the shape {computed}, expected {exact}",
    "dtype": "{dtype} is not a type that this standard knows",
    "empty": "the output is empty",
    "equal": "all elements are equal",
    "unequal": "{error_rate:.2%} of the elements differ",
    "cosine": "the cosine is {cosine:.6g}, expected above {least_cosine:g}",
    "max_abs": "the largest error is {max_abs:.3g}, below {most_absolute:g}",
    "hundredth": "{hundredth:.4%} of the relative errors are below 0.01, expected above 99%",
    "thousandth": "{thousandth:.4%} of the relative errors are below 0.001, expected above 99.9%",
    "ten_thousandth": "{ten_thousandth:.4%} of the relative errors are below 0.0001, expected above 99.99%",
}


def judge_thousandth(evidence: OutputEvidence) -> OutputResult:
    """The first public rule of API pre-checks."""
    return _judged(evidence, _thousandth, empty=Verdict.FAIL)


def judge_msprobe_a(evidence: OutputEvidence) -> OutputResult:
    """msprobe's verdict on one output beside a CPU of higher precision: pass, warning (WARN), error (FAIL), SKIP."""
    return _judged(evidence, _msprobe_a, empty=Verdict.SKIP)


def _judged(
    evidence: OutputEvidence, rule: Callable[[str, Metrics], tuple[Verdict, str]], *, empty: Verdict
) -> OutputResult:
    found = metrics_of(evidence)
    if evidence.violation is not None:
        return _result(evidence, Verdict.FAIL, "violation", found)
    if evidence.computed.shape != evidence.exact.shape:
        return _result(evidence, Verdict.FAIL, "shape", found)
    if evidence.exact.size == 0:
        return _result(evidence, empty, "empty", found)
    if evidence.dtype in EXACT:
        return _result(
            evidence, *((Verdict.FAIL, "unequal") if found["error_rate"] else (Verdict.PASS, "equal")), found
        )
    if evidence.dtype not in FLOATS:
        return _result(evidence, Verdict.FAIL, "dtype", found)
    return _result(evidence, *rule(evidence.dtype, found), found)


def _thousandth(dtype: str, found: Metrics) -> tuple[Verdict, str]:
    cosine = found["cosine"]
    # A nan is not above the limit, which made it fail in the tools of that time.
    if cosine is not None and not cosine > LEAST_COSINE:
        return Verdict.FAIL, "cosine"
    statistic = "thousandth" if dtype in HALVES else "ten_thousandth"
    return (Verdict.PASS if _within(found, statistic) else Verdict.FAIL), statistic


def _msprobe_a(dtype: str, found: Metrics) -> tuple[Verdict, str]:
    cosine, largest = found["cosine"], found["max_abs"]
    if cosine is not None and cosine <= LEAST_COSINE:
        return Verdict.FAIL, "cosine"
    if largest is not None and largest < MOST_ABSOLUTE:
        return Verdict.PASS, "max_abs"
    first, second = ("hundredth", "thousandth") if dtype in HALVES else ("thousandth", "ten_thousandth")
    if not _within(found, first):
        return Verdict.FAIL, first
    return (Verdict.PASS if _within(found, second) else Verdict.WARN), second


def _within(found: Metrics, statistic: str) -> bool:
    share = found[statistic]
    return share is not None and share > 1.0 - THRESHOLDS[statistic]


def _result(evidence: OutputEvidence, verdict: Verdict, statistic: str, found: Metrics) -> OutputResult:
    facts = {
        **found,
        "violation": evidence.violation,
        "computed": evidence.computed.shape,
        "exact": evidence.exact.shape,
        "dtype": evidence.dtype,
        "least_cosine": LEAST_COSINE,
        "most_absolute": MOST_ABSOLUTE,
    }
    place = _worst(evidence)
    return OutputResult(
        place=evidence.place,
        direction=evidence.direction,
        verdict=verdict,
        statistic=statistic,
        message=SENTENCES[statistic].format(**facts),
        dtype=evidence.dtype,
        shape=tuple(evidence.exact.shape),
        worst=place,
        worst_computed=None if place is None else float(evidence.computed[place]),
        worst_exact=None if place is None else float(evidence.exact[place]),
        metrics=tuple((name, figure) for name, figure in found.items() if figure is not None),
    )


def _worst(evidence: OutputEvidence) -> tuple[int, ...] | None:
    """Where the largest difference is; a nan counts as the largest."""
    if evidence.computed.shape != evidence.exact.shape or evidence.exact.size == 0:
        return None
    with np.errstate(invalid="ignore"):
        sizes = np.abs(np.asarray(evidence.computed, np.float64) - np.asarray(evidence.exact, np.float64))
    position = int(np.argmax(np.where(np.isnan(sizes), math.inf, sizes)))
    return tuple(map(int, np.unravel_index(position, sizes.shape)))
