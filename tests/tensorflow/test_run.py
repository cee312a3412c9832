"""`ulpscope run` on unchanged TensorFlow scripts: they compute the same, die readably, and a planted fault is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ulpscope
from ulpscope.trace.reader import open_trace

MODEL = """
import os, signal, sys
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.experimental.enable_op_determinism()
import keras
import numpy as np
keras.utils.set_random_seed(0)

class Block(keras.layers.Layer):
    def __init__(self, epsilon=1e-3):
        super().__init__()
        self.norm = keras.layers.LayerNormalization(epsilon=epsilon)
        self.up = keras.layers.Dense(32, activation="gelu")
        self.down = keras.layers.Dense(16)

    def call(self, x):
        return x + self.down(self.up(self.norm(x)))

class Net(keras.Model):
    def __init__(self, epsilon):
        super().__init__()
        self.embed = keras.layers.Dense(16)
        self.blocks = [Block(), Block(epsilon), Block()]
        self.head = keras.layers.Dense(3, dtype="float32")

    def call(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

random = np.random.default_rng(0)
inputs = random.normal(size=(96, 8)).astype("float32")
labels = random.integers(0, 3, 96)
epsilon = float(os.environ.get("EPSILON", "1e-3"))
"""
FIT = """
model = Net(epsilon)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-2), loss, run_eagerly="eager" in sys.argv)
history = model.fit(inputs, labels, batch_size=32, shuffle=False, verbose=0)
print(history.history["loss"][0].hex())
"""
KILLED = """
model, optimizer = Net(epsilon), keras.optimizers.Adam(1e-2)
for step in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(inputs) ** 2)
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""

KILLED_IN_FIT = """
class Killer(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

model = Net(epsilon)
model.compile(keras.optimizers.Adam(1e-2), "mse", steps_per_execution=1)
model.fit(inputs, np.zeros((96, 3)), batch_size=24, shuffle=False, verbose=0, callbacks=[Killer()])
"""


def python(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "fit.py"
    path.write_text(MODEL + FIT)
    return path


def test_an_unchanged_script_computes_the_same_and_its_fault_is_named(script: Path, tmp_path: Path) -> None:
    plain = python(str(script), "eager")
    for name, epsilon in (("reference", "1e-3"), ("again", "1e-3"), ("target", "1e-2")):
        command = ["-m", "ulpscope", "run", "-o", str(tmp_path / name), "--", sys.executable, str(script), "eager"]
        done = python(*command, EPSILON=epsilon)
        assert done.returncode == 0, done.stderr
        if epsilon == "1e-3":
            assert done.stdout == plain.stdout
    (trace,) = open_trace(tmp_path / "reference").ranks
    assert (trace.info.framework["name"], trace.info.errors) == ("tensorflow", ())
    steps = trace.calls().collect()
    assert steps["step"].unique().sort().to_list() == [0, 1, 2]
    assert ulpscope.compare(tmp_path / "reference", tmp_path / "again").verdict == "agree"
    finding = ulpscope.compare(tmp_path / "reference", tmp_path / "target").findings[0]
    assert (finding.kind, finding.step, finding.phase) == ("computation", 0, "forward")
    assert finding.module == "model.blocks.1.norm"
    assert finding.op == "tf.raw_ops.AddV2"


def test_a_fault_in_a_graph_is_named(script: Path, tmp_path: Path) -> None:
    plain = python(str(script))
    for name, epsilon in (("reference", "1e-3"), ("target", "1e-2")):
        command = ["-m", "ulpscope", "run", "-o", str(tmp_path / name), "--", sys.executable, str(script)]
        done = python(*command, EPSILON=epsilon)
        assert done.returncode == 0, done.stderr
        if epsilon == "1e-3":
            assert done.stdout == plain.stdout
    (trace,) = open_trace(tmp_path / "reference").ranks
    calls = trace.calls().collect()
    steps = calls.filter((calls["kind"] == "compiled") & calls["op"].str.contains("step_on_iterator"))
    assert steps["step"].to_list() == [0, 1, 2]
    layers = calls.filter((calls["kind"] == "module") & (calls["module"] == "model.blocks.1.norm"))
    assert layers["step"].to_list() == [0, 1, 2]
    result = ulpscope.compare(tmp_path / "reference", tmp_path / "target")
    assert result.verdict == "diverged"
    finding = result.findings[0]
    assert (finding.step, finding.phase) == (0, "forward")
    assert finding.module == "model.blocks.1.norm"


def test_what_a_killed_script_leaves_is_readable(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(MODEL + KILLED)
    done = python("-m", "ulpscope", "run", "-o", str(tmp_path / "trace"), "--", sys.executable, str(script))
    assert done.returncode == 137
    (trace,) = open_trace(tmp_path / "trace").ranks
    calls = trace.calls().collect()
    updates = calls.filter(calls["kind"] == "optimizer")
    assert updates["step"].sort().to_list() == [0, 1, 2]
    shown = python("-m", "ulpscope", "show", str(tmp_path / "trace"), "--json")
    assert json.loads(shown.stdout)


def test_what_a_fit_in_graph_mode_leaves_when_it_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(MODEL + KILLED_IN_FIT)
    done = python("-m", "ulpscope", "run", "-o", str(tmp_path / "trace"), "--", sys.executable, str(script))
    assert done.returncode == 137
    assert "ended abruptly" in done.stderr
    (trace,) = open_trace(tmp_path / "trace").ranks
    calls = trace.calls().collect()
    steps = calls.filter((calls["kind"] == "compiled") & calls["op"].str.contains("step_on_iterator"))
    assert steps["step"].to_list()[:2] == [0, 1]  # of the last one that ended, what was on its way may be lost
    inside = calls.filter(calls["name"].str.contains("BiasAdd"))
    assert {0, 1} <= set(inside["step"])


def test_only_the_steps_and_ranks_that_were_asked_for(script: Path, tmp_path: Path) -> None:
    run = ["-m", "ulpscope", "run", "-o", str(tmp_path / "trace"), "--steps", "1", "--", sys.executable, str(script)]
    assert python(*run).returncode == 0
    (trace,) = open_trace(tmp_path / "trace").ranks
    calls = trace.calls().collect()
    assert calls["step"].unique().to_list() == [1]
    assert calls.filter(calls["name"].str.contains("BiasAdd")).height > 0
    other = ["-m", "ulpscope", "run", "-o", str(tmp_path / "other"), "--ranks", "1", "--", sys.executable, str(script)]
    done = python(*other, RANK="0", WORLD_SIZE="2")
    assert done.returncode == 3
    assert "rank 1 asked for" in done.stderr


def test_a_tensorflow_that_is_too_old_is_refused_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("__version__ = '2.11.0'\n")
    (tmp_path / "script.py").write_text("import tensorflow\nprint('computed')\n")
    command = [
        "-m",
        "ulpscope",
        "run",
        "-o",
        str(tmp_path / "trace"),
        "--",
        sys.executable,
        str(tmp_path / "script.py"),
    ]
    done = python(*command, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "computed\n")
    assert "tensorflow 2.11.0 is too old to be captured" in done.stderr
    assert "tensorflow 2.16 or later" in done.stderr
    assert "ulpscope tf-dump -- CMD" in done.stderr
    assert "msprobe" not in done.stderr
    assert not (tmp_path / "trace" / "rank0").exists()


def test_a_script_that_computes_nothing_is_said_so(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("import tensorflow as tf\nprint('done')\n")
    done = python("-m", "ulpscope", "run", "-o", str(tmp_path / "trace"), "--", sys.executable, str(script))
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert "nothing was captured" in done.stderr


def test_an_error_of_the_script_is_told_as_without_a_capture(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        "import keras\nimport numpy as np\nkeras.layers.Dense(2)(np.ones((2, 2)))\nraise KeyError('mine')\n"
    )
    done = python("-m", "ulpscope", "run", "-o", str(tmp_path / "trace"), "--", sys.executable, str(script))
    assert done.returncode == 1
    assert done.stderr.count("KeyError: 'mine'") >= 1
    assert "ulpscope/capture" not in done.stderr


OVERFLOWS = """
import tensorflow as tf, keras
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
for step in range(4):
    with tf.GradientTape() as tape:
        out = model(tf.ones((2, 3)))
        if step == 2:
            out = tf.math.log(out * 0.0)
        loss = tf.reduce_mean(out)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""


def test_overflows_are_watched(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OVERFLOWS, encoding="utf-8")
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(tmp_path / "overflow"), "--watch", "overflow"]
    done = subprocess.run(
        [*command, "--", sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300
    )
    assert "overflow in step 2, forward: tf.raw_ops.Log.0" in done.stderr
    assert (tmp_path / "overflow" / "rank0" / "step2").is_dir()
    assert not (tmp_path / "overflow" / "rank0" / "step1").is_dir()
