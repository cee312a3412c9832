"""The sketch against a deliberately naive implementation of its specification, and what it promises to see."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulpscope.numerics.summaries.constants import BLOCK_SALT, ROTATION_MUL, SKETCH, SKETCH_LENGTH, SUM_SALT
from ulpscope.numerics.summaries.summary import block_signs, estimate_distance, sum_signs, summarize

MASK = 2**64 - 1


def splitmix(salt: int, number: int) -> int:
    """Output number k of Vigna's splitmix64, seeded with the salt."""
    z = (salt + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def odd(word: int, first_bit: int) -> list[int]:
    x, y, z = (word >> first_bit + i & 1 for i in range(3))
    return [1 ^ x ^ y ^ z, x, y, z]


def place(index: int) -> tuple[int, int]:
    """Which sum an element counts into, and with which sign."""
    block, within = divmod(index, 16 * 122)
    row, element = divmod(within, 122)
    column, half = divmod(element, 2)
    word = splitmix(BLOCK_SALT, block)
    rotation = (((word * ROTATION_MUL) & MASK) >> 32) * 61 >> 32
    k = (column + rotation) % 61
    own = splitmix(SUM_SALT, k)
    x, y = word >> 61 & 1, word >> 62 & 1
    pattern = odd(own, 3 * half)[row % 4] ^ odd(own, 6)[row // 4]
    negative = pattern ^ [0, x, y, x ^ y][row // 4] ^ (word >> k & 1)
    return k, -1 if negative else 1


def naive_sketch(numbers: list[float]) -> list[float]:
    terms: list[list[float]] = [[] for _ in range(61)]
    for index, number in enumerate(numbers):
        position, sign = place(index)
        if abs(number) < 2.0**29:
            terms[position].append(sign * number)
    return [math.fsum(term) for term in terms]


def sketch_of(array: np.ndarray, dtype_name: str = "float64") -> np.ndarray:
    return summarize(array, dtype_name)[SKETCH : SKETCH + SKETCH_LENGTH]


def test_splitmix_is_the_published_generator() -> None:
    # First outputs for seed 1234567, from the reference C code at https://prng.di.unimi.it/splitmix64.c.
    assert [splitmix(1234567, k) for k in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("count", [1, 61, 122, 123, 1951, 1952, 1953, 2500, 150 * 1952 + 5])
def test_sketch_is_what_the_specification_says(count: int) -> None:
    numbers = np.random.default_rng(count).standard_normal(count)
    if count > 2500:  # the naive way is slow: leave zeros between
        numbers[np.arange(count) % 97 != 0] = 0.0
    nonzero = np.flatnonzero(numbers)
    expected = np.zeros(61)
    for index in nonzero.tolist():
        position, sign = place(index)
        expected[position] += sign * numbers[index]
    np.testing.assert_allclose(sketch_of(numbers), expected, rtol=0, atol=1e-12)


@settings(max_examples=50)
@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=200))
def test_what_is_set_aside_leaves_the_sketch_alone(numbers: list[float]) -> None:
    largest = max((abs(x) for x in numbers if abs(x) < 2.0**29), default=0.0)
    got = sketch_of(np.array(numbers, dtype=np.float32), "float32")
    np.testing.assert_allclose(got, naive_sketch(numbers), rtol=1e-12, atol=1e-12 * largest)


def test_one_element_is_seen_at_its_exact_size() -> None:
    values = np.zeros(5000)
    for index in (0, 60, 61, 122, 1951, 1952, 4999):
        values[:] = 0.0
        values[index] = -3.0
        assert estimate_distance(sketch_of(np.zeros(5000)), sketch_of(values)) == 3.0


def test_sketches_of_a_sum_add_up() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 3000))
    np.testing.assert_allclose(sketch_of(one + other), sketch_of(one) + sketch_of(other), atol=1e-11)


def test_a_constant_over_a_column_of_a_block_always_adds_up_to_four() -> None:
    own = block_signs(0, 200)
    signs = sum_signs() * np.repeat(own.groups, 4, axis=1)[:, :, None, None]
    assert set(np.abs(signs.sum(axis=1)).flat) == {4.0}


def test_rows_do_not_favour_constant_offsets() -> None:
    rows = sum_signs().transpose(0, 2, 1).reshape(32, 61)
    in_one_group = rows[:8] @ rows[:8].T - 61 * np.eye(8)
    assert np.abs(in_one_group).max() <= 9


@pytest.mark.parametrize("width", [96, 122, 128, 244, 488, 976, 1024, 1952])
def test_a_constant_offset_of_any_one_channel_is_seen(width: int) -> None:
    ratios = []
    for channel in range(0, width, max(width // 40, 1)):
        error = np.zeros((256, width))
        error[:, channel] = 1.0
        ratios.append(float(estimate_distance(np.zeros(SKETCH_LENGTH), sketch_of(error))) / math.sqrt(256))
    assert min(ratios) > 0.3
    assert max(ratios) < 1.8


@pytest.mark.parametrize("count", [61, 96, 122, 128, 256, 500, 768, 1024, 1952])
def test_an_offset_of_a_small_value_is_seen_at_its_size(count: int) -> None:
    distance = float(estimate_distance(np.zeros(SKETCH_LENGTH), sketch_of(np.ones(count))))
    assert distance / math.sqrt(count) == pytest.approx(1.0, abs=0.06)


def test_random_errors_are_estimated_without_bias() -> None:
    errors = np.random.default_rng(5).standard_normal((300, 2000))
    ratios = [float(estimate_distance(np.zeros(61), sketch_of(e))) / np.linalg.norm(e) for e in errors]
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.02)
    assert np.std(ratios) < 0.105


def test_many_distances_at_once() -> None:
    sketches = np.random.default_rng(2).standard_normal((4, 61))
    expected = [math.dist(sketch, sketches[0]) for sketch in sketches]
    np.testing.assert_allclose(estimate_distance(sketches[0], sketches), expected, rtol=1e-14)


def test_known_answer_stays_frozen() -> None:
    """1, 2, ..., 1000: sums from the naive implementation above, written down so that it cannot drift with the code."""
    expected = naive_sketch([float(k) for k in range(1, 1001)])
    assert sketch_of(np.arange(1.0, 1001.0)).tolist() == expected
    assert expected[:4] == [-4124.0, -972.0, 0.0, -4.0]
