"""Pair metrics against arithmetic in 60 digits, compiled and plain, on numbers that break naive formulas."""

import math
import resource
import threading
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ulpscope.numerics.dtypes import DTYPES, DtypeKind, numpy_dtype
from ulpscope.numerics.pairs import metrics
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.numerics.pairs.pieces import Packer, boxes
from ulpscope.records.pairs import PairMetrics

mpmath.mp.dps = 60

FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind is DtypeKind.FLOAT]
INTEGERS = [name for name, dtype in DTYPES.items() if dtype.kind is DtypeKind.INT]
HOSTILE = [
    *(0.0, -0.0, 1.0, -1.0, 1.001, 0.999, 3.0, 65504.0, 1e30, -1e30, 3e38, 1e300, -1e300, 1e-300),
    *(math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1e-45, 1e-40, 2.0**-24, 2.0**-14, 1e-160, 1e160, 448.0),
]
COUNTS = ("elements", "different", "mismatched", "within_thousandth", "within_five_thousandths", "worst")


@pytest.fixture(params=["compiled", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(metrics, "_engine", lambda: metrics)
    return str(request.param)


BOTH_PATHS = pytest.mark.usefixtures("path")
SHARED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def compare(reference: np.ndarray, target: np.ndarray, *names: str, detailed: bool = True) -> PairMetrics:
    left, right = (
        names if len(names) == 2 else (names[0], names[0]) if names else (str(reference.dtype), str(target.dtype))
    )
    return compare_arrays(reference, target, reference_dtype=left, target_dtype=right, detailed=detailed)


def exact(number: float | int) -> mpmath.mpf:
    return mpmath.mpf(number)


def is_finite(number: float | int) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def same(a: float | int, b: float | int) -> bool:
    return a == b or (a != a and b != b)


def clipped(number: mpmath.mpf) -> float:
    """As float64: what is too large is inf."""
    return float(number)


class Truth:
    """Every metric of two lists of numbers by its definition."""

    def __init__(self, reference: list[float | int], target: list[float | int]) -> None:
        pairs = list(zip(reference, target, strict=True))
        self.pairs = [(exact(r), exact(t)) for r, t in pairs if is_finite(r) and is_finite(t)]
        self.places = [i for i, (r, t) in enumerate(pairs) if is_finite(r) and is_finite(t)]
        self.different = sum(not same(r, t) for r, t in pairs)
        self.mismatched = sum(not same(r, t) for r, t in pairs if not (is_finite(r) and is_finite(t)))
        self.apart = [abs(t - r) for r, t in self.pairs]
        self.relative = [abs(t - r) / abs(r) for r, t in self.pairs if r != 0]
        self.lost = sum(r == 0 and t != 0 for r, t in self.pairs)

    def norm(self, numbers: list[mpmath.mpf]) -> mpmath.mpf:
        return mpmath.sqrt(mpmath.fsum(x * x for x in numbers))

    def std(self, numbers: list[mpmath.mpf]) -> mpmath.mpf:
        mean = mpmath.fsum(numbers) / len(numbers)
        return mpmath.sqrt(mpmath.fsum((x - mean) ** 2 for x in numbers) / len(numbers))

    def share_within(self, limit: float) -> float:
        zeros = sum(r == 0 and t == 0 for r, t in self.pairs)
        return (sum(clipped(x) < limit for x in self.relative) + zeros) / len(self.pairs)

    @property
    def sides(self) -> tuple[list[mpmath.mpf], list[mpmath.mpf]]:
        return [r for r, _ in self.pairs], [t for _, t in self.pairs]


def near(got: float | None, wanted: mpmath.mpf, *, scale: mpmath.mpf | float = 0.0) -> None:
    """Equal to float64 rounding, of the result or of the terms of a sum."""
    assert got is not None
    wanted_float = clipped(wanted)
    if math.isinf(wanted_float) or math.isinf(got):
        # At the edge of the range rounding decides.
        assert abs(wanted) > mpmath.mpf(1.79e308), (got, wanted)
        assert math.isinf(got) or abs(got) > 1.79e308
        return
    bound = 1e-13 * abs(wanted) + 1e-13 * abs(mpmath.mpf(scale)) + mpmath.mpf(5e-324)
    assert abs(mpmath.mpf(got) - wanted) <= bound, (got, wanted)


def check(got: PairMetrics, reference: list[float | int], target: list[float | int]) -> None:
    truth = Truth(reference, target)
    assert (got.elements, got.different, got.mismatched) == (len(reference), truth.different, truth.mismatched)
    if not truth.pairs:
        nothing = {name: value for name, value in asdict(got).items() if name not in COUNTS[:3]}
        assert {name for name, value in nothing.items() if value is not None} == {
            "distance",
            "reference_norm",
            "target_norm",
        }
        assert (got.distance, got.reference_norm, got.target_norm) == (0.0, 0.0, 0.0)
        return
    check_differences(got, truth)
    check_sides(got, truth)
    check_relatives(got, truth)


def check_differences(got: PairMetrics, truth: Truth) -> None:
    largest, count = max(truth.apart), len(truth.apart)
    near(got.max_abs, largest)
    if clipped(largest) == math.inf:
        assert (got.distance, got.rmse, got.mae, got.relative_distance) == (math.inf,) * 4
        return
    distance = truth.norm(truth.apart)
    near(got.distance, distance)
    near(got.rmse, distance / mpmath.sqrt(count))
    near(got.mae, mpmath.fsum(truth.apart) / count)
    norm = truth.norm(truth.sides[0])
    near(got.relative_distance, distance / norm if norm else mpmath.inf if distance else mpmath.mpf(0))
    if largest == 0:
        assert got.worst is None
    else:
        assert got.worst is not None
        place = truth.places.index(got.worst)
        assert truth.apart[place] >= largest * (1 - mpmath.mpf(2) ** -52)


def check_sides(got: PairMetrics, truth: Truth) -> None:
    for numbers, side in zip(truth.sides, ("reference", "target"), strict=True):
        largest = max(abs(x) for x in numbers)
        near(getattr(got, f"{side}_norm"), truth.norm(numbers))
        near(getattr(got, f"{side}_mean"), mpmath.fsum(numbers) / len(numbers), scale=largest)
        near(getattr(got, f"{side}_std"), truth.std(numbers), scale=largest)
    left, right = map(truth.norm, truth.sides)
    if not left or not right:
        assert got.cosine == (1.0 if left == right else None)
    else:
        product = mpmath.fsum(r * t for r, t in truth.pairs)
        near(got.cosine, product / left / right, scale=1.0)


def check_relatives(got: PairMetrics, truth: Truth) -> None:
    assert got.within_thousandth == pytest.approx(truth.share_within(0.001))
    assert got.within_five_thousandths == pytest.approx(truth.share_within(0.005))
    if clipped(max(truth.apart)) == math.inf:
        return
    near(got.max_rel, mpmath.inf if truth.lost else max(truth.relative, default=mpmath.mpf(0)))
    total = mpmath.fsum(truth.relative)
    if not truth.relative:
        assert (got.mean_rel, got.accumulated_rel) == (None, None)
    elif total < 1e308:
        near(got.accumulated_rel, total)
        near(got.mean_rel, total / len(truth.relative))


def numbers_of(array: np.ndarray) -> list[float | int]:
    if array.dtype.kind in "iu":
        return [int(x) for x in array.reshape(-1)]
    with np.errstate(invalid="ignore"):
        return [float(x) for x in array.astype(np.float64).reshape(-1)]


def drawn_array(data: st.DataObject, dtype_name: str, size: int) -> np.ndarray:
    """Hostile numbers and random bits."""
    dtype = numpy_dtype(dtype_name)
    with np.errstate(over="ignore", invalid="ignore"):
        hostile = np.array(HOSTILE).astype(dtype)
    raw = np.frombuffer(data.draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize)), dtype)
    chosen = data.draw(st.lists(st.integers(0, 2 * len(hostile) - 1), min_size=size, max_size=size))
    return np.array([hostile[i] if i < len(hostile) else raw[k] for k, i in enumerate(chosen)], dtype=dtype)


@BOTH_PATHS
@SHARED
@given(data=st.data())
def test_float_pairs_of_all_kinds(data: st.DataObject) -> None:
    left, right = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(FLOATS))
    size = data.draw(st.integers(0, 12))
    reference, target = drawn_array(data, left, size), drawn_array(data, right, size)
    check(compare(reference, target, left, right), numbers_of(reference), numbers_of(target))


@BOTH_PATHS
@pytest.mark.parametrize("dtype_name", ["float64", "float32", "bfloat16"])
@SHARED
@given(data=st.data())
def test_pairs_of_one_type(dtype_name: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    reference, target = drawn_array(data, dtype_name, size), drawn_array(data, dtype_name, size)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    target = np.where(keep, reference, target).astype(reference.dtype)
    check(compare(reference, target, dtype_name), numbers_of(reference), numbers_of(target))


@BOTH_PATHS
@SHARED
@given(data=st.data())
def test_integer_pairs(data: st.DataObject) -> None:
    names = data.draw(st.sampled_from(INTEGERS)), data.draw(st.sampled_from(INTEGERS))
    size = data.draw(st.integers(0, 8))
    arrays = []
    for name in names:
        limits = np.iinfo(name)
        edge = st.sampled_from([limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1])
        element = st.one_of(edge, st.integers(int(limits.min), int(limits.max)))
        arrays.append(np.array(data.draw(st.lists(element, min_size=size, max_size=size)), dtype=name))
    got = compare(*arrays, *names)
    check(got, numbers_of(arrays[0]), numbers_of(arrays[1]))
    assert (got.max_ulp, got.mean_ulp) == (None, None)


@BOTH_PATHS
def test_the_last_int64_is_told_from_its_neighbour() -> None:
    limit = np.iinfo(np.int64).max
    got = compare(np.array([limit, 5]), np.array([limit - 1, 5]), "int64")
    assert (got.different, got.max_abs, got.worst, got.distance) == (1, 1.0, 0, 1.0)
    wide = compare(np.array([-limit]), np.array([limit]), "int64")
    assert wide.max_abs == float(2 * limit)


@BOTH_PATHS
def test_bool_is_zero_or_one() -> None:
    got = compare(np.array([True, True, False]), np.array([True, False, True]), "bool")
    assert (got.different, got.max_abs, got.max_rel, got.mean_rel) == (2, 1.0, math.inf, 0.5)
    check(got, [1, 1, 0], [1, 0, 1])


@BOTH_PATHS
@pytest.mark.parametrize("dtype_name", ["complex32", "complex64", "complex128"])
def test_complex_elements_are_compared_by_their_parts(dtype_name: str) -> None:
    real = np.dtype(DTYPES[dtype_name].real)
    reference, target = np.array([1, 2, 3, 4, 5, 6], real), np.array([1, 2, 3, 4.5, 5, 6], real)
    element = np.dtype([("real", real), ("imag", real)]) if dtype_name == "complex32" else np.dtype(dtype_name)
    got = compare(reference.view(element), target.view(element), dtype_name)
    check_differences(compare(reference, target), Truth(numbers_of(reference), numbers_of(target)))
    assert (got.elements, got.different, got.max_abs, got.worst) == (6, 1, 0.5, 1)


@BOTH_PATHS
def test_a_real_array_beside_a_complex_one() -> None:
    got = compare(np.array([1.0, 2.0], np.float32), np.array([1.0, 2.0 + 0.5j], np.complex64))
    assert (got.elements, got.different, got.max_abs, got.max_rel, got.worst) == (4, 1, 0.5, math.inf, 1)


@BOTH_PATHS
def test_infinities_of_opposite_sign_are_a_mismatch() -> None:
    left, right = [math.inf, math.inf, math.nan, math.nan, 1.0], [-math.inf, math.inf, math.nan, math.inf, math.nan]
    got = compare(np.array(left), np.array(right))
    assert (got.different, got.mismatched) == (3, 3)
    assert (got.cosine, got.max_abs, got.worst) == (None, None, None)


@BOTH_PATHS
def test_zeros() -> None:
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    both = compare(zero, -zero)
    assert (both.different, both.cosine, both.max_rel, both.relative_distance, both.within_thousandth) == (
        0,
        1.0,
        0.0,
        0.0,
        1.0,
    )
    assert (both.mean_rel, both.worst) == (None, None)
    lost = compare(zero, one)
    assert (lost.cosine, lost.max_rel, lost.relative_distance, lost.within_thousandth) == (
        None,
        math.inf,
        math.inf,
        0.0,
    )
    gone = compare(one, zero)
    assert (gone.cosine, gone.max_rel, gone.relative_distance) == (None, 1.0, 1.0)


@BOTH_PATHS
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1)])
def test_scalars_and_empty_arrays(shape: tuple[int, ...]) -> None:
    reference, target = np.full(shape, 2.0, np.float32), np.full(shape, 3.0, np.float32)
    check(compare(reference, target), numbers_of(reference), numbers_of(target))


@BOTH_PATHS
def test_large_numbers_do_not_overflow() -> None:
    single = compare(np.full(1000, 1e30, np.float32), np.full(1000, 2e30, np.float32))
    # A sum of 1,000 terms is off by as many roundoffs at most, in whatever order a machine adds up.
    assert single.cosine == pytest.approx(1.0, abs=1000 * 2**-53)
    assert single.distance == pytest.approx((float(np.float32(2e30)) - float(np.float32(1e30))) * math.sqrt(1000))
    double = compare(np.array([1e300, -1e300, 3e305]), np.array([2e300, -1e300, 3e305]))
    assert double.distance == pytest.approx(1e300)
    assert double.relative_distance == pytest.approx(1e300 / 3e305)


@BOTH_PATHS
def test_sizes_may_change_from_block_to_block() -> None:
    scales = [0.0, 1e-300, 1e-200, 0.0, 1e-5, 1e200, 1.0, 1e300, 1e-310]
    rng = np.random.default_rng(1)
    for order in (scales, scales[::-1], [1e-200, 1e-300], [0.0, 1e-300]):
        reference = np.concatenate([rng.standard_normal(1 << 16) * scale for scale in order])
        target = reference * (1 + 1e-3 * rng.standard_normal(len(reference)))
        got, top = compare(reference, target), max(order)
        left, right = reference / top, target / top
        assert got.distance / top == pytest.approx(np.linalg.norm(right - left), rel=1e-10)
        assert got.reference_norm / top == pytest.approx(np.linalg.norm(left), rel=1e-12)
        assert got.cosine == pytest.approx(left @ right / np.linalg.norm(left) / np.linalg.norm(right), rel=1e-12)
        assert got.target_std is not None
        assert got.target_std / top == pytest.approx(right.std(), rel=1e-10)


@BOTH_PATHS
def test_a_small_spread_about_a_large_mean_is_seen() -> None:
    reference = 1e8 + np.random.default_rng(0).standard_normal(300_000)
    got = compare(reference, reference)
    assert got.reference_std == pytest.approx(np.std(reference - 1e8), rel=1e-7)


@BOTH_PATHS
def test_the_worst_element_is_found_behind_masked_ones() -> None:
    reference = np.zeros(300_000, np.float32)
    reference[::3] = -math.inf
    target = reference.copy()
    target[200_002] = 5.0
    got = compare(reference, target)
    assert (got.worst, got.max_abs, got.different, got.mismatched) == (200_002, 5.0, 1, 0)


def steps_between(a: float, b: float, dtype_name: str) -> int:
    """How many numbers of the type lie between, the farther end counted: by walking."""
    dtype = numpy_dtype(dtype_name)
    low, high = (np.array(x, dtype=dtype) for x in sorted((a, b)))
    count = 0
    while low < high:
        low = np.nextafter(low, high)
        count += 1
    return count


@BOTH_PATHS
@pytest.mark.parametrize("dtype_name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_ulps_count_steps_within_a_binade(dtype_name: str, steps: int) -> None:
    dtype = DTYPES[dtype_name]
    for start in (1.0, dtype.smallest_normal, dtype.smallest_normal * 2 * dtype.unit_roundoff, -1.0, 0.0):
        unit = 2 * dtype.unit_roundoff * max(abs(start), dtype.smallest_normal)
        end = start + (steps * unit if start >= 0 else -steps * unit)
        arrays = [np.array([x]).astype(numpy_dtype(dtype_name)) for x in (start, end)]
        got = compare(*arrays, dtype_name)
        assert steps_between(start, end, dtype_name) == steps
        assert (got.max_ulp, got.mean_ulp) == (steps, steps)


@BOTH_PATHS
@SHARED
@given(data=st.data())
def test_ulps_by_their_definition(data: st.DataObject) -> None:
    names = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(FLOATS))
    size = data.draw(st.integers(1, 8))
    arrays = [drawn_array(data, name, size) for name in names]
    truth = Truth(*map(numbers_of, arrays))
    got = compare(*arrays, *names)
    if not truth.pairs or clipped(max(truth.apart)) == math.inf:
        return
    ulps = [abs(t - r) / max(unit_at(max(abs(r), abs(t)), name) for name in names) for r, t in truth.pairs]
    near(got.max_ulp, max(ulps))
    near(got.mean_ulp, mpmath.fsum(ulps) / len(ulps))


def unit_at(size: mpmath.mpf, dtype_name: str) -> mpmath.mpf:
    """Distance to the next larger number of the type."""
    dtype = DTYPES[dtype_name]
    binade = mpmath.mpf(2) ** (mpmath.frexp(size)[1] - 1) if size else mpmath.mpf(0)
    return 2 * mpmath.mpf(dtype.unit_roundoff) * max(binade, mpmath.mpf(dtype.smallest_normal))


@BOTH_PATHS
def test_ulps_across_zero_and_between_types() -> None:
    tiny = float(np.float32(1e-45))
    assert compare(np.array([-tiny], np.float32), np.array([2 * tiny], np.float32)).max_ulp == 3.0
    rounded = np.array([1 + 2.0**-7], ml_dtypes.bfloat16)
    assert compare(np.array([1.0], np.float32), rounded).max_ulp == 1.0
    assert compare(np.array([3], np.int32), np.array([4.0], np.float16)).max_ulp == 2.0**-2 / 2.0**-10


def exact_divergence(reference: list[float], target: list[float]) -> mpmath.mpf:
    shares = []
    for numbers in (reference, target):
        low, high = exact(min(numbers)), exact(max(numbers))
        flat = [(exact(x) - low) / (high - low) if high > low else mpmath.mpf(1) for x in numbers]
        raised = [max(x, mpmath.mpf(2) ** -23) for x in flat]
        shares.append([x / mpmath.fsum(raised) for x in raised])
    return mpmath.fsum(p * mpmath.log(p / q) for p, q in zip(*shares, strict=True))


@BOTH_PATHS
@SHARED
@given(data=st.data())
def test_divergence_by_its_definition(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 10))
    name = data.draw(st.sampled_from(["float64", "float32", "bfloat16", "float16"]))
    arrays = [
        np.where(np.isfinite(array), array, 0).astype(array.dtype)
        for array in (drawn_array(data, name, size) for _ in "rt")
    ]
    got = compare(*arrays, name)
    near(got.kl_divergence, exact_divergence(*map(numbers_of, arrays)), scale=100.0)


@BOTH_PATHS
def test_divergence_takes_p_from_the_reference() -> None:
    """Shares 0 (raised to 2**-23), 1/3 and 2/3 against three thirds, by hand."""
    rising, constant = np.array([1.0, 2.0, 3.0], np.float32), np.zeros(3, np.float32)
    assert compare(rising, constant).kl_divergence == pytest.approx(2 / 3 * math.log(2), abs=2e-6)
    smallest = 2.0**-23 / 1.5
    by_hand = (math.log(1 / 3 / smallest) + math.log(1) + math.log(1 / 2)) / 3
    assert compare(constant, rising).kl_divergence == pytest.approx(by_hand, abs=2e-6)


def test_default_leaves_details_out() -> None:
    got = compare(np.ones(3), np.zeros(3), detailed=False)
    assert (got.max_ulp, got.mean_ulp, got.kl_divergence) == (None, None, None)


LAYOUTS = {
    "transposed": lambda x: x.T,
    "permuted": lambda x: x.reshape(50, 20, -1).transpose(1, 2, 0),
    "every third": lambda x: x.reshape(-1)[1::3],
    "reversed": lambda x: x[::-1, ::-2],
    "fortran": np.asfortranarray,
    "broadcast": lambda x: np.broadcast_to(x[0], (7, x.shape[1])),
}


@BOTH_PATHS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("names", [("bfloat16", "float32"), ("float64", "float64"), ("int64", "int16")])
def test_strides_do_not_matter(layout: str, names: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    base = 100 * rng.standard_normal((1000, 600))
    arrays = [(base + i * 0.01 * rng.standard_normal(base.shape)).astype(numpy_dtype(n)) for i, n in enumerate(names)]
    strided = [LAYOUTS[layout](array) for array in arrays]
    assert_equal_metrics(compare(*strided, *names), compare(*(np.array(x, order="C") for x in strided), *names))
    assert_equal_metrics(compare(strided[0], np.array(strided[1], order="C"), *names), compare(*strided, *names))


@pytest.mark.parametrize(
    "shape",
    [(0, 3), (5,), (4, 7), (3, 1, 300), (2, 5, 70), (1000, 3), (2, 3, 4, 5)],
    ids=lambda shape: "x".join(map(str, shape)),
)
@pytest.mark.parametrize("most", [1, 6, 100, 1 << 18])
def test_boxes_are_ranges_of_flat_indices(shape: tuple[int, ...], most: int) -> None:
    places = np.arange(math.prod(shape)).reshape(shape)
    packer = Packer(places.dtype, most)
    found = [packer.packed(np.asfortranarray(places)[box]).copy() for box in boxes(shape, most)]
    assert all(0 < len(part) <= most for part in found)
    assert [place for part in found for place in part.tolist()] == places.reshape(-1).tolist()


def assert_equal_metrics(got: PairMetrics, wanted: PairMetrics) -> None:
    for name, value in asdict(wanted).items():
        mine = getattr(got, name)
        if name in COUNTS or name.startswith("max") or value is None:
            assert mine == value, name
        else:
            # The divergence is a difference of two sums, each of the size of the logarithms in them.
            margin = 1e-12 if name == "kl_divergence" else 1e-14
            assert mine == pytest.approx(value, rel=1e-11, abs=margin), name


@pytest.mark.parametrize("names", [*((n, n) for n in DTYPES if n != "complex32"), *pairwise(FLOATS)], ids=str)
def test_compiled_equals_plain(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bits: nan, inf, subnormal and huge numbers among them; many blocks and an odd rest."""
    rng = np.random.default_rng(7)
    arrays = []
    for name in names:
        dtype = DTYPES[name]
        top = 2 if dtype.kind is DtypeKind.BOOL else 256
        arrays.append(rng.integers(0, top, 70_001 * dtype.item_size, dtype=np.uint8).view(numpy_dtype(name)))
    compiled = compare(*arrays, *names)
    monkeypatch.setattr(metrics, "_engine", lambda: metrics)
    assert_equal_metrics(compiled, compare(*arrays, *names))


def test_numba_works_here() -> None:
    assert metrics._engine() is not metrics


def test_unaligned_and_read_only_memory(tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    (tmp_path / "raw").write_bytes(b"x" + data.tobytes())
    mapped = np.memmap(tmp_path / "raw", np.uint8, mode="r", offset=1).view(np.float32)
    assert not mapped.flags.aligned
    assert_equal_metrics(compare(mapped, data + np.float32(1)), compare(data, data + np.float32(1)))


@pytest.mark.parametrize(
    ("reference", "target", "names"),
    [
        (np.zeros(3), np.zeros(4), ("float64", "float64")),
        (np.zeros((2, 3)), np.zeros((3, 2)), ("float64", "float64")),
        (np.zeros(3, np.float32), np.zeros(3), ("float64", "float64")),
        (np.zeros(3, ">f4"), np.zeros(3, np.float32), ("float32", "float32")),
    ],
)
def test_arrays_that_cannot_be_compared(reference: np.ndarray, target: np.ndarray, names: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"shapes differ|does not hold"):
        compare(reference, target, *names)


def test_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 300_000)) for _ in range(4)]
    expected = [compare(*pair) for pair in arrays]
    got: list[list[PairMetrics]] = [[] for _ in arrays]

    def work(index: int) -> None:
        for _ in range(5):
            got[index].append(compare(*arrays[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[result] * 5 for result in expected]


@BOTH_PATHS
@pytest.mark.parametrize("transposed", [False, True])
def test_memory_stays_bounded(tmp_path: Path, transposed: bool) -> None:
    shape = (4096, 4096)
    sides = []
    for name in ("r", "t"):
        mapped = np.memmap(tmp_path / name, np.float32, mode="w+", shape=shape)
        mapped[:] = np.arange(4096, dtype=np.float32)
        del mapped
        view = np.memmap(tmp_path / name, np.float32, mode="r", shape=shape)
        sides.append(view.T if transposed else view)
    before = anonymous_peak()
    compare(*sides, "float32")
    assert anonymous_peak() - before < 40 * 2**20


def anonymous_peak() -> int:
    """Largest resident size so far, less what of files is mapped now: an upper bound of anonymous memory."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - int(status["RssFile"].split()[0]) * 1024
