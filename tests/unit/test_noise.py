"""Noise like rounding: how far numbers move, and which stay."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.numerics.noise import noise_of

TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def moved(numbers: NDArray[Any], precision: str, dtype: str, seed: int = 1) -> NDArray[Any]:
    found = numbers.copy()
    noise_of(dtype, precision)(found.ctypes.data, found.size, seed)
    return found


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float32", "bfloat16"), ("float32", "float16"), ("float64", "float32"), ("float64", "bfloat16")],
)
def test_numbers_move_as_far_as_rounding_moves_them(dtype: str, precision: str) -> None:
    numbers = np.random.default_rng(0).standard_normal(20_000).astype(dtype)
    rounding = numbers.astype(TYPES[precision]).astype(dtype) - numbers
    noise = moved(numbers, precision, dtype) - numbers
    assert np.allclose(np.abs(noise), np.abs(rounding), rtol=0.01, atol=1e-3 * np.abs(rounding).max())
    # bfloat16 has some hundred numbers among these, each of which draws a direction.
    assert abs(np.mean(noise)) < 4 * np.std(noise) / np.sqrt(200)
    assert abs(np.corrcoef(noise, rounding)[0, 1]) < 4 / np.sqrt(200)


def test_what_a_precision_holds_stays() -> None:
    held = np.random.default_rng(1).standard_normal(1000).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(moved(held, "bfloat16", "float32"), held)


def test_masks_infinities_and_zeros_stay() -> None:
    masks = [np.finfo(np.float32).min, -1e30, 1e9]
    numbers = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, *masks, 1e-45], np.float32)
    for precision in ("bfloat16", "float16", "float32"):
        found = moved(numbers, precision, "float32")
        assert np.array_equal(found[:-1], numbers[:-1], equal_nan=True)
        assert np.isfinite(found[-1])


def test_small_numbers_move_by_the_steps_of_subnormals() -> None:
    numbers = np.linspace(1.0e-7, 7.0e-7, 4000, dtype=np.float32)  # float16's smallest step is 6e-8
    noise = moved(numbers, "float16", "float32") - numbers
    assert np.isclose(np.abs(noise).max(), 2.0**-25, rtol=0.01)


def test_equal_numbers_move_alike_wherever_they_lie() -> None:
    numbers = np.random.default_rng(4).standard_normal(500).astype(np.float32)
    found = moved(np.concatenate([numbers, numbers[::-1], -numbers]), "bfloat16", "float32")
    assert np.array_equal(found[:500], found[999:499:-1])
    assert np.array_equal(found[:500], -found[1000:])


def test_what_rounding_takes_for_equal_has_its_error_in_common() -> None:
    step = 2.0**-14  # of bfloat16 between 1/128 and 1/64
    shares = np.random.default_rng(5).uniform(0.01 - 0.1 * step, 0.01 + 0.1 * step, 4000).astype(np.float32)
    sums = [float((moved(shares, "bfloat16", "float32", seed) - shares).sum()) / step for seed in range(1, 17)]
    # Errors that are independent would add up to a number of about sqrt(4000 / 12) = 18.
    assert np.sqrt(np.mean(np.square(sums))) > 500


def test_another_seed_moves_them_elsewhere() -> None:
    numbers = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    one, same, other = (moved(numbers, "bfloat16", "float32", seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert abs(np.corrcoef(one - numbers, other - numbers)[0, 1]) < 4 / np.sqrt(200)


@pytest.mark.parametrize(("dtype", "bits"), [("float64", "i8"), ("float32", "i4"), ("float16", "i2")])
def test_in_their_own_type_one_in_four_becomes_a_neighbour(dtype: str, bits: str) -> None:
    numbers = np.random.default_rng(3).standard_normal(8000).astype(dtype)
    steps = moved(numbers, dtype, dtype).view(bits) - numbers.view(bits)
    assert set(np.unique(steps)) == {-1, 0, 1}
    assert 0.2 < np.mean(steps != 0) < 0.3
    assert abs(np.mean(steps)) < 0.02


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_in_their_own_type_whole_numbers_and_plain_shares_stay(dtype: str) -> None:
    numbers = np.array([20.0, 1.0, -3.0, 0.5, 7.0, 24.0, 0.0] * 100, dtype)
    assert np.array_equal(moved(numbers, dtype, dtype), numbers)


def test_in_their_own_type_the_largest_stay_finite() -> None:
    numbers = np.array([np.finfo(np.float32).max] * 64 + [np.inf, 0.0, np.nan], np.float32)
    assert np.array_equal(moved(numbers, "float32", "float32"), numbers, equal_nan=True)


def test_scaled_numbers_move_by_the_steps_they_have_when_scaled() -> None:
    numbers = np.random.default_rng(3).standard_normal(20_000).astype(np.float32) * np.float32(1e-7)
    scaled = numbers.astype(np.float64) * 2.0**16
    rounding = scaled.astype(np.float16).astype(np.float64) - scaled
    found = numbers.copy()
    noise_of("float32", "float16", 16)(found.ctypes.data, found.size, 1)
    noise = (found.astype(np.float64) - numbers) * 2.0**16
    assert np.isclose(np.sqrt(np.mean(noise**2)), np.sqrt(np.mean(rounding**2)), rtol=0.05)
