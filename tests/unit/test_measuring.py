"""Pairs of values measured from summaries, and from saved data where there is some."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.judge.rounding.measuring import (
    DTYPE_DIFFERS,
    MASK_DIFFERS,
    NO_REASON,
    NO_SUMMARY,
    SHAPE_DIFFERS,
    UNINITIALIZED,
    ValuePairs,
    measure,
    refine,
)
from ulpscope.judge.rounding.values import Values, read_values
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.records.pairs import Measured, PairMetrics
from ulpscope.trace.reader import open_trace

NAN, INF = float("nan"), float("inf")
NO_SKETCH = {"sketch": None}
NO_STATS = dict.fromkeys(
    ("min", "max", "mean", "norm", "abs_sum", "nan", "pos_inf", "neg_inf", "set_aside", "zero", "subnormal", "sketch")
)
FINFO_MIN = float(np.finfo(np.float32).min)


class Sides:
    """Contents of reference and target, a pair each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = HandmadeRun(), HandmadeRun()

    def add(self, reference: Any, target: Any, **options: Any) -> "Sides":
        """A pair of contents; `dtypes` and `changes` are those of both sides, or of each in a list."""
        both = options.get("dtypes", ("float32", "float32")), options.get("changes", ({}, {}))
        for run, content, dtype, changes in zip(self.runs, (reference, target), *both, strict=True):
            run.value(content, dtype=dtype, **changes)
        return self

    def read(self) -> tuple[Values, Values]:
        sides = []
        for name, run in zip(("ref", "target"), self.runs, strict=True):
            run.call("torch.relu", reads={f"args.{number}": number for number in run.values})
            trace = open_trace(run.write(self.folder / name)).ranks[0]
            sides.append(read_values(trace, np.arange(len(run.values))))
        return sides[0], sides[1]

    def measured(self, *, same_digests: bool = True) -> ValuePairs:
        return measure(*self.read(), same_digests=same_digests)


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    return Sides(tmp_path)


def arrays(seed: int, size: int = 2000) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    reference = random.standard_normal(size).astype(np.float32)
    return reference, (reference * (1 + 1e-3 * random.standard_normal(size))).astype(np.float32)


def true_error(reference: Any, target: Any) -> float:
    return float(np.linalg.norm(target - reference) / np.linalg.norm(reference))


def test_equal_bits_are_identical(sides: Sides) -> None:
    reference, target = arrays(1)
    pairs = sides.add(reference, reference).add(reference, target).measured()
    assert pairs.identical.tolist() == [True, False]
    assert pairs.error[0] == pairs.distance[0] == 0
    assert pairs.measured.tolist() == [Measured.DIGEST, Measured.SKETCH]
    assert pairs.compared.all()
    assert not pairs.pattern.any()


def test_errors_are_relative_to_the_reference(sides: Sides) -> None:
    reference, target = arrays(2)
    pairs = sides.add(reference, target).add(reference, 3 * reference).measured()
    assert pairs.error[0] == pytest.approx(true_error(reference, target), rel=0.4)
    assert pairs.error[1] == pytest.approx(2.0, rel=0.4)
    assert pairs.distance[1] == pytest.approx(2 * np.linalg.norm(reference), rel=0.4)


def test_a_reference_of_zeros_is_measured_by_the_target(sides: Sides) -> None:
    pairs = sides.add([0.0, 0.0, 0.0], [0.0, 4.0, 0.0]).add([0.0], [-0.0]).measured()
    assert pairs.error.tolist() == [pytest.approx(1.0), 0.0]
    assert pairs.distance[0] == pytest.approx(4.0)


def test_other_digests_are_not_compared(sides: Sides) -> None:
    reference, _ = arrays(3)
    pairs = sides.add(reference, reference).measured(same_digests=False)
    assert not pairs.identical[0]
    assert (pairs.error[0], pairs.measured[0]) == (0.0, Measured.SKETCH)


def test_integers_are_equal_or_not(sides: Sides) -> None:
    both = {"dtypes": ("int64", "int64")}
    pairs = sides.add([1, 2, 3], [1, 2, 3], **both).add([1, 2, 3], [1, 3, 2], **both).measured()
    assert pairs.discrete.all()
    assert pairs.identical.tolist() == [True, False]
    assert pairs.error.tolist() == [0.0, INF]


def test_integers_of_other_types_are_told_by_their_stats(sides: Sides) -> None:
    other = {"dtypes": ("int64", "int32")}
    sides.add([1, 2, 3], [1, 2, 3], **other).add([1, 2, 3], [1, 2, 4], **other).add([1, 2, 6], [1, 4, 6], **other)
    pairs = sides.add([True, False], [1, 0], dtypes=("bool", "uint8")).measured()
    assert pairs.compared.all()
    assert not pairs.identical.any()
    assert pairs.error.tolist() == [0.0, INF, INF, 0.0]
    assert pairs.measured[0] is Measured.STATS


@pytest.mark.parametrize("dtypes", [("complex64", "float16"), ("float32", "complex64"), ("complex64", "int32")])
def test_complex_and_real_numbers_are_not_compared_and_have_the_same_shape(
    sides: Sides, dtypes: tuple[str, str]
) -> None:
    pairs = sides.add([1, 2], [1, 2], dtypes=dtypes).measured()
    assert pairs.reason.tolist() == [DTYPE_DIFFERS]


def test_integers_and_floats_are_not_compared(sides: Sides) -> None:
    pairs = sides.add([1, 2], [1, 2], dtypes=("int64", "float32")).measured()
    assert pairs.reason.tolist() == [DTYPE_DIFFERS]
    assert np.isnan(pairs.error[0])
    assert pairs.measured[0] is None


def test_floats_of_other_types_are_compared(sides: Sides) -> None:
    reference, _ = arrays(4)
    pairs = sides.add(reference, reference, dtypes=("float32", "float16")).measured()
    assert pairs.compared.all()
    assert not pairs.identical[0]
    assert 0 < pairs.error[0] < 2.0**-11


def test_masks_are_set_aside(sides: Sides) -> None:
    reference, target = arrays(5)
    masked = reference.copy(), target.copy()
    for array in masked:
        array[:500] = FINFO_MIN
    pairs = sides.add(*masked).measured()
    assert not pairs.pattern[0]
    assert pairs.error[0] == pytest.approx(true_error(reference[500:], target[500:]), rel=0.4)


def test_another_mask_is_another_pattern(sides: Sides) -> None:
    pairs = sides.add([1.0, FINFO_MIN, 2.0], [1.0, FINFO_MIN, FINFO_MIN]).measured()
    assert pairs.pattern.tolist() == [True]
    assert pairs.compared.tolist() == [True]


def test_another_mask_in_another_type_is_not_compared(sides: Sides) -> None:
    half = float(np.finfo(np.float16).min)
    pairs = sides.add([1.0, FINFO_MIN], [1.0, half], dtypes=("float32", "float16")).measured()
    assert pairs.reason.tolist() == [MASK_DIFFERS]
    assert pairs.pattern.tolist() == [False]


@pytest.mark.parametrize(
    ("reference", "target", "differs"),
    [
        ([1.0, NAN], [1.0, NAN], False),
        ([1.0, NAN], [1.5, NAN], False),
        ([1.0, 2.0], [1.0, NAN], True),
        ([1.0, INF], [1.0, NAN], True),
        ([1.0, INF], [1.0, -INF], True),
        ([1.0, -INF], [1.0, FINFO_MIN], False),  # the same mask, which added up became -inf in one run
        ([1.0, -INF, -INF], [1.0, FINFO_MIN, 2.0], True),
        ([1.0, -INF], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, INF], True),
        ([INF, INF], [INF, 1.0], True),
    ],
)
def test_patterns_of_inf_and_nan(sides: Sides, reference: Any, target: Any, differs: bool) -> None:
    pairs = sides.add(reference, target).measured()
    assert pairs.pattern.tolist() == [differs]
    assert pairs.compared.tolist() == [True]
    assert np.isfinite(pairs.error[0])


def test_other_shapes_are_not_compared(sides: Sides) -> None:
    pairs = sides.add([1.0, 2.0], [1.0, 2.0, 3.0]).add([[1.0, 2.0]], [1.0, 2.0]).measured()
    assert pairs.reason.tolist() == [SHAPE_DIFFERS, NO_REASON]
    assert pairs.error[1] == 0
    assert np.isnan(pairs.error[0])


@pytest.mark.parametrize("changes", [({"initialized": False}, {}), ({}, {"initialized": False})])
def test_unwritten_memory_is_never_compared(sides: Sides, changes: Any) -> None:
    pairs = sides.add([1.0], [1.0], changes=changes).measured()
    assert pairs.reason.tolist() == [UNINITIALIZED]
    assert not pairs.identical[0]


def test_stats_stand_in_for_missing_sketches(sides: Sides) -> None:
    reference, target = arrays(6)
    pairs = sides.add(reference, target, changes=(NO_SKETCH, {})).add(reference, target).measured()
    assert pairs.measured.tolist() == [Measured.STATS, Measured.SKETCH]
    assert 0 < pairs.error[0] < 0.1


def test_digests_alone_tell_equal_from_unequal(sides: Sides) -> None:
    both = {"changes": (NO_STATS, NO_STATS)}
    pairs = sides.add([1.0, 2.0], [1.0, 2.0], **both).add([1.0, 2.0], [1.0, 2.5], **both).measured()
    assert pairs.identical.tolist() == [True, False]
    assert pairs.error.tolist() == [0.0, INF]
    assert pairs.measured.tolist() == [Measured.DIGEST] * 2


@pytest.mark.parametrize("changes", [(NO_STATS | {"digest": None}, {}), ({}, NO_STATS | {"digest": None})])
def test_without_any_summary_nothing_is_compared(sides: Sides, changes: Any) -> None:
    pairs = sides.add([1.0], [1.0], changes=changes).measured()
    assert pairs.reason.tolist() == [NO_SUMMARY]


def test_digests_that_cannot_be_compared_are_no_summary(sides: Sides) -> None:
    pairs = sides.add([1.0], [2.0], changes=(NO_STATS, NO_STATS)).measured(same_digests=False)
    assert pairs.reason.tolist() == [NO_SUMMARY]


def metrics_of(pairs: list[tuple[Any, Any]]) -> list[PairMetrics]:
    return [
        compare_arrays(np.asarray(r), np.asarray(t), reference_dtype="float32", target_dtype="float32", detailed=False)
        for r, t in pairs
    ]


def test_saved_data_replaces_estimates(sides: Sides) -> None:
    contents = [arrays(8), arrays(9)]
    for reference, target in contents:
        sides.add(reference, target)
    estimated = sides.measured()
    known = metrics_of(contents)
    refined = refine(estimated, {1: known[1]})
    assert refined.measured.tolist() == [Measured.SKETCH, Measured.DATA]
    assert refined.error[1] == pytest.approx(true_error(*contents[1]), rel=1e-4)
    assert refined.error[0] == estimated.error[0]
    assert set(refined.metrics) == {1}
    assert estimated.metrics == {}


def test_data_that_is_missing_leaves_the_estimate(sides: Sides) -> None:
    estimated = sides.add(*arrays(10)).measured()
    refined = refine(estimated, {0: None})
    assert refined.measured.tolist() == [Measured.SKETCH]
    assert refined.error.tolist() == estimated.error.tolist()


def test_data_shows_inf_at_other_places(sides: Sides) -> None:
    reference = np.array([1.0, INF, 3.0], dtype=np.float32)
    target = np.array([INF, 1.0, 3.0], dtype=np.float32)
    estimated = sides.add(reference, target).measured()
    assert estimated.pattern.tolist() == [False]
    (known,) = metrics_of([(reference, target)])
    assert refine(estimated, {0: known}).pattern.tolist() == [True]


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
def test_an_offset_of_a_few_elements_is_measured(sides: Sides, size: int) -> None:
    reference = np.linspace(0.5, 2.0, size).astype(np.float32)
    pairs = sides.add(reference, reference + np.float32(0.05)).measured()
    assert pairs.measured[0] is Measured.SKETCH
    assert pairs.error[0] == pytest.approx(true_error(reference, reference + np.float32(0.05)), rel=0.45)
    assert pairs.error[0] >= true_error(reference, reference + np.float32(0.05)) * 0.999


def test_what_only_digests_tell_apart_is_not_equal(sides: Sides) -> None:
    """A float64 differs below what a sketch resolves; the same numbers in another shape or dtype do not differ."""
    one, two = np.ones((4, 4)), np.ones((4, 4))
    two[0, 0] += 1e-12
    same = np.ones((2, 8))
    pairs = (
        sides.add(one, two, dtypes=("float64", "float64"))
        .add(one, same, dtypes=("float64", "float64"))
        .add(one, one, dtypes=("float64", "float32"))
        .measured()
    )
    assert not pairs.identical.any()
    assert 0 < pairs.error[0] <= 1e-6
    assert pairs.error[1] == pairs.error[2] == 0.0
