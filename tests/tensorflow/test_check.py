"""`ulpscope check` of TensorFlow's ops: sound kernels are left alone, wrong ones are not; what is not told is said."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checked import Wrong, call_of, capture, check, with_wrong_kernel
from numpy.typing import NDArray

from ulpscope.dialects.opening import open_run
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import CaseResult, Variant, Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.workflows.check.command import plan_overflow, plan_perturb


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("saved"), "--save", "tensors")


@pytest.fixture(scope="module")
def stats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("stats"))


def ulpscope(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "ulpscope", *words], capture_output=True, text=True)


def verdicts(results: list[CaseResult]) -> dict[str, Verdict]:
    return {f"{result.case.op.rpartition('.')[2]} {way}": verdict for result in results for way, verdict in (
        ("forward", result.forward), ("backward", result.backward)) if verdict is not None}  # fmt: skip


def test_sound_kernels_are_left_alone_with_the_data_of_the_run(trace: Path) -> None:
    results = check(trace, CheckOptions(stress=False))
    found = verdicts(results)
    assert [result for result in results if Verdict.FAIL in (result.forward, result.backward)] == []
    tested = (
        "Conv2D",
        "BiasAdd",
        "FusedBatchNormV3",
        "LeakyRelu",
        "MaxPool",
        "GatherV2",
        "MatMul",
        "Softmax",
        "Transpose",
        "Erf",
    )
    for op in tested:
        assert found[f"{op} forward"] is found[f"{op} backward"] is Verdict.PASS, op
    # Of whole numbers it is exact; of floats a rounding may make another whole number of it.
    forwards = {(result.case.name, result.forward) for result in results}
    assert ("tf.raw_ops.FloorDiv.1", Verdict.PASS) in forwards
    assert ("tf.raw_ops.FloorDiv.0", Verdict.SKIP) in forwards
    for op in ("TopKV2", "ArgMax", "Cumsum", "Pad", "StridedSlice", "FusedBatchNormGradV3", "LeakyReluGrad"):
        assert found[f"{op} forward"] is Verdict.PASS, op


def test_sound_kernels_are_left_alone_with_data_made_from_stats(stats: Path) -> None:
    results = check(stats)
    assert [result for result in results if Verdict.FAIL in (result.forward, result.backward)] == []
    assert {result.case.variant for result in results} >= {Variant.OFFSET, Variant.LARGE, Variant.LONG}
    found = verdicts(results)
    # Shapes, axes and orders are told by their digests: without them these could not be executed.
    for op in ("Reshape", "Transpose", "Pad", "StridedSlice", "Mean", "ConcatV2", "GatherV2", "Conv2DBackpropInput"):
        assert found[f"{op} forward"] is Verdict.PASS, op


def test_what_cannot_be_executed_again_is_skipped_with_its_reason(trace: Path) -> None:
    skipped = {result.case.op: result.message for result in check(trace) if result.forward is Verdict.SKIP}
    assert "random" in skipped["tf.raw_ops.RandomUniform"]
    assert "variable" in skipped["tf.raw_ops.AssignAddVariableOp"]
    assert "which numbers its type has" in skipped["tf.raw_ops.Bitcast"]
    assert set(skipped.values()) == {
        "what it gives depends on which numbers its type has",
        "random: what it draws has no exact result",
        "it reads or writes a variable or another resource",
    }


def _coarse(right: NDArray[Any]) -> NDArray[Any]:
    return right.astype(ml_dtypes.bfloat16).astype(np.float32)


def _truncated(right: NDArray[Any], bits: int) -> NDArray[Any]:
    """With the last bits of float32's significand cut off."""
    return (right.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(np.float32)


def _other_epsilon(given: list[NDArray[Any]], right: NDArray[Any]) -> NDArray[Any]:
    x = given[0].astype(np.float64)
    spread = x.var((0, 1, 2))
    return (x - x.mean((0, 1, 2))) / np.sqrt(spread + 1e-5) * given[1] + given[2]


def _softmax_without_the_largest(given: list[NDArray[Any]], right: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(given[0].astype(np.float16)).astype(np.float32)
    return powers / powers.sum(-1, keepdims=True)


def _without_labels(given: list[NDArray[Any]], right: NDArray[Any]) -> NDArray[Any]:
    return np.where(right < 0, right + 1.0 / len(right), right)


FAULTS: dict[str, tuple[str, str, Wrong]] = {
    "missing scale": ("MatMul.0", "output.0", lambda given, right: right * 0.5),
    "dropped bias": ("BiasAdd.0", "output.0", lambda given, right: given[0]),
    "wrong epsilon": ("FusedBatchNormV3.0", "output.0", _other_epsilon),
    "cut significand": ("Erf.0", "output.0", lambda given, right: _truncated(right, 9)),
    "operands in bfloat16": ("MatMul.0", "output.0", lambda given, right: _coarse(given[0]) @ _coarse(given[1])),
    "shifted by a pixel": ("Conv2D.0", "output.0", lambda given, right: np.roll(right, 1, axis=2)),
    "divided by n - 1": ("Mean.0", "output.0", lambda given, right: right * (36 / 35)),
    "softmax in half": ("Softmax.0", "output.0", _softmax_without_the_largest),
    "a row too far": ("GatherV2.0", "output.0", lambda given, right: np.roll(right, 1, axis=0)),
    "an operand left out": ("AddN.0", "output.0", lambda given, right: given[0] + given[1]),
    "coarse root": ("Rsqrt.0", "output.0", lambda given, right: right * (1 + 1e-5)),
    "slope of another relu": (
        "LeakyRelu.0", "output.0", lambda given, right: np.where(given[0] > 0, given[0], given[0] * 0.01)
    ),
    "one wrong element": ("Tanh.0", "output.0", lambda given, right: right * np.where(right == right.max(), 1.001, 1)),
    "cast towards zero": ("Cast.0", "output.0", lambda given, right: _truncated(given[0], 16)),
    "transposed otherwise": ("Transpose.0", "output.0", lambda given, right: given[0].reshape(right.shape)),
    "gradient without the labels": ("SparseSoftmaxCrossEntropyWithLogits.0", "grad.args.0", _without_labels),
    "gradient of half the batch": (
        "MatMul.0", "grad.args.1", lambda given, right: given[0][:4].T @ given[2][:4]
    ),
    "gradient of the filter scaled": ("Conv2D.0", "grad.args.1", lambda given, right: right * 1.01),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_of_the_run_fails(trace: Path, tmp_path: Path, fault: str) -> None:
    name, place, wrong = FAULTS[fault]
    planted = with_wrong_kernel(trace, tmp_path / "planted", name, place, wrong)
    results = check(planted, CheckOptions(only=(f"*.{name}",), every=True, stress=False))
    result = min(results, key=lambda each: each.case.call)  # names are counted anew in each phase
    assert result.backward is Verdict.FAIL if place.startswith("grad.") else result.forward is Verdict.FAIL
    failing = [output.place for output in result.outputs if output.verdict is Verdict.FAIL]
    assert failing == [f"recorded.{place}"]


def test_the_command_names_a_wrong_kernel_and_says_what_it_could_not_check(trace: Path, tmp_path: Path) -> None:
    sound = ulpscope("check", str(trace), "--jobs", "1", "--no-stress", "--json")
    told = json.loads(sound.stdout)
    assert (sound.returncode, told["verdict"], told["counts"]["fail"]) == (0, "sound", 0)
    assert Counter(each["reason"] for each in told["skipped"]) == {
        "random: what it draws has no exact result": 1,
        "it reads or writes a variable or another resource": 1,
        "what it gives depends on which numbers its type has": 1,
    }
    planted = with_wrong_kernel(trace, tmp_path / "planted", *FAULTS["dropped bias"])
    done = ulpscope("check", str(planted), "--jobs", "1", "--only", "BiasAdd", "--no-stress")
    assert done.returncode == 1
    assert "output.0 (float32) as the run got it is wrong" in done.stdout
    assert "ulpscope repro" in done.stdout


def test_a_device_that_is_not_there_is_bad_usage() -> None:
    from ulpscope.replay.tensorflow.engine import Engine

    with pytest.raises(UlpscopeError, match="gpu:7 is not there: TensorFlow knows cpu:0"):
        Engine("gpu:7")


@pytest.mark.parametrize("plan", [plan_overflow, plan_perturb])
def test_questions_for_torch_only_are_refused(trace: Path, plan: Callable[[Path, CheckOptions], Any]) -> None:
    with pytest.raises(UlpscopeError, match="a trace of TensorFlow"):
        plan(trace, CheckOptions())


GRAPH = """
import numpy as np
import tensorflow as tf

draws = np.random.RandomState(0)
images, filters, bias, weight = (
    tf.constant(draws.randn(*shape).astype("float32")) for shape in ((4, 8, 8, 3), (3, 3, 3, 8), (8,), (8, 6))
)

@tf.function
def step(images):
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, filters, 1, "SAME"), bias))
    return tf.nn.softmax(tf.matmul(tf.reduce_mean(x, [1, 2]), weight) + 1.0)

print(step(images))
"""


def test_nodes_of_a_graph_are_executed_as_they_were_even_fused_ones(tmp_path: Path) -> None:
    results = check(capture(tmp_path, "--save", "tensors", script=GRAPH), CheckOptions(stress=False))
    found = {result.case.op.rpartition(".")[2]: (result.forward, result.message) for result in results}
    assert {op: told for op, told in found.items() if told[0] in (Verdict.FAIL, Verdict.WARN)} == {}
    # TensorFlow names kernels of oneDNN its own way (_MklSoftmax, _MklNativeFusedConv2D).
    for word in ("Softmax", "Mean", "Conv2D", "MatMul"):
        assert [told for op, told in found.items() if word in op] == [(Verdict.PASS, "")], word


def test_the_workspace_of_a_kernel_of_onednn_is_not_given_to_the_plain_op() -> None:
    import tensorflow as tf

    from ulpscope.replay.tensorflow.ops import Op
    from ulpscope.replay.tensorflow.references import reference_of

    pool = {"T": tf.float32, "ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID", "data_format": "NHWC"}
    places = tuple(f"args.{number}" for number in range(4))
    op = Op("_MklNativeMaxPoolGrad", places, {**pool, "workspace_enabled": True}, frozenset(("T",)), 1)
    reference = reference_of("tf.raw_ops._MklNativeMaxPoolGrad", op, on_cpu=True)
    assert reference is not None
    image = tf.reshape(tf.range(16, dtype=tf.float64), [1, 4, 4, 1])
    pooled, sent = tf.nn.max_pool2d(image, 2, 2, "VALID"), tf.ones([1, 2, 2, 1], tf.float64)
    given = reference([image, pooled, sent, tf.zeros([4], tf.uint8)])
    expected = np.zeros((4, 4))
    expected[1::2, 1::2] = 1
    assert np.array_equal(given[0][0, :, :, 0], expected)


def test_ops_that_reach_out_are_never_executed(trace: Path) -> None:
    from ulpscope.replay.tensorflow.ops import op_of

    (rank,) = open_run(trace).ranks
    recorded = call_of(rank, "Erf.0")
    for op in ("PyFuncStateless", "DebugIdentity", "ReadFile", "WriteFile", "Print", "Save"):
        with pytest.raises(CannotReplayError, match=r"reaches out|texts"):
            op_of(replace(recorded, call=replace(recorded.call, op=f"tf.raw_ops.{op}")))
    for op in ("os.system", "tf.io.write_file", "tf.raw_ops.NoSuchOp"):
        with pytest.raises(CannotReplayError, match="has no op"):
            op_of(replace(recorded, call=replace(recorded.call, op=op)))


def test_operands_that_a_gpu_rounded_to_tf32_are_counted_in(trace: Path) -> None:
    from ulpscope.replay.tensorflow.engine import inside_of
    from ulpscope.replay.tensorflow.running import make_recipe

    (rank,) = open_run(trace).ranks
    for name, expected in (("MatMul.0", 2.0**-11), ("Conv2D.0", 2.0**-11), ("Erf.0", None)):
        recorded = call_of(rank, name)
        there = {place: replace(value, device="gpu:0") for place, value in recorded.outputs.items()}
        assert inside_of(make_recipe(recorded), recorded, rank) is None
        on_gpu = replace(recorded, outputs=there)
        assert inside_of(make_recipe(on_gpu), on_gpu, rank) == expected


def test_a_gradient_of_single_rows_leaves_the_forward_to_be_judged(trace: Path) -> None:
    from ulpscope.replay.tensorflow.running import make_recipe

    (rank,) = open_run(trace).ranks
    recorded = call_of(rank, "Erf.0")
    rows = {**recorded.grad_outputs, "output.0.indices": next(iter(recorded.grad_outputs.values()))}
    with pytest.raises(CannotReplayError, match="single rows"):
        make_recipe(replace(recorded, grad_outputs=rows))
    assert make_recipe(replace(recorded, grad_outputs={})).differentiated == ()
