"""Values that wait for a launch are read before anybody can write into them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import launches_on_the_cpu
from test_capture_host import CASES, Work, alive, capture, compiled, table, uses
from torch import Tensor, nn
from torch.nn import functional

import ulpscope

__all__ = ["compiled"]


def unseen(work: Callable[..., Any]) -> Callable[..., Any]:
    """As code runs in a thread of autograd's, where no function mode of ours is."""

    def run(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return work(*args)

    return run


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = alive(nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 5), nn.Tanh()))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained(
    prepare: Callable[[nn.Module], None] = lambda _: None, after: Callable[[nn.Module], None] | None = None
) -> None:
    model, optimizer = model_and_optimizer()
    prepare(model)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(3, 5)
            functional.mse_loss(x + model(x), torch.zeros(3, 5)).backward()
            if after is not None:
                unseen(after)(model)
        optimizer.step()


def plain() -> None:
    trained()


def gradients_written_behind_the_backward() -> None:
    def halve(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)

    trained(after=halve)


def hooks_that_write() -> None:
    def prepare(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.register_hook(unseen(lambda gradient: gradient.mul_(0.5)))

    trained(prepare)


def hooks_that_write_elsewhere() -> None:
    """When the last gradient has come, all of them are written."""

    def prepare(model: nn.Module) -> None:
        def clip(_parameter: Tensor) -> None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.clamp_(-0.01, 0.01)

        next(model.parameters()).register_post_accumulate_grad_hook(unseen(clip))

    trained(prepare)


def hooks_of_nodes() -> None:
    output = (torch.randn(3, 5, requires_grad=True) * 2).tanh()

    def write(leaving: tuple[Tensor, ...], _arriving: tuple[Tensor, ...]) -> None:
        for gradient in leaving:
            if gradient is not None:
                gradient.mul_(0.5)

    output.grad_fn.register_hook(unseen(write))  # type: ignore[union-attr]
    output.sum().backward()


class Greedy(torch.autograd.Function):
    """Writes into the gradient that it is given, which no function should."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return gradient.mul_(2.0)


def functions_that_write() -> None:
    x = torch.randn(4, requires_grad=True)
    y = Greedy.apply((x * x).exp()).sin()
    (y * y).sum().backward()


def shared_parameters() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(2, 4)
    (x @ weight @ weight + x @ weight).sum().backward()
    with torch._C.DisableTorchFunction():
        weight.grad.zero_()  # type: ignore[union-attr]


def saved_tensors_that_write() -> None:
    """Code of the run's brings saved tensors back in the backward, and may do anything there."""
    x, other = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def bring_back(packed: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            if other.grad is not None:
                other.grad.zero_()
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, bring_back):
        slow = x.exp().sin()
    (slow.sum() + (other * 3).sum()).backward()


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.t()


def a_gradient_that_lies_where_it_is_added_to() -> None:
    turned, parameter = alive(Turned()), torch.randn(3, 2, requires_grad=True)
    (parameter * 2).sum().backward()
    turned(parameter).backward(parameter.grad.t())  # type: ignore[union-attr]


def large_values() -> None:
    model = alive(nn.Linear(64, 70))
    model(torch.randn(90, 64)).pow(2).sum().backward()


WRITING = [
    plain,
    gradients_written_behind_the_backward,
    hooks_that_write,
    hooks_that_write_elsewhere,
    hooks_of_nodes,
    functions_that_write,
    shared_parameters,
    saved_tensors_that_write,
    a_gradient_that_lies_where_it_is_added_to,
    large_values,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["api", "module"])
@pytest.mark.parametrize("work", [*WRITING, *CASES])
def test_values_are_read_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work, level: str) -> None:
    def repeated() -> None:
        for _ in range(3):
            work()

    slow = capture(tmp_path, "python", repeated, monkeypatch, level=level)
    with launches_on_the_cpu() as kernels:
        fast = capture(tmp_path, "compiled", repeated, monkeypatch, level=level)
    assert kernels.launches or work not in WRITING
    assert fast.info.errors == slow.info.errors == ()
    assert table(tmp_path, "python", "calls").equals(table(tmp_path, "compiled", "calls"), null_equal=True)
    assert uses(tmp_path, "python").equals(uses(tmp_path, "compiled"), null_equal=True)


def captured_backward(folder: Path, prepare: Callable[[nn.Module], None]) -> tuple[list[int], Counter[str]]:
    """Launches of a second backward pass, and which operators ran in it."""
    torch.manual_seed(0)
    model, _ = model_and_optimizer()
    prepare(model)
    with launches_on_the_cpu() as kernels, ulpscope.capture(folder, level="module"):
        model(torch.randn(3, 5)).sum().backward()
        model.zero_grad()
        loss = model(torch.randn(3, 5)).sum()
        kernels.launches.clear()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            loss.backward()
    return kernels.launches, Counter(event.name for event in profile.events())


def test_gradients_share_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULPSCOPE_HOST", "compiled")
    alone, _ = captured_backward(tmp_path / "alone", lambda _: None)
    assert max(alone) > 1
    hooked, _ = captured_backward(tmp_path / "hooked", lambda model: model[0].weight.register_hook(lambda _: None))
    assert sum(hooked) == sum(alone)
    assert len(hooked) > len(alone)
    assert len(alone) < sum(alone) / 2


def test_gradients_that_wait_are_still_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """autograd takes a gradient over that has no other owner, and copies it otherwise."""
    monkeypatch.setenv("ULPSCOPE_HOST", "compiled")
    _, operators = captured_backward(tmp_path / "t", lambda _: None)
    assert operators["aten::mm"] > 0
    assert operators["aten::clone"] == operators["aten::copy_"] == 0


class Kernel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = torch.ones(3, 1, 1, 1).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.kernel)


def test_gradients_that_wait_are_added_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place if they have no other owner: else strides would be others."""
    monkeypatch.setenv("ULPSCOPE_HOST", "compiled")
    one, other = Kernel(), Kernel()

    def strides() -> tuple[int, ...]:
        x = torch.ones(2, 1, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
        (one(x) + other(x) * 2).sum().backward()
        assert x.grad is not None
        return x.grad.stride()

    expected = strides()
    with launches_on_the_cpu(), ulpscope.capture(tmp_path / "t", level="module"):
        assert [strides() for _ in range(3)] == [expected] * 3
