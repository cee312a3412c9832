"""The metrics that msprobe's API pre-check writes for each output, by plain names (columns of details.csv), and older
standards that are made of them, for users who must report against these.

    thousandth   cosine above 0.99; double thousandth for float16 and bfloat16, double ten-thousandth for float32
    msprobe-a    the cascade of msprobe's acc_check (26.2)
    msprobe-b    two devices' results, by check_ratios

Formulas and constants are those of msprobe 26.2; what is odd in them (an epsilon beside every divisor, nan that counts
as an error in one metric and not in the next) is kept, so that its figures come out. So are the rules: correctly
rounded bfloat16 is a warning of msprobe-a, and a small gradient off by a factor of two passes it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.soundness.exact import output_result
from ulpscope.judge.soundness.grid import Grid
from ulpscope.judge.standards.limits import (
    ALL_ZERO,
    CONSTANTS,
    LEAST_COSINE,
    MOST_ABSOLUTE,
    RMSE_GUARD,
    THRESHOLDS,
    DtypeConstants,
)
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.records.checks import OutputEvidence, OutputResult, Verdict

Reals = NDArray[np.floating]
Flags = NDArray[np.bool_]


# float64 has no constants of its own; its plain metrics are those of a float64 bench.
_FALLBACK = CONSTANTS["float32"]

Metrics = Mapping[str, float | None]
METRICS = (
    "cosine", "max_abs", "hundredth", "thousandth", "ten_thousandth", "error_rate", "error_balance", "rmse",
    "small_value_ratio", "max_rel", "mean_rel", "inf_nan_ratio", "rel_err_ratio", "abs_err_ratio", "max_ulp",
    "mean_ulp", "ulp_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both sides of an output as msprobe sees them, and what is derived from them more than once."""

    constants: DtypeConstants
    device: Reals
    bench: Reals
    rounded: Reals
    """The bench in the device's type."""
    absolute: Reals
    relative: Reals
    odd: Flags
    """Inf or nan on either side."""
    small: Flags

    @property
    def normal(self) -> Flags:
        return ~self.odd & ~self.small


def metrics_of(evidence: OutputEvidence) -> dict[str, float | None]:
    """Every metric by name; none for those that this type of output does not have."""
    found: dict[str, float | None] = dict.fromkeys(METRICS)
    if evidence.computed.shape != evidence.exact.shape or evidence.exact.size == 0:
        return found
    if DTYPES[evidence.dtype].kind is not DtypeKind.FLOAT:
        return found | {"error_rate": float(np.mean(evidence.computed != evidence.exact))}
    with np.errstate(all="ignore"):
        pair = _pair(evidence)
        found |= _plain(pair)
        if evidence.dtype in CONSTANTS:
            found |= _by_ranges(pair) | _fixed_limits(evidence.dtype, pair) | _ulp(pair)
    return found


def _pair(evidence: OutputEvidence) -> _Pair:
    constants = CONSTANTS.get(evidence.dtype, _FALLBACK)
    device = np.asarray(evidence.computed, constants.bench).ravel()
    bench = np.asarray(evidence.exact, constants.bench).ravel()
    rounded = np.asarray(Grid.of(evidence.dtype).nearest(bench.astype(np.float64)), constants.bench)
    absolute = np.abs(device - bench)
    odd = ~(np.isfinite(device) & np.isfinite(rounded))
    return _Pair(
        constants=constants,
        device=device,
        bench=bench,
        rounded=rounded,
        absolute=absolute,
        relative=absolute / (np.abs(bench) + constants.epsilon),
        odd=odd,
        small=(np.abs(bench) <= constants.small_value) & ~odd,
    )


def _plain(pair: _Pair) -> dict[str, float | None]:
    shares = {name: float(np.mean(pair.relative < limit)) for name, limit in THRESHOLDS.items()}
    return {
        "cosine": _cosine(pair.device, pair.bench),
        "max_abs": float(pair.absolute.max()),
        "error_rate": float(np.mean(pair.device != pair.rounded)),
        **shares,
    }


def _cosine(device: Reals, bench: Reals) -> float | None:
    """None for a single element; 0 where one side alone is zero."""
    if device.size == 1:
        return None
    first, second = device.astype(np.float64), bench.astype(np.float64)
    tops = float(np.abs(first).max()), float(np.abs(second).max())
    zeros = [top <= ALL_ZERO for top in tops]
    if any(zeros):
        return 1.0 if all(zeros) else 0.0
    first, second = first / tops[0], second / tops[1]
    found = float((first * second).sum() / (math.sqrt((first**2).sum()) * math.sqrt((second**2).sum())))
    return found if math.isnan(found) else min(max(found, -1.0), 1.0)


def _by_ranges(pair: _Pair) -> dict[str, float | None]:
    """What the class of error ratios compares between two devices."""
    count = pair.absolute.size
    masked = pair.odd | pair.small
    left = count - int(np.count_nonzero(masked))
    squares = np.where(masked, 0.0, pair.absolute) ** 2
    relative = pair.relative[~masked]
    above, below = np.count_nonzero(pair.device > pair.rounded), np.count_nonzero(pair.device < pair.rounded)
    return {
        "error_balance": abs(int(above) - int(below)) / count,
        "rmse": math.sqrt(float(squares.mean()) * (count / (left + RMSE_GUARD) + RMSE_GUARD)),
        "small_value_ratio": _share(pair.absolute > pair.constants.small_bench, pair.small),
        "max_rel": float(relative.max()) if left else 0.0,
        "mean_rel": float(relative.mean()) if left else 0.0,
    }


def _fixed_limits(dtype: str, pair: _Pair) -> dict[str, float | None]:
    largest = DTYPES[dtype].largest
    device, bench = np.clip(pair.device, -largest, largest), np.clip(pair.bench, -largest, largest)
    near = np.abs(device - bench) / (np.abs(bench) + pair.constants.epsilon) <= pair.constants.relative
    both_nan = np.isnan(pair.device) & np.isnan(pair.bench)
    return {
        "inf_nan_ratio": _share(~(near | both_nan), pair.odd),
        "rel_err_ratio": _share(pair.relative > pair.constants.relative, pair.normal),
        "abs_err_ratio": _share(pair.absolute > pair.constants.small_absolute, pair.small),
    }


def _share(flags: Flags, among: Flags) -> float:
    count = int(np.count_nonzero(among))
    return int(np.count_nonzero(flags & among)) / count if count else 0.0


def _ulp(pair: _Pair) -> dict[str, float | None]:
    constants = pair.constants
    _, raised = np.frexp(pair.bench)
    exponents = np.maximum(np.where(pair.bench == 0, 0, raised - 1), constants.ulp_lowest)
    errors = np.abs(np.ldexp(pair.device - pair.bench, constants.ulp_bits - exponents))
    return {
        "max_ulp": float(errors.max()),
        "mean_ulp": float(errors.mean()),
        "ulp_share": float(np.mean(errors > constants.ulp_limit)),
    }


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
        verdict, statistic = Verdict.FAIL, "violation"
    elif evidence.computed.shape != evidence.exact.shape:
        verdict, statistic = Verdict.FAIL, "shape"
    elif evidence.exact.size == 0:
        verdict, statistic = empty, "empty"
    elif evidence.dtype in EXACT:
        verdict, statistic = (Verdict.FAIL, "unequal") if found["error_rate"] else (Verdict.PASS, "equal")
    elif evidence.dtype in FLOATS:
        verdict, statistic = rule(evidence.dtype, found)
    else:
        verdict, statistic = Verdict.FAIL, "dtype"
    facts = {
        **found,
        "violation": evidence.violation,
        "computed": evidence.computed.shape,
        "exact": evidence.exact.shape,
        "dtype": evidence.dtype,
        "least_cosine": LEAST_COSINE,
        "most_absolute": MOST_ABSOLUTE,
    }
    message, figures = (
        SENTENCES[statistic].format(**facts),
        {key: each for key, each in found.items() if each is not None},
    )
    return output_result(evidence, verdict, statistic, message, worst=_worst(evidence), metrics=figures)


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


def _worst(evidence: OutputEvidence) -> int | None:
    """Where the largest difference is; a nan counts as the largest."""
    if evidence.computed.shape != evidence.exact.shape or evidence.exact.size == 0:
        return None
    with np.errstate(invalid="ignore"):
        sizes = np.abs(np.asarray(evidence.computed, np.float64) - np.asarray(evidence.exact, np.float64))
    return int(np.argmax(np.where(np.isnan(sizes), math.inf, sizes)))
