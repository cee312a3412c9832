"""A script written for the first API accuracy checker changes by one import: it captures one iteration and stops."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ulpscope.compat.api_accuracy_checker.common.config import CheckerConfig
from ulpscope.dialects.api_checker import open_api_checker
from ulpscope.dialects.opening import open_run
from ulpscope.records.enums import Kind
from ulpscope.trace.objects import call_from_row, value_from_row
from ulpscope.trace.reader import RankTrace

SCRIPT = """
{imports}

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(20, 8), torch.randn(20, 4))
number = 0
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=5):
        {before}
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        {after}
        optimizer.step()
        optimizer.zero_grad()
        print(number, loss.item().hex(), flush=True)
        number += 1
print("end")
"""
PLAIN = "import ulpscope.compat.api_accuracy_checker.dump"
NAMES = "from ulpscope.compat.api_accuracy_checker.dump import msCheckerConfig, set_dump_switch\n"
MANUAL = NAMES + "msCheckerConfig.update_config(dump_path='dump', enable_dataloader=False)"


@dataclass(frozen=True)
class Ran:
    folder: Path
    lines: list[str]
    told: str
    code: int


def run(folder: Path, imports: str, *, before: str = "pass", after: str = "pass") -> Ran:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT.format(imports=imports, before=before, after=after), encoding="utf-8")
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=300)
    return Ran(folder, done.stdout.splitlines(), done.stderr, done.returncode)


def ops(rank: RankTrace, *, step: int | None = None) -> list[str]:
    rows = rank.collect(rank.calls(step)).iter_rows(named=True)
    return [call.op for call in map(call_from_row, rows) if call.kind is Kind.API]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("plain"), PLAIN)


def test_the_second_iteration_is_captured_and_the_training_stops(plain: Ran) -> None:
    assert [line.split()[0] for line in plain.lines] == ["0", "1"]
    assert plain.code == 0, plain.told
    (rank,) = open_run(plain.folder).ranks
    assert rank.steps == (1,)
    assert ops(rank).count("torch.nn.functional.linear") == 2
    assert "ulpscope check . --device npu" in plain.told


def test_the_numbers_are_those_of_the_script_alone(plain: Ran, tmp_path: Path) -> None:
    alone = run(tmp_path, "")
    assert alone.lines[-1] == "end"
    assert alone.lines[:2] == plain.lines


def test_the_files_that_users_know_are_there_too(plain: Ran) -> None:
    (forward,) = plain.folder.glob("forward_info_*.json")
    (backward,) = plain.folder.glob("backward_info_*.json")
    (stack,) = plain.folder.glob("stack_info_*.json")
    calls = json.loads(forward.read_text(encoding="utf-8"))
    linear = calls["Functional*linear*0"]
    assert [given["shape"] for given in linear["args"]] == [[5, 8], [16, 8], [16]]
    assert [given["requires_grad"] for given in linear["args"]] == [False, True, True]
    gradients = json.loads(backward.read_text(encoding="utf-8"))
    assert gradients["Functional*linear*1"][0]["shape"] == [5, 4]
    assert any(
        "train.py, line" in frame for frame in json.loads(stack.read_text(encoding="utf-8"))["Functional*silu*0"]
    )


def test_the_files_read_back_as_the_same_calls(plain: Ran) -> None:
    (rank,) = open_run(plain.folder).ranks
    (read,) = open_api_checker(plain.folder).ranks
    named = [op for op in ops(rank) if op != "torch.Tensor.backward"]
    assert ops(read) == named


def test_another_iteration(tmp_path: Path) -> None:
    ran = run(tmp_path, NAMES + "msCheckerConfig.update_config(dump_path='dump', target_iter=5)")
    assert ran.lines[-1].split()[0] == "5"
    assert open_run(tmp_path / "dump").ranks[0].steps == (5,)


def test_real_data_is_saved_both_ways(tmp_path: Path) -> None:
    run(tmp_path, NAMES + "msCheckerConfig.update_config(dump_path='dump', real_data=True, target_iter=0)")
    for trace in (open_run(tmp_path / "dump"), open_api_checker(tmp_path / "dump")):
        rank = trace.ranks[0]
        values = [value_from_row(row) for row in rank.collect(rank.values()).iter_rows(named=True)]
        weight = next(value for value in values if value.shape == (16, 8))
        data = rank.data(weight)
        assert data is not None
        assert weight.stats is not None
        assert (np.min(data), np.max(data)) == (weight.stats.min, weight.stats.max)


def test_the_switch_says_what_is_captured(tmp_path: Path) -> None:
    ran = run(
        tmp_path, MANUAL, before="set_dump_switch('ON') if number in (2, 4) else None", after="set_dump_switch('OFF')"
    )
    assert ran.lines[-1] == "end", ran.told
    (rank,) = open_run(tmp_path / "dump").ranks
    assert [ops(rank, step=step).count("torch.nn.functional.linear") for step in rank.steps] == [2, 2]
    assert len(open_api_checker(tmp_path / "dump").ranks[0].steps) == 2


def test_without_a_switch_nothing_happens(tmp_path: Path) -> None:
    ran = run(tmp_path, MANUAL)
    assert ran.lines[-1] == "end"
    assert not (tmp_path / "dump").exists()


def test_scripts_reach_the_switch_through_the_package_and_a_word_without_meaning_is_told(tmp_path: Path) -> None:
    names = "from ulpscope.compat.api_accuracy_checker.common.config import msCheckerConfig\n"
    names += "import ulpscope.compat.api_accuracy_checker.dump as DP\n"
    names += "msCheckerConfig.update_config(dump_path='dump', enable_dataloader=False)"
    on, off = "DP.dump.set_dump_switch('ON' if number == 2 else 'on')", "DP.dump.set_dump_switch('OFF')"
    ran = run(tmp_path, names, before=on, after=off)
    assert ran.lines[-1] == "end", ran.told
    assert ran.told.count("set_dump_switch('on') has no effect") == 1
    assert len(open_run(tmp_path / "dump").ranks[0].steps) == 1


@pytest.mark.parametrize("given", [{"target_iter": "1"}, {"target_iter": -1}, {"real_data": "yes"}, {"dump_path": 3}])
def test_an_option_without_meaning_is_told_and_changes_nothing(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ((name, value),) = given.items()
    config = CheckerConfig()
    config.update_config(**given)
    assert getattr(config, name) == getattr(CheckerConfig(), name)
    assert f"{name}={value!r}) has no effect" in capsys.readouterr().err


def test_other_options_are_told(tmp_path: Path) -> None:
    ran = run(tmp_path, NAMES + "msCheckerConfig.update_config(dump_path='dump', white_list=['conv2d'])")
    assert "white_list ignored: ulpscope check FILE --only NAME" in ran.told
    assert (tmp_path / "dump" / "trace").is_dir()


WITHOUT = {
    "a directory that is a file": ("open('dump', 'w').close()\n", "the run goes on, without this capture"),
    "a torch that is too old": ("import torch\ntorch.__version__ = '2.1.0'\n", "torch 2.1.0 is too old"),
    "files that cannot be written": (
        "from ulpscope.dialects import api_checker\napi_checker.write_info_files = None\n",
        "api_accuracy_checker, end: TypeError",
    ),
}


@pytest.mark.parametrize("reason", WITHOUT)
def test_a_run_that_cannot_be_captured_is_not_ended(tmp_path: Path, reason: str) -> None:
    prepare, told = WITHOUT[reason]
    ran = run(tmp_path, prepare + NAMES + "msCheckerConfig.update_config(dump_path='dump')")
    assert told in ran.told
    assert "the training stops here" not in ran.told
    assert (ran.code, ran.lines[-1]) == (0, "end")
