"""The numbers of fixed standards, each as the tool had it that the standard comes from."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class DtypeConstants:
    """What msprobe 26.2 sets for a float type."""

    bench: str
    """The type of the trusted side."""
    epsilon: float
    small_value: float
    small_absolute: float
    """Allowed error of a small value, in the class of fixed limits."""
    small_bench: float
    """The same, in the class of error ratios."""
    relative: float
    ratio_floor: float
    """Least divisor of a ratio of two devices' errors."""
    ulp_bits: int
    ulp_lowest: int
    ulp_limit: float


CONSTANTS: Mapping[str, DtypeConstants] = {
    "float16": DtypeConstants("float32", 2.0**-23, 2.0**-10, 2.0**-16, 1e-16, 2.0**-10, 2.0**-11, 10, -14, 1.0),
    "bfloat16": DtypeConstants("float32", 2.0**-8, 2.0**-10, 1e-16, 1e-16, 2.0**-8, 2.0**-8, 7, -126, 1.0),
    "float32": DtypeConstants("float64", 2.0**-52, 2.0**-20, 2.0**-30, 2.0**-30, 2.0**-20, 2.0**-14, 23, -126, 32.0),
}
THRESHOLDS = {"hundredth": 0.01, "thousandth": 0.001, "ten_thousandth": 0.0001}
"""Relative errors, by the share that counts those below; as many, as a share of all, may be above."""
ALL_ZERO = float(np.finfo(np.float64).eps)
"""Largest element of what msprobe takes for zero."""
RMSE_GUARD = 1e-4
"""Keeps msprobe's mean over what is left from dividing by zero."""

LEAST_COSINE = 0.99
"""thousandth and msprobe-a."""
MOST_ABSOLUTE = 0.001
"""Largest error that msprobe-a lets pass without a look at relative ones."""


@dataclass(frozen=True, slots=True)
class DeviceRatios:
    """msprobe-b: largest ratios of errors, target over reference."""

    max_rel: float = 10.0
    mean_rel: float = 2.0
    rmse: float = 2.0
    small_value_ratio: float = 2.0
    error_balance: float = 2.0
    """Told, not counted."""


USUAL_RATIOS = DeviceRatios()
STRICT_RATIOS = DeviceRatios(max_rel=5.0, mean_rel=1.5, rmse=1.5)
STRICTEST_RATIOS = DeviceRatios(max_rel=2.0, mean_rel=1.2, rmse=1.2)
MEAN_ULP, ULP_SHARE, HALF_ULP_SHARE = 64.0, 0.05, 0.001
"""msprobe-b, class ulp: mean error and share of float32, share of the halves."""
THOUSANDTH_SHARE = 0.999
"""msprobe-b, class double thousandth."""

MSPROBE_NORM_IN, MSPROBE_NORM_OUT = 0.1, 0.5
"""msprobe's compare (26.2.0): an output is wrong if its inputs' norms are off by less than the first and its own by
more than the second."""
MSPROBE_SHARE_IN, MSPROBE_SHARE_OUT = 0.9, 0.1
"""The same by shares of elements within a thousandth, above the first and below the second."""


@dataclass(frozen=True, slots=True)
class PerturbationLimits:
    """Of one dtype, as free_benchmark had them."""

    noise: float
    """What add_noise adds; its square root is the smallest magnitude that counts in a forward."""
    ratio: float
    on_cpu: float
    """Relative error against the CPU, absolute below 1."""


PERTURBATIONS: Mapping[str, PerturbationLimits] = {
    "float16": PerturbationLimits(1e-6, 1.002, 2.0**-11),
    "bfloat16": PerturbationLimits(1e-4, 1.004, 2.0**-8),
    "float32": PerturbationLimits(1e-8, 1.0002, 2.0**-14),
    "float64": PerturbationLimits(1e-16, 1.0002, 2.0**-14),
}
SMALLEST_GRADIENT = 1e-3
"""free_benchmark: the smallest magnitude that counts in a backward."""
MOST_UNBALANCED = 1e-4
"""free_benchmark: surplus of elements on one side, as a share of all, against the CPU."""
