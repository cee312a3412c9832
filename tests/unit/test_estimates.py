"""Distances told from summaries alone, against numpy's own."""

from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import summary_of

from ulpscope.judge.rounding.limits import LIMITS
from ulpscope.numerics.summaries.estimates import (
    Summaries,
    cosines,
    least_distances,
    scatter_of_few,
    shortfall_of_few,
    sketch_distances,
    standard_deviations,
    stats_distances,
)

Arrays = list[np.ndarray[Any, Any]]
# Unbiased, with a standard deviation of 9 %: beyond four of them lies one estimate in 16,000.
SKETCH_SPREAD = 4 * 0.09


def summaries(arrays: Arrays, *, without: tuple[str, ...] = ()) -> Summaries:
    rows = [summary_of(array, "float32") for array in arrays]

    def column(name: str) -> np.ndarray[Any, Any]:
        numbers = [None if name in without else row[name] for row in rows]
        return np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)

    return Summaries(
        elements=np.array([array.size for array in arrays], dtype=np.float64),
        min=column("min"),
        max=column("max"),
        mean=column("mean"),
        norm=column("norm"),
        sketch=np.array([row["sketch"] for row in rows], dtype=np.float32),
    )


def noisy_pairs(relative: float, *, count: int = 40, size: int = 5000) -> tuple[Arrays, Arrays]:
    """Arrays, and what is left of them after an error in every element, as rounding makes it."""
    random = np.random.default_rng(7)
    reference = [random.standard_normal(size).astype(np.float32) for _ in range(count)]
    target = [(array * (1 + relative * random.standard_normal(size))).astype(np.float32) for array in reference]
    return reference, target


def true_distances(reference: Arrays, target: Arrays) -> np.ndarray[Any, Any]:
    pairs = zip(reference, target, strict=True)
    return np.array([np.linalg.norm(t.astype(np.float64) - r.astype(np.float64)) for r, t in pairs])


def test_cosines_are_those_of_the_vectors() -> None:
    random = np.random.default_rng(3)
    reference, target = random.standard_normal((2, 20, 50))
    target[5:] += 3 * reference[5:]
    norms = np.linalg.norm(reference, axis=1), np.linalg.norm(target, axis=1)
    expected = (reference * target).sum(axis=1) / (norms[0] * norms[1])
    np.testing.assert_allclose(cosines(*norms, np.linalg.norm(target - reference, axis=1)), expected, atol=1e-12)


def test_cosines_of_special_vectors() -> None:
    ones = np.ones(1)
    assert cosines(ones, ones, 0 * ones) == 1.0
    assert cosines(ones, ones, 2 * ones) == -1.0
    assert cosines(3 * ones, 4 * ones, 5 * ones) == pytest.approx(0.0)
    assert cosines(0 * ones, 0 * ones, 0 * ones) == 1.0
    assert np.isnan(cosines(0 * ones, ones, ones))
    # An estimated distance may contradict the norms; no cosine is beyond 1.
    assert cosines(ones, ones, 9 * ones) == -1.0


@pytest.mark.parametrize("relative", [1e-4, 1e-2, 1.0])
def test_sketches_tell_distances(relative: float) -> None:
    reference, target = noisy_pairs(relative)
    found = sketch_distances(summaries(reference).sketch, summaries(target).sketch)  # type: ignore[arg-type]
    ratios = found / true_distances(reference, target)
    assert np.all(np.abs(ratios - 1) < SKETCH_SPREAD)
    assert abs(ratios.mean() - 1) < SKETCH_SPREAD / np.sqrt(len(ratios))


def test_sketches_tell_a_single_wrong_element_exactly() -> None:
    reference = [np.linspace(-1, 1, 3000, dtype=np.float32)]
    target = [reference[0].copy()]
    target[0][1234] += 5
    found = sketch_distances(summaries(reference).sketch, summaries(target).sketch)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, 5.0, rtol=1e-5)


def test_a_missing_sketch_tells_nothing() -> None:
    known = summaries([np.ones(4, dtype=np.float32)]).sketch
    assert known is not None
    assert np.isnan(sketch_distances(known, np.full_like(known, np.nan)))[0]


@pytest.mark.parametrize("relative", [1e-4, 1e-2, 0.3])
def test_stats_guess_the_size_of_spread_errors(relative: float) -> None:
    reference, target = noisy_pairs(relative)
    ratios = stats_distances(summaries(reference), summaries(target)) / true_distances(reference, target)
    assert 1 / LIMITS.stats_factor < np.median(ratios) < LIMITS.stats_factor
    assert np.all(ratios > 0)


def test_stats_of_equal_arrays_tell_no_distance() -> None:
    reference, _ = noisy_pairs(0.1, count=3)
    zeros = [np.zeros(8, dtype=np.float32)]
    assert stats_distances(summaries(reference), summaries(reference)).tolist() == [0, 0, 0]
    assert stats_distances(summaries(zeros), summaries(zeros)).tolist() == [0]


def test_stats_never_guess_less_than_norms_differ() -> None:
    reference, _ = noisy_pairs(0.1, count=5)
    target = [3 * array for array in reference]
    found = stats_distances(summaries(reference), summaries(target))
    np.testing.assert_allclose(found, true_distances(reference, target), rtol=0.2)


def test_a_shift_shows_in_the_mean_alone() -> None:
    reference, _ = noisy_pairs(0.1, count=5)
    target = [array + 1 for array in reference]
    left_out = ("min", "max", "norm")
    found = stats_distances(summaries(reference, without=left_out), summaries(target, without=left_out))
    np.testing.assert_allclose(found, true_distances(reference, target), rtol=1e-4)


def test_without_any_stats_nothing_is_guessed() -> None:
    reference, target = noisy_pairs(0.1, count=2)
    none = ("min", "max", "mean", "norm")
    assert np.isnan(stats_distances(summaries(reference, without=none), summaries(target))).all()
    assert np.isnan(stats_distances(summaries(reference), summaries(target, without=none))).all()


def test_standard_deviations_are_numpys() -> None:
    reference, _ = noisy_pairs(0.1, count=4)
    shifted = [array + number for number, array in enumerate(reference)]
    expected = [float(array.astype(np.float64).std()) for array in shifted]
    np.testing.assert_allclose(standard_deviations(summaries(shifted)), expected, rtol=1e-6)


def small_pairs(*sizes: int) -> tuple[Arrays, Arrays]:
    random = np.random.default_rng(11)
    reference = [random.standard_normal(size).astype(np.float32) for size in sizes]
    return reference, [array + random.standard_normal(array.size).astype(np.float32) for array in reference]


def sizes_of(arrays: Arrays) -> np.ndarray[Any, Any]:
    return np.array([array.size for array in arrays], dtype=np.float64)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 61, 500])
def test_an_offset_of_a_few_elements_is_seen_at_its_size(size: int) -> None:
    """In sketches of two elements it may cancel."""
    reference = [np.linspace(-1.0, 2.0, size).astype(np.float32)]
    target = [reference[0] + np.float32(0.05)]
    found = least_distances(summaries(reference), summaries(target), sizes_of(reference))
    np.testing.assert_allclose(found, true_distances(reference, target), rtol=1e-4)


def test_a_least_distance_is_never_more_than_the_distance() -> None:
    reference, target = small_pairs(*(1 + number % 40 for number in range(400)))
    found = least_distances(summaries(reference), summaries(target), sizes_of(reference))
    true = true_distances(reference, target)
    assert (found <= true * (1 + 1e-6)).all()


def test_rounding_of_the_stats_is_no_distance() -> None:
    reference, _ = small_pairs(5000)
    known = summaries(reference)
    moved = Summaries(known.elements, known.min, known.max, known.mean, known.norm * (1 + 8e-7), known.sketch)
    assert least_distances(known, moved, sizes_of(reference)).tolist() == [0.0]


def test_extremes_say_nothing_where_elements_are_set_aside() -> None:
    """They are those of a mask; nor do means where other numbers of elements were counted."""
    masked = [np.array([1.0, 2.0, -3e38], dtype=np.float32)], [np.array([1.0, 2.0, -1e38], dtype=np.float32)]
    sides = summaries(masked[0]), summaries(masked[1])
    assert least_distances(*sides, np.array([2.0])).tolist() == [0.0]
    assert least_distances(summaries([np.ones(3)]), summaries([np.zeros(3)]), np.array([0.0])).tolist() == [0.0]


def test_estimates_of_few_elements_are_not_further_off_than_told() -> None:
    random = np.random.default_rng(8)
    for size in (1, 2, 4, 16, 32, 64, 100):
        errors = [random.standard_normal(size).astype(np.float32) for _ in range(200)]
        zeros = [np.zeros(size, dtype=np.float32)] * len(errors)
        ratios = sketch_distances(summaries(zeros).sketch, summaries(errors).sketch) / true_distances(zeros, errors)  # type: ignore[arg-type]
        assert ratios.max() <= scatter_of_few(size) * (1 + 3 / np.sqrt(2 * 61))
    assert scatter_of_few(1) == scatter_of_few(122) == scatter_of_few(1e9) == 1.0


@pytest.mark.parametrize("size", [12, 16, 32, 64])
def test_a_distance_of_few_elements_is_hardly_ever_larger_than_its_doubted_estimate(size: int) -> None:
    reference, target = noisy_pairs(1e-2, count=400, size=size)
    pairs = summaries(reference), summaries(target)
    assert pairs[0].sketch is not None
    assert pairs[1].sketch is not None
    estimates = sketch_distances(pairs[0].sketch, pairs[1].sketch)
    # Of many elements an estimate may be too small by 1.36 as seldom as this.
    doubted = estimates * shortfall_of_few(size) * 1.36
    assert np.mean(true_distances(reference, target) > doubted) <= 0.02
    assert np.mean(true_distances(reference, target) > estimates * 1.36) > 0.02 or size == 64


def test_many_elements_are_not_doubted() -> None:
    assert shortfall_of_few(1) == shortfall_of_few(122) == shortfall_of_few(10**6) == 1.0
    assert shortfall_of_few(16) > shortfall_of_few(64) > 1.0
