"""A session that was captured with its tensors serves as reference data: files named as those of tf/dump were."""

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

v1 = tf.compat.v1
v1.disable_eager_execution()
x = v1.placeholder(tf.float32, [None, 3], name="in/x")
w = v1.get_variable("w", initializer=tf.constant(np.arange(12, dtype=np.float32).reshape(3, 4) - 5.0))
product = tf.linalg.matmul(x, w, name="fc1/MatMul")
top, places = tf.nn.top_k(tf.abs(product, name="fc1/Abs"), 2, name="top")
loss = tf.reduce_sum(top, name="loss")
train = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
config = v1.ConfigProto()
config.graph_options.rewrite_options.remapping = 2
with v1.Session(config=config) as session:
    session.run(v1.global_variables_initializer())
    for step in range(3):
        fed = {x: np.full((2, 3), step + 1.0, np.float32)}
        asked = {"fc1_MatMul.0": product, "top.0": top, "top.1": places, "loss.0": loss, "train": train}
        wanted = session.run(asked, fed)
        np.savez(sys.argv[1] + f"/wanted{step}.npz", **{key: one for key, one in wanted.items() if one is not None})
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    (folder / "script.py").write_text(SCRIPT)
    command = ["run", "--save", "tensors", "-o", "trace", "--", sys.executable, "script.py", "."]
    assert ulpscope(folder, *command).returncode == 0
    return folder


def ulpscope(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ulpscope", *words]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize(("options", "step"), [((), 2), (("--steps", "1"), 1)], ids=["the last run", "another run"])
def test_arrays_bear_the_names_and_numbers_of_the_session(captured: Path, options: tuple[str, ...], step: int) -> None:
    done = ulpscope(captured, "convert", "trace", "--to", "npy", *options, "-o", f"npy{step}")
    assert done.returncode == 0, done.stderr
    files = {path.name.rpartition(".npy")[0].rpartition(".")[0]: path for path in (captured / f"npy{step}").iterdir()}
    with np.load(captured / f"wanted{step}.npz") as wanted:
        assert set(wanted) == {"fc1_MatMul.0", "top.0", "top.1", "loss.0"}
        for name in wanted:
            found = np.load(files[name])
            assert (found.dtype, found.shape) == (wanted[name].dtype, wanted[name].shape)
            assert found.tobytes() == wanted[name].tobytes(), name
    assert "fc1_Abs.0" in files
    assert all(path.name.split(".")[-2].isdigit() for path in files.values())
