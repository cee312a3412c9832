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
import torch

import ulpscope
from ulpscope.compat.msprobe_config import Seeding, read_arguments, read_config
from ulpscope.compat.msprobe_names import wanted_by
from ulpscope.dialects.opening import open_run
from ulpscope.records.enums import Kind
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
    config = CONFIG | {"task": "nan_check", "risk_level": "FOCUS", "nan_check": more, "nonsense": 1}
    config |= {"acl_config": "acl.json", "backward_input": ["x.pt"], "error_data_path": "errors"}
    told = run_script(tmp_path, config).stderr.splitlines()
    words = ("acl_config", "backward_input", "error_data_path", "risk_level", "scope", "data_mode", "nonsense")
    for word in ('task "nan_check"', *words):
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


def test_what_is_not_there_says_what_to_use_instead_and_does_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ulpscope.compat.msprobe as msprobe

    monkeypatch.setattr("ulpscope.compat.telling._TOLD", set())
    monitor = msprobe.TrainerMon("config.json", params_have_main_grad=False)
    model = object()
    assert monitor.set_monitor(model, grad_acc_steps=1) is model
    assert msprobe.random_save("out") is None
    msprobe.PrecisionDebugger.configure_hook("dump")
    told = capsys.readouterr().err
    for name in ("TrainerMon", "random_save", "PrecisionDebugger.configure_hook"):
        assert sum(f"{name} does nothing" in line for line in told.splitlines()) == 1
    assert not hasattr(msprobe, "no_such_name")


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("{", "cannot be read"),
        ("[]", "holds a list"),
        ('{"task": "tensor"}', "dump_path is None"),
        ('{"dump_path": "x", "step": ["two"]}', "step is ['two']"),
        ('{"dump_path": "x", "rank": ["4-2"]}', "rank is ['4-2']"),
        ('{"dump_path": "x", "statistics": {"list": 4}}', "list is 4"),
    ],
)
def test_what_cannot_be_followed_is_named_and_nothing_is_captured(content: str, seen: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    config = read_config(str(tmp_path / "config.json"), {})
    assert not config.enabled
    assert seen in config.remarks[0]
    assert "the run goes on" in config.remarks[0]


def test_a_config_that_is_not_there_does_not_end_the_run(tmp_path: Path, unwatched: str) -> None:
    done = run_script(tmp_path, CONFIG, SCRIPT.replace("config.json", "other.json"))
    assert done.stdout == unwatched
    assert "'other.json' cannot be read" in done.stderr
    assert not (tmp_path / "dump").exists()


def test_a_level_without_meaning_is_the_default(tmp_path: Path) -> None:
    config = read_config(None, {"dump_path": "x", "level": "L9"})
    assert (config.enabled, config.level) == (True, "api")
    assert "level is 'L9'" in config.remarks[0]
    assert read_config(None, {}).out == Path("dump_path")
    config = read_config(None, {"dump_path": "x", "level": ["L1"], "task": ["tensor"]})
    assert (config.enabled, config.level, config.save) == (True, "api", "stats")
    assert "level is ['L1']" in " ".join(config.remarks)


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    config = read_config(str(file), {"task": "tensor", "level": "L0", "step": [3, "5-6"], "dump_path": None})
    assert (config.save, config.level, config.steps, str(config.out)) == ("tensors", "module", "3,5-6", "dump")
    assert config.remarks == ()


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("Functional.linear.1.forward", ("torch.nn.functional.linear.1",)),
        ("Functional.conv2d.1.forward", ("torch.nn.functional.conv2d.1", "torch.conv2d.1")),
        ("Functional_conv2d_1_forward", ("torch.nn.functional.conv2d.1", "torch.conv2d.1")),
        ("Functional.conv2d", ("torch.nn.functional.conv2d", "torch.conv2d")),
        ("Tensor.__pow__.0.backward", ("torch.Tensor.__pow__.0",)),
        ("Torch.linalg.norm.1.forward", ("torch.linalg.norm.1",)),
        ("NPU.npu_rms_norm.0.forward", ("torch_npu.npu_rms_norm.0", "npu.npu_rms_norm.0")),
        ("Functional", ("torch.nn.functional.*",)),
        ("Module.layers.0.mlp.Mlp.forward.0", ("layers.0.mlp",)),
        ("relu", ("*relu*",)),
        ("relu.3.forward", ("*relu.3",)),
    ],
)
def test_names_of_list_become_patterns(name: str, patterns: tuple[str, ...]) -> None:
    assert wanted_by([name]).patterns == patterns
    assert wanted_by([name]).wider == ()


def test_of_an_operator_all_calls_are_captured_and_that_is_said() -> None:
    wanted = wanted_by(["Tensor.__add__.3.forward"])
    assert wanted.patterns == ("torch.Tensor.__add__", "torch.Tensor.add")
    assert wanted.wider == ("Tensor.__add__.3.forward",)


# What a dump of msprobe names; a trace has other names for the first and the last.
CONVOLUTION = """
from ulpscope.compat.msprobe import PrecisionDebugger
import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
debugger = PrecisionDebugger("config.json", None, None, None, model)
debugger.start()
(model(torch.ones(2, 3, 8, 8)) + 1).sum().backward()
debugger.forward_backward_dump_end()
(torch.ones(2) * 2).sum()
"""


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_list_takes_msprobes_own_names(level: str, tmp_path: Path) -> None:
    names = ["Functional.conv2d.0.forward", "Tensor.__add__.0.forward"]
    run_script(tmp_path, {"dump_path": "dump", "level": level, "statistics": {"list": names}}, CONVOLUTION)
    trace = trace_of(tmp_path / "dump")
    calls = trace.collect(trace.calls(0).sort("id"))
    forward = calls.filter(phase="forward")["op"].to_list()
    kernels = {"torch.conv2d": "aten.convolution.default", "torch.Tensor.add": "aten.add.Tensor"}
    expected = list(kernels) if level == "L1" else [op for pair in kernels.items() for op in pair]
    assert forward == expected
    assert calls["module"][0] == "model.0"
    backward = {"torch.conv2d", "torch.Tensor.add"} | (
        {"aten.convolution_backward.default"} if level == "L2" else set()
    )
    assert {*calls.filter(phase="backward")["op"]} == backward


@pytest.mark.parametrize("layout", ["npy", "msprobe"])
def test_a_list_that_chooses_nothing_says_so(layout: str, tmp_path: Path) -> None:
    options = {"list": ["Functional.gelu.0.forward"], "file_format": layout}
    done = run_script(tmp_path, {"dump_path": "dump", "statistics": options}, CONVOLUTION)
    assert "no call between start and stop is torch.nn.functional.gelu.0" in done.stderr
    assert "without this capture" not in done.stderr


# Operators that torch hands on under another name than Python has for them.
@pytest.mark.parametrize("operator", ["imod", "rand", "ror", "rxor", "radd", "rsub", "ifloordiv"])
def test_operators_are_captured_by_their_names(operator: str, tmp_path: Path) -> None:
    left, right = torch.tensor([5, 6]), 3
    with ulpscope.capture(tmp_path / "t", only=wanted_by([f"Tensor.__{operator}__.0.forward"]).patterns):
        getattr(left, f"__{operator}__")(right)
    assert trace_of(tmp_path / "t").info.coverage.calls_recorded == 1


LOADED = """
from ulpscope.compat.msprobe import PrecisionDebugger
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

debugger = PrecisionDebugger("config.json")
print(torch.rand(1).item().hex(), torch.are_deterministic_algorithms_enabled())
model = nn.Linear(8, 4)
number = 0
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.ones(6, 8)), batch_size=2):
        debugger.start(model=model)
        model(x).sum().backward()
        debugger.stop()
        number += 1
        debugger.step()
print("batches", number)
"""


def test_batches_are_steps_seeds_are_set_and_msprobes_layout_is_left(tmp_path: Path) -> None:
    config = {"task": "tensor", "dump_path": "dump", "step": [1, 3], "level": "mix", "enable_dataloader": True}
    config |= {"seed": 7, "is_deterministic": True, "tensor": {"file_format": "msprobe"}}
    done = run_script(tmp_path, config, LOADED)
    drawn = subprocess.run(
        [sys.executable, "-c", "import torch; torch.manual_seed(7); print(torch.rand(1).item().hex())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert done.stdout.splitlines() == [f"{drawn} True", "batches 6"]
    assert trace_of(tmp_path / "dump-trace").steps == (1, 3)
    own = open_run(tmp_path / "dump").ranks[0]
    assert own.steps == (1, 3)
    names = json.loads((tmp_path / "dump/step1/rank0/dump.json").read_text())["data"]
    assert "Functional.linear.0.forward" in names
    assert (tmp_path / "dump/step1/rank0/dump_tensor_data/Functional.linear.0.forward.output.0.pt").is_file()


SWITCHED = """
from ulpscope.compat.ptdbg_ascend import *
import torch
from torch import nn

model = nn.Conv2d(3, 4, 3)
set_dump_path("./dump/dump.pkl", dump_tag="all")
register_hook(model, acc_cmp_dump)
for number in range(3):
    if number:
        set_dump_switch("ON", mode="list", scope=["Functional_conv2d_0_forward"])
    model(torch.ones(2, 3, 8, 8)).relu().sum().backward()
    set_dump_switch("OFF")
set_dump_switch("ON", mode="range", scope=["Torch_relu_0_forward", "Torch_sum_0_forward"])
set_dump_switch("MAYBE")
"""


def test_a_script_of_ptdbg_ascend_leaves_a_trace(tmp_path: Path) -> None:
    done = run_script(tmp_path, CONFIG, SWITCHED)
    trace = trace_of(tmp_path / "dump/dump")
    assert [step for step in trace.steps if trace.collect(trace.calls(step)).height] == [0, 1]
    assert {*trace.collect(trace.calls(1))["op"]} == {"torch.conv2d"}
    assert trace.info.capture["save"] == "tensors"
    assert "mode range is not applied" in done.stderr
    assert "set_dump_switch('MAYBE') has no effect" in done.stderr


def test_a_torch_that_is_too_old_is_told_once_and_the_run_goes_on(tmp_path: Path, unwatched: str) -> None:
    done = run_script(tmp_path, CONFIG, "import torch\ntorch.__version__ = '2.1.0'\n" + SCRIPT)
    assert done.stdout == unwatched
    (told,) = done.stderr.splitlines()
    assert "torch 2.1.0 is too old to be captured" in told
    assert "dumps of msprobe and ptdbg_ascend" in told
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize(
    ("args", "kwargs", "options"),
    [
        (
            ("c.json", "tensor", "d", "L1", [0, 1]),
            {},
            {"task": "tensor", "dump_path": "d", "level": "L1", "step": [0, 1]},
        ),
        (("c.json", None, None, None, "MODEL", [2]), {}, {"task": None, "dump_path": None, "level": None, "step": [2]}),
        (("d",), {"hook_name": "dump", "step": [1]}, {"task": "tensor", "dump_path": "d", "step": [1]}),
        (("d", "overflow_check"), {"rank": 0}, {"task": "overflow_check", "dump_path": "d", "rank": 0}),
    ],
)
def test_arguments_of_all_versions_are_told_apart(
    args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> None:
    model = object()
    asked = read_arguments(tuple(model if item == "MODEL" else item for item in args), kwargs)
    assert asked.options == options
    assert asked.model is (model if "MODEL" in args else None)
    assert asked.config_path == ("c.json" if args[0] == "c.json" else None)
    assert read_arguments((), {"summary": 1}).remarks == ("argument summary has no effect",)


def test_seeds_without_meaning_are_told() -> None:
    assert read_config(None, {"seed": 3}).seeding == Seeding(3, False)
    assert read_config(None, {"is_deterministic": True}).seeding == Seeding(1234, True)
    assert read_config(None, {"seed": "x"}).seeding is None
    assert "nothing is seeded" in read_config(None, {"seed": "x"}).remarks[0]


def test_compare_prints_the_answer_and_writes_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tests.unit.msprobe_dumps import forward, tensor, write_dump

    from ulpscope.compat.msprobe import compare, compare_distributed
    from ulpscope.records.errors import UlpscopeError

    calls = {"Functional.relu.0.forward": forward([tensor(1.0)], [tensor(1.0)])}
    other = {"Functional.relu.0.forward": forward([tensor(1.0)], [tensor(4.0)])}
    for name, data in (("npu", other), ("bench", calls)):
        write_dump(tmp_path / name, data)
    dumps = {f"{name}_json_path": str(tmp_path / name / "step0/rank0/dump.json") for name in ("npu", "bench")}
    result = compare(dumps, str(tmp_path / "out"), auto_analyze=True, fuzzy_match=True)
    told = capfd.readouterr()
    assert result.verdict == "diverged"
    assert told.out.startswith("DIVERGED")
    assert "fuzzy_match has no effect" in told.err
    assert [path.name for path in (tmp_path / "out").glob("compare_result_*/tensors.csv")] == ["tensors.csv"]
    same = compare_distributed(str(tmp_path / "bench"), str(tmp_path / "bench"), str(tmp_path / "all"))
    assert same.verdict == "agree"
    with pytest.raises(UlpscopeError, match="input_param has x"):
        compare({"x": 1}, str(tmp_path))
