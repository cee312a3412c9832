"""Each backward is tied exactly to its forward."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from watched import Watched, watch


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.5


def backward_of(watched: Watched, op: str, number: int = 0) -> Any:
    forward = watched.call(op, number, kind="api")
    found = watched.calls.filter(watched.calls["forward"] == forward.id)
    assert len(found) == 1
    return watched.trace.call(found["id"][0])


def test_gradients_go_in_and_out_at_the_right_places(tmp_path: Path) -> None:
    x, weight = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    arriving = torch.randn(2, 4)
    watched = watch(tmp_path, lambda: F.linear(x, weight).mul(arriving).sum().backward(), save="tensors")
    linear = backward_of(watched, "torch.nn.functional.linear")
    np.testing.assert_array_equal(watched.data(linear, "grad_output", "output.0"), arriving.numpy())
    np.testing.assert_allclose(watched.data(linear, "grad_input", "args.0"), (arriving @ weight).detach(), rtol=1e-6)
    np.testing.assert_allclose(watched.data(linear, "grad_input", "args.1"), (arriving.T @ x).detach(), rtol=1e-6)


def test_an_aliased_argument_gets_the_total(tmp_path: Path) -> None:
    x = torch.tensor([3.0], requires_grad=True)
    watched = watch(tmp_path, lambda: (x * x).backward(), save="tensors")
    product = backward_of(watched, "torch.Tensor.mul")
    assert watched.data(product, "grad_input", "args.0") == 6.0
    assert watched.data(product, "grad_input", "args.1") == 6.0


def test_same_operation_twice_is_told_apart(tmp_path: Path) -> None:
    x = torch.tensor([1.0], requires_grad=True)
    watched = watch(tmp_path, lambda: ((x * 2) * 10).backward(), save="tensors")
    assert watched.data(backward_of(watched, "torch.Tensor.mul", 0), "grad_input", "args.0") == 20.0
    assert watched.data(backward_of(watched, "torch.Tensor.mul", 1), "grad_input", "args.0") == 10.0


def test_a_custom_functions_backward_is_seen_as_it_is(tmp_path: Path) -> None:
    x = torch.tensor([1.0], requires_grad=True)
    watched = watch(tmp_path, lambda: Broken.apply(x).backward(), save="tensors")
    broken = backward_of(watched, "Broken")
    assert watched.data(broken, "grad_input", "args.0") == 0.5
    assert watched.call("torch.Tensor.mul", phase="backward").parent == broken.id


def test_backward_twice_is_two_calls(tmp_path: Path) -> None:
    x = torch.tensor([2.0], requires_grad=True)

    def work() -> None:
        y = x * 3
        y.backward(retain_graph=True)
        y.backward()

    watched = watch(tmp_path, work)
    forward = watched.call("torch.Tensor.mul", kind="api")
    assert (watched.calls["forward"] == forward.id).sum() == 2


def test_the_loss_is_known(tmp_path: Path) -> None:
    x = torch.tensor([2.0], requires_grad=True)
    watched = watch(tmp_path, lambda: (x * 3).sum().backward(), save="tensors")
    assert watched.data(watched.call("torch.Tensor.backward"), "loss") == 6.0


def test_module_backward_has_gradients_of_inputs_and_parameters(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    watched = watch(tmp_path, lambda: model(x).sum().backward(), save="tensors", level="module")
    call = watched.call("Linear", kind="module_backward")
    np.testing.assert_array_equal(watched.data(call, "gradient", "weight"), model.weight.grad.numpy())
    np.testing.assert_array_equal(watched.data(call, "grad_input", "args.0"), x.grad.numpy())
    np.testing.assert_array_equal(watched.data(call, "grad_output", "output.0"), np.ones((4, 2), np.float32))


def test_a_module_that_writes_its_input_has_a_backward(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)), torch.randn(4, 3)
    watched = watch(tmp_path, lambda: model(x).sum().backward(), level="module", save="tensors")
    call = watched.call("ReLU", kind="module_backward")
    np.testing.assert_array_equal(watched.data(call, "grad_output", "output.0"), np.ones((4, 3), np.float32))
    assert set(np.unique(watched.data(call, "grad_input", "args.0"))) <= {0.0, 1.0}


def test_writing_into_a_view_is_paired_through_its_base(tmp_path: Path) -> None:
    weight = torch.randn(4, 2, requires_grad=True)
    arriving = torch.randn(4, 2)

    def work() -> None:
        x = weight * 1
        x[:2].mul_(3)
        (x * arriving).sum().backward()

    watched = watch(tmp_path, work, save="tensors")
    call = backward_of(watched, "torch.Tensor.mul_")
    np.testing.assert_array_equal(watched.data(call, "grad_output", "output.0"), arriving[:2].numpy())
    np.testing.assert_array_equal(watched.data(call, "grad_input", "args.0"), 3 * arriving[:2].numpy())


def test_each_use_of_a_weight_under_autocast_has_its_own_gradient(tmp_path: Path) -> None:
    weight, x, y = torch.randn(2, 2, requires_grad=True), torch.randn(1, 2), torch.randn(1, 2)

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            (F.linear(x, weight) + F.linear(y, weight)).sum().backward()

    watched = watch(tmp_path, work, save="tensors")
    for number, given in enumerate((x, y)):
        found = watched.data(backward_of(watched, "torch.nn.functional.linear", number), "grad_input", "args.1")
        np.testing.assert_array_equal(found, given.bfloat16().float().expand(2, 2).numpy())


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_counted_apart(tmp_path: Path, reentrant: bool) -> None:
    layer, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)

    def work() -> None:
        checkpoint(lambda y: layer(y).tanh(), x, use_reentrant=reentrant).sum().backward()

    watched = watch(tmp_path, work)
    again = watched.calls.filter(watched.calls["recompute"])
    assert "torch.nn.functional.linear.0@recompute" in again["name"].to_list()
    assert set(again["phase"]) == {"backward"}
    first = watched.call("torch.nn.functional.linear", recompute=False, kind="api")
    assert first.name == "torch.nn.functional.linear.0"
    assert first.phase.value == "forward"


def test_the_graph_is_not_kept_alive(tmp_path: Path) -> None:
    import gc
    import weakref

    alive: list[Any] = []

    def work() -> None:
        x = torch.randn(8, 8, requires_grad=True)
        hidden = (x * 2).exp()
        alive.append(weakref.ref(hidden))
        loss = hidden.sum()
        loss.backward()
        del hidden, loss, x
        gc.collect()
        alive.append(alive[0]() is None)

    watch(tmp_path, work)
    assert alive[1]
