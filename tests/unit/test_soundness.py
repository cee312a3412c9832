"""Verdicts on outputs whose errors are known, because they were made here."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.judge.soundness.grid import Grid
from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.checks import Direction, OutputEvidence, OutputResult, Rule, Verdict

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
COMMON = ("float32", "bfloat16", "float16")
Values = NDArray[np.float64]


def evidence(
    computed: Any, exact: Any, dtype: str = "float32", *, sensitivity: Any = None, **more: Any
) -> OutputEvidence:
    roundoff = DTYPES[dtype].unit_roundoff
    fields: dict[str, Any] = {
        "rule": Rule.ROUNDED,
        "reduction": 1.0,
        "accumulation": 2.0**-53 if dtype == "float64" else 2.0**-24,
        "input_roundoff": roundoff,
    }
    return OutputEvidence(
        place="output.0",
        direction=Direction.FORWARD,
        dtype=dtype,
        computed=np.asarray(computed),
        exact=np.asarray(exact),
        sensitivity=None if sensitivity is None else np.asarray(sensitivity),
        **(fields | more),
    )


def verdict(computed: Any, exact: Any, dtype: str = "float32", *, sensitivity: Any = None, **more: Any) -> OutputResult:
    """With sensitivities of an elementwise function, unless others are given."""
    known = np.abs(exact) if sensitivity is None else sensitivity
    result = judge_output(evidence(computed, exact, dtype, sensitivity=known, **more))
    assert result is not None
    return result


def normal(*shape: int, seed: int = 0) -> Values:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def rounded(values: Values, dtype: str) -> Values:
    return Grid.of(dtype).nearest(values)


def truncated(values: Values, dtype: str) -> Values:
    grid = Grid.of(dtype)
    spacing = grid.spacing(grid.exponents(np.abs(values)))
    return np.trunc(values / spacing) * spacing


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (64, 48), (3, 4, 5, 6)])
def test_correctly_rounded_results_pass_without_a_sensitivity(dtype: str, shape: tuple[int, ...]) -> None:
    exact = normal(*shape, seed=3)
    result = judge_output(evidence(rounded(exact, dtype), exact, dtype))
    assert result is not None
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("dtype", COMMON)
def test_a_sensitivity_is_asked_for_where_rounding_does_not_decide(dtype: str) -> None:
    exact = normal(64, 64)
    assert judge_output(evidence(rounded(exact * 1.01, dtype), exact, dtype)) is None


@pytest.mark.parametrize("dtype", COMMON)
@pytest.mark.parametrize("seed", range(5))
def test_sums_added_in_float32_pass(dtype: str, seed: int) -> None:
    left, right = (rounded(normal(48, 256, seed=2 * seed + side), dtype) for side in (0, 1))
    computed = rounded((left.astype(np.float32) @ right.astype(np.float32).T).astype(np.float64), dtype)
    sensitivity = np.sqrt(2.0 * (left**2) @ (right**2).T)
    result = verdict(computed, left @ right.T, dtype, sensitivity=sensitivity, reduction=256.0)
    assert result.verdict is Verdict.PASS, result.message


@pytest.mark.parametrize("dtype", COMMON)
def test_a_factor_off_by_many_roundoffs_fails_as_a_bias(dtype: str) -> None:
    exact = normal(64, 64)
    factor = 1.0 + 16.0 * DTYPES[dtype].unit_roundoff
    result = verdict(rounded(exact * factor, dtype), exact, dtype)
    assert (result.verdict, result.statistic) == (Verdict.FAIL, "bias")
    assert "away from zero" in result.message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_truncation_fails_as_a_bias_towards_zero(dtype: str) -> None:
    exact = normal(64, 64)
    result = verdict(truncated(exact, dtype), exact, dtype)
    assert (result.verdict, result.statistic) == (Verdict.FAIL, "bias")
    assert "100% of the inexact elements are off towards zero" in result.message


def test_truncation_of_float32_is_told() -> None:
    exact = normal(64, 64)
    assert verdict(truncated(exact, "float32"), exact).verdict in (Verdict.WARN, Verdict.FAIL)


@pytest.mark.parametrize("dtype", COMMON)
def test_a_single_wrong_element_fails_and_is_named(dtype: str) -> None:
    exact = normal(40, 50)
    computed = rounded(exact, dtype)
    computed[17, 23] = 1.5 * exact[17, 23] + 1.0
    result = verdict(computed, exact, dtype)
    assert (result.verdict, result.statistic, result.worst) == (Verdict.FAIL, "outlier", (17, 23))
    assert result.worst_exact == exact[17, 23]
    assert "[17, 23]" in result.message


@pytest.mark.parametrize("dtype", COMMON)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_wrong_channel_is_found_with_its_axis_and_index(dtype: str, axis: int) -> None:
    exact = normal(8, 12, 16)
    computed = exact.copy()
    np.moveaxis(computed, axis, 0)[5] *= 1.0 + 64.0 * DTYPES[dtype].unit_roundoff
    result = verdict(rounded(computed, dtype), exact, dtype)
    figures = dict(result.metrics)
    assert (result.verdict, result.statistic) == (Verdict.FAIL, "structure")
    assert (figures["structure_axis"], figures["structure_index"]) == (axis, 5)
    assert f"index 5 of axis {axis}" in result.message


@pytest.mark.parametrize("dtype", COMMON)
def test_a_dropped_bias_is_a_structure(dtype: str) -> None:
    added = 64.0 * DTYPES[dtype].unit_roundoff * normal(32, seed=1)
    exact = normal(128, 32) + added
    result = verdict(rounded(exact - added, dtype), exact, dtype)
    assert (result.verdict, result.statistic) == (Verdict.FAIL, "structure")
    assert dict(result.metrics)["structure_axis"] == 1


@pytest.mark.parametrize("dtype", COMMON)
def test_scattered_errors_of_many_roundoffs_fail(dtype: str) -> None:
    exact = normal(64, 64)
    noise = 1.0 + 24.0 * DTYPES[dtype].unit_roundoff * normal(64, 64, seed=1)
    assert verdict(rounded(exact * noise, dtype), exact, dtype).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_few_stored_roundings_are_at_most_a_warning(dtype: str) -> None:
    exact = normal(64, 64)
    stored = exact.copy()
    for seed in range(3):
        factor = 1.0 + 0.5 * np.abs(normal(64, 64, seed=seed + 1))
        stored = rounded(rounded(stored * factor, dtype) / factor, dtype)
    assert verdict(stored, exact, dtype).verdict in (Verdict.PASS, Verdict.WARN)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_few_elements_are_judged_too(count: int) -> None:
    exact = np.abs(normal(count)) + 1.0
    assert verdict(rounded(exact, "bfloat16"), exact, "bfloat16").verdict is Verdict.PASS
    assert verdict(rounded(1.25 * exact, "bfloat16"), exact, "bfloat16").verdict is Verdict.FAIL


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("seed", range(10))
def test_few_sound_sums_do_not_fail_by_chance(count: int, seed: int) -> None:
    terms = rounded(normal(count, 64, seed=seed), "bfloat16")
    computed = rounded(terms.astype(np.float32).sum(axis=1).astype(np.float64), "bfloat16")
    sensitivity = np.sqrt((terms**2).sum(axis=1))
    result = verdict(computed, terms.sum(axis=1), "bfloat16", sensitivity=sensitivity, reduction=64.0)
    assert result.verdict is Verdict.PASS, result.message


def test_poor_near_zero_is_not_wrong() -> None:
    # 1 + x - 1: exact beside 1, far from it beside x.
    exact = np.append(normal(500) * 1e-6, 1.0)
    computed = ((1.0 + exact.astype(np.float32)).astype(np.float32) - np.float32(1.0)).astype(np.float64)
    assert verdict(computed, exact).verdict in (Verdict.PASS, Verdict.WARN)


def test_another_sound_kernel_widens_what_is_explained() -> None:
    exact = normal(64, 64)
    computed = rounded(exact * (1.0 + 2.0**-6 * normal(64, 64, seed=1)), "bfloat16")
    ordinary = rounded(exact * (1.0 + 2.0**-6 * normal(64, 64, seed=2)), "bfloat16")
    alone = verdict(computed, exact, "bfloat16")
    assert alone.verdict is Verdict.FAIL
    assert verdict(computed, exact, "bfloat16", ordinary=ordinary).verdict is Verdict.PASS


def test_a_gradient_on_a_finer_grid_is_judged_by_its_dtype() -> None:
    exact = normal(64, 64)
    assert verdict(exact * (1.0 + 2.0**-10), exact, "bfloat16").verdict is Verdict.PASS
    assert verdict(exact * (1.0 + 2.0**-10), exact, "float32").verdict is Verdict.FAIL


def test_a_small_part_of_a_complex_number_is_judged_beside_the_whole() -> None:
    exact = np.stack([normal(500) + 4.0, 1e-6 * normal(500, seed=1)], axis=-1)
    computed = exact + np.stack([np.zeros(500), 5e-7 * normal(500, seed=2)], axis=-1)
    assert verdict(computed, exact, "complex64").verdict is Verdict.PASS
    assert verdict(computed, exact, "float32").verdict is not Verdict.PASS


@pytest.mark.parametrize("dtype", COMMON)
def test_the_order_of_elements_does_not_matter(dtype: str) -> None:
    exact = normal(30, 40)
    computed = rounded(exact * (1.0 + 3.0 * DTYPES[dtype].unit_roundoff), dtype)
    given = verdict(np.asfortranarray(computed), np.asfortranarray(exact), dtype)
    assert given == verdict(computed, exact, dtype)


@pytest.mark.parametrize(("dtype", "factor"), [("bfloat16", 1.004), ("float16", 1.0005)])
def test_a_factor_that_one_rounding_could_explain_fails_if_all_elements_share_it(dtype: str, factor: float) -> None:
    left, right = (rounded(normal(48, 256, seed=side), dtype) for side in (0, 1))
    sensitivity, exact = np.sqrt(2.0 * (left**2) @ (right**2).T), left @ right.T
    known: dict[str, Any] = {"sensitivity": sensitivity, "reduction": 256.0}
    assert verdict(rounded(exact, dtype), exact, dtype, **known).verdict is Verdict.PASS
    result = verdict(rounded(exact * factor, dtype), exact, dtype, **known)
    assert (result.verdict, result.statistic) == (Verdict.FAIL, "bias")
    known["ordinary"] = rounded(exact * factor, dtype)
    assert verdict(rounded(exact * factor, dtype), exact, dtype, **known).verdict is not Verdict.FAIL


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_lone_wrong_element_of_a_product_fails_although_stored_sums_may_be_as_far_off(dtype: str) -> None:
    left, right = (rounded(normal(48, 256, seed=side), dtype) for side in (0, 1))
    sensitivity, exact = np.sqrt(2.0 * (left**2) @ (right**2).T), left @ right.T
    off = 10.0 * DTYPES[dtype].unit_roundoff * sensitivity[5, 6]
    computed = rounded(exact, dtype)
    computed[5, 6] += off
    result = verdict(computed, exact, dtype, sensitivity=sensitivity, reduction=256.0)
    assert (result.verdict, result.worst) == (Verdict.FAIL, (5, 6))
    everywhere = DTYPES[dtype].unit_roundoff * sensitivity * normal(48, 48, seed=3)
    noisy = rounded(exact + everywhere, dtype)
    noisy[5, 6] = computed[5, 6]
    assert verdict(noisy, exact, dtype, sensitivity=sensitivity, reduction=256.0).verdict is Verdict.WARN


@pytest.mark.parametrize("seed", range(5))
def test_numbers_of_one_sign_may_be_added_up_one_by_one(seed: int) -> None:
    # Constant over blocks, as gradients after a mean are: adding the same number rounds to the same side.
    terms = np.repeat(np.abs(normal(32, 8, seed=seed)).astype(np.float32), 64, axis=1)
    computed = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1].astype(np.float64)
    exact = terms.astype(np.float64).sum(axis=1)
    sensitivity = np.sqrt((terms.astype(np.float64) ** 2).sum(axis=1))
    result = verdict(computed, exact, sensitivity=sensitivity, reduction=512.0)
    assert result.verdict is not Verdict.FAIL, result.message
    short = np.cumsum(terms[:, :-1], axis=1, dtype=np.float32)[:, -1].astype(np.float64)
    assert verdict(short, exact, sensitivity=sensitivity, reduction=512.0).verdict is Verdict.FAIL


def test_long_sums_in_half_precision_fail() -> None:
    terms = rounded(normal(200, 1024), "float16")
    total = np.zeros(200)
    for column in terms.T:
        total = rounded(total + column, "float16")
    sensitivity = np.sqrt((terms**2).sum(axis=1))
    result = verdict(total, terms.sum(axis=1), "float16", sensitivity=sensitivity, reduction=1024.0)
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("bfloat16", -3.3895313892515355e38),
        ("float32", -3.4028234663852886e38),
        ("float32", -1e9),
        ("float16", -65504.0),
    ],
)
def test_an_attention_mask_does_not_hide_what_is_wrong_beside_it(dtype: str, number: float) -> None:
    scores = rounded(3 * normal(4, 64, 64), dtype)
    masked = np.broadcast_to(normal(4, 1, 64, seed=1) > 0.3, scores.shape)
    mask = np.where(masked, number, 0.0)
    exact, moves = rounded(scores + mask, dtype), np.abs(scores) + np.abs(mask)
    wrong = np.where(masked, exact, rounded(1.3 * scores, dtype))
    assert verdict(exact, exact, dtype, sensitivity=moves).verdict is Verdict.PASS
    assert verdict(wrong, exact, dtype, sensitivity=moves).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", COMMON)
@pytest.mark.parametrize("ulps", [0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0])
def test_the_share_of_the_limit_reaches_one_where_it_is_told(dtype: str, ulps: float) -> None:
    exact = normal(4000)
    grid = Grid.of(dtype)
    spacing = grid.spacing(grid.exponents(np.abs(exact)))
    found = verdict(rounded(exact + ulps * spacing * normal(4000, seed=1), dtype), exact, dtype)
    share = dict(found.metrics)["limit_share"]
    assert (share >= 1) == (found.verdict is not Verdict.PASS)


def test_the_share_of_the_limit_grows_with_the_error() -> None:
    exact = normal(4000)
    spacing = Grid.of("float32").spacing(Grid.of("float32").exponents(np.abs(exact)))
    shares = []
    for ulps in (0.5, 1.0, 2.0, 4.0):
        found = verdict(rounded(exact + ulps * spacing * normal(4000, seed=1), "float32"), exact)
        shares.append(dict(found.metrics)["limit_share"])
    assert shares == sorted(shares)
