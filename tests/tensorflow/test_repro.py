"""`ulpscope repro` and `compare` of TensorFlow's ops: scripts that run alone, and whose error a difference is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checked import SCRIPT, capture, with_other_digest, with_wrong_kernel

from ulpscope.records.enums import Phase
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.evidence import Maker, Replay
from ulpscope.workflows.compare.command import CompareOptions, compare
from ulpscope.workflows.repro import ReproOptions, repro


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("saved"), "--save", "tensors")


def run_alone(script: Path) -> "subprocess.CompletedProcess[str]":
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=variables)


def test_a_script_shows_an_op_forward_and_backward_with_tensorflow_alone(trace: Path, tmp_path: Path) -> None:
    result = repro(trace, "tf.raw_ops.MatMul.0", tmp_path / "out", ReproOptions(), phase=Phase.FORWARD)
    script = tmp_path / "out" / "repro.py"
    text = script.read_text()
    assert "tf.raw_ops.MatMul(" in text
    imported = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert imported == ["import json, pathlib, sys", "import numpy as np", "import tensorflow as tf"]
    assert (result.source.value, result.device) == ("real", "cpu")
    done = run_alone(script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["output.0", "right"], ["grad.args.0", "right"], ["grad.args.1", "right"],
    ]  # fmt: skip


def test_a_script_sees_a_wrong_result(trace: Path, tmp_path: Path) -> None:
    repro(trace, "tf.raw_ops.Erf.0", tmp_path / "out", ReproOptions())
    script = tmp_path / "out" / "repro.py"
    wrong = script.read_text().replace("out = tf.raw_ops.Erf(", "out = (1 if high else 1.001) * tf.raw_ops.Erf(")
    script.write_text(wrong)
    done = run_alone(script)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "output.0 WRONG" in done.stdout


def test_the_truth_of_an_op_without_a_float64_kernel_lies_in_the_file(trace: Path, tmp_path: Path) -> None:
    repro(trace, "tf.raw_ops.FusedBatchNormV3.0", tmp_path / "out", ReproOptions())
    done = run_alone(tmp_path / "out" / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no float64 kernel" in (tmp_path / "out" / "repro.py").read_text()
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["right"] * 6


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tf.raw_ops.RandomUniform.0", "random"),
        ("tf.raw_ops.AssignAddVariableOp.0", "a variable or another resource"),
        ("tf.raw_ops.ArgMax.0", "nothing that can be judged element by element"),
    ],
)
def test_what_no_script_can_show_is_refused(trace: Path, tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(UlpscopeError, match=reason):
        repro(trace, name, tmp_path / "out", ReproOptions())


def test_compare_proves_by_executing_who_made_a_difference(trace: Path, tmp_path: Path) -> None:
    planted = with_wrong_kernel(trace, tmp_path / "wrong", "Erf.0", "output.0", lambda given, right: right * 1.001)
    with_other_digest(planted, "Erf.0", "output.0")
    result = compare(trace, planted, CompareOptions(replay=Replay.ON))
    found = json.loads(json.dumps(result.json()))["findings"][0]
    assert found["call"] == "tf.raw_ops.Erf.0"
    assert found["evidence"]["ledger"]["maker"] == Maker.TARGET.value
    assert np.isclose(found["evidence"]["ledger"]["made_by_target"]["norm"], 1e-3, rtol=0.1)


def test_compare_acquits_ops_that_only_hand_on_an_argument_that_differs(trace: Path, tmp_path: Path) -> None:
    other = capture(tmp_path, "--save", "tensors", script=SCRIPT.replace("leaky_relu(x)", "leaky_relu(x, 0.25)"))
    result = compare(trace, other, CompareOptions(replay=Replay.ON))
    assert result.comparison.findings[0].place.call == "tf.raw_ops.LeakyRelu.0"
    makers = {entry.call: entry.maker for entry in result.comparison.ledger.entries}
    assert len(makers) > 20
    assert not {Maker.TARGET, Maker.REFERENCE, Maker.BOTH} & set(makers.values())
