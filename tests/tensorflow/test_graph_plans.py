"""Runs of a graph that execute the same nodes share a plan: it is what a plan of their own would be."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.tensorflow.test_sees import Net, captured, uses_of

from ulpscope.capture.tensorflow.watching import graphs
from ulpscope.capture.tensorflow.watching.graph_plans import Performance, Plan, Plans

STEPS = 3


def fit() -> None:
    """The last batch is smaller."""
    x = np.random.default_rng(0).normal(size=(10, 5)).astype("float32")
    model = Net()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, shuffle=False)


def turns() -> None:
    """A loop that turns more often each time, and a branch. (Nested loops are told as they ran, which may be in another
    order each time: such runs share no plan.)"""

    @tf.function
    def work(x: Any, count: Any) -> Any:
        for turn in tf.range(count):
            x = tf.sin(x) + tf.cast(turn, tf.float32)
        if tf.reduce_sum(x) > 2.0:
            x = tf.exp(x)
        return tf.tanh(x)

    for count in (1, 2, 3, 1, 2, 3):
        work(tf.ones((2, 3)), tf.constant(count))


def layered() -> None:
    """A layer in a loop, and what is made of constants, which TensorFlow does not execute."""
    layer = keras.layers.Dense(3, activation="tanh", name="turning")
    layer.build((2, 3))

    @tf.function
    def work(x: Any, count: Any) -> Any:
        for _ in tf.range(count):
            x = layer(x - 1.0) + tf.constant(2.0) * tf.constant(3.0)
        return x, tf.constant(4.0) * tf.constant(5.0)

    for number, count in enumerate((2, 3, 2, 3)):
        work((number + 1) * tf.ones((2, 3)), tf.constant(count))


def taped() -> None:
    """Functions whose gradients are graphs of their own, two in a step; the parameters are read between updates."""
    weight = tf.Variable(tf.ones((3, 3)))

    @tf.function
    def loss_of(x: Any) -> Any:
        for _ in tf.range(2):
            x = tf.tanh(x @ weight)
        return tf.reduce_sum(x)

    optimizer = keras.optimizers.SGD(0.1)
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = loss_of(tf.ones((2, 3))) + loss_of(2 * tf.ones((2, 3)))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])


def session() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as running:
        x = v1.placeholder(tf.float32, (2, 3))
        weight = v1.get_variable("weight", (3, 3), initializer=v1.ones_initializer(), use_resource=True)
        loss = tf.reduce_sum(tf.tanh(x @ weight))
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        running.run(v1.global_variables_initializer())
        for _ in range(STEPS):
            running.run([loss, train], {x: np.ones((2, 3), "float32")})


def described(plan: Plan) -> list[Any]:
    """All that a run of it depends on."""
    closings = [(one.call, one.uses, [id(use) for use in one.writes], one.arguments) for one in plan.closings]
    others = ("nodes", "backwards", "stems", "earlier", "reads", "given", "uses", "assigned", "unobserved", "made")
    return [list(map(asdict, plan.calls)), closings, dict(plan.named), *(getattr(plan, name) for name in others)]


@pytest.mark.parametrize(
    ("script", "options"),
    [
        (fit, {}),
        (fit, {"level": "kernel", "save": "tensors"}),
        (fit, {"skip": ["head"]}),
        (turns, {}),
        (layered, {"save": "tensors"}),
        (taped, {}),
        (taped, {"only": ["Tanh.1", "tf.raw_ops.Tanh"]}),
        (session, {"save": "tensors"}),
    ],
    ids=lambda one: getattr(one, "__name__", None) or "-".join(map(str, one)) or "stats",
)
def test_a_plan_is_what_a_new_one_would_be(
    script: Callable[[], None], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, make_plan = Plans.find, graphs.make_plan
    found: list[Plan | None] = []
    made: list[Plan] = []

    def find_none(plans: Plans, key: Any, performance: Performance) -> None:
        found.append(find(plans, key, performance))

    def make(*args: Any) -> Plan:
        made.append(make_plan(*args))
        return made[-1]

    monkeypatch.setattr(Plans, "find", find_none)
    monkeypatch.setattr(graphs, "make_plan", make)
    captured(tmp_path / "t", script, **options)
    shared = [(one, other) for one, other in zip(found, made, strict=True) if one is not None]
    assert 0 < len(shared) < len(made)
    for one, other in shared:
        assert described(one) == described(other)


def test_what_a_function_is_given_that_a_graph_calls_is_not_what_the_graph_is_given(tmp_path: Path) -> None:
    @tf.function(experimental_attributes={"_noinline": True})
    def apart(x: Any) -> Any:
        return tf.cos(x) * 0.5

    @tf.function
    def work(x: Any) -> Any:
        return apart(tf.exp(x))

    trace = captured(tmp_path / "t", lambda: work(tf.ones(3)), save="tensors")
    calls = trace.calls().collect()
    (cosine,) = calls.filter(calls["op"] == "tf.raw_ops.Cos")["id"]
    given = uses_of(trace, cosine)["input", "args.0"]
    assert np.allclose(trace.data(trace.value(given)), np.exp(1.0))


def test_a_shared_plan_tells_each_turn_of_a_layer_and_constants_as_they_were(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t", layered, save="tensors")

    def content(number: int) -> Any:
        return np.asarray(trace.data(trace.value(number)))

    calls = trace.calls().collect().sort("id")
    runs = calls.filter(calls["kind"] == "compiled")["id"].to_list()
    assert len(runs) == 4
    for run, turns_of_run in zip(runs, (2, 3, 2, 3), strict=True):
        used = uses_of(trace, run)
        expected = content(used["input", "args.0"])
        layers = calls.filter(calls["kind"] == "module", calls["parent"] == run)["id"].to_list()
        assert len(layers) == turns_of_run
        for layer in layers:
            told = uses_of(trace, layer)
            assert np.allclose(content(told["input", "args.0"]), expected - 1.0)
            made = content(told["output", "output.0"])
            assert np.allclose(np.tanh((expected - 1.0) @ content(told["parameter", "kernel"])), made, atol=1e-5)
            expected = made + 6.0
        assert np.allclose(content(used["output", "output.0"]), expected)
        assert content(used["output", "output.1"]) == 20.0
