"""`ulpscope investigate` as users run it: two commands, stage by stage, again behind what is complete, of two hosts."""

import json
import sys
from pathlib import Path

import pytest

from ulpscope.cli.main import main
from ulpscope.workflows.investigate import sources

TRAINING = """
import sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(9 if step == 2 and "--fault" in sys.argv else step))
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
INFERENCE = """
import sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh" if "--fault" in sys.argv else "none"))
with torch.no_grad():
    for step in range(2):
        net(torch.randn(8, 4) + step)
"""


def commands(script: Path, text: str) -> list[str]:
    script.write_text(text, encoding="utf-8")
    plain = [sys.executable, str(script)]
    return ["--", *plain, "--against", "--", *plain, "--fault"]


def test_another_batch_is_found_once_and_told_again_without_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "found", commands(tmp_path / "train.py", TRAINING)
    assert main(["investigate", "--json", "-o", str(out), *words]) == 1
    told = json.loads(capsys.readouterr().out)
    first = told["findings"][0]
    assert (told["verdict"], first["kind"], first["step"]) == ("found", "input", 2)
    assert [stage["stage"] for stage in told["stages"]] == ["losses", "step"]
    assert told["runs"] == {side: {"whole": 1, "stopped": 1} for side in ("reference", "target")}
    assert json.loads((out / "summary.json").read_text()) == told
    assert (out / "step-2" / "compared" / "report.html").is_file()

    monkeypatch.setattr(sources, "capture_command", None)  # nothing is run any more
    assert main(["investigate", "--json", "-o", str(out), *words]) == 1
    assert json.loads(capsys.readouterr().out) == told
    assert main(["investigate", "-o", str(out), *words, "--other"]) == 2
    assert "other commands" in capsys.readouterr().err

    hosts = [tmp_path / name for name in ("a", "b")]
    for host, side in zip(hosts, ("reference", "target"), strict=True):
        host.mkdir()
        (host / "watched").symlink_to(out / "losses" / side)
    assert main(["investigate", *map(str, hosts)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("FOUND in stage 1: PARTED at step 2")
    assert "Next: ulpscope run -o TRACE --steps 2 --stop -- COMMAND" in text
    for host, side in zip(hosts, ("reference", "target"), strict=True):
        (host / "step").symlink_to(out / "step-2" / side)
    assert main(["investigate", "--json", *map(str, hosts)]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "input"


def test_runs_without_an_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["investigate", "--json", *commands(tmp_path / "infer.py", INFERENCE)]) == 1
    told = json.loads(capsys.readouterr().out)
    first = told["findings"][0]
    assert [stage["stage"] for stage in told["stages"]] == ["losses", "modules", "step"]
    assert (first["step"], first["op"]) == (0, "torch.nn.functional.gelu")
    assert "approximate" in first["sentence"]


def test_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, seen in (
        (["--", "true"], "one command, true"),
        ([], "0 directories of traces"),
        ([str(tmp_path / "no"), str(tmp_path)], "is not a directory"),
        ([str(tmp_path), "--", "true"], "and a command"),
        (["--", "true", "--against", "--"], "no command to run"),
        (["--", "false", "--against", "--", "true"], "the reference, false, ended with exit code 1"),
    ):
        assert main(["investigate", *words]) == 2
        assert seen in capsys.readouterr().err
    assert main(["investigate", str(tmp_path), str(tmp_path)]) == 3
    assert "--watch gradients" in capsys.readouterr().out
    assert main(["investigate", "--", "true", "--against", "--", "true"]) == 3
    assert capsys.readouterr().out.startswith("NOTHING COMPARED")
