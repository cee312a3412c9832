"""Runs of TensorFlow beside each other: graph and eager, another precision, other weights and settings; in processes'
own words, from summaries alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import ulpscope
from ulpscope.records.findings import Comparison, Finding, FindingKind
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.compare.command import compare

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(4, 8, 8, 3)).astype("float32")


class Unit(layers.Layer):
    """What grappler fuses, adds up at once, and drops; and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = layers.Conv2D(4, 3, padding="same"), layers.Conv2D(4, 3, padding="same", use_bias=False)
        self.norm, self.noise = layers.BatchNormalization(), layers.Dropout(0.5, seed=3)

    def call(self, x: Any, training: bool = False, noisy: bool = False) -> Any:
        made = ops.relu(self.wide(x))
        made = self.norm(self.deep(made), training=training) + made
        return ops.mean(self.noise(made, training=training) if noisy else made, axis=(1, 2))


def train(
    model: Any,
    data: np.ndarray[Any, Any],
    *,
    eager: bool = False,
    rate: float = 0.01,
    moved: float = 0.0,
    policy: str = "float32",
    **options: bool,
) -> Callable[[], None]:
    def work() -> None:
        keras.utils.set_random_seed(4)
        keras.mixed_precision.set_global_policy(policy)
        try:
            net, optimizer = model(), keras.optimizers.SGD(rate, momentum=0.9)
            net(data)
            for variable in net.trainable_variables:
                variable.assign(np.asarray(variable) + np.float32(moved * (variable.name == "kernel")))
            optimizer.build(net.trainable_variables)

            def step(given: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(tf.cast(net(given, training=True, **options), tf.float32)))
                gradients = tape.gradient(loss, net.trainable_variables)
                optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
                return loss

            run = step if eager else tf.function(step)
            for _ in range(2):
                run(tf.constant(data))
        finally:
            keras.mixed_precision.set_global_policy("float32")

    return work


def compared(folder: Path, reference: Callable[[], None], target: Callable[[], None]) -> Comparison:
    for name, work in (("reference", reference), ("target", target)):
        with ulpscope.capture(folder / name):
            work()
        assert all(rank.info.errors == () for rank in open_trace(folder / name).ranks)
    return compare(folder / "reference", folder / "target").comparison


def first(comparison: Comparison) -> Finding:
    assert comparison.findings, "no finding"
    return comparison.findings[0]


def test_a_graph_computes_what_eager_execution_computes(tmp_path: Path) -> None:
    found = compared(tmp_path, train(Unit, IMAGES), train(Unit, IMAGES, eager=True))
    assert found.findings == ()
    assert found.counts.matched > 100


def test_random_numbers_of_another_type_are_no_fault(tmp_path: Path) -> None:
    noisy = train(Unit, IMAGES, noisy=True)
    found = compared(tmp_path, noisy, train(Unit, IMAGES, noisy=True, policy="mixed_bfloat16"))
    assert found.findings == ()
    assert any(note.kind is FindingKind.CHOICE and note.evidence.unlike.dtypes for note in found.notes)


def test_another_weight_is_told_as_the_parameter_of_its_layer(tmp_path: Path) -> None:
    found = first(compared(tmp_path, train(Unit, IMAGES), train(Unit, IMAGES, moved=0.1)))
    assert (found.kind, found.place.module) == (FindingKind.PARAMETER, "model.wide")


def test_another_learning_rate_is_the_optimizers(tmp_path: Path) -> None:
    assert first(compared(tmp_path, train(Unit, IMAGES), train(Unit, IMAGES, rate=0.02))).kind is FindingKind.OPTIMIZER


def test_other_arrays_are_other_input_data(tmp_path: Path) -> None:
    found = first(compared(tmp_path, train(Unit, IMAGES), train(Unit, IMAGES * 2 - 1)))
    assert (found.kind, found.place.module) == (FindingKind.INPUT, "model")
