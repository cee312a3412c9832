"""Sums in pieces, plain and compiled: the bits that numpy gives for whole arrays."""

import warnings
from dataclasses import replace
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.numerics.pairs.msaccucmp import kernels as compiled_kernels
from ulpscope.numerics.pairs.msaccucmp import sums as msaccucmp_sums
from ulpscope.numerics.pairs.msaccucmp.metrics import ALGORITHMS, Generation, msaccucmp_metrics
from ulpscope.numerics.pairs.msaccucmp.sums import PIECE, Spread, TwoSides, gather, kl_divergence, spreads

AnyArray = NDArray[Any]
Singles = NDArray[np.float32]

BORDERS = [1, 2, 7, 8, 9, 15, 16, 17, 127, 128, 129, 135, 136, 137, 255, 256, 257, 8191, 8192, 8193]
PIECES = [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 1, 5 * PIECE + 777, 32 * PIECE + 1]
TYPES = [
    np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_,
    np.complex64,
]  # fmt: skip
FLOOR = np.float32(2.0**-23)


@pytest.fixture(params=["plain", "compiled"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "plain":
        return msaccucmp_sums
    return compiled_kernels


def numbers(count: int, *, seed: int = 0) -> AnyArray:
    """Of all sizes up to 300, so that every type holds some."""
    draw = np.random.default_rng([seed, count])
    return draw.standard_normal(count) * 10.0 ** draw.integers(-3, 3, count)


def odd_numbers(count: int, *, seed: int = 0) -> AnyArray:
    """Of all sizes, with what float16 and float32 have beside normal numbers."""
    draw = np.random.default_rng([seed, count])
    found = (draw.standard_normal(count) * 10.0 ** draw.integers(-12, 5, count)).astype(np.float32)
    found[::7] = 0.0
    found[3::11] = draw.choice(np.float32([1e-40, -0.0, 3e38, -3e38, 1.0, 6e-8]), len(found[3::11]))
    return found


def as_type(found: AnyArray, dtype: Any) -> AnyArray:
    with np.errstate(all="ignore"):
        return (np.abs(found) if np.dtype(dtype).kind == "u" else found).astype(dtype)


def same_bits(one: Any, other: Any) -> bool:
    """nan of any kind is nan; 0.0 is not -0.0."""
    left, right = np.asarray(one, np.float32), np.asarray(other, np.float32)
    both = np.isnan(left) & np.isnan(right)
    return bool(np.all(both | (left.view(np.int32) == right.view(np.int32))))


def share(numbers: Singles) -> Singles:
    width = numbers.max() - numbers.min()
    return np.maximum(numbers if width == 0.0 else (numbers - numbers.min()) / width, FLOOR)


def whole_sums(x: Singles, y: Singles, norms: tuple[np.float32, np.float32]) -> tuple[list[np.float32], ...]:
    """By numpy over the whole arrays, from the formulas of docs/msaccucmp-metrics.md: sums and largest."""
    apart = np.abs(x - y)
    relative = np.where(np.abs(y) > 2.0**-52, np.abs(x / y - np.float32(1.0)), np.float32(0.0))
    terms = (apart, apart * apart, y * y, relative, (x / norms[0]) * (y / norms[1]), share(x), share(y))
    return [term.sum() for term in terms], [apart.max(), relative.max()]


def whole_divergence(x: Singles, y: Singles) -> np.float32:
    p, q = share(x), share(y)
    p, q = p / p.sum(), q / q.sum()
    return np.float32((p * np.log(p / q)).sum())


def check(my: AnyArray, golden: AnyArray, kernels: ModuleType) -> None:
    sides = replace(TwoSides.of(my, golden), kernels=kernels)
    x, y = (side.real.astype(np.float32).reshape(-1) for side in (my, golden))
    with np.errstate(all="ignore"):
        found = gather(sides, *spreads(sides))
        sums, largest = whole_sums(x, y, (found.my.norm, found.golden.norm))
        assert same_bits(found.sums, sums)
        assert same_bits([found.largest, found.largest_relative], largest)
        assert same_bits(kl_divergence(sides, found), whole_divergence(x, y))
        for spread, side in ((found.my, x), (found.golden, y)):
            check_spread(spread, side.astype(np.float64), [side.min(), side.max()])


def check_spread(spread: Spread, wide: AnyArray, ends: list[np.float32]) -> None:
    assert np.array_equal([spread.low, spread.high], ends, equal_nan=True)
    size = np.abs(wide).max()
    assert spread.mean == pytest.approx(wide.mean(), rel=1e-9, abs=1e-12 * size, nan_ok=True)
    assert spread.deviation == pytest.approx(wide.std(), rel=1e-6, abs=1e-7 * size, nan_ok=True)
    if np.isfinite(size):  # else every figure that needs the norm is nan
        assert spread.norm == pytest.approx(np.float32(np.sqrt(np.float32((wide * wide).sum()))), rel=1e-7)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_type_beside_every_other(dtype: Any, kernels: ModuleType) -> None:
    for other in TYPES:
        my, golden = as_type(numbers(1003), dtype), as_type(numbers(1003, seed=1), other)
        check(my, golden, kernels)


@pytest.mark.parametrize("count", BORDERS + PIECES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: np.dtype(dtype).name)
def test_every_length_at_the_borders_of_runs_and_pieces(count: int, dtype: Any, kernels: ModuleType) -> None:
    golden = numbers(count).astype(np.float32)
    check(as_type(golden + 1e-3 * numbers(count, seed=1), dtype), golden, kernels)


@pytest.mark.parametrize("count", [5, 129, 1003, 2 * PIECE + 77])
def test_random_lengths_with_numbers_at_the_ends_of_their_range(count: int, kernels: ModuleType) -> None:
    for dtype in (np.float32, np.float16):
        check(as_type(odd_numbers(count), dtype), odd_numbers(count, seed=1), kernels)


@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 130, 1002])
def test_nan_and_inf_wherever_they_stand(odd: float, place: int, kernels: ModuleType) -> None:
    golden = odd_numbers(1003)
    my = golden.copy()
    my[place] = odd
    check(my, golden, kernels)
    check(golden, my, kernels)
    check(my, my, kernels)


@pytest.mark.parametrize("number", [0.0, -0.0, 3.0, -3.0, 1e-42, 3e38, 1e-8])
def test_constant_sides(number: float, kernels: ModuleType) -> None:
    constant = np.full(300, number, np.float32)
    check(constant, constant, kernels)
    check(constant, odd_numbers(300), kernels)
    check(odd_numbers(300), constant, kernels)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_elements_at_odd_addresses(dtype: type, kernels: ModuleType) -> None:
    golden = numbers(1003).astype(np.float32)
    memory = b"\0" + golden.astype(dtype).tobytes()
    my: AnyArray = np.frombuffer(memory, np.uint8)[1:].view(dtype)
    check(my, golden, kernels)


def test_every_float16_and_bfloat16_is_read_as_numpy_reads_it(kernels: ModuleType) -> None:
    codes = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        every = codes.view(dtype)
        every = every[np.isfinite(every.astype(np.float32))]
        for start in range(0, len(every), 509):
            part = every[start : start + 509]
            check(part, part.astype(np.float32), kernels)


@pytest.mark.parametrize("generation", Generation)
def test_what_is_known_already_changes_no_figure(generation: Generation) -> None:
    golden = numbers(5000).astype(np.float32)
    my = golden.astype(np.float16)
    sides = TwoSides.of(my, golden)
    figures = msaccucmp_metrics(my, golden, generation=generation, known=spreads(sides))
    assert list(figures) == list(ALGORITHMS)
    assert figures == msaccucmp_metrics(my, golden, generation=generation)


def test_kernels_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = compiled_kernels
    assert msaccucmp_sums._agrees(kernels)
    monkeypatch.setattr(kernels, "divergence", lambda my, golden, plan, memory: np.float32(0.0))
    assert not msaccucmp_sums._agrees(kernels)


def test_a_norm_beyond_float32_is_infinite_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Spread.of(low=0.0, high=1e30, mean=1.0, deviation=1.0, squares=1e80).norm == np.inf


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1.0, 1e30])
def test_shares_are_divided_as_division_rounds(scale: float, kernels: ModuleType) -> None:
    draw = np.random.default_rng(4)
    for width in draw.uniform(1.0, 2.0, 40):
        my = (draw.uniform(0.0, width, 1024) * scale).astype(np.float32)
        golden = (draw.uniform(0.0, 1.0, 1024) * width * scale).astype(np.float32)
        check(my, golden, kernels)
