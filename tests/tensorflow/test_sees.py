"""What a capture of TensorFlow records: calls, phases, steps, paths, stacks, gradients, updates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import polars as pl
import pytest
import tensorflow as tf

import ulpscope
from ulpscope.capture.tensorflow.graphs.observer import GraphObserver
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.trace.reader import RankTrace, open_trace

STEPS = 3
INPUTS = np.random.default_rng(0).normal(size=(STEPS, 4, 5)).astype("float32")


class Net(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(5, activation="tanh") for _ in range(2)]
        self.head = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def train(model: Any = None) -> None:
    model = model or Net()
    optimizer = keras.optimizers.Adam(0.01)
    for inputs in INPUTS:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def captured(out: Path, work: Callable[[], Any] = train, **options: Any) -> RankTrace:
    with ulpscope.capture(out, **options):
        work()
    (trace,) = open_trace(out).ranks
    assert trace.info.errors == ()
    return trace


def calls_of(trace: RankTrace, step: int = 1) -> pl.DataFrame:
    calls = trace.calls().collect().sort("id")
    return calls.filter(calls["step"] == step)


def uses_of(trace: RankTrace, call: int) -> dict[tuple[str, str], int]:
    uses = trace.tensors().collect()
    mine = uses.filter(uses["call"] == call)
    return {(row["role"], row["place"]): row["value"] for row in mine.iter_rows(named=True)}


def test_steps_phases_and_paths(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t")
    calls = trace.calls().collect()
    assert calls["step"].unique().sort().to_list() == [0, 1, 2]
    first = calls_of(trace)
    assert first["phase"].unique().sort().to_list() == ["backward", "forward", "update"]
    modules = first.filter(first["kind"] == "module")
    assert modules["module"].to_list() == ["model", "model.blocks.0", "model.blocks.1", "model.head"]
    tanh = first.filter(first["name"] == "tf.raw_ops.Tanh.1").row(0, named=True)
    assert tanh["module"] == "model.blocks.1"
    assert tanh["parent"] == modules["id"].to_list()[2]
    assert [frame.function for frame in trace.stack(tanh["stack"])][:3] == ["call", "train", "captured"]


def test_a_backward_is_tied_to_its_forward(tmp_path: Path) -> None:
    first = calls_of(trace := captured(tmp_path / "t"))
    forward = first.filter((first["name"] == "tf.raw_ops.MatMul.1") & (first["phase"] == "forward")).row(0, named=True)
    backward = first.filter(first["forward"] == forward["id"]).row(0, named=True)
    assert (backward["kind"], backward["op"], backward["module"]) == ("backward", "tf.raw_ops.MatMul", "model.blocks.1")
    used = uses_of(trace, backward["id"])
    assert set(used) == {("grad_output", "output.0"), ("grad_input", "args.0"), ("grad_input", "args.1")}
    inner = first.filter(first["parent"] == backward["id"])
    assert inner["op"].to_list() == ["tf.raw_ops.MatMul"] * 2
    assert set(inner["phase"]) == {"backward"}


def test_gradients_are_those_of_the_tape(tmp_path: Path) -> None:
    weight, inputs = tf.Variable(np.ones((5, 2), "float32")), tf.constant(INPUTS[0])
    given = {}

    def work() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(inputs, weight))
        given["gradient"] = tape.gradient(loss, weight).numpy()

    trace = captured(tmp_path / "t", work, save="tensors")
    calls = trace.calls().collect()
    backward = calls.filter((calls["kind"] == "backward") & (calls["op"] == "tf.raw_ops.MatMul"))["id"][0]
    recorded = trace.data(trace.value(uses_of(trace, backward)["grad_input", "args.1"]))
    assert np.array_equal(np.asarray(recorded), given["gradient"])


def test_an_update_is_one_call(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t")
    first = calls_of(trace)
    (update,) = first.filter(first["kind"] == "optimizer").iter_rows(named=True)
    assert update["op"] == "keras.src.optimizers.adam.Adam"
    assert '"learning_rate":0.0' in update["arguments"]
    used = uses_of(trace, update["id"])
    name = "model.blocks.1.kernel"
    roles = {role for role, place in used if place == name}
    assert roles == {"gradient", "parameter", "parameter_after"}
    assert {place for role, place in used if role == "state" and place.startswith(name)} == {
        f"{name}.momentums",
        f"{name}.velocities",
    }
    before, after = (trace.value(used[role, name]) for role in ("parameter", "parameter_after"))
    assert before.digest != after.digest
    assert (before.storage, after.producer) == (after.storage, update["id"])
    assert trace.info.coverage.calls_unobserved["inside an optimizer"] > 0
    kernel = captured(tmp_path / "kernel", level="kernel")
    assert "inside an optimizer" not in kernel.info.coverage.calls_unobserved
    assert calls_of(kernel).filter(pl.col("phase") == "update").height > 50


def test_a_parameter_is_one_value_until_it_is_updated(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t")
    layers, matmuls = [], []
    for step in range(STEPS):
        calls = calls_of(trace, step)
        calls = calls.filter((calls["module"] == "model.head") & (calls["phase"] == "forward"))
        layers.append(uses_of(trace, calls.filter(calls["kind"] == "module")["id"][0])["parameter", "kernel"])
        matmul = calls.filter(calls["op"] == "tf.raw_ops.MatMul")["id"][0]
        matmuls.append(uses_of(trace, matmul)["input", "args.1"])
    assert layers == matmuls
    assert len(set(layers)) == STEPS


def test_rows_of_an_embedding_have_gradients(tmp_path: Path) -> None:
    table = tf.Variable(np.ones((9, 2), "float32"))

    def work() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 4]))
        keras.optimizers.SGD(0.1).apply_gradients([(tape.gradient(loss, table), table)])

    trace = captured(tmp_path / "t", work)
    calls = trace.calls().collect()
    used = uses_of(trace, calls.filter(calls["kind"] == "optimizer")["id"][0])
    rows = next(number for (role, _), number in used.items() if role == "gradient")
    assert trace.value(rows).shape == (2, 2)
    gather = calls.filter(calls["op"] == "tf.raw_ops.ResourceGather")["id"][0]
    assert trace.value(uses_of(trace, gather)["input", "args.0"]).shape == (9, 2)


def test_random_calls_are_marked(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t", lambda: (tf.random.normal((3,)), tf.random.stateless_uniform((3,), [1, 2])))
    calls = trace.calls().collect()
    drawn = set(calls.filter(calls["random"])["op"])
    assert drawn == {"tf.raw_ops.RandomStandardNormal", "tf.raw_ops.StatelessRandomUniformV2"}


def test_patterns_choose_calls(tmp_path: Path) -> None:
    only = captured(tmp_path / "only", only=["MatMul"])
    assert set(only.calls().collect()["op"]) == {"tf.raw_ops.MatMul"}
    skipped = captured(tmp_path / "skip", skip=["model.blocks"])
    assert "model.blocks.0" not in set(skipped.calls().collect()["module"])
    second = captured(tmp_path / "steps", steps=[1])
    assert set(second.calls().collect()["step"]) == {1}


def test_a_function_is_one_call_with_its_true_inputs(tmp_path: Path) -> None:
    weight = tf.Variable(np.full((5, 1), 0.5, "float32"))

    @tf.function
    def forward(inputs: Any) -> Any:
        return tf.tanh(tf.matmul(inputs, weight))

    result = {}

    def work() -> None:
        with tf.GradientTape() as tape:
            result["output"] = forward(tf.constant(INPUTS[0]))
        result["gradient"] = tape.gradient(result["output"], weight)

    trace = captured(tmp_path / "t", work, save="tensors")
    calls = trace.calls().collect().sort("id")
    (compiled,) = calls.filter(calls["kind"] == "compiled").iter_rows(named=True)
    assert compiled["op"] == "tf.function.forward"
    used = uses_of(trace, compiled["id"])
    content = {place: np.asarray(trace.data(trace.value(number))) for place, number in used.items()}
    assert np.array_equal(content["input", "args.0"], INPUTS[0])
    assert np.array_equal(content["parameter", "Variable"], weight.numpy())
    assert np.array_equal(content["output", "output.0"], result["output"].numpy())
    (backward,) = calls.filter(calls["forward"] == compiled["id"]).iter_rows(named=True)
    assert backward["kind"] == "backward"
    gradients = [n for (role, _), n in uses_of(trace, backward["id"]).items() if role == "grad_input"]
    recorded = [np.asarray(trace.data(trace.value(number))) for number in gradients]
    assert any(np.array_equal(one, result["gradient"].numpy()) for one in recorded)
    inside = calls.filter(calls["parent"] == compiled["id"])
    (tanh,) = inside.filter(inside["op"] == "tf.raw_ops.Tanh").iter_rows(named=True)
    recorded = trace.data(trace.value(uses_of(trace, tanh["id"])["output", "output.0"]))
    assert np.array_equal(np.asarray(recorded), result["output"].numpy())
    assert "inside a tf.function" not in trace.info.coverage.calls_unobserved


def graph_step() -> Any:
    model = Net()
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    for inputs in INPUTS:
        model.train_on_batch(inputs, np.zeros((4, 1), "float32"))


def test_at_level_module_nothing_is_read_inside_of_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("nobody needs an observer")

    monkeypatch.setattr(GraphObserver, "load", fail)
    trace = captured(tmp_path / "t", graph_step, level="module")
    calls = trace.calls().collect()
    assert set(calls["kind"]) <= {"compiled", "module", "optimizer"}
    steps = calls.filter(calls["op"].str.contains("step_on_data"))
    assert steps["step"].to_list() == [0, 1, 2]
    used = uses_of(trace, steps["id"][1])
    assert ("parameter", "model.head.kernel") in used
    assert used["parameter", "model.head.kernel"] != used["output", "model.head.kernel"]
    assert trace.info.coverage.calls_unobserved["inside a tf.function"] >= STEPS


def test_an_update_inside_of_a_graph_is_one_call_that_is_not_read(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t", graph_step)
    second = calls_of(trace)
    (update,) = second.filter(second["kind"] == "optimizer").iter_rows(named=True)
    roles = {role for role, place in uses_of(trace, update["id"]) if place == "model.head.kernel"}
    assert roles == {"gradient", "parameter", "parameter_after"}
    assert not any("/adam/" in f"/{name}" for name in second["name"])
    assert trace.info.coverage.calls_unobserved["inside an optimizer"] > 100
    kernel = calls_of(captured(tmp_path / "kernel", graph_step, level="kernel"))
    (update,) = kernel.filter(kernel["kind"] == "optimizer").iter_rows(named=True)
    assert kernel.filter(kernel["parent"] == update["id"]).height > 50


OPTIMIZERS = "SGD Adam AdamW RMSprop Adagrad Adadelta Adamax Nadam Ftrl Lion Adafactor Lamb".split()


@pytest.mark.parametrize("options", [{}, {"clipnorm": 1.0}], ids=["plain", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_seen_to_run_inside_of_a_graph(name: str, options: dict[str, float], tmp_path: Path) -> None:
    def work() -> None:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(getattr(keras.optimizers, name)(0.01, **options), "mse", jit_compile=False)
        for inputs in INPUTS[:2]:
            model.train_on_batch(inputs, np.zeros((4, 1), "float32"))

    calls = captured(tmp_path / "t", work).calls().collect()
    updates = calls.filter(calls["kind"] == "optimizer")
    assert updates["step"].sort().to_list() == [0, 1]
    assert updates["op"].str.ends_with(f".{name}").all()


def test_patterns_choose_nodes_of_graphs(tmp_path: Path) -> None:
    only = captured(tmp_path / "only", graph_step, only=["*MatMul*"])
    ops = set(only.calls().collect()["op"])
    assert ops
    assert all("MatMul" in op for op in ops)
    skipped = captured(tmp_path / "skip", graph_step, skip=["*MatMul*"])
    assert not any("MatMul" in name for name in skipped.calls().collect()["name"])
    assert skipped.info.coverage.calls_filtered > 0
    second = captured(tmp_path / "steps", graph_step, steps=[1])
    assert set(second.calls().collect()["step"]) == {1}


def test_batches_of_a_pipeline_are_counted(tmp_path: Path) -> None:
    """What computes them runs in threads of its own."""
    batches = tf.data.Dataset.from_tensor_slices(INPUTS).map(lambda x: x * 2.0)
    trace = captured(tmp_path / "t", lambda: [tf.reduce_sum(batch) for batch in batches])
    assert trace.info.coverage.calls_unobserved["inside a tf.data pipeline"] == len(INPUTS) + 1  # and the end


def test_without_an_observer_graphs_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NotCompiledError("no compiler")

    monkeypatch.setattr(GraphObserver, "load", fail)
    trace = captured(tmp_path / "t", lambda: tf.function(lambda x: x * 2.0)(tf.constant(3.0)))
    assert trace.info.coverage.calls_unobserved == {"inside a tf.function": 1}
    assert trace.calls().collect()["kind"].to_list() == ["compiled"]


def test_a_capture_leaves_nothing_behind(tmp_path: Path) -> None:
    from tensorflow.python.eager import backprop, context
    from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

    found = keras.layers.Layer.__call__, backprop.GradientTape.gradient, AtomicFunction.call_flat
    captured(tmp_path / "t")
    assert (keras.layers.Layer.__call__, backprop.GradientTape.gradient, AtomicFunction.call_flat) == found
    assert not context.context().op_callbacks


def test_ops_of_steps_that_nobody_wants_are_not_told_of(tmp_path: Path) -> None:
    from tensorflow.python.eager import context

    weight = tf.Variable(tf.ones(3))
    optimizer = keras.optimizers.SGD(0.1)
    told: list[int] = []

    def train() -> None:
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * weight)
            told.append(len(context.context().op_callbacks))
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    trace = captured(tmp_path / "t", train, steps=[1, 3])
    assert told == [0, 1, 0, 1]
    assert set(trace.calls().collect()["step"]) == {1, 3}


def test_a_graph_that_was_made_in_a_step_that_nobody_wants_has_lines_and_gradients(tmp_path: Path) -> None:
    weight = tf.Variable(tf.ones((3, 3)))
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ weight))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    optimizer.build([weight])
    trace = captured(tmp_path / "t", lambda: [step(tf.ones((2, 3))) for _ in range(3)], steps=[2])
    calls = calls_of(trace, 2)
    assert {"backward", "optimizer"} <= set(calls["kind"])
    (tanh,) = calls.filter(calls["op"] == "tf.raw_ops.Tanh", calls["kind"] == "api").iter_rows(named=True)
    assert any(frame.function == "step" for frame in trace.stack(tanh["stack"]))


def test_an_error_of_the_script_reaches_it(tmp_path: Path) -> None:
    def fail() -> None:
        try:
            tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))
        except tf.errors.InvalidArgumentError:
            tf.identity(tf.constant(7.0))

    trace = captured(tmp_path / "t", fail)
    assert trace.calls().collect().sort("id")["op"].to_list()[-1] == "tf.raw_ops.Identity"
