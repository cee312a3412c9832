"""A framework that ulpscope has never heard of is captured through capture/recording alone, and its fault is named."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toynet
from toynet_capture import ToySession

import ulpscope
from ulpscope.records.calls import Value
from ulpscope.records.enums import Save
from ulpscope.records.runs import CaptureSettings
from ulpscope.trace.reader import RankTrace, open_trace


def train(steps: int = 3) -> None:
    random = np.random.default_rng(0)
    model = toynet.Model(toynet.Layer(random, *sizes) for sizes in ((8, 16), (16, 16), (16, 4)))
    descent = toynet.Descent(model, 0.01)
    batches = random.normal(size=(steps, 32, 8)).astype(np.float32)
    for batch in batches:
        descent.step(toynet.backward(toynet.mean_square(model(batch))))


def captured(out: Path, work: Callable[[], Any] = train, **settings: Any) -> RankTrace:
    session = ToySession(CaptureSettings(out=out, **settings))
    session.start()
    try:
        work()
    finally:
        session.close("ended")
    assert session.recorder.errors == []
    return open_trace(out).ranks[0]


def test_nothing_of_torch_is_needed() -> None:
    code = "import sys, toynet_capture; print('torch' in sys.modules)"
    path = [str(Path(__file__).parent), *sys.path]
    program = f"import sys; sys.path[:] = {path!r}; {code}"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_steps_phases_modules_and_stacks_are_recorded(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t")
    calls = trace.calls().collect().sort("id")
    assert calls["step"].unique().sort().to_list() == [0, 1, 2]
    first = calls.filter(calls["step"] == 0)
    assert first["phase"].unique().sort().to_list() == ["backward", "forward", "update"]
    names = first.filter(first["phase"] == "forward")["name"].to_list()
    assert names[:5] == ["toynet.Model.0", "toynet.Layer.0", "toynet.matmul.0", "toynet.add.0", "toynet.relu.0"]
    relu = trace.call(first.filter(first["name"] == "toynet.relu.1")["id"][0])
    assert relu.module == "model.layers.1"
    assert [frame.function for frame in trace.stack(relu.stack)][:2] == ["train", "captured"]
    back = trace.call(first.filter((first["name"] == "toynet.relu.1") & (first["phase"] == "backward"))["id"][0])
    assert back.forward == relu.id


def value_of(trace: RankTrace, name: str, role: str, place: str) -> Value:
    """Of a call of step 0."""
    calls, uses = trace.calls().collect(), trace.tensors().collect()
    call = calls.filter((pl.col("step") == 0) & (pl.col("name") == name))["id"][0]
    found = uses.filter((pl.col("call") == call) & (pl.col("role") == role) & (pl.col("place") == place))
    return trace.value(found["value"].item())


def test_a_result_is_one_value_and_a_parameter_another_after_its_update(tmp_path: Path) -> None:
    trace = captured(tmp_path / "t")
    made = value_of(trace, "toynet.matmul.0", "output", "output.0")
    assert made.id == value_of(trace, "toynet.add.0", "input", "args.0").id
    assert trace.info.coverage.summaries_reused > 0
    before, after = (
        value_of(trace, "toynet.Descent.0", role, "model.layers.0.weight") for role in ("parameter", "parameter_after")
    )
    assert before.digest != after.digest
    assert after.producer != before.producer


def test_saved_data_is_what_it_was(tmp_path: Path) -> None:
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    views = [wide, wide[:, 1:], wide.T, wide[::-1], wide[:1, ::2]]
    trace = captured(tmp_path / "t", lambda: [toynet.relu(view) for view in views], save=Save.TENSORS)
    uses = trace.tensors().collect().filter(pl.col("role") == "input").sort("call")
    for view, number in zip(views, uses["value"].to_list(), strict=True):
        assert np.array_equal(np.asarray(trace.data(trace.value(number))), view)


def test_two_runs_agree(tmp_path: Path) -> None:
    captured(tmp_path / "reference")
    captured(tmp_path / "target")
    assert ulpscope.compare(tmp_path / "reference", tmp_path / "target").verdict == "agree"


def test_a_planted_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured(tmp_path / "reference")
    right, ran = toynet.relu, []

    def relu(x: toynet.Array) -> toynet.Array:
        ran.append(x)
        if len(ran) != 5:
            return right(x)
        return toynet._remember((x,), np.maximum(x, np.float32(0.01)), lambda gradient: (gradient * (x > 0),))

    monkeypatch.setattr(toynet, "relu", relu)
    captured(tmp_path / "target")
    finding = ulpscope.compare(tmp_path / "reference", tmp_path / "target").findings[0]
    assert (finding.kind, finding.step, finding.call) == ("computation", 1, "toynet.relu.1")
    assert (finding.module, finding.tensor) == ("model.layers.1", "output.0")
