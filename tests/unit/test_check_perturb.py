"""Does an output move more than it should: judged from made-up numbers before and after."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.judge.soundness.perturbation import judge_perturbed, largest_ratio
from ulpscope.records.checks import (
    Direction,
    OutputEvidence,
    OutputResult,
    Perturbation,
    PerturbedEvidence,
    PerturbStandard,
    Rule,
    Verdict,
)

Floats = NDArray[np.float64]
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounded(values: Floats, dtype: str) -> Floats:
    if dtype == "float32":
        return values.astype(np.float32).astype(np.float64)
    return values.astype(np.float16).astype(np.float64)


def evidence(computed: Floats, exact: Floats, *, dtype: str = "float32", sensitivity: float = 1.0) -> OutputEvidence:
    """An output whose elements move by `sensitivity` times their own size per unit change of the inputs."""
    return OutputEvidence(
        place="output.0",
        direction=Direction.FORWARD,
        rule=Rule.ROUNDED,
        dtype=dtype,
        computed=np.asarray(computed),
        exact=np.asarray(exact),
        reduction=1.0,
        accumulation=2.0**-24,
        input_roundoff=ROUNDOFF[dtype],
        sensitivity=sensitivity * np.abs(exact),
    )


def judge(
    before: OutputEvidence,
    after: OutputEvidence,
    *,
    mode: Perturbation = Perturbation.BIT_NOISE,
    standard: PerturbStandard = PerturbStandard.CONDITION,
) -> OutputResult:
    return judge_perturbed(PerturbedEvidence(mode, before, after), standard)


@pytest.fixture
def exact() -> Floats:
    return np.random.default_rng(0).normal(size=(8, 50)) + 3.0


def test_an_output_that_follows_the_exact_one_is_stable(exact: Floats) -> None:
    moved = exact * (1 + 2.0**-20)
    result = judge(evidence(rounded(exact, "float32"), exact), evidence(rounded(moved, "float32"), moved))
    assert result.verdict is Verdict.PASS
    assert result.statistic == "stable"


def test_one_element_that_moves_too_far_is_unstable_and_named(exact: Floats) -> None:
    moved = exact * (1 + 2.0**-23)
    computed = rounded(moved, "float32")
    computed[3, 7] *= 1 + 2.0**-16
    result = judge(evidence(rounded(exact, "float32"), exact), evidence(computed, moved))
    assert result.verdict is Verdict.FAIL
    assert result.statistic == "unstable"
    assert result.worst == (3, 7)
    assert "times what rounding explains" in result.message


def test_an_ill_conditioned_function_may_move_far_if_the_exact_one_does(exact: Floats) -> None:
    # The last bit of the inputs changes the result by half: no kernel is to blame for that.
    moved = exact * 1.5
    before, after = evidence(exact, exact), evidence(moved, moved)
    assert judge(before, after).verdict is Verdict.PASS
    assert judge(before, after, standard=PerturbStandard.FREE_BENCHMARK).verdict is Verdict.FAIL


def test_a_wide_condition_explains_what_a_narrow_one_does_not(exact: Floats) -> None:
    computed = exact * (1 + 2.0**-17)
    narrow = judge(evidence(exact, exact), evidence(computed, exact))
    wide = judge(evidence(exact, exact, sensitivity=100.0), evidence(computed, exact, sensitivity=100.0))
    assert (narrow.verdict, wide.verdict) == (Verdict.FAIL, Verdict.PASS)


def test_an_output_that_stands_still_while_the_exact_one_moves_is_unstable(exact: Floats) -> None:
    computed = rounded(exact, "float32")
    assert judge(evidence(computed, exact), evidence(computed, exact * 1.01)).verdict is Verdict.FAIL


def test_two_runs_that_differ_within_rounding_are_not_repeatable(exact: Floats) -> None:
    before = rounded(exact, "float32")
    after = before.copy()
    after[0, 0] = np.nextafter(np.float32(after[0, 0]), np.float32(10))
    result = judge(evidence(before, exact), evidence(after, exact), mode=Perturbation.NO_CHANGE)
    assert result.verdict is Verdict.WARN
    assert result.statistic == "nondeterministic"
    assert "1 of 400 elements" in result.message


def test_two_runs_with_the_same_bits_pass(exact: Floats) -> None:
    same = evidence(exact, exact)
    assert judge(same, same, mode=Perturbation.NO_CHANGE).statistic == "identical"


def test_two_runs_that_differ_beyond_rounding_fail(exact: Floats) -> None:
    after = exact * 1.01
    assert judge(evidence(exact, exact), evidence(after, exact), mode=Perturbation.NO_CHANGE).verdict is Verdict.FAIL


def test_inf_that_the_exact_result_does_not_have_fails(exact: Floats) -> None:
    after = exact.copy()
    after[2, 1] = math.inf
    result = judge(evidence(exact, exact), evidence(after, exact))
    assert (result.verdict, result.statistic, result.worst) == (Verdict.FAIL, "not_finite", (2, 1))


def test_overflow_that_the_exact_result_asks_for_passes() -> None:
    before, after = np.array([60000.0, 1.0]), np.array([70000.0, 1.0])
    computed = np.array([math.inf, 1.0])
    assert judge(evidence(before, before, dtype="float16"), evidence(computed, after, dtype="float16")).verdict is (
        Verdict.PASS
    )


def test_a_choice_may_flip_only_where_the_exact_one_does() -> None:
    def bools(computed: list[bool], exact: list[bool]) -> OutputEvidence:
        plain = evidence(np.ones(3), np.ones(3))
        return replace(
            plain, dtype="bool", rule=Rule.EXACT, computed=np.array(computed), exact=np.array(exact), sensitivity=None
        )

    before = bools([True, False, True], [True, False, True])
    assert judge(before, bools([True, True, True], [True, True, True])).verdict is Verdict.PASS
    flipped = judge(before, bools([True, True, True], [True, False, True]))
    assert (flipped.verdict, flipped.statistic, flipped.worst) == (Verdict.FAIL, "flipped", (1,))


def test_another_shape_fails(exact: Floats) -> None:
    result = judge(evidence(exact, exact), evidence(exact[:4], exact[:4]))
    assert (result.verdict, result.statistic) == (Verdict.FAIL, "shape")


def test_an_empty_output_tells_nothing() -> None:
    empty = evidence(np.zeros((0, 3)), np.zeros((0, 3)))
    assert judge(empty, empty).verdict is Verdict.UNTESTED


def test_a_wider_dtype_is_held_to_the_rounding_of_the_narrow_one(exact: Floats) -> None:
    before = evidence(rounded(exact, "float16"), exact, dtype="float16")
    after = evidence(rounded(exact, "float32"), exact)
    assert judge(before, after, mode=Perturbation.IMPROVE_PRECISION).verdict is Verdict.PASS
    off = replace(before, computed=before.computed * 1.02)
    assert judge(off, after, mode=Perturbation.IMPROVE_PRECISION).verdict is Verdict.FAIL


class TestRatio:
    def ratio(self, before: list[float], after: list[float], *, dtype: str = "float16", **changes: object) -> float:
        first, second = (
            replace(evidence(np.array(each), np.array(each), dtype=dtype), **changes)  # type: ignore[arg-type]
            for each in (before, after)
        )
        return largest_ratio(PerturbedEvidence(Perturbation.BIT_NOISE, first, second))

    def test_it_is_the_larger_over_the_smaller(self) -> None:
        assert self.ratio([2.0, 1.0], [2.0, 1.25]) == 1.25
        assert self.ratio([2.0, 1.25], [2.0, 1.0]) == 1.25

    def test_small_elements_count_as_the_noise_level(self) -> None:
        # float16: the square root of 1e-6.
        assert self.ratio([1e-5], [5e-4]) == 1.0
        assert self.ratio([1e-5], [2e-3]) == pytest.approx(2.0)

    def test_gradients_have_a_level_of_their_own(self) -> None:
        assert self.ratio([1e-4], [9e-4], dtype="float32", direction=Direction.BACKWARD) == 1.0

    def test_a_changed_sign_is_infinite_unless_both_are_small(self) -> None:
        assert self.ratio([0.5], [-0.5]) == math.inf
        assert self.ratio([1e-4], [-1e-4]) == 1.0

    def test_nan_counts_as_no_change(self) -> None:
        assert self.ratio([math.nan, 1.0], [1.0, 1.0]) == 1.0

    @pytest.mark.parametrize(("dtype", "limit"), [("float16", 1.002), ("bfloat16", 1.004), ("float32", 1.0002)])
    def test_each_dtype_has_its_limit(self, dtype: str, limit: float) -> None:
        one = evidence(np.array([1.0]), np.array([1.0]), dtype=dtype)
        for factor, verdict in ((1 - 1e-5, Verdict.PASS), (1 + 1e-5, Verdict.FAIL)):
            other = evidence(np.array([limit * factor]), np.array([1.0]), dtype=dtype)
            result = judge(one, other, standard=PerturbStandard.FREE_BENCHMARK)
            assert result.verdict is verdict, factor
            assert dict(result.metrics)["max_rel"] == pytest.approx(limit * factor - 1)

    def test_nothing_changed_needs_equality(self) -> None:
        one, other = (evidence(np.array([each]), np.array([1.0])) for each in (1.0, 1.0 + 2.0**-23))
        told = judge(one, other, mode=Perturbation.NO_CHANGE, standard=PerturbStandard.FREE_BENCHMARK)
        assert told.verdict is Verdict.FAIL

    def test_the_cpu_is_compared_by_error_and_balance(self) -> None:
        many = np.linspace(1.0, 2.0, 10_000)
        free = PerturbStandard.FREE_BENCHMARK
        same = judge(evidence(many, many), evidence(many, many), mode=Perturbation.TO_CPU, standard=free)
        assert same.verdict is Verdict.PASS
        device = many.copy()
        device[5] *= 1 + 2.0**-13
        off = judge(evidence(device, many), evidence(many, many), mode=Perturbation.TO_CPU, standard=free)
        assert off.verdict is Verdict.FAIL
        leaning = judge(
            evidence(many * (1 + 1e-7), many), evidence(many, many), mode=Perturbation.TO_CPU, standard=free
        )
        assert leaning.verdict is Verdict.FAIL

    def test_what_it_has_no_limit_for_is_untested(self) -> None:
        one = replace(evidence(np.array([1.0]), np.array([1.0])), dtype="float8_e5m2")
        assert judge(one, one, standard=PerturbStandard.FREE_BENCHMARK).verdict is Verdict.UNTESTED
