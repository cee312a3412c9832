"""Verdicts on inf, nan, subnormal numbers, exact results, invariants, shares, and on what shows nothing."""

import math
from typing import Any

import numpy as np
import pytest
from test_soundness import evidence, normal, rounded, verdict

from ulpscope.judge.soundness.grid import Grid
from ulpscope.judge.soundness.verdicts import judge_output, judge_share
from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.records.checks import Direction, OutputEvidence, OutputResult, Rule, ShareEvidence, Verdict


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_rounding_agrees_with_numpy(name: str) -> None:
    values = np.concatenate([normal(2000) * 10.0**power for power in range(-46, 39, 4)] + [np.array([0.0, -0.0])])
    with np.errstate(over="ignore"):
        expected = values.astype(numpy_dtype(name)).astype(np.float64)
    np.testing.assert_array_equal(Grid.of(name).nearest(values), expected)


def test_rounding_to_bfloat16_happens_once() -> None:
    # Just above the middle between 1 and the next bfloat16; float32 would round it to the middle, and that to even.
    assert Grid.of("bfloat16").nearest(np.array([1.0 + 2.0**-8 + 2.0**-40]))[0] == 1.0 + 2.0**-7


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_number_of_a_small_type_is_on_its_grid(name: str) -> None:
    item = numpy_dtype(name)
    with np.errstate(invalid="ignore"):
        numbers = np.arange(256**item.itemsize).astype(f"u{item.itemsize}").view(item).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    np.testing.assert_array_equal(Grid.of(name).nearest(numbers), numbers)
    assert np.abs(numbers).max() == DTYPES[name].largest


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_overflow_begins_half_a_spacing_above_the_largest(name: str) -> None:
    grid = Grid.of(name)
    below, at = np.array([np.nextafter(grid.overflow, 0.0)]), np.array([grid.overflow])
    assert grid.nearest(below)[0] == DTYPES[name].largest
    assert grid.nearest(at)[0] == math.inf


@pytest.mark.parametrize(
    ("computed", "exact"),
    [
        (math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (-math.inf, math.inf), (math.nan, math.inf),
        (math.inf, 40000.0), (60000.0, 1e6), (-math.inf, 1e6), (-math.inf, 65000.0),
    ],
)  # fmt: skip
def test_inf_and_nan_must_be_where_the_truth_has_them(computed: float, exact: float) -> None:
    truth = normal(40)
    given = rounded(truth, "float16")
    truth[11], given[11] = exact, computed
    assert judge_output(evidence(given, truth, "float16")) is None
    result = verdict(given, truth, "float16", sensitivity=np.zeros(40))
    assert (result.verdict, result.statistic, result.worst) == (Verdict.FAIL, "not_finite", (11,))


@pytest.mark.parametrize(
    ("computed", "exact"), [(math.nan, math.nan), (math.inf, math.inf), (math.inf, 1e6), (-math.inf, -65520.0)]
)
def test_the_same_inf_or_nan_is_right(computed: float, exact: float) -> None:
    truth = normal(40)
    given = rounded(truth, "float16")
    truth[11], given[11] = exact, computed
    result = judge_output(evidence(given, truth, "float16"))
    assert result is not None
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize(("computed", "exact"), [(math.inf, 65510.0), (65504.0, 65530.0)])
def test_rounding_decides_beside_the_largest_number(computed: float, exact: float) -> None:
    truth = normal(40)
    given = rounded(truth, "float16")
    truth[11], given[11] = exact, computed
    result = judge_output(evidence(given, truth, "float16"))
    assert result is not None
    assert result.verdict is Verdict.PASS


def test_a_sensitive_element_may_overflow_sooner() -> None:
    truth = normal(40)
    given = rounded(truth, "float16")
    truth[11], given[11] = 63000.0, math.inf
    assert judge_output(evidence(given, truth, "float16")) is None
    assert verdict(given, truth, "float16", sensitivity=np.abs(truth)).verdict is Verdict.FAIL
    assert verdict(given, truth, "float16", sensitivity=50.0 * np.abs(truth)).verdict is Verdict.PASS


def test_another_kernel_that_overflows_excuses_it() -> None:
    truth = normal(40) * 100.0
    given = rounded(truth, "float16")
    given[3] = math.inf
    result = verdict(given, truth, "float16", ordinary=given)
    assert (result.verdict, result.statistic, result.worst) == (Verdict.WARN, "not_finite", (3,))
    given[4] = math.nan
    result = verdict(given, truth, "float16", ordinary=np.where(np.isnan(given), 1.0, given))
    assert (result.verdict, result.statistic, result.worst) == (Verdict.FAIL, "not_finite", (4,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_flushing_subnormal_numbers_to_zero_is_a_warning(dtype: str) -> None:
    exact = DTYPES[dtype].smallest_normal * (1.5 + np.abs(normal(100)))
    exact[7] = 0.7 * DTYPES[dtype].smallest_normal
    computed = rounded(exact, dtype)
    assert verdict(computed, exact, dtype).verdict is Verdict.PASS
    computed[7] = 0.0
    result = verdict(computed, exact, dtype, sensitivity=0 * exact)
    assert (result.verdict, result.statistic) == (Verdict.WARN, "flushed")
    assert "1 of 100" in result.message


def test_a_zero_in_the_place_of_a_normal_number_is_no_flushing() -> None:
    exact = normal(100)
    computed = rounded(exact, "bfloat16")
    computed[7] = 0.0
    assert verdict(computed, exact, "bfloat16").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("computed", "exact", "dtype"),
    [
        ([1.0, 2.5, math.nan, -math.inf], [1.0, 2.5, math.nan, -math.inf], "float32"),
        ([1.0078125], [1.0 + 2.0**-8 + 2.0**-40], "bfloat16"),
        ([math.inf], [1e6], "float16"),
        ([0.0], [-0.0], "float32"),
        ([1, 2, -3], [1, 2, -3], "int64"),
        ([True, False], [True, False], "bool"),
        ([0.0, 0.0], [0.0, 0.0], "float32"),
    ],
)
def test_exact_results_pass(computed: list[Any], exact: list[Any], dtype: str) -> None:
    result = judge_output(evidence(computed, exact, dtype, rule=Rule.EXACT))
    assert result is not None
    assert (result.verdict, result.statistic) == (Verdict.PASS, "identical")


@pytest.mark.parametrize(
    ("computed", "exact", "dtype", "place"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0000002, 3.0], "float32", (1,)),
        ([[1, 2], [3, 5]], [[1, 2], [3, 4]], "int64", (1, 1)),
        ([True, True], [True, False], "bool", (1,)),
        ([1.0, math.nan], [1.0, 2.0], "float32", (1,)),
        ([1.0, 2.0], [1.0, math.nan], "float32", (1,)),
        ([2**62 + 1, 0], [2**62, 0], "int64", (0,)),
    ],
)
def test_exact_results_that_differ_fail(
    computed: list[Any], exact: list[Any], dtype: str, place: tuple[int, ...]
) -> None:
    result = judge_output(evidence(computed, exact, dtype, rule=Rule.EXACT))
    assert result is not None
    assert (result.verdict, result.statistic, result.worst) == (Verdict.FAIL, "unequal", place)
    assert "1 of " in result.message


def test_integers_are_exact_whatever_the_rule_says() -> None:
    result = judge_output(evidence(np.array([1, 2]), np.array([1, 3]), "int32"))
    assert result is not None
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("error", "expected"), [(1.0, Verdict.PASS), (30.0, Verdict.WARN), (1000.0, Verdict.FAIL), (math.nan, Verdict.FAIL)]
)
def test_invariants_are_small_beside_a_norm(error: float, expected: Verdict) -> None:
    size = error * 4.0 * 2.0**-24 * 10.0
    computed = np.zeros((3, 3))
    computed[2, 1] = size
    result = judge_output(
        evidence(computed, np.zeros((3, 3)), "float32", rule=Rule.NORMWISE, reduction=16.0, scale=10.0)
    )
    assert result is not None
    assert result.verdict is expected
    assert result.worst == (2, 1)


def untested(result: OutputResult | None) -> str:
    assert result is not None
    assert result.verdict is Verdict.UNTESTED
    return result.statistic


def test_outputs_that_show_nothing() -> None:
    empty = np.zeros((0, 3))
    infinite = np.full(5, math.inf)
    one_hot = np.eye(8)
    assert untested(judge_output(evidence(empty, empty))) == "empty"
    assert untested(judge_output(evidence(infinite, infinite))) == "all_not_finite"
    assert judge_output(evidence(one_hot, one_hot)) is None
    assert untested(judge_output(evidence(one_hot, one_hot, sensitivity=np.zeros((8, 8))))) == "saturated"


def test_a_constant_that_inputs_decide_is_tested() -> None:
    # The gradient of a mean: one number everywhere, in proportion to what came in.
    exact = np.full(64, 1.0 / 3.0)
    assert verdict(rounded(exact, "float32"), exact).verdict is Verdict.PASS
    assert verdict(rounded(1.01 * exact, "float32"), exact).verdict is Verdict.FAIL


def test_a_single_number_is_tested() -> None:
    result = judge_output(evidence(np.array(0.5), np.array(0.5)))
    assert result is not None
    assert result.verdict is Verdict.PASS


def test_a_saturated_output_that_is_wrong_fails() -> None:
    one_hot = np.eye(8)
    wrong = one_hot.copy()
    wrong[2, 3] = 0.25
    result = judge_output(evidence(wrong, one_hot, sensitivity=np.zeros((8, 8))))
    assert result is not None
    assert (result.verdict, result.worst) == (Verdict.FAIL, (2, 3))


def test_violations_and_other_shapes_fail() -> None:
    broken = judge_output(evidence(np.ones(3), np.ones(3), violation="index 9 of 5"))
    shaped = judge_output(evidence(np.ones((2, 3)), np.ones(3)))
    assert broken is not None
    assert shaped is not None
    assert (broken.verdict, broken.message) == (Verdict.FAIL, "index 9 of 5")
    assert (shaped.verdict, shaped.message) == (Verdict.FAIL, "the output has the shape (2, 3), expected (3,)")


def test_unknown_sensitivities_do_not_hide_the_rest() -> None:
    exact = normal(200)
    sensitivity = np.abs(exact)
    sensitivity[5] = math.nan
    assert verdict(rounded(exact * 1.01, "float32"), exact, sensitivity=sensitivity).verdict is Verdict.FAIL


def share(successes: int, trials: int, probability: float) -> OutputResult:
    return judge_share(
        ShareEvidence(
            place="output.0",
            direction=Direction.FORWARD,
            successes=successes,
            trials=trials,
            probability=probability,
        )
    )


@pytest.mark.parametrize(
    ("successes", "trials", "probability", "expected"),
    [
        (100, 1000, 0.1, Verdict.PASS),
        (130, 1000, 0.1, Verdict.PASS),
        (190, 1000, 0.1, Verdict.FAIL),
        (6_553, 65_536, 0.1, Verdict.PASS),
        (12_451, 65_536, 0.1, Verdict.FAIL),
        (0, 1000, 0.1, Verdict.FAIL),
        (50, 50, 0.5, Verdict.FAIL),
        (25, 50, 0.5, Verdict.PASS),
        (0, 1000, 0.0, Verdict.PASS),
        (1, 1000, 0.0, Verdict.FAIL),
        (999, 1000, 1.0, Verdict.FAIL),
        (5, 8, 0.5, Verdict.UNTESTED),
        (0, 0, 0.5, Verdict.UNTESTED),
        (40, 10_000_000, 1e-6, Verdict.FAIL),
        (12, 10_000_000, 1e-6, Verdict.PASS),
    ],
)
def test_shares(successes: int, trials: int, probability: float, expected: Verdict) -> None:
    assert share(successes, trials, probability).verdict is expected


def test_a_share_tells_its_deviation() -> None:
    # Variance 90: exact. 1.5 standard deviations below the mean.
    figures = dict(share(86, 1000, 0.1).metrics)
    assert figures["observed"] == pytest.approx(0.086)
    assert figures["z"] == pytest.approx(1.4, abs=0.15)


def test_random_shares_do_not_fail_by_chance() -> None:
    rng = np.random.default_rng(0)
    for probability in (0.01, 0.1, 0.5, 0.9):
        for trials in (200, 5000, 100_000):
            counts = rng.binomial(trials, probability, size=200)
            assert all(share(int(count), trials, probability).verdict is not Verdict.FAIL for count in counts)


def test_what_underflows_inside_every_such_call_is_not_flushed_by_the_kernel() -> None:
    smallest = DTYPES["float16"].smallest_normal
    exact = smallest * (1.5 + np.abs(normal(100)))
    exact[7] = 0.7 * smallest
    computed = rounded(exact, "float16")
    computed[7] = 0.0
    shown = verdict(computed, exact, "float16", sensitivity=0 * exact, ordinary=rounded(exact, "float16"))
    assert (shown.verdict, shown.statistic) == (Verdict.WARN, "flushed")
    assert verdict(computed, exact, "float16", sensitivity=0 * exact, ordinary=computed).verdict is Verdict.PASS


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_exact_results_without_axes_are_judged(dtype: str) -> None:
    kind = dtype if dtype in ("int64", "bool") else "float64"
    right, wrong = (np.asarray(value).astype(kind) for value in (1, 0))
    for computed, expected in ((right, Verdict.PASS), (wrong, Verdict.FAIL)):
        result = judge_output(evidence(computed, right, dtype, rule=Rule.EXACT))
        assert result is not None
        assert result.verdict is expected
    third = judge_output(evidence(np.asarray(0.333251953125), np.asarray(1 / 3), "float16", rule=Rule.EXACT))
    assert third is not None
    assert third.verdict is Verdict.PASS


@pytest.mark.parametrize(("scale", "verdict"), [(2.0**-20, Verdict.WARN), (2.0**-8, Verdict.FAIL)])
def test_what_underflow_can_lose_is_told_as_such(scale: float, verdict: Verdict) -> None:
    """A fifth of a sum is missing: below the normal numbers of float16 its terms may have been lost on the way."""
    exact = np.random.default_rng(0).normal(size=(64, 64)) * scale
    wrong = Grid.of("float16").nearest(exact * 0.8)
    found = judge_output(
        OutputEvidence(
            place="grad.args.0",
            direction=Direction.BACKWARD,
            rule=Rule.ROUNDED,
            dtype="float16",
            computed=wrong,
            exact=exact,
            reduction=64.0,
            accumulation=2.0**-24,
            input_roundoff=2.0**-11,
            sensitivity=np.abs(exact),
        )
    )
    assert found is not None
    assert found.verdict is verdict
    assert (found.statistic == "underflow") is (verdict is Verdict.WARN)
