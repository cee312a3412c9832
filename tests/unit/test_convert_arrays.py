"""`ulpscope convert --to npy` of traces and of tfdbg's sessions: file names, steps, and what is refused."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from tests.unit.test_tfdbg import floats, write_dump
from tests.unit.traces import CALLS_A_STEP, elements_of, make_trace

from ulpscope.cli.main import main
from ulpscope.dialects.opening import open_run

STARTED = int(datetime(2025, 1, 1).timestamp() * 1_000_000)
"""Of the hand-made trace."""


def convert(*arguments: object) -> int:
    return main(["convert", *map(str, arguments), "--to", "npy"])


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.npy")}


def test_what_calls_of_the_last_step_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trace(tmp_path / "run", save=True)
    assert convert(tmp_path / "run", "-o", tmp_path / "npy") == 0
    assert "these are of step 1; for others: --steps 0" in capsys.readouterr().out
    first = STARTED + CALLS_A_STEP
    linear, relu = "torch_nn_functional_linear_0", "torch_relu_0"
    assert names(tmp_path / "npy") == {
        f"Linear_0.0.{first}.npy",
        f"{linear}.0.{first + 1}.npy",
        f"{relu}.0.{first + 2}.npy",
        # A gradient is no second output of the call.
        f"{relu}_backward.0.{first + 3}.npy",
        f"{linear}_backward.0.{first + 4}.npy",
        f"SGD_0.0.{first + 5}.npy",
        f"torch_rand_0.0.{first + 6}.npy",
    }
    trace = open_run(tmp_path / "run")
    made = next(use.value for use in trace.ranks[0].uses(CALLS_A_STEP + 2) if use.role.value == "output")
    found = np.load(tmp_path / "npy" / f"{relu}.0.{first + 2}.npy")
    assert np.array_equal(found, elements_of(made))
    # Such a folder stands where a reference dump is taken.
    assert open_run(tmp_path / "npy").collect(open_run(tmp_path / "npy").calls()).height == 7


def test_steps_and_ranks_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        make_trace(tmp_path / "run", save=True, rank=rank)
    assert convert(tmp_path / "run", "--steps", "0-1", "-o", tmp_path / "npy") == 0
    assert len(names(tmp_path / "npy")) == 2 * 2 * 7
    assert {name.split("/")[0] for name in names(tmp_path / "npy")} == {"rank0", "rank1"}
    assert convert(tmp_path / "run", "--steps", "3", "-o", tmp_path / "none") == 3
    assert "expected: step 0-1" in capsys.readouterr().err


def test_a_trace_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trace(tmp_path / "run")
    assert convert(tmp_path / "run", "-o", tmp_path / "npy") == 3
    told = capsys.readouterr().err
    assert "has no saved tensors" in told
    assert "--save tensors" in told
    assert not (tmp_path / "npy").exists()


def test_steps_of_what_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    assert convert(tmp_path / "x.npy", "--steps", "0", "-o", tmp_path / "npy") == 2
    assert "--steps with" in capsys.readouterr().err
    assert not (tmp_path / "npy").exists()


def session(root: Path, *runs: str) -> Path:
    for number, run in enumerate(runs):
        write_dump(root, {"fc1/Relu:0": (number + 1, floats(float(number)))}, run=run)
    return root


def test_the_last_run_of_a_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = session(tmp_path / "dump", "run_10_0", "run_20_1", "run_30_2")
    assert convert(root, "-o", tmp_path / "last") == 0
    assert names(tmp_path / "last") == {"fc1_Relu.0.3.npy"}
    assert np.load(tmp_path / "last" / "fc1_Relu.0.3.npy") == [2.0]
    assert "these are of step 2; for others: --steps 0-1" in capsys.readouterr().out
    assert convert(root, "--steps", "0-1", "-o", tmp_path / "others") == 0
    assert names(tmp_path / "others") == {"fc1_Relu.0.1.npy", "fc1_Relu.0.2.npy"}


def test_sessions_of_two_programs_in_one_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = session(tmp_path / "dump", "run_10_0", "run_20_1", "run_30_0", "run_40_1")
    trace = open_run(root)
    assert trace.steps == (0, 1)
    assert "run_10_0 to run_20_1 are of another program" in trace.missing[0]
    assert "those from run_30_0 on are read" in trace.missing[0]
    # Told, and no success: something that was named was not converted.
    assert convert(root, "-o", tmp_path / "npy") == 1
    assert names(tmp_path / "npy") == {"fc1_Relu.0.4.npy"}
    assert "of another program" in capsys.readouterr().out
    assert convert(root / "run_20_1", "-o", tmp_path / "older") == 0
    assert names(tmp_path / "older") == {"fc1_Relu.0.2.npy"}


def test_a_dump_in_which_nothing_was_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump" / "run_10_0").mkdir(parents=True)
    assert convert(tmp_path / "dump", "-o", tmp_path / "npy") == 3
    assert "holds no dump file" in capsys.readouterr().err
    assert not (tmp_path / "npy").exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    root = session(tmp_path / "dump", "run_10_0")
    (tmp_path / "npy").mkdir()
    (tmp_path / "npy" / "mine").write_text("kept")
    assert convert(root, "-o", tmp_path / "npy") == 2
    assert (tmp_path / "npy" / "mine").read_text() == "kept"
    assert names(tmp_path / "npy") == set()
