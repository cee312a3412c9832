"""Backward passes that run at once in several threads of the run's own."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
import torch
from test_capture_host import capture, compiled, uses
from torch import Tensor, nn

from ulpscope.capture.torch.host import loading

__all__ = ["compiled"]

# Threads that train models of their own, each of which drops its gradients while others end their passes.
TRAINING = """
import sys, threading, torch, ulpscope
from torch import nn

def train():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))
    for _ in range(250):
        model(torch.randn(4, 8)).square().mean().backward()
        model.zero_grad()

sys.setswitchinterval(1e-6)
with ulpscope.capture(sys.argv[1]):
    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("kind", ["python", "compiled"])
def test_threads_train_models_of_their_own(tmp_path: Path, kind: str) -> None:
    environment = os.environ | {loading.CHOICE: kind}
    subprocess.run([sys.executable, "-c", TRAINING, str(tmp_path / "t")], env=environment, check=True)


@pytest.mark.parametrize("kind", ["python", "compiled"])
def test_a_pass_that_ends_while_another_runs_has_its_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    model, slow = nn.Linear(2, 1), nn.Linear(2, 3)

    def wait(_gradient: Tensor) -> None:
        begun.set()
        may_end.wait(10)

    def work() -> None:
        output = slow(torch.ones(1, 2))
        output.register_hook(wait)
        loss = model(torch.ones(1, 2)).sum()
        thread = threading.Thread(target=output.sum().backward)
        thread.start()
        assert begun.wait(10)
        loss.backward()
        model.zero_grad()
        may_end.set()
        thread.join()

    assert capture(tmp_path, kind, work, monkeypatch).info.errors == ()
    gradients = uses(tmp_path, kind).filter(pl.col("role") == "gradient")
    assert sorted(gradients["shape"].to_list()) == [[1], [1, 2], [3], [3, 2]]
