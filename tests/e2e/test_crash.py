"""What kill -9 leaves is readable: benchmarks/crash.py kills more often and fills a disk too."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import ulpscope

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
    assert sum(int(line.split()[6]) for line in done.stdout.splitlines()[1:3]) > 0, done.stdout


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
