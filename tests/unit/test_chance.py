"""Chances of ratios of mean squares, against tables of Fisher's distribution and against what random numbers do."""

import math

import numpy as np
import pytest

from ulpscope.numerics.chance import largest_ratio, ratio_chance


@pytest.mark.parametrize(
    ("chance", "first", "second", "ratio"),
    [
        (0.05, 1, 10, 4.9646),
        (0.05, 10, 10, 2.9782),
        (0.01, 5, 2, 99.299),
        (0.001, 8, 16, 6.195),
        (0.05, 60, 120, 1.4290),
    ],
)
def test_ratios_of_the_tables(chance: float, first: float, second: float, ratio: float) -> None:
    assert ratio_chance(ratio, first, second) == pytest.approx(chance, rel=1e-3)
    assert largest_ratio(chance, first, second) == pytest.approx(ratio, rel=2e-3)


def test_two_draws_of_one_number_say_next_to_nothing() -> None:
    """Student's distribution with two degrees of freedom has no variance."""
    assert math.sqrt(largest_ratio(1e-6, 1, 2)) == pytest.approx(1000, rel=1e-2)


def test_a_ratio_of_zero_is_always_reached() -> None:
    assert ratio_chance(0.0, 4, 8) == 1.0
    assert ratio_chance(1e300, 4, 8) == pytest.approx(0.0, abs=1e-300)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (4, 8), (32, 64)])
def test_random_errors_stay_within_their_chance(first: int, second: int) -> None:
    random = np.random.default_rng(7)
    squares = [np.square(random.standard_normal((200_000, number))).mean(axis=1) for number in (first, second)]
    reached = np.mean(squares[0] / squares[1] >= largest_ratio(0.01, first, second))
    assert reached == pytest.approx(0.01, rel=0.15)
