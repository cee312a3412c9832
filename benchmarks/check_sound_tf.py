"""Does `ulpscope check` leave TensorFlow's sound kernels alone? Those of the CPU, checked against float64.

    python benchmarks/check_sound_tf.py                     a transformer, a CNN and an LSTM step, three dtypes
    python benchmarks/check_sound_tf.py --models cnn --dtypes float16 --verbose

It runs where TensorFlow is installed. A verdict is counted for each direction of each case, on saved data and on data
drawn from stats. Exit code 1 if a kernel FAILs that is not among the finds: what these kernels do wrong indeed, each
proven here by a sum of whole numbers, which a kernel that adds up in a half type cannot count.
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sound_models_tf import MODELS, POLICIES
from ulpscope.dialects.opening import open_run
from ulpscope.records.check_runs import CheckOptions, CheckStandard
from ulpscope.records.checks import DataSource, OutputResult, Verdict
from ulpscope.replay.frameworks import Framework
from ulpscope.replay.planning import plan_cases
from ulpscope.workflows.check.journal import WorkerSettings
from ulpscope.workflows.check.worker import Bench

ONES = 4096
"""A sum of ones in bfloat16 ends at 256, one in float16 at 2048."""


@dataclass(frozen=True, slots=True)
class Row:
    """One direction of one case."""

    job: str
    dtype: str
    op: str
    variant: str
    verdict: Verdict
    message: str
    output: OutputResult | None


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    began, rows = time.monotonic(), []
    for name in arguments.models:
        for dtype in arguments.dtypes:
            found = rows_of(name, dtype)
            rows += found
            if arguments.verbose:
                tell_rows(found)
    return tell(rows, seconds=time.monotonic() - began)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--verbose", action="store_true", help="tell what is not PASS as it comes")
    return parser.parse_args(argv)


def rows_of(name: str, dtype: str) -> list[Row]:
    from ulpscope.replay.tensorflow.engine import Engine

    with tempfile.TemporaryDirectory(prefix="ulpscope-sound-") as folder:
        path = Path(folder) / "trace"
        script = Path(__file__).with_name("sound_models_tf.py")
        subprocess.run([sys.executable, str(script), name, dtype, str(path)], check=True, capture_output=True)
        rank = open_run(path).ranks[0]
        settings = WorkerSettings(str(path), "cpu", 0, CheckStandard.ROUNDING, Framework.TENSORFLOW)
        bench, rows = Bench(settings, Engine("cpu")), []
        for source in DataSource:
            choice = CheckOptions(source=source, stress=source is DataSource.RANDOM)
            for checked in bench.check(plan_cases(rank, choice).cases):
                result = checked.result
                variant = f"{result.case.variant.value}/{source.value}"
                for verdict in filter(None, (result.forward, result.backward)):
                    output = next((each for each in result.outputs if each.verdict is verdict), None)
                    rows.append(Row(name, dtype, result.case.op, variant, verdict, result.message, output))
    return rows


def tell_rows(rows: list[Row]) -> None:
    for row in rows:
        if row.verdict not in (Verdict.PASS, Verdict.SKIP, Verdict.UNTESTED):
            place = row.output.place if row.output else ""
            print(row.verdict.value, row.job, row.dtype, row.op, row.variant, place, row.message, flush=True)


def tell(rows: list[Row], *, seconds: float) -> int:
    for dtype in dict.fromkeys(row.dtype for row in rows):
        counts = Counter(row.verdict.value for row in rows if row.dtype == dtype)
        print(
            f"{dtype:10} {sum(counts.values()):6} " + ", ".join(f"{number} {word}" for word, number in counts.items())
        )
    skipped = [row for row in rows if row.verdict is Verdict.SKIP]
    for reason, number in Counter(row.message for row in skipped).most_common():
        ops = {row.op.rpartition(".")[2] for row in skipped if row.message == reason}
        print(f"  SKIP {number}: {reason} ({', '.join(sorted(ops))})")
    failing = [row for row in rows if row.verdict is Verdict.FAIL]
    unproven = [row for row in failing if not is_proven(row)]
    print(f"{len(failing)} FAIL, {len(failing) - len(unproven)} of them proven finds; {seconds:.0f} s")
    for (op, kind), number in Counter((row.op, row.output.dtype if row.output else "") for row in failing).items():
        print(f"  FAIL {number}: {op} {kind}")
    tell_rows(unproven)
    return 1 if unproven else 0


def is_proven(row: Row) -> bool:
    """Whether the kernel behind it, of that type, cannot count ones."""
    word, kind = row.op.removeprefix("tf.raw_ops."), row.output.dtype if row.output else None
    loses = PROOFS.get(word)
    return loses is not None and kind in ("bfloat16", "float16") and loses(kind)


def bias_grad(kind: str) -> bool:
    import tensorflow as tf

    return float(tf.raw_ops.BiasAddGrad(out_backprop=tf.ones((ONES, 1), kind))[0]) != ONES


def conv_filter(kind: str) -> bool:
    """The same numbers, summed as the gradient of a filter of one element."""
    import tensorflow as tf

    numbers, options = tf.reshape(_numbers(), (1, 64, 64, 1)), {"strides": [1, 1, 1, 1], "padding": "VALID"}
    sizes, ones = [1, 1, 1, 1], tf.ones((1, 64, 64, 1), kind)
    made = tf.raw_ops.Conv2DBackpropFilter(
        input=tf.cast(numbers, kind), filter_sizes=sizes, out_backprop=ones, **options
    )
    return bool(made[0, 0, 0, 0] != tf.cast(tf.reduce_sum(numbers), kind))


def whole_sum(kind: str) -> bool:
    import tensorflow as tf

    made = tf.raw_ops.Sum(input=tf.cast(_numbers(), kind), axis=[0])
    return bool(made != tf.cast(tf.reduce_sum(_numbers()), kind))


def _numbers() -> Any:
    """Ones, and in their middle a number from which on float16's neighbours are 2 apart: rightly added, all count."""
    import tensorflow as tf

    half = ONES // 2
    return tf.concat([tf.ones(half, tf.float64), [2048.0], tf.ones(ONES - half - 1, tf.float64)], 0)


PROOFS: dict[str, Callable[[str], bool]] = {
    "Sum": whole_sum,
    "BiasAddGrad": bias_grad,
    "BiasAdd": bias_grad,
    "Conv2DBackpropFilter": conv_filter,
    "Conv2D": conv_filter,
}
"""By op, or the op whose backward runs the kernel: whether it loses whole numbers that its type can hold."""

if __name__ == "__main__":
    sys.exit(main())
