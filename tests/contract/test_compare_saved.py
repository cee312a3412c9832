"""What saved data tells that sketches do not, and what executing calls must not excuse."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ulpscope
from ulpscope.diagnose.flow.evidence import gather
from ulpscope.diagnose.flow.updates import Update, compare_updates
from ulpscope.records.pairs import Pair
from ulpscope.workflows.compare.command import CompareOptions, paired_values, plan_comparison


def stepped(out: Path, gradient: torch.Tensor, save: str) -> Path:
    parameter = nn.Parameter(torch.linspace(1.0, 2.0, len(gradient)))
    optimizer = torch.optim.SGD([parameter], 1e-3)
    with ulpscope.capture(out, save=save):
        (parameter * gradient).sum().backward()
        optimizer.step()
    return out


def updates(folder: Path, save: str, gradients: Pair[torch.Tensor]) -> list[Update]:
    sides = Pair(stepped(folder / "r", gradients.reference, save), stepped(folder / "t", gradients.target, save))
    (rank,) = plan_comparison(sides.map(ulpscope.open_trace), CompareOptions()).plan.ranks
    return list(compare_updates(gather(rank, *paired_values(rank))).values())


def test_updates_are_compared_by_saved_data(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = torch.randn(4096)
    other = one + 0.01 * torch.randn(4096)
    (update,) = updates(tmp_path / "data", "tensors", Pair(one, other))
    start = np.linspace(1.0, 2.0, 4096).astype(np.float32)
    after = [start - np.float32(1e-3) * each.numpy() for each in (one, other)]
    steps = [each.astype(np.float64) - start for each in after]
    assert update.from_data
    assert update.error == pytest.approx(np.linalg.norm(steps[1] - steps[0]) / np.linalg.norm(steps[0]), rel=1e-6)
    (estimated,) = updates(tmp_path / "stats", "stats", Pair(one, other))
    assert not estimated.from_data
    assert estimated.error != update.error


def clipped(out: Path, *, scaled: bool) -> Path:
    """The target clips gradients before the scale is taken out of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    with ulpscope.capture(out, model=model, save="tensors"):
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,)))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    return out


def test_a_call_that_shows_a_loss_scale_is_not_acquitted(tmp_path: Path) -> None:
    """From the scaled norm that it was given, it computed the right thing."""
    result = ulpscope.compare(clipped(tmp_path / "r", scaled=False), clipped(tmp_path / "t", scaled=True))
    assert result.verdict == "diverged"
    assert result.findings[0].phase == "update"
