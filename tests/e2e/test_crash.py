"""What a run that died leaves is readable: benchmarks/crash.py kills more often and fills a disk too."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
import torch

import ulpscope

DYING = """
import ctypes, os, signal, sys
import torch
torch.set_num_threads(1)
deaths = {
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(7),
}
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).pow(2).mean()
    if step == 3 and sys.argv[2] == "inside":
        deaths[sys.argv[1]]()
    loss.backward()
    optimizer.step()
    if step == 2 and sys.argv[2] == "between":
        deaths[sys.argv[1]]()
"""
CODES = {"segv": 139, "abort": 134, "kill": 137, "exit": 7}

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "crash.py"


@pytest.fixture(scope="module")
def crash() -> ModuleType:
    spec = importlib.util.spec_from_file_location("crash_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_trace(out: Path) -> None:
    model = torch.nn.Linear(4, 4)
    with ulpscope.capture(out, save="tensors") as capture:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            capture.step()


def problems_of(crash: ModuleType, out: Path) -> str:
    one = crash.Try("", "")
    crash.check_left_over(out, one, expected_sentence=None)
    return "; ".join(one.problems)


def test_two_killed_runs_leave_whole_steps() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--kills", "2", "--no-disk", "--seed", "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"
    assert sum(int(line.split()[7]) for line in done.stdout.splitlines()[1:3]) > 0, done.stdout


@pytest.mark.parametrize(
    ("death", "host", "save"),
    [
        ("segv", "python", "stats"),
        ("abort", "python", "tensors"),
        ("kill", "python", "stats"),
        ("exit", "python", "stats"),
        ("segv", "compiled", "stats"),
        ("kill", "compiled", "stats"),
    ],
)
def test_steps_that_ended_are_on_disk(crash: ModuleType, tmp_path: Path, death: str, host: str, save: str) -> None:
    done = die(tmp_path, death, "inside", host=host, save=save)
    assert done.returncode == CODES[death]
    assert "rank0: ended abruptly in step 3, after torch.Tensor.mean.0; on disk: steps 0-2 whole" in done.stderr
    assert "Error" not in done.stderr
    (rank,) = ulpscope.open_trace(tmp_path / "t").ranks
    assert [step for step in rank.steps if rank.step_info(step) is not None] == [0, 1, 2]
    assert any("not closed" in sentence for sentence in rank.missing)
    assert problems_of(crash, tmp_path / "t") == ""


@pytest.mark.parametrize("host", ["python", "compiled"])
def test_an_update_that_ended_is_on_disk_before_anything_follows(tmp_path: Path, host: str) -> None:
    done = die(tmp_path, "exit", "between", host=host, save="stats")
    assert "on disk: steps 0-1 whole and the beginning of step 2" in done.stderr
    (rank,) = ulpscope.open_trace(tmp_path / "t").ranks
    updates = rank.collect(rank.calls().filter(pl.col("phase") == "update").select("step").sort("step"))
    assert updates["step"].to_list() == [0, 1, 2]


def die(room: Path, death: str, where: str, *, host: str, save: str) -> subprocess.CompletedProcess[str]:
    (room / "dying.py").write_text(DYING)
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(room / "t"), "--save", save, "--"]
    return subprocess.run(
        [*command, sys.executable, str(room / "dying.py"), death, where],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=os.environ | {"ULPSCOPE_HOST": host},
    )


def test_the_check_accepts_a_sound_trace(crash: ModuleType, tmp_path: Path) -> None:
    make_trace(tmp_path / "t")
    assert problems_of(crash, tmp_path / "t") == ""


@pytest.mark.parametrize("table", ["values", "tensors"])
def test_the_check_sees_a_lost_table(crash: ModuleType, tmp_path: Path, table: str) -> None:
    make_trace(tmp_path / "t")
    (tmp_path / "t" / "rank0" / "step1" / f"{table}-000.parquet").unlink()
    assert "step 1 has" in problems_of(crash, tmp_path / "t")


def test_the_check_sees_changed_data(crash: ModuleType, tmp_path: Path) -> None:
    make_trace(tmp_path / "t")
    file = tmp_path / "t" / "rank0" / "step0" / "data-000.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 0x40
    file.write_bytes(bytes(raw))
    assert "is not what was captured" in problems_of(crash, tmp_path / "t")


def test_the_check_sees_a_cut_file(crash: ModuleType, tmp_path: Path) -> None:
    make_trace(tmp_path / "t")
    file = tmp_path / "t" / "rank0" / "step1" / "calls-000.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    assert "calls-000.parquet" in problems_of(crash, tmp_path / "t")
