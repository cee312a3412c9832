"""`ulpscope convert --to msprobe`: names, statistics and files as msprobe has them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import make_trace

from ulpscope.cli.main import main
from ulpscope.dialects.msprobe.forms import four_numbers
from ulpscope.dialects.msprobe.names import LeftOut, api_stem, plan_step
from ulpscope.records.calls import Call, Stats, Value
from ulpscope.records.enums import ExitCode, Kind, Phase

STATS = Stats(
    min=-1.5, max=2.5, mean=0.25, norm=3.5, abs_sum=6.0, nan=0, pos_inf=0, neg_inf=0, set_aside=0, zero=1, subnormal=0,
    exponents=(),
)  # fmt: skip


def value(dtype: str = "float32", shape: tuple[int, ...] = (2, 3), **stats: Any) -> Value:
    return Value(
        id=0,
        storage=0,
        version=0,
        producer=None,
        dtype=dtype,
        shape=shape,
        strides=(),
        device="cpu",
        layout="strided",
        requires_grad=False,
        initialized=True,
        stats=replace(STATS, **stats),
        sketch=None,
        digest=None,
        data=None,
    )


def call(number: int, op: str, kind: Kind = Kind.API, **more: Any) -> Call:
    fields: dict[str, Any] = dict.fromkeys(Call.__slots__)
    fields |= {"id": number, "name": f"{op}.0", "kind": kind, "op": op, "phase": Phase.FORWARD, "arguments": {}}
    return Call(**fields | more)


def module(number: int, path: str, kind: Kind = Kind.MODULE, **more: Any) -> Call:
    return call(number, "torch.nn.Linear", kind, module=path, module_class="torch.nn.Linear", **more)


@pytest.mark.parametrize(
    ("op", "stem"),
    [
        ("torch.nn.functional.gelu", "Functional.gelu"),
        ("torch.Tensor.add_", "Tensor.add_"),
        ("torch.matmul", "Torch.matmul"),
        ("torch.linalg.norm", "Torch.linalg.norm"),
        ("torch.distributed.all_reduce", "Distributed.all_reduce"),
        ("torch._VF.lstm", "VF.lstm"),
        ("aten.add.Tensor", "Aten.add"),
        ("npu.npu_rms_norm.default", "NPU.npu_rms_norm"),
        ("torch.nn.init.normal_", None),
        ("mylib.MyFunction", None),
    ],
)
def test_operations_have_msprobes_names(op: str, stem: str | None) -> None:
    assert api_stem(op) == stem


def test_modules_stand_behind_what_is_inside_and_backwards_have_their_forwards_number() -> None:
    linear = "torch.nn.functional.linear"
    calls = [
        module(0, "model"),
        module(1, "model.up", parent=0),
        call(2, linear, parent=1),
        module(3, "model.up", parent=0),
        call(4, linear, parent=3),
        call(5, "torch.optim.SGD", Kind.OPTIMIZER),
        module(6, "model.up", Kind.MODULE_BACKWARD, forward=3),
        call(7, linear, Kind.BACKWARD, forward=4),
        call(8, linear, Kind.BACKWARD, forward=4),
        call(9, linear, Kind.BACKWARD, forward=99),
    ]
    plan = plan_step(calls, frozenset({6}))
    assert [(entry.name, entry.parent) for entry in plan.entries] == [
        ("Functional.linear.0.forward", "Module.up.Linear.forward.0"),
        ("Module.up.Linear.forward.0", None),
        ("Functional.linear.1.forward", "Module.up.Linear.forward.1"),
        ("Module.up.Linear.forward.1", None),
        ("Functional.linear.1.backward", "Module.up.Linear.backward.1"),
        ("Module.up.Linear.parameters_grad.0", None),
        ("Module.up.Linear.backward.1", None),
    ]
    assert {reason: [left.id for left in calls] for reason, calls in plan.left_out.items()} == {
        LeftOut.ROOT: [0],
        LeftOut.OPTIMIZER: [5],
        LeftOut.REPEATED: [8],
        LeftOut.NO_FORWARD: [9],
    }


def test_several_roots_are_told_apart() -> None:
    plan = plan_step([module(0, "model1.up"), module(1, "Critic.up"), module(2, "model.<Linear>")], frozenset())
    names = [entry.name for entry in plan.entries]
    assert names == [
        "Module.1.up.Linear.forward.0",
        "Module.Critic.up.Linear.forward.0",
        "Module._Linear_.Linear.forward.0",
    ]


def numbers(given: Value, data: Any = None) -> list[Any]:
    return list(four_numbers(given, lambda: data).values())


def test_statistics_are_what_torch_would_answer() -> None:
    inf = math.inf
    assert numbers(value()) == [2.5, -1.5, 0.25, 3.5]
    assert all(math.isnan(number) for number in numbers(value(nan=1, set_aside=1)))
    assert numbers(value(neg_inf=2, set_aside=2)) == [2.5, -inf, -inf, inf]
    assert numbers(value(pos_inf=6, set_aside=6, min=None, max=None, mean=None)) == [inf, inf, inf, inf]
    assert numbers(value(shape=(), min=-2.0, max=-2.0, mean=-2.0, norm=2.0)) == [-2.0] * 4
    assert numbers(value("int64", min=1.0, max=9.0, norm=None)) == [9, 1, None, None]
    assert numbers(value("bool", min=0.0, max=1.0, norm=None)) == [True, False, None, None]
    assert numbers(value(shape=(0, 3))) == [None] * 4
    assert numbers(value("complex64")) == [None] * 4


def test_huge_elements_are_in_mean_and_norm_if_there_is_data() -> None:
    masked = value(shape=(2,), min=-(2.0**30), max=0.0, set_aside=1)
    assert numbers(masked) == [0.0, -(2.0**30), None, None]
    assert numbers(masked, np.array([0.0, -(2.0**30)], np.float32)) == [0.0, -(2.0**30), -(2.0**29), 2.0**30]


def test_a_trace_becomes_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trace(tmp_path / "trace")
    out = tmp_path / "dump"
    assert main(["convert", str(tmp_path / "trace"), "--to", "msprobe", "-o", str(out)]) == ExitCode.OK
    assert "left out 2 calls (SGD)" in capsys.readouterr().out
    folder = out / "step1" / "rank0"
    dump = json.loads((folder / "dump.json").read_text())
    assert [dump[key] for key in ("task", "level", "framework", "dump_data_dir")] == [
        "statistics",
        "mix",
        "pytorch",
        None,
    ]
    assert list(dump["data"]) == [
        "Functional.linear.0.forward",
        "Module.layers.0.Linear.forward.0",
        "Torch.relu.0.forward",
        "Torch.relu.0.backward",
        "Functional.linear.0.backward",
        "Torch.rand.0.forward",
    ]
    assert dump["data"]["Functional.linear.0.forward"]["output"][0] == {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 3],
        "Max": 2.5,
        "Min": -1.5,
        "Mean": 0.25,
        "Norm": 3.5,
        "requires_grad": False,
    }
    stacks = json.loads((folder / "stack.json").read_text())
    assert stacks["0"][0] == ["Functional.linear.0.forward", "Torch.relu.0.forward"]
    assert stacks["0"][1][1] == "File /nowhere/train.py, line 12, in <module>, \n "
    construct = json.loads((folder / "construct.json").read_text())
    assert construct["Functional.linear.0.forward"] == "Module.layers.0.Linear.forward.0"


def test_several_traces_and_one_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trace(tmp_path / "one")
    make_trace(tmp_path / "two")
    sources = [str(tmp_path / name) for name in ("one", "two", "three")]
    code = main(["convert", *sources, "--to", "msprobe", "-o", str(tmp_path / "dumps"), "--json"])
    assert code == ExitCode.DIFFERENCE
    told = json.loads(capsys.readouterr().out)
    assert [trace["converted"] for trace in told["traces"]] == [True, True, False]
    assert (tmp_path / "dumps" / "two" / "step0" / "rank0" / "dump.json").is_file()


def test_refusals_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trace(tmp_path / "trace")
    trace, occupied = str(tmp_path / "trace"), str(tmp_path)
    assert main(["convert", trace, "--to", "msprobe", "-o", occupied]) == ExitCode.USAGE
    assert "is not empty" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "none"), "--to", "msprobe", "-o", str(tmp_path / "x")]) == ExitCode.USAGE
    assert main(["convert", trace, "--to", "nonsense", "-o", str(tmp_path / "x")]) == ExitCode.USAGE
    assert main(["convert", trace, trace, "--to", "msprobe", "-o", str(tmp_path / "x")]) == ExitCode.USAGE
    assert "several traces are called trace" in capsys.readouterr().err


def test_a_trace_without_steps_is_nothing(tmp_path: Path) -> None:
    make_trace(tmp_path / "trace", steps=0)
    assert main(["convert", str(tmp_path / "trace"), "--to", "msprobe", "-o", str(tmp_path / "x")]) == ExitCode.NOTHING
