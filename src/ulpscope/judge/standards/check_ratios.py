"""The standard msprobe-b: the errors of two devices beside the same truth, statistic by statistic.

An API belongs to a class. Most are compared by ratios of errors, target over reference; some have limits of their own,
which msprobe holds against the target alone. Here a figure that is no worse than the reference's misses no limit: no
bfloat16 holds a thousandth, sums in another order have no equal bits, and a device must agree with itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ulpscope.judge.standards.check_metrics import Metrics
from ulpscope.judge.standards.limits import (
    CONSTANTS,
    HALF_ULP_SHARE,
    MEAN_ULP,
    STRICT_RATIOS,
    STRICTEST_RATIOS,
    THOUSANDTH_SHARE,
    ULP_SHARE,
    USUAL_RATIOS,
    DeviceRatios,
)
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.records.checks import Verdict


class ApiClass(str, Enum):
    """How msprobe compares an API between two devices."""

    RATIOS = "error ratios"
    FIXED = "fixed limits"
    EQUAL = "equal bits"
    ULP = "ulp"
    THOUSANDTH = "double thousandth"


_API_CLASSES = {
    ApiClass.FIXED: """
    add add_ __add__ __iadd__ __radd__ sub sub_ __sub__ __isub__ rsub mul mul_ __mul__ __imul__ __rmul__ div div_
    __div__ __idiv__ divide divide_ leaky_relu leaky_relu_ prelu reciprocal reciprocal_ rsqrt rsqrt_ square square_
    """,
    ApiClass.EQUAL: """
    abs abs_ absolute absolute_ argmin bitwise_and bitwise_and_ broadcast_to ceil ceil_ equal fill_ flatten floor floor_
    gather greater greater_ greater_equal greater_equal_ histc isfinite isnan less less_ less_equal less_equal_
    logical_and logical_and_ logical_not logical_not_ logical_or logical_or_ masked_fill masked_fill_ max_pool3d maximum
    minimum neg neg_ nonzero not_equal not_equal_ one_hot pad relu reshape round round_ select sign sign_ sort tile topk
    transpose transpose_ tril tril_ triu triu_ type_as
    """,
    ApiClass.ULP: """
    __matmul__ addbmm addbmm_ addmm addmm_ baddbmm baddbmm_ bilinear bmm chain_matmul hspmm linear matmul mm mv smm
    sspaddmm
    """,
    ApiClass.THOUSANDTH: "conv1d conv2d",
}
API_CLASSES: Mapping[str, ApiClass] = {api: each for each, apis in _API_CLASSES.items() for api in apis.split()}


LEVELS: Mapping[str, DeviceRatios] = {
    **dict.fromkeys(
        "embedding npu_fusion_attention npu_fusion_attention_grad scatter_ scatter_add_".split(), STRICT_RATIOS
    ),
    **dict.fromkeys(
        """addmm GELU index layer_norm matmul mm nonzero npu_cross_entropy_loss npu_cross_entropy_loss_backward
        npu_rms_norm npu_rms_norm_backward one_hot sum""".split(),
        STRICTEST_RATIOS,
    ),
}
COUNTED = ("small_value_ratio", "rmse", "max_rel", "mean_rel")
TOLD = (*COUNTED, "error_balance")
_CLASS_METRICS: Mapping[ApiClass, tuple[str, ...]] = {
    ApiClass.FIXED: ("inf_nan_ratio", "rel_err_ratio", "abs_err_ratio"),
    ApiClass.EQUAL: ("error_rate",),
    ApiClass.ULP: ("mean_ulp", "ulp_share"),
    ApiClass.THOUSANDTH: ("thousandth",),
}


@dataclass(frozen=True, slots=True)
class RatioResult:
    """What comparing one output of two devices gave."""

    verdict: Verdict
    """PASS, FAIL or SKIP."""
    api_class: ApiClass | None
    figures: tuple[tuple[str, float], ...] = ()
    """The ratio, or the target's own figure where the class has limits of its own, by metric."""
    failing: tuple[str, ...] = ()


def compare_devices(target: Metrics, reference: Metrics, *, api: str, dtype: str) -> RatioResult:
    """`api` is the bare name; metrics that a row lacks are none, and its class is then the common one."""
    if dtype not in DTYPES or dtype == "float64" or DTYPES[dtype].kind is DtypeKind.COMPLEX:
        return RatioResult(Verdict.SKIP, None)
    api_class = class_of(api, dtype, target)
    if not all(_is_told(row, api_class) for row in (target, reference)):
        return RatioResult(Verdict.SKIP, None)
    if api_class is ApiClass.RATIOS:
        return _by_ratios(target, reference, limits=LEVELS.get(api, USUAL_RATIOS), dtype=dtype)
    if api_class is ApiClass.ULP:
        return _by_ulp(target, reference, dtype=dtype)
    return _by_own_limits(target, reference, api_class)


def class_of(api: str, dtype: str, row: Metrics) -> ApiClass:
    """Integers are compared bit by bit; a float by its API's class if the row has that class's metrics."""
    if DTYPES[dtype].kind in (DtypeKind.INT, DtypeKind.BOOL):
        return ApiClass.EQUAL
    if dtype.startswith("float8"):
        return ApiClass.ULP
    found = API_CLASSES.get(api, ApiClass.RATIOS)
    known = all(row.get(metric) is not None for metric in _CLASS_METRICS.get(found, ()))
    return found if known else ApiClass.RATIOS


def _is_told(row: Metrics, api_class: ApiClass) -> bool:
    """Whether a row has a figure that its class looks at: what has none was not compared."""
    return any(row.get(metric) is not None for metric in _CLASS_METRICS.get(api_class, COUNTED))


def _by_ratios(target: Metrics, reference: Metrics, *, limits: DeviceRatios, dtype: str) -> RatioResult:
    figures, failing = dict.fromkeys(TOLD, math.nan), []
    for metric in TOLD:
        mine, theirs = target.get(metric), reference.get(metric)
        if mine is None or theirs is None:
            continue
        figures[metric] = mine / max(theirs, CONSTANTS[dtype].ratio_floor)
        fails = figures[metric] > float(getattr(limits, metric))
        if not (math.isfinite(mine) and math.isfinite(theirs)):
            # Statistics that are no numbers must be the same on both devices.
            fails = not (mine == theirs or (math.isnan(mine) and math.isnan(theirs)))
        if fails and metric in COUNTED:
            failing.append(metric)
    return _result(ApiClass.RATIOS, figures, failing)


def _by_ulp(target: Metrics, reference: Metrics, *, dtype: str) -> RatioResult:
    share, theirs = target.get("ulp_share") or 0.0, reference.get("ulp_share") or 0.0
    mean = target.get("mean_ulp") or 0.0
    ratio = share / theirs if theirs else (math.inf if share else 0.0)
    passing = share < HALF_ULP_SHARE
    if dtype == "float32":
        passing = mean < MEAN_ULP or share < ULP_SHARE
    figures = {"mean_ulp": mean, "ulp_share": share, "ulp_share_over_reference": ratio}
    return _result(ApiClass.ULP, figures, [] if passing or _is_excused(share, theirs) else ["ulp_share"])


def _by_own_limits(target: Metrics, reference: Metrics, api_class: ApiClass) -> RatioResult:
    figures = {metric: target[metric] or 0.0 for metric in _CLASS_METRICS[api_class]}
    shares = api_class is ApiClass.THOUSANDTH
    missed = {name: each for name, each in figures.items() if not (each >= THOUSANDTH_SHARE if shares else each == 0)}
    failing = [each for each in missed if not _is_excused(missed[each], reference.get(each), more_is_better=shares)]
    return _result(api_class, figures, failing)


def _is_excused(mine: float, theirs: float | None, *, more_is_better: bool = False) -> bool:
    """Whether the target's figure is no worse than the reference's."""
    if theirs is None:
        return False
    if math.isnan(mine) or math.isnan(theirs):
        return math.isnan(mine) and math.isnan(theirs)
    return mine >= theirs if more_is_better else mine <= theirs


def _result(api_class: ApiClass, figures: Mapping[str, float], failing: list[str]) -> RatioResult:
    return RatioResult(Verdict.FAIL if failing else Verdict.PASS, api_class, tuple(figures.items()), tuple(failing))
