"""Distances told from summaries alone, against numpy's own."""

from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import summary_of

from ulpscope.judge.rounding import LIMITS
from ulpscope.numerics.estimates import Summaries, cosines, sketch_distances, standard_deviations, stats_distances

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
