"""`ulpscope repeat` as users run it: a script that repeats itself, one that nobody has seeded, one that fails."""

import json
import sys
from pathlib import Path

import pytest

from ulpscope.cli.main import main

SEEDED = "import torch\ntorch.manual_seed(0)\n"
TRAINING = """import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
net(torch.ones(2, 4)).sum().backward()
"""


def repeated(tmp_path: Path, script: str, *options: str) -> int:
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    return main(["repeat", *options, "--", sys.executable, str(tmp_path / "train.py")])


def test_a_seeded_script_repeats_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repeated(tmp_path, SEEDED + TRAINING) == 0
    assert capsys.readouterr().out.startswith("REPEATS: 2 runs give the same bits")


def test_an_unseeded_script_is_named_and_cured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result"
    assert repeated(tmp_path, TRAINING, "--json", "-o", str(out)) == 1
    told = json.loads(capsys.readouterr().out)
    first = told["findings"][0]
    assert (first["op"], first["kind"], first["evidence"]["part"]) == (
        "torch.nn.init.kaiming_uniform_", "randomness", "generator"
    )  # fmt: skip
    assert first["source"].endswith("train.py:3")
    assert told["switches"] == ["seed"]
    assert sorted(path.name for path in out.iterdir()) == ["run0", "run1", "summary.json"]
    assert json.loads((out / "summary.json").read_text()) == told


def test_a_script_that_fails_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repeated(tmp_path, "raise SystemExit(4)") == 2
    assert "ended with exit code 4" in capsys.readouterr().err
    assert repeated(tmp_path, "print()") == 3
    assert repeated(tmp_path, "print()", "-n", "1") == 2
