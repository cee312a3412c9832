"""Two arrays box by box: every figure is what plain numpy says of whole arrays, however they are cut."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ulpscope.numerics.pairs import pieces as pair_boxes
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.numerics.pairs.overview import LISTED, PairOverview, heat, linear_histogram, overview
from ulpscope.numerics.pairs.pieces import PairBoxes
from ulpscope.report.files.tensor_pair_json import overview_json

AnyArray = NDArray[Any]


def unseen(share: float) -> None:
    """Progress that nobody watches."""


def paired(reference: AnyArray, target: AnyArray) -> PairBoxes:
    return PairBoxes.of(reference, target, reference_dtype=reference.dtype.name, target_dtype=target.dtype.name)


def seen(reference: AnyArray, target: AnyArray) -> PairOverview:
    return overview(paired(reference, target), unseen)


@pytest.fixture(params=[1, 7, 60, 1 << 17])
def box_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Boxes from single elements to all of the array."""
    monkeypatch.setattr(pair_boxes, "BOX", request.param)
    return int(request.param)


def noisy(shape: tuple[int, ...], *, seed: int = 0) -> tuple[AnyArray, AnyArray]:
    random = np.random.default_rng(seed)
    reference = random.standard_normal(shape) * 10.0 ** random.integers(-5, 5, shape)
    target = reference + reference * 1e-3 * (random.random(shape) < 0.4)
    return reference.astype(np.float32), target.astype(np.float32)


def apart(reference: AnyArray, target: AnyArray) -> NDArray[np.float64]:
    return np.abs(target.astype(np.float64) - reference.astype(np.float64))


@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 4, 5), (2, 3, 1, 4), (1, 1), ()])
def test_boxes_are_all_elements_in_their_order(shape: tuple[int, ...], box_size: int) -> None:
    array = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    boxes = list(paired(array, array + 1).boxes())
    assert np.concatenate([box.numbers.reference.reshape(-1) for box in boxes]).tolist() == list(range(array.size))
    assert [box.base for box in boxes] == np.cumsum([0, *(box.apart.size for box in boxes)])[:-1].tolist()
    assert max(box.apart.size for box in boxes) <= box_size


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (2, 0), (1, 2)])
def test_a_heat_map_is_the_reduction_over_the_other_axes(axes: tuple[int, int], box_size: int) -> None:
    reference, target = noisy((4, 5, 6))
    found = heat(paired(reference, target), *axes, unseen)
    errors = np.moveaxis(apart(reference, target), axes, (0, 1))
    assert np.array_equal(found.largest, errors.max(axis=2))
    assert np.allclose(found.mean(), errors.mean(axis=2), rtol=1e-12)


def test_long_axes_are_seen_in_blocks_of_neighbours(box_size: int) -> None:
    reference, target = np.zeros((3, 700)), np.zeros((3, 700))
    target[1, 650] = 2.0
    target[1, 651] = 1.0
    found = heat(paired(reference, target), 0, 1, unseen)
    [rows, columns] = found.axes
    assert (rows.block, columns.block, columns.number) == (1, 3, 234)
    assert np.argwhere(found.largest).tolist() == [[1, 216], [1, 217]]
    assert found.mean()[1, 216] == pytest.approx(2.0 / 3)
    assert found.mean()[1, 217] == pytest.approx(1.0 / 3)


def test_the_last_block_of_an_axis_may_be_shorter() -> None:
    reference = np.zeros(257)
    target = np.full(257, 3.0)
    found = heat(paired(reference, target), 0, None, unseen)
    assert found.axes[0].lengths().tolist() == [2] * 128 + [1]
    assert found.mean().tolist() == [3.0] * 129


def test_a_spoilt_channel_has_all_the_error(box_size: int) -> None:
    reference = np.ones((2, 8, 5), np.float32)
    target = reference.copy()
    target[:, 3] += 0.5
    by_channel = seen(reference, target).axes[1]
    assert by_channel.total.tolist() == [0, 0, 0, 5.0, 0, 0, 0, 0]
    assert by_channel.largest.tolist() == [0, 0, 0, 0.5, 0, 0, 0, 0]
    assert by_channel.mean().tolist() == [0, 0, 0, 0.5, 0, 0, 0, 0]


def test_magnitudes_are_counted_as_numpy_counts_them(box_size: int) -> None:
    reference, target = noisy((9, 11))
    reference[0, 0], target[0, 1], target[0, 2] = 0.0, np.inf, np.nan
    found = seen(reference, target)
    assert found.magnitudes is not None
    edges = found.magnitudes.edges
    for array, counts in ((reference, found.magnitudes.counts.reference), (target, found.magnitudes.counts.target)):
        sizes = np.abs(array.astype(np.float64))
        assert counts.tolist() == np.histogram(sizes[np.isfinite(sizes) & (sizes > 0)], edges)[0].tolist()
    assert (found.zeros.reference, found.zeros.target) == (1, 0)
    assert (found.not_finite.reference, found.not_finite.target) == (0, 2)


def test_bins_of_magnitudes_are_about_as_wide_on_a_logarithmic_axis() -> None:
    array = np.geomspace(1.0, 1000.0, 500)
    found = seen(array, array).magnitudes
    assert found is not None
    widths = np.diff(np.log2(found.edges))
    assert widths.min() > 0.24
    assert widths.max() < 0.265


@pytest.mark.parametrize("exponents", [(-1074, 1023), (-140, 127), (0, 1)])
def test_magnitudes_reach_over_the_whole_range(exponents: tuple[int, int]) -> None:
    array = np.ldexp(1.0, np.array(exponents))
    found = seen(array, array).magnitudes
    assert found is not None
    assert found.edges[0] <= array.min()
    assert array.max() < found.edges[-1]
    assert len(found.counts.reference) <= 96
    assert found.counts.reference.sum() == 2


def test_a_linear_histogram_has_common_edges_and_sets_masks_aside(box_size: int) -> None:
    reference, target = np.array([0.0, 1.0, 2.0, -1e9]), np.array([0.5, 1.0, 4.0, np.finfo(np.float32).min])
    found = linear_histogram(paired(reference, target), unseen)
    assert found is not None
    assert (found.edges[0], found.edges[-1]) == (0.0, 4.0)
    assert found.counts.reference.tolist() == np.histogram([0.0, 1.0, 2.0], bins=100, range=(0, 4))[0].tolist()
    assert found.counts.target.tolist() == np.histogram([0.5, 1.0, 4.0], bins=100, range=(0, 4))[0].tolist()


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, np.nextafter(1.0, 2.0)), (0.0, 5e-324), (5e8, np.nextafter(5e8, 1e9)), (3.0, 3.0)]
)
def test_a_range_of_neighbours_is_counted_too(low: float, high: float) -> None:
    found = linear_histogram(paired(np.array([low, high]), np.array([low, low])), unseen)
    assert found is not None
    assert (found.counts.reference.sum(), found.counts.target.sum()) == (2, 2)
    assert (np.diff(found.edges) > 0).all()
    assert found.edges[0] <= low <= high <= found.edges[-1]


@pytest.mark.filterwarnings("error")
def test_sums_that_leave_their_range_are_inf() -> None:
    pair = paired(np.full((2, 3), -1.5e308), np.full((2, 3), 1e307))
    content = overview_json(overview(pair, unseen))
    assert content["axes"][0]["worst"][0]["share"] is None
    assert np.isinf(heat(pair, 0, 1, unseen).largest).sum() == 0
    assert np.isinf(heat(pair, 0, None, unseen).total).all()


@pytest.mark.parametrize("array", [np.array([np.nan, np.inf]), np.array([-1e30, 1e30])])
def test_there_is_no_linear_histogram_of_nothing(array: AnyArray) -> None:
    assert linear_histogram(paired(array, array), unseen) is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_steps_to_a_neighbour_are_ulps(dtype: str, box_size: int) -> None:
    reference = np.full(6, 1.25, dtype)
    target = reference.copy()
    for place, steps in enumerate((0, 1, -1, 2, 3, -5)):
        for _ in range(abs(steps)):
            target[place] = np.nextafter(target[place], np.array(np.sign(steps) * np.inf, dtype))
    found = seen(reference, target)
    assert found.in_ulps
    assert found.errors.equal == 1
    assert found.errors.lows.tolist() == [1.0, 2.0, 4.0]
    assert found.errors.above.tolist() == [1, 2, 0]
    assert found.errors.below.tolist() == [1, 0, 1]
    assert [element.ulps for element in found.ulps] == [5.0, 3.0, 2.0, 1.0, 1.0]


@given(st.data())
@settings(max_examples=40)
def test_the_worst_ulp_is_that_of_the_metrics(data: st.DataObject) -> None:
    numbers = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5)
    reference, target = (np.array(data.draw(numbers), np.float32) for _ in range(2))
    metrics = compare_arrays(reference, target, reference_dtype="float32", target_dtype="float32", detailed=True)
    found = seen(reference, target)
    assert found.different == metrics.different
    assert (found.ulps[0].ulps if found.ulps else 0.0) == metrics.max_ulp


def test_ulps_are_those_of_the_coarser_type() -> None:
    reference = np.array([1.0, 1.0], np.float32)
    target = np.array([1.0078125, 1.015625], ml_dtypes.bfloat16)
    found = seen(reference, target)
    assert [element.ulps for element in found.ulps] == [2.0, 1.0]
    assert found.ulps[0].texts.target == str(target[1])


@pytest.mark.parametrize(
    ("dtype", "smallest"), [("float16", 2.0**-24), ("float32", 2.0**-149), ("float64", 2.0**-1074)]
)
def test_a_ulp_next_to_zero_is_the_smallest_number(dtype: str, smallest: float) -> None:
    reference, target = np.array([0.0, 3.0]) * smallest, np.array([-1.0, 5.0]) * smallest
    found = seen(reference.astype(dtype), target.astype(dtype))
    assert [(element.index, element.ulps) for element in found.ulps] == [((1,), 2.0), ((0,), 1.0)]


def test_integers_have_differences_and_no_ulps(box_size: int) -> None:
    reference, target = np.array([2**62, 5, 0], np.int64), np.array([2**62 + 3, 5, -1], np.int64)
    found = seen(reference, target)
    assert not found.in_ulps
    assert found.errors.lows.tolist() == [1.0, 2.0]
    assert [element.absolute for element in found.absolute] == [3.0, 1.0]
    assert found.absolute[0].texts.target == str(2**62 + 3)
    assert found.absolute[0].ulps is None
    assert found.ulps == ()


@pytest.mark.parametrize("dtypes", [("int64", "int64"), ("uint64", "uint64"), ("int64", "uint64"), ("uint64", "int64")])
def test_large_integers_are_larger_or_smaller_by_themselves(dtypes: tuple[str, str], box_size: int) -> None:
    # Of these, float64 knows one only.
    reference = np.full(4, 2**62, dtypes[0])
    target = np.array([2**62 + 3, 2**62 - 2, 2**62 + 1, 2**62], dtypes[1])
    errors = seen(reference, target).errors
    assert (errors.equal, errors.lows.tolist()) == (1, [1.0, 2.0])
    assert (errors.above.tolist(), errors.below.tolist()) == ([1, 1], [0, 1])


def test_bools_differ_by_one() -> None:
    found = seen(np.array([True, False, True]), np.array([True, True, False]))
    assert found.different == 2
    assert [element.index for element in found.absolute] == [(1,), (2,)]


def test_elements_are_listed_from_the_worst_on(box_size: int) -> None:
    reference, target = noisy((20, 13), seed=3)
    found = seen(reference, target)
    errors = apart(reference, target).reshape(-1)
    wanted = sorted(np.flatnonzero(errors), key=lambda place: (-errors[place], place))[:LISTED]
    assert [np.ravel_multi_index(element.index, (20, 13)) for element in found.absolute] == wanted
    assert [element.absolute for element in found.absolute] == errors[wanted].tolist()
    assert found.different == np.count_nonzero(errors)
    relative = errors / np.abs(reference.astype(np.float64)).reshape(-1)
    assert found.relative[0].relative == pytest.approx(relative.max())


def test_inf_and_nan_on_one_side_are_apart_from_errors(box_size: int) -> None:
    reference = np.array([[1.0, np.nan, np.inf, np.inf, 2.0], [0.0, 1.0, 1.0, 1.0, 1.0]], np.float32)
    target = np.array([[np.nan, np.nan, np.inf, -np.inf, 2.5], [0.0, 1.0, 1.0, 1.0, 1.0]], np.float32)
    found = seen(reference, target)
    assert [element.index for element in found.broken] == [(0, 0), (0, 3)]
    assert [(element.absolute, element.ulps) for element in found.broken] == [(math.inf, None)] * 2
    assert (found.mismatched, found.different) == (2, 3)
    assert [element.index for element in found.absolute] == [(0, 4)]
    assert found.axes[0].mismatched.tolist() == [2, 0]
    assert found.axes[0].mean().tolist() == [0.5, 0.0]
    assert found.errors.equal == 5


def test_a_place_without_finite_pairs_has_no_mean() -> None:
    reference, target = np.array([np.nan, 1.0]), np.array([1.0, 1.0])
    assert math.isnan(seen(reference, target).axes[0].mean()[0])


def test_strided_arrays_are_read_as_they_are_told(box_size: int) -> None:
    base, other = noisy((6, 8))
    found = seen(base.T, other.T)
    assert [element.index for element in found.absolute[:3]] == [
        element.index[::-1] for element in seen(base, other).absolute[:3]
    ]


@pytest.mark.parametrize(("shape", "common"), [((1, 4, 6, 1), (4, 6)), ((24,), (24,)), ((2, 12), (24,))])
def test_other_shapes_are_read_in_their_own_order(
    shape: tuple[int, ...], common: tuple[int, ...], box_size: int
) -> None:
    reference, target = noisy((4, 6))
    pair = paired(np.asfortranarray(reference), target.reshape(shape))
    assert pair.shape == common
    found = overview(pair, unseen)
    assert found.absolute[0].absolute == apart(reference, target).max()
    assert found.absolute[0].texts.target == str(target.reshape(-1)[apart(reference, target).argmax()])


def test_complex_numbers_have_an_axis_for_their_parts(box_size: int) -> None:
    reference = np.array([1 + 2j, 3 + 4j, 5 + 6j], np.complex64)
    target = reference + np.array([0, 0.5j, 0], np.complex64)
    pair = paired(reference[::-1], target[::-1])
    found = overview(pair, unseen)
    assert (pair.shape, pair.complex_parts) == ((3, 2), True)
    assert [element.index for element in found.absolute] == [(1, 1)]
    assert found.axes[1].total.tolist() == [0.0, 0.5]


def test_half_complex_numbers_too() -> None:
    half = np.dtype([("real", np.float16), ("imag", np.float16)])
    reference, target = np.array([(1.0, 2.0)], half), np.array([(1.0, 2.5)], half)
    pair = PairBoxes.of(reference, target, reference_dtype="complex32", target_dtype="complex32")
    assert [element.index for element in overview(pair, unseen).absolute] == [(0, 1)]


@pytest.mark.parametrize(
    ("reference", "target"), [(np.zeros(3), np.zeros(4)), (np.zeros(3), np.zeros(3, np.complex128))]
)
def test_what_cannot_stand_side_by_side_is_refused(reference: AnyArray, target: AnyArray) -> None:
    with pytest.raises(ValueError, match=r"elements|complex"):
        paired(reference, target)


def test_progress_goes_from_box_to_box_and_may_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_boxes, "BOX", 4)
    shares: list[float] = []

    def advance(share: float) -> None:
        shares.append(share)
        if len(shares) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        overview(paired(np.zeros(16), np.ones(16)), advance)
    assert shares == [0.25, 0.5, 0.75]
