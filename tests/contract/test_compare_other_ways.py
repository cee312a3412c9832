"""Runs that differ in one line of what they compute, each with and without noise: what is a fault, and what is none."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.records.findings import Comparison, Outcome
from ulpscope.workflows.compare.command import compare

Loss = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, score: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.out = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(16, 16)
        self.gate = nn.Linear(16, 1)
        self.score = score

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(self.query(x), self.key(x))
        gates = self.gate(x).transpose(-1, -2)
        weights = (scores + gates - gates.max()).softmax(-1)
        made: Tensor = self.out(weights @ x)
        return made


def scaled_after(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2) * 0.17


def scaled_before(query: Tensor, key: Tensor) -> Tensor:
    return (query * 0.17) @ key.transpose(-1, -2)


def squared(net: Net, x: Tensor) -> Tensor:
    return functional.mse_loss(net(x).float(), x.flip(-1))


SIZES = torch.linspace(0.2, 2.0, 10).unsqueeze(-1)


def normalised(net: Net, x: Tensor) -> Tensor:
    made = SIZES * net(x).float()
    return (functional.normalize(made, dim=-1) * functional.normalize(x, dim=-1)).square().mean()


def normalised_otherwise(net: Net, x: Tensor) -> Tensor:
    made = SIZES * net(x).float()
    return (made / (made.norm(dim=-1, keepdim=True) + 2e-3) * functional.normalize(x, dim=-1)).square().mean()


def curved(weight: float) -> Loss:
    """A loss of a second derivative: what is computed between two backwards."""

    def loss(net: Net, x: Tensor) -> Tensor:
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(given).float().tanh().sum(), given, create_graph=True)
        (bend,) = torch.autograd.grad(slope[..., 0].sum(), given, create_graph=True)
        return (weight * bend + slope).square().mean()

    return loss


def in_halves(net: Net, x: Tensor) -> Tensor:
    return functional.mse_loss(torch.cat([net(half) for half in x.chunk(2)]).float(), x.flip(-1))


def selu(net: Net, x: Tensor) -> Tensor:
    return functional.mse_loss(functional.selu(net(functional.selu(net(x)))).float(), x.flip(-1))


def train(trace: Path, loss: Loss, *, cast: bool, score: Callable[[Tensor, Tensor], Tensor] = scaled_after) -> Path:
    torch.manual_seed(0)
    model = Net(score)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    data = [torch.randn(12, 10, 16) for _ in range(2)]
    with ulpscope.capture(trace, model=model):
        for x in data:
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                made = loss(model, x)
            made.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
    return trace


def compared(folder: Path, reference: Loss, target: Loss, *, cast: tuple[bool, bool]) -> Comparison:
    one = train(folder / "reference", reference, cast=cast[0])
    return compare(one, train(folder / "target", target, cast=cast[1])).comparison


@pytest.mark.parametrize("loss", [squared, normalised, curved(0.05), selu])
def test_noise_is_left_alone(tmp_path: Path, loss: Loss) -> None:
    """The gate's bias has no gradient, since softmax does not feel it: zero in one run is rounding in the other."""
    assert compared(tmp_path, loss, loss, cast=(False, True)).findings == ()


def test_a_factor_that_moved_is_another_way_to_write_it(tmp_path: Path) -> None:
    one = train(tmp_path / "reference", squared, cast=True)
    other = train(tmp_path / "target", squared, cast=True, score=scaled_before)
    assert compare(one, other).comparison.outcome is Outcome.AGREE


def test_gradients_of_a_batch_in_halves_are_no_input(tmp_path: Path) -> None:
    comparison = compared(tmp_path, squared, in_halves, cast=(True, True))
    assert comparison.outcome is Outcome.AGREE


def test_float32_between_casts_is_judged_as_float32(tmp_path: Path) -> None:
    """A norm with an eps of its own, after the cast back: autocast does not touch it."""
    comparison = compared(tmp_path, normalised, normalised_otherwise, cast=(True, True))
    assert comparison.outcome is Outcome.DIVERGED


def test_a_number_between_two_backwards_is_told_in_noise(tmp_path: Path) -> None:
    comparison = compared(tmp_path, curved(0.05), curved(0.051), cast=(False, True))
    assert comparison.outcome is Outcome.DIVERGED
    assert comparison.findings[0].evidence.unlike.arguments[0].target == "0.051"
