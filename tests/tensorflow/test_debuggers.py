"""Dumps of both debuggers as TensorFlow writes them now, read without it, tensor for tensor as its own readers do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tensorflow.python.debug.lib import debug_data, debug_events_reader

from ulpscope.cli.main import main
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.reference import ReferenceTensor, reference_tensors

PROGRAMS = Path(__file__).with_name("debugged.py")


def dumped(root: Path, *arguments: str) -> Path:
    command = [sys.executable, str(PROGRAMS), arguments[0], str(root), *arguments[1:]]
    subprocess.run(command, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True)
    return root


def same(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("session") / "dump", "session")


def test_every_tensor_of_a_session(session: Path) -> None:
    tensors = reference_tensors(session) or []
    runs = sorted(session.iterdir(), key=lambda run: int(run.name.split("_")[1]))
    assert {tensor.step for tensor in tensors} == {0, 1, 2}
    compared = 0
    for step, run in enumerate(runs):
        own: dict[tuple[str, int, int], ReferenceTensor] = {
            (tensor.op, tensor.index, tensor.timestamp): tensor for tensor in tensors if tensor.step == step
        }
        theirs = debug_data.DebugDumpDir(str(run)).dumped_tensor_data
        assert len(own) == len(theirs)
        for datum in theirs:
            stored = own[datum.node_name, datum.output_slot, datum.timestamp].stored()
            value = datum.get_tensor()
            if not isinstance(value, np.ndarray | np.generic):
                assert stored.dtype in ("resource", "uninitialized memory")
                continue
            assert same(stored.array(), np.asarray(value)), datum.node_name
            compared += 1
    assert compared > 30


def test_the_last_run_of_a_session_becomes_reference_data(session: Path, tmp_path: Path) -> None:
    assert main(["convert", str(session), "--to", "npy", "-o", str(tmp_path / "npy")]) == 0
    written = list((tmp_path / "npy").glob("*.npy"))
    relu = next(path for path in written if path.name.startswith("fc1_Relu.0."))
    last = max(session.iterdir(), key=lambda run: int(run.name.split("_")[1]))
    datum = next(
        datum for datum in debug_data.DebugDumpDir(str(last)).dumped_tensor_data if datum.node_name == "fc1/Relu"
    )
    assert relu.name == f"fc1_Relu.0.{datum.timestamp}.npy"
    assert same(np.load(relu), datum.get_tensor())


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("functions") / "dump", "functions", "FULL_TENSOR")


def test_every_tensor_of_functions(functions: Path) -> None:
    with debug_events_reader.DebugDataReader(str(functions)) as reader:
        reader.update()
        wanted = [
            (
                trace.op_name,
                trace.output_slot,
                int(trace.wall_time * 1e6),
                reader.graph_execution_trace_to_tensor_value(trace),
            )
            for trace in reader.graph_execution_traces()
        ]
        for execution in reader.executions():
            name = reader.graph_by_id(execution.graph_id).name if execution.graph_id else execution.op_type
            values = reader.execution_to_tensor_values(execution) or []
            wanted += [(name, slot, int(execution.wall_time * 1e6), value) for slot, value in enumerate(values)]
    own = {(tensor.op, tensor.index, tensor.timestamp): tensor for tensor in reference_tensors(functions) or []}
    assert len(own) == len(wanted) > 30
    for name, slot, time, value in wanted:
        assert same(own[name, slot, time].stored().array(), value), name


def test_a_function_is_a_step_with_what_python_did_after_it(functions: Path) -> None:
    trace = open_run(functions)
    assert trace.steps == (0, 1)
    names = [trace.collect(trace.calls(step))["module"].to_list() for step in trace.steps]
    assert names[1][-5:] == ["step", "Cast", "Sub", "Log", "Mul"]
    assert names[1].index("MatMul") < names[1].index("Relu") < names[1].index("step")
    assert main(["overflow", str(functions)]) == 1


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "CONCISE_HEALTH"])
def test_numbers_of_the_health_modes(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = dumped(tmp_path / "dump", "functions", mode)
    with debug_events_reader.DebugDataReader(str(root)) as reader:
        reader.update()
        healthy = [trace.debug_tensor_value for trace in reader.graph_execution_traces()]
        healthy += [
            value for execution in reader.executions() for value in execution.debug_tensor_values or () if value
        ]
    places = {"FULL_HEALTH": (5, 6, 7), "CONCISE_HEALTH": (2, 3, 4)}[mode]
    wanted = sorted(tuple(int(numbers[place]) for place in places) for numbers in healthy)
    trace = open_run(root)
    # What Python made in one step and read in the next is told there again, without who made it.
    values = trace.collect(trace.values()).filter(pl.col("producer").is_not_null())
    made = sorted(row for row in values.select("neg_inf", "pos_inf", "nan").rows() if None not in row)
    assert made == wanted
    assert any(nan for _, _, nan in made)
    assert main(["overflow", str(root)]) == 1
    assert "Log overflowed first" in capsys.readouterr().out
    assert main(["convert", str(root), "--to", "npy", "-o", str(tmp_path / "npy")]) == 3
