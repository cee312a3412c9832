"""The numbers of the rounding rule, against arithmetic in numpy."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ulpscope.judge.rounding.limits import (
    ACCUMULATOR,
    LIMITS,
    MEASURED_GAINS,
    SKETCH_FLOOR,
    STATS_FLOOR,
    Limits,
    default_gain,
    floor_of,
    gap_gain,
    kink_error,
    layer_pattern,
    sum_floor,
    unit_roundoff,
)
from ulpscope.operations.registry import Family, operation
from ulpscope.records.pairs import Measured


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)


def relative(wrong: Any, right: Any) -> float:
    return float(np.linalg.norm(wrong.astype(np.float64) - right) / np.linalg.norm(right))


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", np.float32), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_one_rounding_lies_below_the_floor(name: str, dtype: Any, random: np.random.Generator) -> None:
    numbers = random.standard_normal(20_000)
    error = relative(numbers.astype(dtype), numbers)
    floor = floor_of(unit_roundoff(name), Measured.DATA)
    assert error < floor < 2 * error


def test_integers_do_not_round() -> None:
    assert unit_roundoff("int64") == unit_roundoff("bool") == unit_roundoff("no such type") == 0.0
    assert unit_roundoff("float64") == 2.0**-53


def test_an_estimate_cannot_tell_less_than_its_own_resolution() -> None:
    double = unit_roundoff("float64")
    assert floor_of(double, Measured.SKETCH) == SKETCH_FLOOR
    assert floor_of(double, Measured.STATS) == STATS_FLOOR
    assert floor_of(double, Measured.DATA) == LIMITS.rounding * double
    assert floor_of(double, None) == LIMITS.rounding * double
    coarse = unit_roundoff("bfloat16")
    assert {floor_of(coarse, measured) for measured in Measured} == {LIMITS.rounding * coarse}


def test_a_sketch_in_float32_resolves_what_its_floor_says(random: np.random.Generator) -> None:
    """The sums of a sketch are stored in float32; beneath that, equal and unequal look alike."""
    sums = 100 * random.standard_normal((50, 61))
    stored = np.linalg.norm(sums.astype(np.float32) - sums, axis=1) / np.linalg.norm(sums, axis=1)
    assert stored.max() * np.sqrt(2) < SKETCH_FLOOR


@pytest.mark.parametrize("length", [10, 1000, 100_000])
def test_a_sum_in_float32_is_as_good_as_its_floor(length: int, random: np.random.Generator) -> None:
    terms = random.standard_normal((20, length)).astype(np.float32)
    one_by_one = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]
    errors = one_by_one - terms.astype(np.float64).sum(axis=1)
    natural = np.sqrt(length * np.mean(terms.astype(np.float64) ** 2))
    assert np.sqrt(np.mean(errors**2)) / natural < LIMITS.gain * sum_floor(length)


def test_a_single_term_is_no_sum() -> None:
    assert sum_floor(1) == sum_floor(0) == 0.0
    assert sum_floor(2) >= ACCUMULATOR
    assert sum_floor(10_000) > sum_floor(100)


def test_gains_by_kind_of_operation() -> None:
    assert default_gain(operation("linear")) == LIMITS.gain
    assert default_gain(operation("log")) == default_gain(operation("mse_loss")) == LIMITS.loose_gain
    assert default_gain(operation("lstm")) == LIMITS.recurrent_gain
    assert default_gain(operation("div")) > default_gain(operation("mul")) > default_gain(operation("exp"))
    assert default_gain(operation("never heard of")) == MEASURED_GAINS[Family.OTHER]
    assert default_gain(operation("linear"), Limits(gain=9.0)) == 9.0
    assert operation("never heard of").family is Family.OTHER


@pytest.mark.parametrize("error", [1e-3, 1e-2, 0.1])
def test_gradients_that_move_across_a_kink_are_explained(error: float, random: np.random.Generator) -> None:
    x, gradient = random.standard_normal((2, 50_000))
    moved = x * (1 + error * random.standard_normal(x.size)) + error * random.standard_normal(x.size)
    true_error = relative(gradient * (moved > 0), gradient * (x > 0))
    found = kink_error(operation("relu"), error, x.size)
    assert 0 < true_error < found < 10 * true_error


def test_one_element_may_be_all_that_moves() -> None:
    """A single gradient of average size that appears among 100 is an error of a tenth."""
    assert kink_error(operation("relu"), 1e-12, 100) > 1 / np.sqrt(100)
    assert kink_error(operation("relu"), 1e-12, 1e8) < 1e-3


def test_only_kinked_operations_have_kinks() -> None:
    assert kink_error(operation("linear"), 0.1, 100) == 0.0
    assert kink_error(operation("relu"), 0.0, 100) == 0.0
    assert kink_error(operation("max_pool2d"), 1e-3, 100) > 0.0


def test_a_gap_of_few_calls_in_one_run_changes_little() -> None:
    assert gap_gain(1, one_sided=True) == gap_gain(4, one_sided=True) == LIMITS.one_sided_gain
    assert gap_gain(1, one_sided=False) > LIMITS.one_sided_gain
    assert gap_gain(5, one_sided=True) == gap_gain(5, one_sided=False)


def test_a_long_gap_may_change_no_more_than_a_short_one() -> None:
    assert {gap_gain(calls, one_sided=False) for calls in range(0, 100, 10)} == {LIMITS.gap_gain}


@pytest.mark.parametrize(
    ("module", "pattern"),
    [(None, ""), ("model.head", "model.head"), ("model.layers.12.fc2", "model.layers.#.fc#"), ("h.0.1", "h.#.#")],
)
def test_layers_share_a_pattern(module: str | None, pattern: str) -> None:
    assert layer_pattern(module) == pattern
