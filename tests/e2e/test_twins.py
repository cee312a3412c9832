"""Noise twins from the script to the answer: `run --twins`, and what `compare` then tells."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import polars as pl
import pytest

from ulpscope.records.findings import Outcome
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.compare.command import compare

SCRIPT = textwrap.dedent(
    """
    import os, sys, torch
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode
    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Wrong(TorchDispatchMode):
        \"\"\"A kernel that is wrong: in each step's second gelu a channel has a share of its neighbour.\"\"\"
        calls, share = 0, float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.gelu.default:
                self.calls += 1
                made = made + self.share * made.roll(1, -1) if self.calls % 3 == 2 and self.share else made
            return made

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)
        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    model = nn.Sequential(nn.Linear(16, 64), *(Block() for _ in range(3)), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1)
    print("twin", os.environ.get("ULPSCOPE_TWIN"))
    for step in range(2):
        inputs, wanted = torch.randn(32, 16, generator=data), torch.randn(32, 8, generator=data)
        with Wrong(), torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[1] == "bf16"):
            made = model(inputs)
        optimizer.zero_grad()
        nn.functional.mse_loss(made.float(), wanted).backward()
        optimizer.step()
    """
)


def ulpscope(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ulpscope", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=180)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twins")
    (folder / "train.py").write_text(SCRIPT)
    for name, *words in (("ref", "fp32"), ("bf16", "bf16"), ("wrong", "bf16", "0.015")):
        done = ulpscope(folder, "run", "-o", name, "--", sys.executable, "train.py", *words)
        assert done.returncode == 0, done.stderr
    (folder / "alone").symlink_to(folder / "ref")
    return folder


@pytest.fixture(scope="module")
def with_twins(runs: Path) -> Path:
    untold = compare(runs / "ref", runs / "wrong")
    assert untold.comparison.outcome is Outcome.AGREE  # so little is within what families of operations allow
    twins = ("--twins", "2", "--like", "bf16")
    done = ulpscope(runs, "run", *twins, "-o", "ref", "--", sys.executable, "train.py", "fp32")
    assert done.returncode == 0, done.stderr
    assert "twin 1:" in done.stderr
    assert "twin 2:" in done.stderr
    return runs


def test_twins_make_the_calls_of_their_run(with_twins: Path) -> None:
    reference = open_trace(with_twins / "ref")
    assert [rank.name for rank in reference.ranks] == ["rank0"]
    own = reference.collect(reference.calls().select("name", "step"))
    for number in ("1", "2"):
        twin = open_trace(with_twins / "ref" / "twins" / number)
        assert twin.collect(twin.calls().select("name", "step")).equals(own)
        assert f"twin {number}" in (with_twins / "ref" / "twins" / f"{number}.log").read_text()


def test_set_up_is_the_same_and_results_are_not(with_twins: Path) -> None:
    found = compare(with_twins / "ref", with_twins / "ref" / "twins" / "1").pairs
    parameters = found.filter(pl.col("role") == "parameter", pl.col("step") == 0, pl.col("phase") == "forward")
    made = found.filter(pl.col("op") == "torch.nn.functional.linear", pl.col("role") == "output")
    assert set(parameters["judgement"]) == {"identical"}
    assert made["error"].min() > 1e-3
    assert made["error"].max() < 2e-2


def test_a_healthy_target_agrees_and_every_output_has_its_chance(with_twins: Path) -> None:
    result = compare(with_twins / "ref", with_twins / "bf16")
    assert result.comparison.outcome is Outcome.AGREE
    chances = result.pairs.filter(pl.col("role") == "output", pl.col("kind") == "api", pl.col("phase") == "forward")
    assert chances["chance"].null_count() < 0.3 * chances.height
    assert chances["chance"].min() > 1e-6


def test_one_and_a_half_percent_are_found_where_they_were_made(with_twins: Path) -> None:
    result = compare(with_twins / "ref", with_twins / "wrong")
    assert result.comparison.outcome is Outcome.DIVERGED
    place = result.comparison.findings[0].place
    assert place.op == "torch.nn.functional.gelu"
    assert place.module == "model.2"
    assert place.phase.value == "forward"


def test_twins_of_another_precision_are_not_used(with_twins: Path) -> None:
    result = compare(with_twins / "ref", with_twins / "alone")
    assert result.pairs["chance"].null_count() == result.pairs.height
    told = "the reference's twins are not used: they are rounded to bfloat16, the target to float32"
    assert told in result.comparison.missing


def test_twins_that_cannot_be_read_are_told(with_twins: Path, tmp_path: Path) -> None:
    shutil.copytree(with_twins / "ref", tmp_path / "ref")
    (tmp_path / "ref" / "twins" / "1" / "rank0" / "rank.json").unlink()
    result = compare(tmp_path / "ref", with_twins / "bf16")
    assert result.comparison.outcome is Outcome.AGREE
    assert "a twin of the reference is not used" in str(result.comparison.missing)
    assert result.pairs["chance"].null_count() < result.pairs.height
    (tmp_path / "ref" / "twins" / "precision.json").write_text("[]")
    result = compare(tmp_path / "ref", with_twins / "bf16")
    assert "precision.json" in str(result.comparison.missing)
    assert result.pairs["chance"].null_count() == result.pairs.height


def test_new_twins_replace_the_old_ones(with_twins: Path) -> None:
    copied = with_twins / "copied"
    done = ulpscope(with_twins, "run", "--twins", "1", "-o", "copied", "--", sys.executable, "train.py", "fp32")
    assert done.returncode == 0, done.stderr
    assert json.loads((copied / "twins" / "precision.json").read_text()) == {
        "coarsest": None,
        "results": [],
        "loss_scale": 0,
    }
    words = ("--twins", "2", "--precision", "bf16")
    done = ulpscope(with_twins, "run", *words, "-o", "copied", "--", sys.executable, "train.py", "fp32")
    assert done.returncode == 0, done.stderr
    assert json.loads((copied / "twins" / "precision.json").read_text())["coarsest"] == "bfloat16"
    assert sorted(entry.name for entry in (copied / "twins").iterdir() if entry.is_dir()) == ["1", "2"]
    assert compare(copied, with_twins / "bf16").comparison.outcome is Outcome.AGREE


def test_a_trace_that_is_replaced_loses_its_twins(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ("-o", "ref", "--", sys.executable, "train.py", "fp32")
    assert ulpscope(tmp_path, "run", "--twins", "1", *command).returncode == 0
    done = ulpscope(tmp_path, "run", "--overwrite", *command)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ref" / "twins").exists()


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("--twins", "0"), "--twins 0"),
        (("--twins", "2", "--precision", "int8"), "--precision int8"),
        (("--twins", "2", "--precision", "bf16", "--like", "bf16"), "--like and --precision together"),
        (("--like", "bf16"), "--like or --precision without --twins"),
        (("--twins", "2", "--like", "nowhere"), "nowhere does not exist"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(runs: Path, words: tuple[str, ...], seen: str) -> None:
    done = ulpscope(runs, "run", *words, "-o", "new", "--", sys.executable, "train.py", "fp32")
    assert done.returncode == 2
    assert seen in done.stderr
    assert "next:" in done.stderr
    assert not (runs / "new").exists()


def test_a_twin_that_fails_is_told_with_its_log(runs: Path, tmp_path: Path) -> None:
    script = "import os\nassert 'ULPSCOPE_TWIN' not in os.environ, 'no twins here'\n" + SCRIPT
    (tmp_path / "train.py").write_text(script)
    done = ulpscope(tmp_path, "run", "--twins", "1", "-o", "ref", "--", sys.executable, "train.py", "fp32")
    assert done.returncode == 1
    assert "nothing was captured, exit code 1" in done.stderr
    assert "no twins here" in (tmp_path / "ref" / "twins" / "1.log").read_text()
    assert compare(tmp_path / "ref", runs / "bf16").comparison.outcome is Outcome.AGREE
