"""Attention masks: scores and the softmax behind them are compared where no mask is, whichever number the mask is."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.saved_runs import SavedRun

from ulpscope.judge.rounding.masks import Mask, attention_mask, compare_unmasked, may_be_masked
from ulpscope.numerics.summaries.rows import stats_from_row
from ulpscope.numerics.summaries.summary import summarize
from ulpscope.records.evidence import Replay
from ulpscope.records.pairs import Pair
from ulpscope.workflows.compare.command import CompareOptions, CompareResult, compare

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
SCORES = 3 * RANDOM.standard_normal((4, 64, 64))
MASKED = np.broadcast_to(RANDOM.random((4, 1, 64)) < 0.4, SCORES.shape)
LEAST = float(np.finfo(np.float32).min)
INFINITE = -np.inf


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def attention(dtype: str, number: float, *, fault: str | None = None, masked: Array = MASKED) -> SavedRun:
    """The mask is made, added to the scores, and a softmax taken; one of these may go wrong."""
    run = SavedRun()
    mask = np.where(masked, number, 0.0).astype(dtype)
    kept = run.value(np.where(masked, 1.0, 0.0), dtype=dtype)
    made = run.call("torch.mul", reads={"args.0": kept}, makes={"output.0": mask}, module="model")
    factors = np.where(masked | (fault != "torch.add"), 1.0, 1.1)
    added = (SCORES * factors).astype(dtype) + mask
    given = {"args.0": run.value(SCORES, dtype=dtype), "args.1": run.output(made)}
    add = run.call("torch.add", reads=given, makes={"output.0": added}, module="model")
    shares = softmax(added.astype(np.float64) / (1.1 if fault == "torch.softmax" else 1.0)).astype(dtype)
    run.call("torch.softmax", reads={"args.0": run.output(add)}, makes={"output.0": shares}, module="model")
    return run


def compared(folder: Path, reference: SavedRun, target: SavedRun) -> CompareResult:
    saved = {"level": "api", "save": "tensors"}
    paths = reference.write(folder / "reference", capture=saved), target.write(folder / "target", capture=saved)
    return compare(*paths, CompareOptions(replay=Replay.OFF))


@pytest.mark.parametrize("fault", [None, "torch.add", "torch.softmax"])
@pytest.mark.parametrize(
    ("trusted", "number"),
    [
        (-1e4, -1e4),
        (LEAST, -65504.0),
        (INFINITE, -65504.0),
        (-1e9, -65504.0),
        (-1e4, -65504.0),
        (LEAST, -1e4),
        (LEAST, INFINITE),
        (INFINITE, INFINITE),
    ],
)
def test_what_goes_wrong_beside_a_mask_is_named(
    tmp_path: Path, trusted: float, number: float, fault: str | None
) -> None:
    result = compared(tmp_path, attention("float32", trusted), attention("float16", number, fault=fault))

    assert [finding.op for finding in result.findings] == ([] if fault is None else [fault])
    assert result.verdict == ("agree" if fault is None else "diverged")
    assert not result.comparison.scope.not_compared
    told = [f"the mask is {trusted:.6g} in the reference and {number:.6g} in the target"] * (trusted != number)
    assert [sentence.partition("aside: ")[2] for sentence in result.json()["missing"]] == told


def test_another_mask_of_the_same_type_is_a_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, attention("float32", -1e9), attention("float32", -1e4))

    assert [finding.op for finding in result.findings] == ["torch.mul"]


def test_rows_that_are_all_masked_are_not_judged_by_what_is_left(tmp_path: Path) -> None:
    """What a softmax makes of them depends on how the mask was rounded."""
    masked = MASKED.copy()
    masked[1, 5] = True
    runs = attention("float32", LEAST, masked=masked), attention("float16", -65504.0, masked=masked)
    result = compared(tmp_path, *runs)

    reasons = [reason for reason, _ in result.comparison.scope.not_compared]
    assert reasons == ["other elements are set aside (attention masks)"]


@pytest.mark.parametrize("where", ["nowhere", "elsewhere"])
def test_a_mask_that_is_not_in_the_same_places_is_named(tmp_path: Path, where: str) -> None:
    masked = np.zeros_like(MASKED) if where == "nowhere" else ~MASKED
    result = compared(tmp_path, attention("float32", LEAST), attention("float16", -65504.0, masked=masked))

    # What the mask is made of differs already.
    assert [(finding.op, finding.kind) for finding in result.findings] == [("torch.mul", "input")]
    assert not result.comparison.scope.not_compared


@pytest.mark.parametrize("end", [65504.0, np.inf])
def test_float16_that_ends_where_the_reference_goes_on_is_no_mask(tmp_path: Path, end: float) -> None:
    runs = []
    for dtype, large in (("float32", 1e10), ("float16", end)):
        run = SavedRun()
        run.call(
            "torch.mul",
            reads={"args.0": run.value([1.0, 2.0], dtype=dtype)},
            makes={"output.0": np.array([3.0, large], dtype)},
        )
        runs.append(run)
    result = compared(tmp_path, *runs)

    assert [finding.op for finding in result.findings] == ["torch.mul"]
    assert not result.comparison.scope.not_compared


def mask_of(reference: Array, target: Array) -> Mask | None:
    return attention_mask(Pair(reference, target), Pair(reference.dtype.name, target.dtype.name))


def test_what_is_no_mask_is_not_set_aside() -> None:
    scores, whole_row, far = np.array([[1.0, -10000], [2, 3]]), np.full((2, 2), -10000.0), np.array([[-1e4, 1000]])
    found = mask_of(scores, scores + 0.5)
    assert found is not None
    assert found.where.tolist() == [[False, True], [False, False]]
    assert mask_of(scores, np.array([[1.0, -1], [2, 3]])) is None
    assert mask_of(whole_row, whole_row) is None
    assert mask_of(np.vstack([scores, whole_row]), np.vstack([scores, whole_row])) is None
    assert mask_of(far, far) is None
    assert mask_of(np.array(-1e4), np.array(-1e4)) is None


def test_large_numbers_that_are_not_one_number_are_no_mask() -> None:
    data = np.array([[-5000.0, -9000.0, 3.0]])
    assert mask_of(data, data) is None
    # A fault that changes one of them is not set aside with it.
    assert mask_of(np.array([[-5000.0, 3.0]]), np.array([[-9000.0, 3.0]])) is None
    assert mask_of(np.array([[-5000.0, 3.0]]), np.array([[-9000.0, 3.0]], np.float16)) is None
    assert mask_of(np.array([[-np.inf, -1e9, 3.0]]), np.array([[-np.inf, -1e9, 3.0]])) is None


def test_two_masks_may_overlap() -> None:
    twice = np.array([[-10000.0, -20003.0, 3.0]])
    assert mask_of(twice, twice.astype(np.float16)) is not None
    ended = np.array([[-65504.0, -np.inf, 3.0]], np.float16)
    assert mask_of(np.array([[LEAST, -np.inf, 3.0]], np.float32), ended) is not None


def test_bits_of_a_small_type_are_numbers() -> None:
    reference = np.array([[LEAST, 1.0, 2.0]], np.float32)
    target = np.array([[-1e9, 1.0, 2.5]], ml_dtypes.bfloat16)
    dtypes = Pair("float32", "bfloat16")
    arrays: Pair[Array] = Pair(reference, target.view(np.uint16))
    found = attention_mask(arrays, dtypes)
    assert found is not None
    assert found.where.tolist() == [[True, False, False]]
    metrics = compare_unmasked(arrays, found, dtypes, detailed=False)
    # The worst is told where it is in the whole, and what is masked counts among what differs.
    assert (metrics.elements, metrics.different, metrics.worst, metrics.max_abs) == (3, 2, 2, 0.5)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([-1e4, 3.0], True),
        ([-np.inf, 3.0], True),
        ([-np.inf, np.nan], False),
        ([-np.inf, 3.0, np.nan], False),
        ([-1e4, 300.0], False),
        ([-100.0, 3.0], False),
        ([-np.inf, -np.inf], False),
    ],
)
def test_stats_tell_whether_there_may_be_a_mask(content: list[float], expected: bool) -> None:
    array = np.asarray(content, np.float32)
    stats = stats_from_row(summarize(array, "float32"), "float32", array.shape)
    assert may_be_masked(stats, "float32") is expected
    assert not may_be_masked(stats, "int32")
