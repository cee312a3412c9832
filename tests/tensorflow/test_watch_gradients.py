"""Gradients of TensorFlow's trainings, watched: recorded is what optimizers are given, eagerly and in graphs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ulpscope
from ulpscope.capture.tensorflow.graphs.observer import GraphObserver
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.reader import RankTrace, open_trace

STEPS = 4
INPUTS = np.random.default_rng(0).normal(size=(STEPS, 6, 5)).astype("float32")
TARGETS = np.random.default_rng(1).normal(size=(STEPS, 6, 1)).astype("float32")


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    try:
        GraphObserver.load()
    except NotCompiledError as error:
        pytest.fail(f"no observer of graphs: {error}")


def network() -> Any:
    keras.utils.set_random_seed(3)
    first, last = keras.layers.Dense(4, activation="tanh", name="first"), keras.layers.Dense(1, name="last")
    return keras.Sequential([keras.Input((5,)), first, last], name="net")


class Seen:
    """What each step's optimizer was given, told by the script itself."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradients: list[list[np.ndarray]] = []
        self.weights: list[list[np.ndarray]] = []


def looped(wrap: Callable[[Any], Any], rate: float = 0.1, other_batch: int | None = None) -> Seen:
    model, seen = network(), Seen()
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(model.trainable_variables)

    @wrap
    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs) - targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss, gradients

    for number in range(STEPS):
        seen.weights.append([one.numpy() for one in model.trainable_variables])
        inputs = tf.constant(INPUTS[number] if number != other_batch else INPUTS[number] + 1)
        loss, gradients = step(inputs, tf.constant(TARGETS[number]))
        seen.losses.append(float(loss))
        seen.gradients.append([one.numpy() for one in gradients])
    return seen


def only_rank(path: Path) -> RankTrace:
    (rank,) = open_trace(path).ranks
    assert rank.info.errors == ()
    return rank


def norms(rank: RankTrace, step: int, role: str) -> list[float]:
    uses = [use for call in rank.collect(rank.calls(step))["id"] for use in rank.uses(call) if use.role.value == role]
    stats = [rank.value(use.value).stats for use in uses]
    return [one.norm for one in stats if one is not None and one.norm is not None]


def norms_of(arrays: list[np.ndarray]) -> list[float]:
    return [float(np.linalg.norm(one.astype(np.float64))) for one in arrays]


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "function"])
def test_what_is_recorded_is_what_the_optimizer_is_given(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    plain = looped(wrap)
    with ulpscope.watch(out=tmp_path / "run"):
        seen = looped(wrap)
    assert seen.losses == plain.losses
    rank = only_rank(tmp_path / "run")
    assert rank.steps == tuple(range(STEPS))
    for step in rank.steps:
        calls = rank.collect(rank.calls(step))
        assert calls["kind"].to_list() == ["optimizer"]
        assert calls["op"].to_list() == ["keras.src.optimizers.adam.Adam"]
        assert json.loads(calls["arguments"][0])["kwargs"]["learning_rate"] == pytest.approx(0.1)
        assert norms(rank, step, "gradient") == pytest.approx(norms_of(seen.gradients[step]), rel=1e-6)
        assert norms(rank, step, "parameter") == pytest.approx(norms_of(seen.weights[step]), rel=1e-6)
        assert norms(rank, step, "loss") == pytest.approx([abs(seen.losses[step])], rel=1e-6)


def fitted(out: Path | None) -> list[np.ndarray]:
    model = network()
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", jit_compile=False)
    data = INPUTS.reshape(-1, 5), TARGETS.reshape(-1, 1)
    if out is None:
        model.fit(*data, batch_size=6, epochs=1, shuffle=False, verbose=0)
    else:
        with ulpscope.watch(out=out):
            model.fit(*data, batch_size=6, epochs=1, shuffle=False, verbose=0)
    return [one.numpy() for one in model.trainable_variables]


def test_keras_fit_is_watched_and_trains_as_without(tmp_path: Path) -> None:
    plain, watched = fitted(None), fitted(tmp_path / "run")
    assert all(np.array_equal(one, other) for one, other in zip(plain, watched, strict=True))
    rank = only_rank(tmp_path / "run")
    assert rank.steps == tuple(range(STEPS))
    for step in rank.steps:
        assert len(norms(rank, step, "gradient")) == len(norms(rank, step, "parameter")) == len(plain)
    # Plain SGD: what the weights have moved by is the rate times the gradient.
    before, after = norms(rank, 0, "parameter"), norms(rank, 1, "parameter")
    assert before != after


def test_where_trainings_part_is_told(tmp_path: Path) -> None:
    for name, batch in (("reference", None), ("target", 2)):
        with ulpscope.watch(out=tmp_path / name):
            looped(tf.function, other_batch=batch)
    told = ulpscope.compare(tmp_path / "reference", tmp_path / "target").json()
    (finding,) = told["findings"]
    assert (finding["step"], finding["evidence"]["cause"]) == (2, "input")


def test_chosen_parameters(tmp_path: Path) -> None:
    with ulpscope.watch(out=tmp_path / "run", skip=["*bias*"]):
        looped(lambda step: step)
    rank = only_rank(tmp_path / "run")
    assert len(norms(rank, 0, "gradient")) == 2


def test_signs_are_torchs(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match="--signs and --bounds"), ulpscope.watch(out=tmp_path / "run", signs=True):
        pass


SCRIPT = """
import keras, numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile(optimizer="adam", loss="mse", jit_compile=False)
model.fit(np.ones((8, 3)), np.ones((8, 2)), batch_size=2, verbose=0)
"""


def test_a_run_without_change_to_its_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(tmp_path / "run"), "--watch", "gradients", "--"]
    done = subprocess.run([*command, sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "captured steps 0-3, 4 calls" in done.stderr
    assert "not looked into" not in done.stderr
    rank = only_rank(tmp_path / "run")
    assert len(rank.steps) == 4
    assert len(norms(rank, 3, "gradient")) == 2


def test_updates_that_xla_compiles_are_not_seen_and_that_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(tmp_path / "run"), "--watch", "gradients", "--"]
    script = SCRIPT.replace("jit_compile=False", "jit_compile=True")
    done = subprocess.run([*command, sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no update by an optimizer was seen; those inside of compiled code (torch.compile, XLA)" in done.stderr
