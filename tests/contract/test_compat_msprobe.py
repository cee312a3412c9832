"""A script written for msprobe changes by one import: it computes the same, and leaves a trace."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ulpscope.compat.msprobe_config import pattern_of, read_config
from ulpscope.records.enums import Kind
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.reader import RankTrace, open_trace

# Written against msprobe.pytorch; only the import is another one.
SCRIPT = """
from ulpscope.compat.msprobe import PrecisionDebugger, module_dump, module_dump_end, seed_all

import torch
from torch import nn

seed_all(seed=1234, mode=True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(16, 4)

    def forward(self, x):
        hidden = self.norm(torch.relu(self.first(x)))
        PrecisionDebugger.save({"hidden": hidden, "rest": [x, 3]}, "middle")
        return self.last(self.drop(hidden))

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
debugger = PrecisionDebugger(config_path="config.json")
for step in range(3):
    data, label = torch.randn(5, 8), torch.randn(5, 4)
    debugger.start(model=model)
    loss = ((model(data) - label) ** 2).mean()
    loss.backward()
    PrecisionDebugger.stop()
    optimizer.step()
    optimizer.zero_grad()
    debugger.step()
    print(step, loss.item().hex(), [p.double().sum().item().hex() for p in model.parameters()])
"""
# The same script for somebody who has neither tool: what it must compute.
WITHOUT = """
import random, sys, types
import numpy, torch

class Nothing:
    def __init__(self, **options): pass
    def __getattr__(self, name): return lambda *args, **kwargs: None
    save = stop = staticmethod(lambda *args, **kwargs: None)

def seed_all(seed, mode):
    random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed), torch.use_deterministic_algorithms(mode)

stub = types.ModuleType("ulpscope.compat.msprobe")
stub.PrecisionDebugger, stub.seed_all, stub.module_dump, stub.module_dump_end = Nothing, seed_all, None, None
sys.modules["ulpscope.compat.msprobe"] = stub
"""
CONFIG = {
    "task": "statistics",
    "dump_path": "dump",
    "rank": [],
    "step": [0, 1],
    "level": "mix",
    "extra_info": True,
    "async_dump": False,
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
}


def run_script(folder: Path, config: dict[str, Any], script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done


def trace_of(folder: Path) -> RankTrace:
    (rank,) = open_trace(folder).ranks
    assert rank.info.errors == ()
    assert rank.missing == ()
    return rank


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_script(tmp_path_factory.mktemp("without"), CONFIG, WITHOUT + SCRIPT).stdout


LEVELS: dict[str, dict[str, Any]] = {
    "mix": {},
    "L0": {"level": "L0"},
    "L1": {"level": "L1", "task": "tensor"},
    "L2": {"level": "L2"},
    "debug": {"level": "debug", "task": "tensor"},
}


@dataclass(frozen=True)
class Ran:
    """A run of the script, kept for all tests that look at it."""

    folder: Path
    stdout: str
    stderr: str

    @property
    def trace(self) -> RankTrace:
        return trace_of(self.folder / "dump")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    @functools.cache
    def run(level: str) -> Ran:
        folder = tmp_path_factory.mktemp(level)
        done = run_script(folder, CONFIG | LEVELS[level])
        return Ran(folder, done.stdout, done.stderr)

    return run


@pytest.mark.parametrize("level", LEVELS)
def test_numbers_stay_as_they_were(ran: Callable[[str], Ran], unwatched: str, level: str) -> None:
    assert ran(level).stdout == unwatched
    assert ran(level).trace.steps == (0, 1)


def test_start_stop_and_step_bound_what_is_captured(ran: Callable[[str], Ran]) -> None:
    trace = ran("mix").trace
    for step in trace.steps:
        calls = trace.collect(trace.calls(step))
        assert calls.filter(kind="module")["module"].to_list()[0] == "model"
        assert "model.norm" in calls["module"].to_list()
        assert calls.filter(kind="backward").height > 0
        assert calls.filter(kind="optimizer").is_empty()  # it ran between stop and start


def test_saved_variables_and_their_gradients_are_calls(ran: Callable[[str], Ran]) -> None:
    trace = ran("debug").trace
    calls = trace.collect(trace.calls(0).sort("id"))
    assert calls["op"].to_list() == ["msprobe.save", "msprobe.save"]
    assert calls["name"].to_list() == ["middle.0", "middle.0"]
    forward, backward = (trace.call(call) for call in calls["id"])
    assert (forward.kind, backward.kind, backward.forward) == (Kind.API, Kind.BACKWARD, forward.id)
    assert forward.module == "model"
    assert [use.place for use in trace.uses(forward.id)] == ["args.0.hidden", "args.0.rest.0"]
    (gradient,) = trace.uses(backward.id)
    assert gradient.place == "args.0.hidden"
    found = trace.data(trace.value(gradient.value))
    assert found is not None
    assert found.shape == (5, 16)
    assert found.any()


def test_the_stack_of_a_saved_variable_begins_in_the_script(ran: Callable[[str], Ran]) -> None:
    trace = ran("debug").trace
    call = trace.call(trace.collect(trace.calls(0).select("id").min()).item())
    assert call.stack is not None
    assert trace.stack(call.stack)[0].file.endswith("train.py")


def test_list_chooses_calls(tmp_path: Path) -> None:
    names = ["Module.norm.LayerNorm.forward.0", "relu"]
    run_script(tmp_path, CONFIG | {"statistics": {"list": names}})
    trace = trace_of(tmp_path / "dump")
    ops = {op.rpartition(".")[2] for op in trace.collect(trace.calls(0))["op"]}
    assert ops == {"LayerNorm", "layer_norm", "relu", "save"}


def test_what_is_ignored_is_said_once_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "dump" / "step0").mkdir(parents=True)
    more = {"scope": ["Functional.relu.0.forward", "Functional.relu.3.forward"], "data_mode": ["forward"]}
    config = CONFIG | {"task": "overflow_check", "risk_level": "FOCUS", "overflow_check": more, "nonsense": 1}
    told = run_script(tmp_path, config).stderr.splitlines()
    for word in ('task "overflow_check"', "risk_level", "scope", "data_mode", "nonsense"):
        assert sum(f"PrecisionDebugger: {word} " in line for line in told) == 1, word
    assert any("captures into dump-trace" in line for line in told)
    assert trace_of(tmp_path / "dump-trace").steps == (0, 1)
    assert [entry.name for entry in (tmp_path / "dump").iterdir()] == ["step0"]


def test_a_second_run_replaces_the_trace(tmp_path: Path, ran: Callable[[str], Ran]) -> None:
    shutil.copytree(ran("mix").folder / "dump", tmp_path / "dump")
    run_script(tmp_path, CONFIG | {"step": [2]})
    assert trace_of(tmp_path / "dump").steps == (2,)


def test_a_directory_that_cannot_be_written_does_not_break_the_run(tmp_path: Path, unwatched: str) -> None:
    (tmp_path / "dump").write_text("a file")
    done = run_script(tmp_path, CONFIG)
    assert done.stdout == unwatched
    assert "the run goes on" in done.stderr


def test_under_ulpscope_run_the_outer_capture_stays(tmp_path: Path, unwatched: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "ulpscope", "run", "-o", "outer", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == unwatched
    assert trace_of(tmp_path / "outer").steps == (0, 1, 2)


def test_init_step_dropout_and_module_names(tmp_path: Path) -> None:
    script = SCRIPT.replace("mode=True", "mode=True, rm_dropout=True").replace(
        "for step in range(3):",
        "debugger.set_init_step(10)\nmodule_dump(model, 'net')\nmodule_dump_end()\nfor step in range(3):",
    )
    run_script(tmp_path, CONFIG | {"step": ["11-12"]}, script.replace("start(model=model)", "start()"))
    trace = trace_of(tmp_path / "dump")
    assert trace.steps == (11, 12)
    calls = trace.collect(trace.calls(11).sort("id"))
    assert calls["module"].drop_nulls().to_list()[0] == "net"
    dropout = calls.filter(op="torch.nn.functional.dropout", kind="api")["arguments"].to_list()
    assert len(dropout) == 1
    assert '"p":0.0' in dropout[0] or ",0.0," in dropout[0]


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, ulpscope.compat.msprobe as msprobe; print(msprobe.seed_all.__name__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["seed_all", "False"]


def test_what_is_not_there_says_what_to_use_instead() -> None:
    import ulpscope.compat.msprobe as msprobe

    with pytest.raises(UlpscopeError, match="TrainerMon has no counterpart"):
        _ = msprobe.TrainerMon
    assert not hasattr(msprobe, "no_such_name")
    with pytest.raises(UlpscopeError, match="monitor has no counterpart"):
        msprobe.PrecisionDebugger.monitor(None)


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ({}, "dump_path is None"),
        ({"dump_path": "x", "level": "L9"}, "level is 'L9'"),
        ({"dump_path": "x", "step": ["two"]}, r"step is \['two'\]"),
    ],
)
def test_a_bad_option_is_named(arguments: dict[str, Any], seen: str) -> None:
    with pytest.raises(UlpscopeError, match=seen):
        read_config(None, arguments)


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    config = read_config(str(file), {"task": "tensor", "level": "L0", "step": [3, "5-6"], "dump_path": None})
    assert (config.save, config.level, config.steps, str(config.out)) == ("tensors", "module", "3,5-6", "dump")
    assert config.remarks == ()


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Functional.conv2d.1.forward", "torch.nn.functional.conv2d.1"),
        ("Tensor.__add__.0.backward", "torch.Tensor.__add__.0"),
        ("Module.layers.0.mlp.Mlp.forward.0", "layers.0.mlp"),
        ("relu", "*relu*"),
    ],
)
def test_names_of_list_become_patterns(name: str, pattern: str) -> None:
    assert pattern_of(name) == pattern
