"""A step of plain TensorFlow that has a op of most kinds, and its trace, in which results can be overwritten."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.opening import open_run
from ulpscope.records.calls import Value
from ulpscope.records.check_runs import CheckOptions, CheckStandard
from ulpscope.records.checks import CaseResult
from ulpscope.replay.frameworks import Framework
from ulpscope.replay.planning import plan_cases
from ulpscope.replay.recorded import RecordedCall, read_calls
from ulpscope.trace.reader import RankTrace
from ulpscope.workflows.check.journal import WorkerSettings
from ulpscope.workflows.check.worker import Bench

SCRIPT = """
import numpy as np
import polars as pl
import tensorflow as tf

draws = np.random.RandomState(0)

def normal(*shape):
    return tf.constant(draws.randn(*shape).astype("float32"))

images, filters, bias, scale, shift = normal(8, 12, 12, 3), normal(3, 3, 3, 8), normal(8), normal(8), normal(8)
table, rows, labels = normal(20, 8), tf.constant([3, 1, 4, 1, 5, 9, 2, 6]), tf.constant([0, 1, 2, 3, 4, 5, 6, 7])
weight, low = normal(16, 32), tf.cast(normal(32, 24), tf.bfloat16)
counter = tf.Variable(0.0)
with tf.GradientTape() as tape:
    tape.watch([images, filters, bias, scale, shift, table, weight, low])
    x = tf.nn.bias_add(tf.nn.conv2d(images, filters, 1, "SAME"), bias)
    x = tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=shift, mean=[], variance=[], epsilon=0.001)[0]
    x = tf.nn.max_pool2d(tf.nn.leaky_relu(x), 2, 2, "VALID")
    x = tf.concat([tf.reduce_mean(x, [1, 2]), tf.gather(table, rows)], 1)
    x = tf.math.erf(tf.matmul(x, weight))
    x = x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), 1, keepdims=True) + 0.001)
    x = tf.nn.softmax(tf.transpose(tf.reshape(x, (4, 2, 32)), (1, 0, 2)))
    x = tf.cast(tf.matmul(tf.cast(tf.reshape(x, (8, 32)), tf.bfloat16), low), tf.float32)
    x = tf.add_n([x, tf.tanh(x), tf.sqrt(tf.abs(x) + 1.0)])
    x = tf.where(tf.random.uniform(x.shape, seed=1) < 2.0, x, 0.0)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))
tape.gradient(loss, [images, filters, bias, scale, shift, table, weight, low])
tf.math.top_k(x, 3), tf.argmax(x, 1), tf.cumsum(x, 1), tf.pad(x, [[1, 0], [0, 2]]), x[1:7:2, ::-1]
counter.assign_add(1.0)
tf.bitcast(x, tf.int32), x // 0.1, tf.range(7) // 2
"""

Wrong = Callable[[list[NDArray[Any]], NDArray[Any]], NDArray[Any]]
"""Gives what a wrong kernel gives, from the operands and from what is right."""


def capture(folder: Path, *options: str, script: str = SCRIPT) -> Path:
    """A trace of a script."""
    file, trace = folder / "step.py", folder / "trace"
    file.write_text(script)
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(trace), *options, "--", sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return trace


def check(trace: Path, options: CheckOptions | None = None) -> list[CaseResult]:
    """What comes of each case, in this process."""
    from ulpscope.replay.tensorflow.engine import Engine

    (rank,) = open_run(trace).ranks
    settings = WorkerSettings(str(trace), "cpu", 0, CheckStandard.ROUNDING, Framework.TENSORFLOW)
    cases = plan_cases(rank, options or CheckOptions()).cases
    return [checked.result for checked in Bench(settings, Engine("cpu")).check(cases)]


def call_of(rank: RankTrace, name: str) -> RecordedCall:
    """A call by its op and number: `MatMul.0`."""
    calls = rank.collect(rank.calls().select("id", "name", "kind"))
    number = next(id_ for id_, found, kind in calls.iter_rows() if found.endswith(f".{name}") and kind == "api")
    return read_calls(rank, [number])[number]


def with_wrong_kernel(trace: Path, copy: Path, name: str, place: str, wrong: Wrong) -> Path:
    """A copy of a trace in which this call gave this: `output.0`, or `grad.args.1` of its backward."""
    shutil.copytree(trace, copy)
    (rank,) = open_run(copy).ranks
    recorded = call_of(rank, name)
    backward = place.startswith("grad.")
    places = recorded.grad_inputs if backward else recorded.outputs
    value = places[place.removeprefix("grad.")]
    given = [*recorded.inputs.values(), *(recorded.grad_outputs.values() if backward else ())]
    right = np.asarray(rank.data(value))
    made = wrong([np.asarray(rank.data(each)) for each in given], right)
    _overwrite(rank, value, np.asarray(made, np.float64).astype(right.dtype).reshape(right.shape))
    return copy


def _overwrite(rank: RankTrace, value: Value, array: NDArray[Any]) -> None:
    """Put other elements where a value's lie, in a safetensors file."""
    import json

    assert value.data is not None
    file = rank.directory / value.data.file
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    begin, _ = json.loads(raw[8 : 8 + length])[value.data.key]["data_offsets"]
    place = 8 + length + begin + value.data.offset * array.itemsize
    raw[place : place + array.nbytes] = array.tobytes()
    file.write_bytes(raw)


def with_other_digest(trace: Path, name: str, place: str) -> None:
    """Let compare look at the elements of this result: its digest says no more that they are those of another run."""
    (rank,) = open_run(trace).ranks
    number = call_of(rank, name).outputs[place].id
    for file in trace.rglob("values-*.parquet"):
        frame = pl.read_parquet(file)
        frame.with_columns(
            digest=pl.when(pl.col("id") == number).then(1).otherwise("digest").cast(pl.UInt64)
        ).write_parquet(file)
