"""The metrics that msprobe's API pre-check writes for each output, by plain names: columns of details.csv.

Formulas and constants are those of msprobe 26.2; what is odd in them (an epsilon beside every divisor, nan that counts
as an error in one metric and not in the next) is kept, so that its figures come out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.soundness.grid import Grid
from ulpscope.judge.standards.limits import ALL_ZERO, CONSTANTS, RMSE_GUARD, THRESHOLDS, DtypeConstants
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.records.checks import OutputEvidence

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
