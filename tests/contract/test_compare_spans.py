"""Runs that compute the same thing with other calls: tried in high precision where their data was saved."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ulpscope
from ulpscope.workflows.compare.command import CompareResult

Body = Callable[[Tensor], Tensor]
FACTORS: tuple[Body, Body] = (lambda h: h / 7.0 * 3.0, lambda h: h * (3.0 / 7.0))


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.last, self.body = nn.Linear(8, 16), nn.Linear(16, 3), body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(torch.tanh(self.first(x))))
        return out


def train(out: Path, body: Body, *, autocast: bool = False) -> Path:
    torch.manual_seed(0)
    model = Net(body)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with ulpscope.capture(out, model=model, save="tensors"):
        for _ in range(2):
            x, labels = torch.randn(16, 8), torch.randint(0, 3, (16,))
            with torch.autocast("cpu", enabled=autocast):
                loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return out


def compared(tmp_path: Path, one: Body, other: Body, *, autocast: bool) -> CompareResult:
    sides = [train(tmp_path / "r", one), train(tmp_path / "t", other, autocast=autocast)]
    return ulpscope.compare(*sides)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_same_with_other_calls_is_a_note(tmp_path: Path, *, autocast: bool) -> None:
    result = compared(tmp_path, *FACTORS, autocast=autocast)
    assert (result.verdict, result.findings) == ("agree", ())
    assert any("the same is written otherwise" in note.sentence for note in result.notes)
    assert ulpscope.compare(tmp_path / "r", tmp_path / "t", replay="off").verdict == "diverged"


@pytest.mark.parametrize("autocast", [False, True])
def test_another_factor_is_not_the_same(tmp_path: Path, *, autocast: bool) -> None:
    result = compared(tmp_path, FACTORS[0], lambda h: h * (3.0 / 7.1), autocast=autocast)
    assert result.findings[0].op in ("torch.Tensor.div", "torch.Tensor.mul")


class Hidden(torch.utils._python_dispatch.TorchDispatchMode):
    """A kernel that is wrong in one element."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if function._schema.name == "aten::mul" and result.shape == (16, 16):
            result[3, 5] += 0.5
        return result


def test_the_same_function_with_a_wrong_kernel_is_found(tmp_path: Path) -> None:
    def wrong(h: Tensor) -> Tensor:
        with Hidden():
            return FACTORS[1](h)

    result = compared(tmp_path, FACTORS[0], wrong, autocast=False)
    assert result.findings[0].op in ("torch.Tensor.div", "torch.Tensor.mul")
