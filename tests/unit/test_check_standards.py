"""Older standards for executed calls, on outputs made by hand."""

import math
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.judge.soundness.grid import Grid
from ulpscope.judge.standards.check_metrics import METRICS, judge_msprobe_a, judge_thousandth, metrics_of
from ulpscope.judge.standards.check_ratios import ApiClass, compare_devices
from ulpscope.records.checks import Direction, OutputEvidence, Rule, Verdict

SOUND = {
    "cosine": 1.0, "max_abs": 0.0, "hundredth": 1.0, "thousandth": 1.0, "ten_thousandth": 1.0, "error_balance": 0.0,
    "rmse": 0.01, "small_value_ratio": 0.0, "max_rel": 0.01, "mean_rel": 0.01,
}  # fmt: skip


def evidence(
    computed: object, exact: object, *, dtype: str = "float32", violation: str | None = None
) -> OutputEvidence:
    kind = np.float64 if dtype.startswith(("float", "bfloat")) else np.dtype(dtype)
    return OutputEvidence(
        place="output.0",
        direction=Direction.FORWARD,
        rule=Rule.ROUNDED,
        dtype=dtype,
        computed=np.asarray(computed, kind),
        exact=np.asarray(exact, kind),
        reduction=1,
        accumulation=2.0**-24,
        input_roundoff=2.0**-24,
        violation=violation,
    )


def normal(count: int = 10_000) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal(count)


def test_correctly_rounded_bfloat16_never_reaches_the_thousandth() -> None:
    exact = normal(100_000)
    given = evidence(Grid.of("bfloat16").nearest(exact), exact, dtype="bfloat16")
    result = judge_msprobe_a(given)
    assert (result.verdict, result.statistic) == (Verdict.WARN, "thousandth")
    assert dict(result.metrics)["thousandth"] == pytest.approx(0.379, abs=0.01)
    assert judge_thousandth(given).verdict is Verdict.FAIL


def test_a_small_gradient_off_by_two_passes_msprobe_but_not_the_first_rule() -> None:
    exact = normal() * 1e-5
    assert judge_msprobe_a(evidence(2 * exact, exact)).statistic == "max_abs"
    assert judge_msprobe_a(evidence(2 * exact, exact)).verdict is Verdict.PASS
    assert judge_thousandth(evidence(2 * exact, exact)).verdict is Verdict.FAIL


def test_equal_infinities_are_an_error() -> None:
    exact = normal()
    exact[::2] = -math.inf
    assert judge_msprobe_a(evidence(exact, exact)).verdict is Verdict.FAIL


def test_one_nan_among_many_passes_msprobe_and_fails_the_first_rule() -> None:
    exact = normal(100_000)
    computed = exact.copy()
    computed[7] = math.nan
    assert judge_msprobe_a(evidence(computed, exact)).verdict is Verdict.PASS
    first = judge_thousandth(evidence(computed, exact))
    assert (first.verdict, first.statistic, first.worst) == (Verdict.FAIL, "cosine", (7,))


@pytest.mark.parametrize(
    ("factor", "dtype", "verdict", "statistic"),
    [
        (1 + 5e-5, "float32", Verdict.PASS, "ten_thousandth"),
        (1 + 5e-4, "float32", Verdict.WARN, "ten_thousandth"),
        (1 + 5e-3, "float32", Verdict.FAIL, "thousandth"),
        (1 + 5e-4, "float16", Verdict.PASS, "thousandth"),
        (1 + 5e-3, "float16", Verdict.WARN, "thousandth"),
        (1 + 5e-2, "float16", Verdict.FAIL, "hundredth"),
        (-1.0, "float32", Verdict.FAIL, "cosine"),
    ],
)
def test_the_cascade_of_msprobe(factor: float, dtype: str, verdict: Verdict, statistic: str) -> None:
    exact = 100.0 + np.abs(normal())
    result = judge_msprobe_a(evidence(factor * exact, exact, dtype=dtype))
    assert (result.verdict, result.statistic) == (verdict, statistic)


def test_a_single_number_has_no_cosine() -> None:
    assert judge_msprobe_a(evidence(-2.0, 2.0)).statistic == "thousandth"
    assert judge_msprobe_a(evidence(2.0009, 2.0)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("computed", "exact", "dtype", "verdict", "statistic"),
    [
        ([1, 2, 3], [1, 2, 3], "int64", Verdict.PASS, "equal"),
        ([1, 2, 3], [1, 2, 4], "int64", Verdict.FAIL, "unequal"),
        ([True, False], [True, True], "bool", Verdict.FAIL, "unequal"),
        ([1, 2], [1, 2], "int16", Verdict.FAIL, "dtype"),
        ([1.0, 2.0], [1.0], "float32", Verdict.FAIL, "shape"),
        ([], [], "float32", Verdict.SKIP, "empty"),
    ],
)
def test_what_is_no_float(computed: object, exact: object, dtype: str, verdict: Verdict, statistic: str) -> None:
    result = judge_msprobe_a(evidence(computed, exact, dtype=dtype))
    assert (result.verdict, result.statistic) == (verdict, statistic)


def test_an_empty_output_fails_the_first_rule() -> None:
    assert judge_thousandth(evidence([], [])).verdict is Verdict.FAIL


def test_a_violation_is_told_by_both() -> None:
    given = evidence([1.0], [1.0], violation="index 9 is out of range")
    assert {judge(given).message for judge in (judge_thousandth, judge_msprobe_a)} == {"index 9 is out of range"}


def test_metrics_of_a_few_elements_by_hand() -> None:
    # Two ordinary elements off by +1/8 and -1/4, one small value (2^-21) that is exact, one infinity on both sides.
    exact = np.array([2.0, 4.0, 2.0**-21, math.inf])
    computed = np.array([2.125, 3.75, 2.0**-21, math.inf])
    found = metrics_of(evidence(computed, exact))
    assert found["max_rel"] == pytest.approx(1 / 16)
    assert found["mean_rel"] == pytest.approx(1 / 16)
    assert found["rmse"] == pytest.approx(math.sqrt((1 / 64 + 1 / 16) / 4 * (4 / 2.0001 + 1e-4)))
    assert found["error_balance"] == 0.0
    assert found["error_rate"] == 0.5
    assert found["small_value_ratio"] == 0.0
    assert found["rel_err_ratio"] == 1.0
    assert found["hundredth"] == 0.25
    assert math.isnan(found["max_abs"] or 0.0)


def test_ulp_errors_are_in_units_of_the_truth_s_binade() -> None:
    found = metrics_of(evidence([1.0 + 2.0**-7, 4.0, 0.0], [1.0, 4.0 + 2.0**-4, 0.0], dtype="bfloat16"))
    assert found["max_ulp"] == 2.0
    assert found["mean_ulp"] == pytest.approx(1.0)
    assert found["ulp_share"] == pytest.approx(1 / 3)


def test_an_infinity_beside_the_largest_number_is_near() -> None:
    largest = float(np.finfo(np.float32).max)
    assert metrics_of(evidence([largest, 1.0], [math.inf, 1.0]))["inf_nan_ratio"] == 0.0
    assert metrics_of(evidence([1.0, 1.0], [math.inf, 1.0]))["inf_nan_ratio"] == 1.0
    assert metrics_of(evidence([math.nan, 1.0], [math.nan, 1.0]))["inf_nan_ratio"] == 0.0


def test_a_float64_output_has_the_plain_metrics_only() -> None:
    found = metrics_of(evidence([1.0, 2.0], [1.0, 2.0], dtype="float64"))
    assert found["cosine"] == pytest.approx(1.0)
    assert found["rmse"] is None
    assert set(found) == set(METRICS)


def test_one_side_of_zeros_has_no_likeness() -> None:
    assert metrics_of(evidence([0.0, 0.0], [1.0, 2.0]))["cosine"] == 0.0
    assert metrics_of(evidence([0.0, 0.0], [0.0, 0.0]))["cosine"] == 1.0


@pytest.mark.parametrize(
    ("api", "metric", "ratio", "verdict"),
    [
        ("softmax", "max_rel", 9.9, Verdict.PASS),
        ("softmax", "max_rel", 10.1, Verdict.FAIL),
        ("embedding", "max_rel", 5.1, Verdict.FAIL),
        ("layer_norm", "max_rel", 2.1, Verdict.FAIL),
        ("layer_norm", "rmse", 1.3, Verdict.FAIL),
        ("softmax", "rmse", 1.9, Verdict.PASS),
        ("softmax", "mean_rel", 2.1, Verdict.FAIL),
        ("gelu", "max_rel", 9.9, Verdict.PASS),
        ("softmax", "error_balance", 100.0, Verdict.PASS),
    ],
)
def test_errors_of_two_devices_by_ratio(api: str, metric: str, ratio: float, verdict: Verdict) -> None:
    target = SOUND | {metric: ratio * 0.01}
    result = compare_devices(target, SOUND | {metric: 0.01}, api=api, dtype="float32")
    assert result.verdict is verdict
    assert result.failing == ((metric,) if verdict is Verdict.FAIL else ())
    assert dict(result.figures)[metric] == pytest.approx(ratio)


def test_a_ratio_has_a_least_divisor() -> None:
    target, reference = SOUND | {"small_value_ratio": 2.0**-12}, SOUND
    figures = {
        dtype: dict(compare_devices(target, reference, api="softmax", dtype=dtype).figures)["small_value_ratio"]
        for dtype in ("float16", "bfloat16", "float32")
    }
    assert figures == {"float16": 0.5, "bfloat16": 2.0**-4, "float32": 4.0}


@pytest.mark.parametrize(
    ("target", "reference", "verdict"),
    [
        (math.inf, math.inf, Verdict.PASS),
        (math.nan, math.nan, Verdict.PASS),
        (math.inf, -math.inf, Verdict.FAIL),
        (math.inf, 0.01, Verdict.FAIL),
    ],
)
def test_statistics_that_are_no_numbers_must_agree(target: float, reference: float, verdict: Verdict) -> None:
    pair = SOUND | {"rmse": target}, SOUND | {"rmse": reference}
    assert compare_devices(*pair, api="softmax", dtype="float32").verdict is verdict


def test_a_class_holds_where_the_row_has_its_metrics() -> None:
    fixed = SOUND | {"inf_nan_ratio": 0.0, "rel_err_ratio": 0.1, "abs_err_ratio": 0.0}
    by_class = compare_devices(fixed, fixed | {"rel_err_ratio": 0.09}, api="add", dtype="float32")
    assert (by_class.verdict, by_class.api_class, by_class.failing) == (
        Verdict.FAIL,
        ApiClass.FIXED,
        ("rel_err_ratio",),
    )
    assert compare_devices(SOUND, SOUND, api="add", dtype="float32").api_class is ApiClass.RATIOS


@pytest.mark.parametrize(
    ("dtype", "mean", "share", "reference_share", "verdict"),
    [
        ("float32", 63.0, 0.9, 0.0, Verdict.PASS),
        ("float32", 65.0, 0.9, 0.0, Verdict.FAIL),
        ("float32", 65.0, 0.04, 0.0, Verdict.PASS),
        ("float32", 65.0, 0.5, 0.6, Verdict.PASS),
        ("float16", 0.1, 0.002, 0.0, Verdict.FAIL),
        ("float16", 0.1, 0.002, 0.003, Verdict.PASS),
    ],
)
def test_products_of_matrices_by_ulp(
    dtype: str, mean: float, share: float, reference_share: float, verdict: Verdict
) -> None:
    target = SOUND | {"mean_ulp": mean, "ulp_share": share}
    reference = SOUND | {"mean_ulp": mean, "ulp_share": reference_share}
    assert compare_devices(target, reference, api="matmul", dtype=dtype).verdict is verdict


def test_convolutions_by_the_thousandth_and_integers_by_equality() -> None:
    assert compare_devices(SOUND | {"thousandth": 0.9989}, SOUND, api="conv2d", dtype="float32").verdict is Verdict.FAIL
    assert compare_devices(SOUND, SOUND, api="conv2d", dtype="float32").api_class is ApiClass.THOUSANDTH
    rounded = SOUND | {"thousandth": 0.38}
    assert compare_devices(rounded, rounded, api="conv2d", dtype="bfloat16").verdict is Verdict.PASS
    worse = compare_devices(SOUND | {"thousandth": 0.37}, rounded, api="conv2d", dtype="bfloat16")
    assert worse.verdict is Verdict.FAIL
    assert compare_devices({"error_rate": 0.1}, {"error_rate": 0.09}, api="x", dtype="int64").verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn", "int64", "bool"])
@pytest.mark.parametrize("api", ["softmax", "layer_norm", "embedding", "add", "masked_fill", "matmul", "conv2d"])
def test_a_device_agrees_with_itself(api: str, dtype: str) -> None:
    chance = random.Random(f"{api} {dtype}")
    figures = (None, 0.0, 1e-9, 0.38, 1.0, 1e30, math.inf, math.nan)
    for _ in range(200):
        row = {metric: chance.choice(figures) for metric in METRICS}
        assert compare_devices(row, row, api=api, dtype=dtype).verdict is not Verdict.FAIL, row


@pytest.mark.parametrize("dtype", ["float64", "complex64", ""])
def test_types_that_are_skipped(dtype: str) -> None:
    assert compare_devices(SOUND, SOUND, api="softmax", dtype=dtype).verdict is Verdict.SKIP


def test_a_blank_row_is_skipped() -> None:
    blank = dict.fromkeys(METRICS)
    assert compare_devices(blank, SOUND, api="softmax", dtype="float32").verdict is Verdict.SKIP
    assert compare_devices(SOUND, blank, api="softmax", dtype="float32").verdict is Verdict.SKIP


def test_what_has_no_figure_of_its_class_was_not_compared() -> None:
    plain = {"cosine": 1.0, "max_abs": 0.0}
    assert compare_devices(plain, plain, api="matmul", dtype="float8_e4m3fn").verdict is Verdict.SKIP
