"""Axes, shapes and orders that TensorFlow hands over as tensors are told by what a trace keeps of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.numerics.regenerate.whole import whole_numbers
from ulpscope.records.calls import Value
from ulpscope.trace.reader import open_trace


def recorded(content: Any, folder: Path, *, dtype: str = "int32", **changes: Any) -> Value:
    run = HandmadeRun()
    run.call("tf.raw_ops.Reshape", reads={"args.1": run.value(content, dtype=dtype, **changes)})
    (rank,) = open_trace(run.write(folder / "run")).ranks
    return rank.value(0)


@pytest.mark.parametrize(
    "content",
    [
        [],
        7,
        [-1, -1],
        [0, 2, 1, 3],
        [3, 1, 2, 0],
        [[0, 0], [1, 2], [0, 3]],
        [1, 2, 0, 0, 1, 3],
        [32, -1],
        [8, 24, 4, 8],
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_they_are_found_again(content: Any, dtype: str, tmp_path: Path) -> None:
    found = whole_numbers(recorded(content, tmp_path, dtype=dtype), sizes=(8, 24, 4, 32, 192))
    assert found is not None
    assert found.dtype == np.dtype(dtype)
    assert np.array_equal(found, np.array(content, dtype))


def test_what_has_another_digest_is_not_taken_for_them(tmp_path: Path) -> None:
    assert whole_numbers(recorded([0, 2, 1, 3], tmp_path, digest=5)) is None


@pytest.mark.parametrize("content", [[17, 4000, 12, 900], list(range(9))])
def test_what_cannot_be_guessed_is_left(content: list[int], tmp_path: Path) -> None:
    assert whole_numbers(recorded(content, tmp_path), sizes=(8, 24)) is None


def test_floats_are_none(tmp_path: Path) -> None:
    assert whole_numbers(recorded([1.0], tmp_path, dtype="float32")) is None
