"""`ulpscope demo` on this machine: it must work at once, or a new user leaves."""

import subprocess
import sys
from pathlib import Path


def test_the_demo_finds_the_planted_fault(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ulpscope", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "DIVERGED at step 0, forward, in model.blocks.1.norm1" in done.stdout
    assert "eps is 1e-05 in the reference, 0.01 in the target" in done.stdout
    assert (tmp_path / "ulpscope-demo" / "reference" / "rank0" / "rank.json").exists()
    page = done.stdout.split("open this page in a browser: ")[1].splitlines()[0]
    assert (tmp_path / page).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_script_alone_gives_the_losses_that_the_demo_shows(tmp_path: Path) -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "ulpscope", "demo", "-o", "d"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for option in ([], ["--fault"]):
        alone = subprocess.run(
            [sys.executable, "d/train.py", *option], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert alone.stdout in demo.stdout


def test_a_demo_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    done = subprocess.run(
        [sys.executable, "-m", "ulpscope", "demo", "-o", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "holds files that are no trace (thesis.tex)" in done.stderr
