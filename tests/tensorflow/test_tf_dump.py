"""ulpscope tf-dump, and train of the shell, with real TensorFlow: scripts as users have them, without a prompt."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.python import debug as tf_debug
from ulpscope.compat.tf_session import PrecisionTfSession

v1 = tf.compat.v1
v1.disable_eager_execution()
x = v1.placeholder(tf.float32, [2, 3], name="in/x")
w = v1.get_variable("w", initializer=tf.constant(np.arange(12, dtype=np.float32).reshape(3, 4)))
product = tf.linalg.matmul(x, w, name="fc/MatMul")
loss = tf.reduce_sum(tf.nn.dropout(product, rate=0.5, name="dropout"), name="loss")
train = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
fed = {x: np.ones((2, 3), np.float32)}
if "hook" in sys.argv:
    with v1.train.MonitoredTrainingSession(hooks=[tf_debug.LocalCLIDebugHook(ui_type="readline")]) as sess:
        print("product", sess.run([product, train], fed)[0].sum())
elif "session" in sys.argv:
    with v1.Session() as plain:
        plain.run(v1.global_variables_initializer())
        sess = tf_debug.LocalCLIDebugWrapperSession(plain, ui_type="readline")
        sess.add_tensor_filter("has_inf_or_nan", tf_debug.has_inf_or_nan)
        print("product", sess.run([product, train], fed)[0].sum())
elif "checkpoint" in sys.argv:
    with PrecisionTfSession() as sess:
        sess.run(v1.global_variables_initializer())
        sess.run(product, fed)
elif "fails" in sys.argv:
    sys.exit(7)
"""
PRODUCT = np.ones((2, 3), np.float32) @ np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def run(folder: Path, *words: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ulpscope", *words],
        cwd=folder,
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def arrays(folder: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """What was converted, by operator and output."""
    files = sorted((folder / "precision_data/tf/dump").glob("*.npy"))
    return {file.name.rsplit(".", 2)[0]: np.load(file) for file in files}


@pytest.mark.parametrize(
    ("word", "replaced"), [("session", "LocalCLIDebugWrapperSession"), ("hook", "LocalCLIDebugHook")]
)
def test_a_script_with_the_debuggers_prompt_dumps_without_it(folder: Path, word: str, replaced: str) -> None:
    done = run(folder, "tf-dump", "--", sys.executable, "script.py", word)
    assert f"product {PRODUCT.sum()}" in done.stdout, done.stderr
    assert "tfdbg>" not in done.stdout
    assert f"{replaced} dumps without a prompt" in done.stderr
    np.testing.assert_array_equal(arrays(folder)["fc_MatMul.0"], PRODUCT)
    dumped = sorted((folder / "precision_data/tf").rglob("*"))
    again = run(folder, "tf-dump", "--", sys.executable, "script.py", word)
    assert again.returncode == 2
    assert "precision_data/tf/tf_debug already holds a dump of an earlier run" in again.stderr
    assert sorted((folder / "precision_data/tf").rglob("*")) == dumped


def test_the_scripts_own_exit_code_is_passed_on(folder: Path) -> None:
    done = run(folder, "tf-dump", "--", sys.executable, "script.py", "fails")
    assert done.returncode == 7
    assert "nothing was collected in precision_data/tf/tf_debug: the command failed before" in done.stderr


def test_a_script_that_runs_no_dumped_session_leaves_nothing(folder: Path) -> None:
    done = run(folder, "tf-dump", "--", sys.executable, "script.py")
    assert done.returncode == 3
    assert "no script of the command asked for a dumped session, or no graph was run" in done.stderr
    assert "sess = npu_tf_config.sess_dump(sess)" in done.stderr


def test_one_step_of_a_saved_graph_is_trained_for_the_reference(folder: Path) -> None:
    """Dropout is off, and what was fed is fed again; where the NPU's packages are missing, that is told by name."""
    assert run(folder, "tf-dump", "--", sys.executable, "script.py", "checkpoint").returncode == 3
    assert "ckpt.meta" in os.listdir(folder / "precision_data/tf/checkpoints")
    done = run(folder, "shell", lines="train -d cpu\ntrain -d npu\n")
    found = arrays(folder)
    assert found["dropout_GreaterEqual.0"].all()
    # Two rows of ones; what a dropout keeps is scaled by 1 / (1 - 0.5).
    np.testing.assert_array_equal(found["gradients_fc_MatMul_grad_MatMul_1.0"], np.full((3, 4), 4.0, np.float32))
    assert "npu_bridge.npu_init cannot be imported" in done.stderr
    assert done.returncode == 1


def test_training_without_a_checkpoint_says_what_makes_one(folder: Path) -> None:
    done = run(folder, "shell", lines="train -d cpu\n")
    assert "precision_data/tf/checkpoints holds no checkpoint with its graph" in done.stderr
    assert "PrecisionTfSession" in done.stderr
    assert done.returncode == 1
