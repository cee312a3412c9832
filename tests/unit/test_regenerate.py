"""Regenerated elements against the stats of arrays that numpy drew: what was recorded must come back, and no more."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.numerics.regenerate.values import regenerate
from ulpscope.numerics.summaries.rows import stats_from_row
from ulpscope.numerics.summaries.summary import summarize
from ulpscope.records.calls import Stats, Value
from ulpscope.records.checks import Variant
from ulpscope.records.errors import UlpscopeError

Array = np.ndarray[Any, Any]
LOWEST = float(np.finfo(np.float32).min)


def value_of(array: Array, dtype: str | None = None) -> Value:
    name = dtype or str(array.dtype)
    return stored(name, array.shape, stats_from_row(summarize(array, name), name, array.shape))


def stored(dtype: str, shape: tuple[int, ...], stats: Stats | None) -> Value:
    return Value(
        id=5,
        storage=None,
        version=None,
        producer=None,
        dtype=dtype,
        shape=shape,
        strides=(),
        device="cpu",
        layout="strided",
        requires_grad=False,
        initialized=True,
        stats=stats,
        sketch=None,
        digest=None,
        data=None,
    )


def known(**numbers: Any) -> Stats:
    """What another tool's dump tells: no counts, no exponents."""
    nothing = dict.fromkeys(("min", "max", "mean", "norm", "abs_sum", "zero"))
    counts = {"nan": 0, "pos_inf": 0, "neg_inf": 0, "set_aside": 0, "subnormal": 0, "exponents": ()}
    return Stats(**{**nothing, **counts, **numbers})


def only_four(array: Array) -> Stats:
    return known(min=float(array.min()), max=float(array.max()), mean=float(array.mean()), norm=np.linalg.norm(array))


def rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))


def source() -> np.random.Generator:
    return np.random.default_rng(11)


SHAPES = {
    "normal": lambda random: random.standard_normal((64, 200)),
    "small": lambda random: 1e-7 * random.standard_normal(20000),
    "shifted": lambda random: 3 + 0.5 * random.standard_normal(20000),
    "narrow": lambda random: 1 + 1e-3 * random.standard_normal(20000),
    "laplace": lambda random: random.laplace(size=20000),
    "heavy": lambda random: random.standard_t(3, 20000),
    "uniform": lambda random: random.random(20000),
    "negative": lambda random: -random.gamma(2.0, size=20000),
    "gelu-like": lambda random: (lambda x: x / (1 + np.exp(-1.7 * x)))(random.standard_normal(20000)),
    "outliers": lambda random: np.append(0.1 * random.standard_normal(20000), [50.0, -30.0]),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_moments_and_ends_come_back(shape: str, dtype: str) -> None:
    recorded = SHAPES[shape](source()).astype(numpy_dtype(dtype))
    made = regenerate(value_of(recorded, dtype), seed=1)
    assert (made.shape, made.dtype) == (recorded.shape, recorded.dtype)
    wide, narrow = made.astype(np.float64), recorded.astype(np.float64)
    assert rms(made) == pytest.approx(rms(recorded), rel=0.02)
    assert np.abs(wide).mean() == pytest.approx(np.abs(narrow).mean(), rel=0.02)
    assert wide.mean() == pytest.approx(narrow.mean(), abs=0.02 * rms(recorded))
    assert (wide.min(), wide.max()) == (narrow.min(), narrow.max())


@pytest.mark.parametrize("shape", ["normal", "shifted", "narrow", "uniform"])
def test_plain_distributions_come_back_as_they_were(shape: str) -> None:
    recorded = SHAPES[shape](source()).astype(np.float32)
    made = np.sort(regenerate(value_of(recorded), seed=2).ravel())
    there = np.searchsorted(made, np.sort(recorded.ravel())) / made.size
    # The largest distance of the two distribution functions; two normal samples of 12800 differ by about 0.01.
    assert np.abs(there - np.arange(made.size) / made.size).max() < 0.03


def test_sizes_fall_into_the_recorded_bins() -> None:
    random = source()
    recorded = (np.exp(5 * random.standard_normal(20000)) * random.choice([-1, 1], 20000)).astype(np.float32)
    value = value_of(recorded)
    made = value_of(regenerate(value, seed=1))
    assert value.stats
    assert made.stats
    np.testing.assert_allclose(made.stats.exponents, value.stats.exponents, atol=0.01 * 20000)


def test_probabilities_stay_probabilities() -> None:
    raw = np.exp(3 * source().standard_normal((256, 64)))
    recorded = (raw / raw.sum(-1, keepdims=True)).astype(np.float32)
    made = regenerate(value_of(recorded), seed=1)
    assert made.min() > 0
    assert made.max() <= 1
    assert made.mean() == pytest.approx(1 / 64, rel=0.02)
    assert rms(made) == pytest.approx(rms(recorded), rel=0.02)


@pytest.mark.parametrize("masked", [-np.inf, np.inf, np.nan, LOWEST, -1e9])
def test_a_mask_keeps_its_share_and_leaves_the_rest_alone(masked: float) -> None:
    recorded = source().standard_normal((64, 64)).astype(np.float32)
    recorded[np.triu_indices(64, 1)] = masked
    made = regenerate(value_of(recorded), seed=1)
    at_mask = np.isnan(made) if np.isnan(masked) else made == np.float32(masked)
    assert np.count_nonzero(at_mask) == 64 * 63 // 2
    assert rms(made[~at_mask]) == pytest.approx(1.0, rel=0.05)
    assert np.abs(made[~at_mask]).max() < 6


def test_half_of_a_rectified_value_is_zero() -> None:
    recorded = np.maximum(source().standard_normal(10001), 0).astype(np.float32)
    made = regenerate(value_of(recorded), seed=1)
    assert np.count_nonzero(made == 0) == np.count_nonzero(recorded == 0)
    assert made.min() == 0
    assert rms(made) == pytest.approx(rms(recorded), rel=0.02)


def test_subnormal_numbers_keep_their_share() -> None:
    recorded = (1e-5 * source().standard_normal(20000)).astype(np.float16)
    value = value_of(recorded)
    made = value_of(regenerate(value, seed=1))
    assert value.stats
    assert made.stats
    assert value.stats.subnormal > 19000
    assert made.stats.subnormal == pytest.approx(value.stats.subnormal, rel=0.01)


@pytest.mark.parametrize("content", [2.5, [0.25] * 7, [0.0, 0.0], [1.0, 2.0], [np.nan] * 3, [-np.inf, 4.0], [], [[]]])
def test_little_comes_back_as_it_was(content: Any) -> None:
    recorded = np.array(content, dtype=np.float32)
    made = regenerate(value_of(recorded), seed=1)
    np.testing.assert_array_equal(np.sort(made.ravel()), np.sort(recorded.ravel()))
    assert made.shape == recorded.shape


@pytest.mark.parametrize("content", [np.eye(16), np.sign(source().standard_normal(100)), 2.0 * np.eye(8)[:3]])
def test_two_numbers_stay_two_numbers(content: Array) -> None:
    recorded = content.astype(np.float32)
    for stats in (value_of(recorded).stats, only_four(recorded)):
        made = regenerate(stored("float32", recorded.shape, stats), seed=1)
        np.testing.assert_array_equal(np.sort(made.ravel()), np.sort(recorded.ravel()))


def test_complex_values_are_their_parts() -> None:
    random = source()
    recorded = (2 * random.standard_normal((50, 40)) + 1j * 2 * random.standard_normal((50, 40))).astype(np.complex64)
    made = regenerate(value_of(recorded), seed=1)
    assert (made.shape, made.dtype) == ((50, 40), np.complex64)
    assert rms(made.real) == pytest.approx(2, rel=0.1)
    assert rms(made.imag) == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if name != "complex32"])
def test_every_dtype_is_made(dtype: str) -> None:
    recorded = np.abs(source().standard_normal((9, 11))).astype(numpy_dtype(dtype))
    made = regenerate(value_of(recorded, dtype), seed=1)
    assert (made.shape, made.dtype) == ((9, 11), numpy_dtype(dtype))


# --- less is known -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["normal", "shifted", "narrow", "uniform", "negative"])
def test_mean_and_norm_are_enough_for_the_moments(shape: str) -> None:
    recorded = SHAPES[shape](source()).astype(np.float32)
    made = regenerate(stored("float32", recorded.shape, only_four(recorded.astype(np.float64))), seed=1)
    assert rms(made) == pytest.approx(rms(recorded), rel=0.02)
    assert made.mean() == pytest.approx(recorded.mean(), abs=0.02 * rms(recorded))
    assert (made.min(), made.max()) == (recorded.min(), recorded.max())


def test_a_range_alone_is_not_filled_evenly() -> None:
    recorded = (2e-5 * source().standard_normal(20000)).astype(np.float32)
    span = known(min=float(recorded.min()), max=float(recorded.max()))
    made = regenerate(stored("float32", recorded.shape, span), seed=1)
    assert rms(made) == pytest.approx(rms(recorded), rel=0.3)
    assert (made.min(), made.max()) == (recorded.min(), recorded.max())


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 5.0), (0.9, 1.1), (-8.0, -0.001), (-0.2, 9.0), (0.0, 0.0), (1.0, 1e15), (-1e12, 3e12)]
)
def test_a_range_alone_is_kept(low: float, high: float) -> None:
    made = regenerate(stored("float32", (100, 20), known(min=low, max=high)), seed=1)
    assert (made.min(), made.max()) == (np.float32(low), np.float32(high))


def test_a_mask_in_another_tools_mean() -> None:
    stats = known(min=LOWEST, max=0.0, mean=0.4375 * LOWEST, norm=None)
    made = regenerate(stored("float32", (64, 64), stats), seed=1)
    assert np.count_nonzero(made == np.float32(LOWEST)) == 1792  # 7/16 of 4096
    assert np.count_nonzero(made == 0) == 4096 - 1792


def test_an_infinity_that_is_only_known_to_be_there() -> None:
    made = regenerate(stored("float32", (1000,), known(max=3.0, neg_inf=1)), seed=1)
    assert np.count_nonzero(made == -np.inf) == 1
    assert np.abs(made[np.isfinite(made)]).max() == 3.0


def test_without_stats() -> None:
    made = regenerate(stored("float32", (100, 100), None), seed=1)
    assert rms(made) == pytest.approx(1.0, rel=0.05)
    assert not regenerate(stored("int64", (7,), None), seed=1).any()


def test_another_shape_keeps_the_shares() -> None:
    recorded = np.maximum(source().standard_normal((100, 10)), 0).astype(np.float32)
    recorded[0, 0] = np.inf
    made = regenerate(replace(value_of(recorded), shape=(100, 80)), seed=1)
    assert np.count_nonzero(made == 0) == pytest.approx(8 * np.count_nonzero(recorded == 0), abs=8)
    assert np.count_nonzero(made == np.inf) == 8
    assert rms(made[np.isfinite(made)]) == pytest.approx(rms(recorded[np.isfinite(recorded)]), rel=0.03)


# --- integers and bools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_integers_stay_in_their_range(dtype: str) -> None:
    recorded = source().integers(3, 99, size=500).astype(dtype)
    made = regenerate(value_of(recorded), seed=1)
    assert (made.min(), made.max()) == (recorded.min(), recorded.max())
    assert len(np.unique(made)) > 80


def test_the_widest_integers_do_not_overflow() -> None:
    ends = np.iinfo(np.int64)
    made = regenerate(value_of(np.array([ends.min, 0, ends.max])), seed=1)
    assert (made.min(), made.max()) == (ends.min, ends.max)


def test_a_mask_of_integers_keeps_its_zeros() -> None:
    recorded = (source().random(1000) < 0.9).astype(np.int64)
    assert regenerate(value_of(recorded), seed=1).sum() == recorded.sum()


def test_ignored_labels_do_not_make_classes_of_negative_numbers() -> None:
    recorded = source().integers(0, 1000, size=4000)
    recorded[: 4000 // 4] = -100
    made = regenerate(value_of(recorded), seed=1)
    assert set(made[made < 0]) == {-100}
    assert np.count_nonzero(made == -100) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("count", [0, 1, 250, 1000])
def test_bools_keep_their_share(count: int) -> None:
    made = regenerate(value_of(np.arange(1000) < count), seed=1)
    assert made.dtype == np.bool_
    assert made.sum() == count


@pytest.mark.parametrize(("low", "high", "count"), [(0.0, 1.0, 50), (1.0, 1.0, 100), (0.0, 0.0, 0)])
def test_bools_of_which_only_the_range_is_known(low: float, high: float, count: int) -> None:
    assert regenerate(stored("bool", (100,), known(min=low, max=high)), seed=1).sum() == count


# --- seeds and variants --------------------------------------------------------------------------------------------


def test_the_seed_decides() -> None:
    value = value_of(source().standard_normal(1000).astype(np.float32))
    np.random.seed(0)
    first = regenerate(value, seed=7)
    np.random.seed(1)
    np.testing.assert_array_equal(first, regenerate(value, seed=7))
    assert not np.array_equal(first, regenerate(value, seed=8))


def test_positions_are_random() -> None:
    made = regenerate(value_of(source().standard_normal(4096).astype(np.float32)), seed=1)
    assert abs(np.corrcoef(made[:-1], made[1:])[0, 1]) < 0.1


def test_tiny_is_scaled_down_by_256() -> None:
    recorded = source().standard_normal((10, 100)).astype(np.float32)
    assert rms(regenerate(value_of(recorded), seed=1, variant=Variant.TINY)) == pytest.approx(
        rms(recorded) / 256, rel=0.05
    )


def test_tiny_halves_do_not_vanish() -> None:
    recorded = (1e-3 * source().standard_normal(1000)).astype(np.float16)
    made = regenerate(value_of(recorded), seed=1, variant=Variant.TINY)
    assert 0 < rms(made) < rms(recorded)
    assert np.count_nonzero(made == 0) < 10


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1.0), ("float16", 1.0), ("float16", 5000.0)])
def test_offset_has_a_mean_of_64_spreads(dtype: str, scale: float) -> None:
    recorded = (scale * source().standard_normal((40, 100))).astype(dtype)
    made = regenerate(value_of(recorded), seed=1, variant=Variant.OFFSET).astype(np.float64)
    assert np.isfinite(made).all()
    assert made.mean() / made.std() == pytest.approx(64, rel=0.05)


def test_large_halves_sum_up_to_the_end_of_their_range() -> None:
    recorded = source().standard_normal((64, 256)).astype(np.float16)
    made = regenerate(value_of(recorded), seed=1, variant=Variant.LARGE).astype(np.float64)
    assert np.isfinite(made).all()
    assert np.median(np.abs(made).sum(-1)) == pytest.approx(65504, rel=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_large_numbers_can_still_be_squared_and_summed(dtype: str, scale: float) -> None:
    recorded = (scale * source().standard_normal((64, 256))).astype(numpy_dtype(dtype))
    made = regenerate(value_of(recorded, dtype), seed=1, variant=Variant.LARGE).astype(np.float32)
    assert rms(made) > 500 * rms(recorded)
    assert np.isfinite(np.square(made).sum(dtype=np.float32))


@pytest.mark.parametrize("variant", list(Variant))
def test_variants_leave_masks_and_integers_alone(variant: Variant) -> None:
    masked = np.array([[1.0, -np.inf, 2.0, LOWEST, np.nan]] * 4, dtype=np.float32)
    made = regenerate(value_of(masked), seed=1, variant=variant)
    assert [np.count_nonzero(found) for found in (made == -np.inf, made == np.float32(LOWEST), np.isnan(made))] == [
        4,
        4,
        4,
    ]
    whole = np.arange(10)
    assert regenerate(value_of(whole), seed=1, variant=variant).max() == 9


@pytest.mark.parametrize(("dtype", "shape"), [("complex32", (3,)), ("quint8", (3,)), ("float32", (-1,))])
def test_what_cannot_be_made_is_named(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UlpscopeError, match=f"value 5 has dtype {dtype}"):
        regenerate(stored(dtype, shape, None), seed=1)
