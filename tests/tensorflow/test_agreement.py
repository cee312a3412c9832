"""The same array has the same stats, sketch and digest as under torch's capture on a CPU.

Both are those of the compiled kernels, which are held to the plain reference here and in torch's own tests
(tests/contract/test_torch_summary.py).
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import ulpscope
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.compiled import summarize_into
from ulpscope.numerics.summaries.constants import ABS_SUM, MAX, MIN, NAN, ROW_LENGTH, SKETCH, SKETCH_LENGTH, SUM, ZERO
from ulpscope.numerics.summaries.rows import raw_digest_of_row, stats_from_row
from ulpscope.numerics.summaries.summary import finish_digest, summarize
from ulpscope.trace.reader import open_trace

HOSTILE = [np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**29, 1e30, 1e-40, 6e-8, 1.0, -3.0]
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint32", "bool")
SHAPES = ((), (0, 3), (5, 7), (61, 130), (3, 1, 1000))


def array_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.random.default_rng(len(dtype) + len(shape)).normal(size=shape) * 3
    numbers = np.asarray(numbers)
    if dtype in FLOATS and numbers.size > len(HOSTILE):
        numbers.reshape(-1)[: len(HOSTILE)] = HOSTILE
    with np.errstate(all="ignore"):
        return numbers.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_summaries_are_those_of_the_reference(dtype: str, tmp_path: Path) -> None:
    arrays = [array_of(dtype, shape) for shape in SHAPES]
    with ulpscope.capture(tmp_path / "trace", save="tensors"):
        for array in arrays:
            tf.identity(tf.constant(array))
    (trace,) = open_trace(tmp_path / "trace").ranks
    uses = trace.tensors().collect().sort("call")
    numbers = uses.filter(uses["role"] == "output")["value"].to_list()
    assert len(numbers) == len(SHAPES)
    for array, number in zip(arrays, numbers, strict=True):
        value = trace.value(number)
        parts = np.ascontiguousarray(array).reshape(-1)
        bits = parts.view(np.int16 if dtype == "bfloat16" else array.real.dtype)
        row = np.zeros(ROW_LENGTH)
        summarize_into(bits, dtype, row)
        assert (value.dtype, value.shape, value.device) == (dtype, array.shape, "cpu")
        assert value.stats == stats_from_row(row, dtype, array.shape)
        if DTYPES[dtype].has_sketch:
            assert value.sketch == pytest.approx(row[SKETCH : SKETCH + SKETCH_LENGTH], rel=1e-7)
        plain = summarize(bits, dtype)
        assert value.digest == finish_digest(raw_digest_of_row(plain), dtype, array.shape)
        assert row[[MIN, MAX, NAN, ZERO]].tolist() == plain[[MIN, MAX, NAN, ZERO]].tolist()
        assert row[SUM] == pytest.approx(plain[SUM], abs=1e-6 * (plain[ABS_SUM] + 1))
        assert np.asarray(trace.data(value)).tobytes() == array.tobytes()
