"""A loss that one run writes out otherwise, and a fault in it at a later step."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.records.findings import Finding, FindingKind, Outcome
from ulpscope.workflows.compare.command import compare

Loss = Callable[[int, Tensor, Tensor], Tensor]


def train(trace: Path, loss: Loss) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ulpscope.capture(trace, model=model):
        for step in range(4):
            inputs, labels = torch.randn(16, 6), (torch.rand(16) < 0.4).float()
            optimizer.zero_grad()
            loss(step, model(inputs).squeeze(1), labels).backward()
            optimizer.step()
    return trace


def usual(_step: int, likely: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy(likely, labels)


def written_out(_step: int, likely: Tensor, labels: Tensor) -> Tensor:
    return -torch.where(labels > 0, likely, 1 - likely).log().mean()


def squared_once(step: int, likely: Tensor, labels: Tensor) -> Tensor:
    right = torch.where(labels > 0, likely, 1 - likely)
    return -(right * right if step == 2 else right).log().mean()


def infinite_once(step: int, likely: Tensor, labels: Tensor) -> Tensor:
    right = torch.where(labels > 0, likely, 1 - likely)
    if step == 1:  # rounded, it has no gradient
        right = torch.round(right) * (torch.arange(len(right)) > 0)
    return -right.log().mean()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("reference") / "t", usual)


def first(reference: Path, target: Path) -> Finding:
    result = compare(reference, target)
    assert result.comparison.outcome is Outcome.DIVERGED
    return result.comparison.findings[0]


def test_the_same_written_otherwise_agrees(reference: Path, tmp_path: Path) -> None:
    assert compare(reference, train(tmp_path / "t", written_out)).comparison.outcome is Outcome.AGREE


def test_gradients_of_a_wrong_loss_are_no_rounding(reference: Path, tmp_path: Path) -> None:
    found = first(reference, train(tmp_path / "t", squared_once))
    assert (found.place.step, found.place.phase.value) == (2, "forward")
    assert found.evidence.amount.followers is not None
    assert found.evidence.amount.followers > 10


def test_an_overflow_is_placed_in_its_own_step(reference: Path, tmp_path: Path) -> None:
    found = first(reference, train(tmp_path / "t", infinite_once))
    assert found.kind is FindingKind.OVERFLOW
    assert (found.place.step, found.place.op) == (1, "torch.Tensor.log")
