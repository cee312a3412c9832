"""Names of Estimator's time: they work where tf.estimator is (2.15), and say what replaces them where it is not."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ulpscope.compat.tf_config as npu_tf_config
from ulpscope.compat import telling
from ulpscope.dialects.reference import reference_tensors

v1 = tf.compat.v1
HAS_ESTIMATOR = hasattr(tf, "estimator")
FED = np.array([[1.0, 2.0], [3.0, 5.0]], dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in; what a test sets in the environment is gone after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(telling, "_TOLD", set())
    before = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def loss_of(features: Any) -> tuple[Any, Any]:
    weights = v1.get_variable("w", initializer=tf.constant([[1.0], [10.0]]))
    loss = tf.reduce_sum(tf.linalg.matmul(features, weights, name="fc/MatMul"), name="loss")
    step = v1.train.get_or_create_global_step()
    return loss, v1.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=step)


def train_one_step(folder: Path) -> None:
    """With an Estimator and its RunConfig, or as what replaces it."""
    config = npu_tf_config.session_dump_config(v1.ConfigProto(allow_soft_placement=True), action="dump")
    if not HAS_ESTIMATOR:
        with tf.Graph().as_default():
            operations = loss_of(tf.constant(FED))
            hooks = [npu_tf_config.estimator_dump()]
            with v1.train.MonitoredTrainingSession(config=config, hooks=hooks) as sess:
                sess.run(operations)
        return

    def model(features: Any, labels: Any, mode: str) -> Any:
        loss, train = loss_of(features)
        hooks = [npu_tf_config.estimator_dump()]
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, training_hooks=hooks)

    run_config = tf.estimator.RunConfig(model_dir=str(folder / "model"), session_config=config)
    assert run_config.session_config.graph_options.rewrite_options.custom_optimizers[0].name == "NpuOptimizer"
    tf.estimator.Estimator(model, config=run_config).train(
        lambda: tf.data.Dataset.from_tensors((FED, np.zeros(2, np.float32))), steps=1
    )


def test_a_training_step_is_dumped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_one_step(folder)
    found = reference_tensors(folder / "precision_data/tf/tf_debug")
    assert found is not None
    (product,) = [each.stored().array() for each in found if each.op == "fc/MatMul"]
    np.testing.assert_array_equal(product, FED @ np.array([[1.0], [10.0]], np.float32))
    told = capsys.readouterr().err
    instead = "the hook serves tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])"
    assert (instead in told) is not HAS_ESTIMATOR


def test_what_needs_npu_bridge_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert npu_tf_config.estimator_dump_config(action="dump") is None
    told = capsys.readouterr().err
    assert "npu_bridge.npu_init.DumpConfig is missing" in told
    assert "session_dump_config(config) or, of TensorFlow 2, npu_device_dump_config(npu_device)" in told
