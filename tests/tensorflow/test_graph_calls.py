"""Nodes of a graph as the calls of the script that made them: layers, gradients, updates, lines, and their order."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.tensorflow.test_sees import Net, calls_of, captured, uses_of

from ulpscope.trace.reader import RankTrace

INPUTS = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")


def fit() -> None:
    model = Net()
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-5), "mse")
    model.fit(INPUTS, INPUTS[:, :1], batch_size=4, epochs=1, verbose=0, shuffle=False)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> RankTrace:
    return captured(tmp_path_factory.mktemp("fit") / "t", fit, save="tensors")


def data(trace: RankTrace, number: int) -> Any:
    return np.asarray(trace.data(trace.value(number)))


def test_layers_are_calls_with_their_nodes_inside(trace: RankTrace) -> None:
    calls = calls_of(trace)
    modules = calls.filter(calls["kind"] == "module")
    assert modules["module"].to_list() == ["model", "model.blocks.0", "model.blocks.1", "model.head"]
    (layer,) = modules.filter(modules["module"] == "model.blocks.1").iter_rows(named=True)
    inside = calls.filter(calls["parent"] == layer["id"])
    assert set(inside["phase"]) == {"forward"}
    assert any(op.endswith(("MatMul", "Tanh")) for op in inside["op"])
    used = uses_of(trace, layer["id"])
    kernel, given = data(trace, used["parameter", "kernel"]), data(trace, used["input", "args.0"])
    bias, made = data(trace, used["parameter", "bias"]), data(trace, used["output", "output.0"])
    assert np.allclose(np.tanh(given @ kernel + bias), made, rtol=1e-5)


def test_gradients_are_tied_to_the_ops_of_their_layers(trace: RankTrace) -> None:
    calls = calls_of(trace)
    backwards = calls.filter(calls["kind"] == "backward")
    assert {"model.blocks.0", "model.blocks.1", "model.head"} <= set(backwards["module"])
    known = dict(calls.select("id", "module").iter_rows())
    assert all(known[row["forward"]] == row["module"] for row in backwards.iter_rows(named=True))
    assert set(calls.filter(calls["parent"].is_in(backwards["id"].to_list()))["phase"]) == {"backward"}


def test_an_update_is_one_call_with_what_it_was_given_and_made(trace: RankTrace) -> None:
    calls = calls_of(trace)
    (update,) = calls.filter(calls["kind"] == "optimizer").iter_rows(named=True)
    assert update["phase"] == "update"
    assert '"epsilon":1e-05' in update["arguments"].replace(" ", "")
    used = uses_of(trace, update["id"])
    before, after = (data(trace, used[role, "model.head.kernel"]) for role in ("parameter", "parameter_after"))
    gradient = data(trace, used["gradient", "model.head.kernel"])
    assert gradient.shape == before.shape
    assert np.abs(after - before).max() > 0
    momentum = data(trace, used["state_after", "model.head.kernel.momentums"])
    earlier = data(trace, used["state", "model.head.kernel.momentums"])
    assert np.allclose(momentum, 0.9 * earlier + 0.1 * gradient, rtol=1e-5)


def test_nodes_have_the_line_of_the_script(trace: RankTrace) -> None:
    calls = calls_of(trace)
    (layer,) = calls.filter(calls["module"] == "model.head", calls["kind"] == "module").iter_rows(named=True)
    assert any(frame.function == "call" for frame in trace.stack(layer["stack"]))


def test_a_loss_is_told_where_its_gradient_is_asked_for(trace: RankTrace) -> None:
    calls = calls_of(trace)
    (asked,) = calls.filter(calls["op"] == "tf.GradientTape.gradient").iter_rows(named=True)
    assert ("loss", "args.0") in uses_of(trace, asked["id"])


def test_operands_stand_as_the_script_has_them(tmp_path: Path) -> None:
    """Grappler sorts operands of a sum by the names of their nodes."""

    @tf.function
    def work(x: Any) -> Any:
        with tf.name_scope("z"):
            first = tf.exp(x)
        with tf.name_scope("a"):
            second = tf.sin(x)
        return tf.tanh(first * second)

    trace = captured(tmp_path / "t", lambda: work(tf.constant(INPUTS)), save="tensors")
    calls = trace.calls().collect()
    (product,) = calls.filter(calls["op"] == "tf.raw_ops.Mul").iter_rows(named=True)
    used = uses_of(trace, product["id"])
    assert np.allclose(data(trace, used["input", "args.0"]), np.exp(INPUTS), rtol=1e-5)


def test_operands_stand_as_the_script_has_them_behind_what_grappler_takes_out(tmp_path: Path) -> None:
    tf.compat.v1.reset_default_graph()
    x = np.linspace(0.5, 2.0, 6, dtype=np.float32).reshape(2, 3)

    def script() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            given = tf.compat.v1.placeholder(tf.float32, (2, 3), "given")
            with tf.name_scope("z"):
                root = tf.identity(tf.exp(given))
            session.run(tf.tanh(root / tf.constant(3.0, name="a")), {given: x})

    trace = captured(tmp_path / "t", script, save="tensors")
    calls = trace.calls().collect()
    (scaled,) = calls.filter(calls["name"].str.starts_with("truediv")).iter_rows(named=True)
    used = uses_of(trace, scaled["id"])
    assert np.allclose(data(trace, used["input", "args.0"]), np.exp(x), rtol=1e-5)


def test_an_operand_that_grappler_has_reshaped_is_made_of_numbers_not_of_the_shape(tmp_path: Path) -> None:
    @tf.function
    def work(x: Any) -> Any:
        return tf.tanh(tf.reshape(tf.cast(x, tf.float32), (20, 2)) @ tf.constant(INPUTS[:1, :2].T))

    given = tf.cast(tf.constant(INPUTS), tf.bfloat16)
    trace = captured(tmp_path / "t", lambda: work(given), save="tensors")
    calls = trace.calls().collect()
    (product,) = calls.filter(calls["op"].str.ends_with("MatMul")).iter_rows(named=True)
    used = uses_of(trace, product["id"])
    read = [trace.value(number).shape for (role, place), number in used.items() if place.startswith("args.0")]
    assert read in ([(8, 5)], [(20, 2)])


def test_turns_of_a_loop_come_one_after_the_other(tmp_path: Path) -> None:
    @tf.function
    def work(x: Any) -> Any:
        for _ in tf.range(4):
            x = tf.sin(x) + 1.0
        return tf.exp(x)

    trace = captured(tmp_path / "t", lambda: work(tf.constant(INPUTS)), save="tensors")
    calls = trace.calls().collect().sort("id")
    wanted = INPUTS
    sines = calls.filter(calls["op"] == "tf.raw_ops.Sin")
    assert sines.height == 4
    for row in sines.iter_rows(named=True):
        assert np.allclose(data(trace, uses_of(trace, row["id"])["input", "args.0"]), wanted, rtol=1e-5)
        wanted = np.sin(wanted) + 1
    (last,) = calls.filter(calls["op"] == "tf.raw_ops.Exp")["id"]
    assert last > max(sines["id"])


def test_a_session_has_name_scopes_and_names_its_variables(tmp_path: Path) -> None:
    v1 = tf.compat.v1

    def work() -> None:
        with v1.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, (8, 5))
            with v1.variable_scope("dense"):
                kernel = v1.get_variable("kernel", (5, 2), use_resource=True)
                made = tf.matmul(x, kernel)
            loss = tf.reduce_sum(made**2)
            train = v1.train.AdamOptimizer(1e-3, epsilon=1e-4).minimize(loss)
            session.run(v1.global_variables_initializer())
            session.run([loss, train], {x: INPUTS})

    trace = captured(tmp_path / "t", work)
    calls = trace.calls().collect()
    (product,) = calls.filter(calls["op"].str.ends_with("MatMul"), calls["phase"] == "forward").iter_rows(named=True)
    assert product["module"] == "dense"
    assert ("parameter", "kernel") in uses_of(trace, product["id"])
    backward = calls.filter(calls["kind"] == "backward", calls["forward"] == product["id"])
    assert backward.height == 1
    (update,) = calls.filter(calls["kind"] == "optimizer").iter_rows(named=True)
    assert '"epsilon":0.0001' in update["arguments"].replace(" ", "")
    assert {("gradient", "dense/kernel"), ("parameter", "dense/kernel")} <= set(uses_of(trace, update["id"]))
    (loss,) = calls.filter(calls["op"] == "tf.GradientTape.gradient")["id"]
    (run,) = calls.filter(calls["kind"] == "compiled").tail(1)["id"]
    assert list(uses_of(trace, loss).values()) == [uses_of(trace, run)["output", "output.0"]]


def test_keras_is_seen_when_it_is_what_imports_tensorflow(tmp_path: Path) -> None:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from ulpscope.capture.tensorflow.watching.keras import _when_imported

    module, told = ModuleType("half"), []
    module.__spec__ = spec = ModuleSpec("half", None)
    spec._initializing = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "half", module)
        _when_imported(module, "half", told.append)
        assert told == []
        spec._initializing = False
    assert told == ["half"]
    assert type(spec) is ModuleSpec
