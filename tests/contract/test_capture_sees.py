"""Capture sees every way of calling torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, relu
from watched import watch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


@torch.library.custom_op("ulpscope_tests::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@pytest.mark.parametrize(
    ("expression", "op"),
    [
        (lambda x: torch.relu(x), "torch.relu"),
        (lambda x: relu(x), "torch.relu"),
        (lambda x: torch.mm(x, x), "torch.mm"),
        (lambda x: F.gelu(x), "torch.nn.functional.gelu"),
        (lambda x: x.sigmoid(), "torch.Tensor.sigmoid"),
        (lambda x: x.T, "torch.Tensor.T"),
        (lambda x: x.mH, "torch.Tensor.mH"),
        (lambda x: x + 1, "torch.Tensor.add"),
        (lambda x: 1 - x, "torch.Tensor.__rsub__"),
        (lambda x: x @ x, "torch.Tensor.matmul"),
        (lambda x: x[0], "torch.Tensor.__getitem__"),
        (lambda x: -x, "torch.Tensor.neg"),
        (lambda x: torch.ops.aten.tanh(x), "aten.tanh"),
        (lambda x: torch.linalg.vector_norm(x), "torch.linalg.vector_norm"),
        (lambda x: torch.fft.fft(x), "torch.fft.fft"),
        (lambda x: halve(x), "ulpscope_tests.halve.default"),
        (lambda x: Double.apply(x), f"{__name__}.Double"),
        (lambda x: torch.add(x, x, out=torch.zeros(4, 4)), "torch.add"),
        (lambda x: torch._foreach_mul([x, x], 2.0), "torch._foreach_mul"),
    ],
)
def test_every_form_of_call_is_recorded_with_its_true_output(tmp_path: Path, expression: Any, op: str) -> None:
    x = torch.randn(4, 4)
    results = []
    watched = watch(tmp_path, lambda: results.append(expression(x)), save="tensors")
    call = watched.call(op)
    result = results[0][0] if isinstance(results[0], list | tuple) else results[0]
    np.testing.assert_array_equal(watched.data(call, "output", "output.0"), result.resolve_conj().numpy())


@pytest.mark.parametrize(
    ("change", "op"),
    [
        (lambda x: x.add_(1), "torch.Tensor.add_"),
        (lambda x: x.__setitem__(0, 5.0), "torch.Tensor.__setitem__"),
        (lambda x: x.__imul__(3), "torch.Tensor.mul_"),
        (lambda x: F.relu(x, inplace=True), "torch.nn.functional.relu"),
        (lambda x: torch._foreach_add_([x], 1.0), "torch._foreach_add_"),
    ],
)
def test_in_place_forms_keep_what_was_before_and_after(tmp_path: Path, change: Any, op: str) -> None:
    x = torch.randn(4, 4)
    before = x.clone().numpy()
    watched = watch(tmp_path, lambda: change(x), save="tensors")
    call = watched.call(op)
    np.testing.assert_array_equal(watched.data(call, "input"), before)
    np.testing.assert_array_equal(watched.data(call, "output", "output.0"), x.numpy())
    assert not np.array_equal(before, x.numpy())


def test_questions_about_a_tensor_are_no_calls(tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    watched = watch(tmp_path, lambda: (x.shape, x.size(), x.dim(), len(x), repr(x), x.is_contiguous(), x.dtype, x + 1))
    assert watched.ops() == ["torch.Tensor.add"]


def test_a_scalar_result_is_kept(tmp_path: Path) -> None:
    watched = watch(tmp_path, lambda: torch.ones(3).sum().item())
    assert watched.call("torch.Tensor.item").arguments["returned"] == 3.0


def test_modules_have_dotted_paths_and_classes_and_the_root_is_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.LayerNorm(4)))
    watched = watch(tmp_path, lambda: model(torch.ones(2, 3)))
    modules = watched.calls.filter(watched.calls["kind"] == "module")
    assert modules["module"].to_list() == ["model", "model.0", "model.1", "model.1.0"]
    assert modules["module_class"].to_list()[1] == "torch.nn.modules.linear.Linear"
    linear = watched.call("torch.nn.functional.linear")
    assert linear.module == "model.0"
    assert linear.parent == modules["id"][1]
    assert ("parameter", "weight") in watched.roles(watched.call("torch.nn.modules.linear.Linear"))


def test_stack_and_arguments_lead_back_to_the_source(tmp_path: Path) -> None:
    def work() -> None:
        torch.clamp(torch.ones(3), min=-1.0, max=float("inf"))  # this line

    watched = watch(tmp_path, work)
    call = watched.call("torch.clamp")
    assert call.stack is not None
    frame = watched.trace.stack(call.stack)[0]
    assert frame.file == __file__
    assert Path(__file__).read_text().splitlines()[frame.line - 1].endswith("# this line")
    assert call.arguments["kwargs"] == {"min": -1.0, "max": {"$float": "inf"}}


def test_autocast_dtype_is_noted(tmp_path: Path) -> None:
    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(torch.ones(2, 2), torch.ones(2, 2))

    watched = watch(tmp_path, work)
    call = watched.call("torch.nn.functional.linear")
    assert call.autocast == "bfloat16"
    assert watched.value(call, "output").dtype == "bfloat16"


def test_random_calls_know_their_generator(tmp_path: Path) -> None:
    def work() -> None:
        torch.manual_seed(1)
        torch.rand(3)
        torch.rand(3)
        torch.manual_seed(1)
        torch.rand(3)
        F.dropout(torch.ones(3), 0.5, training=False)

    watched = watch(tmp_path, work)
    first, second, again = (watched.call("torch.rand", number) for number in range(3))
    assert first.random
    assert first.generator == again.generator != second.generator
    assert not watched.call("torch.nn.functional.dropout").random


def test_memory_nobody_has_written_is_marked(tmp_path: Path) -> None:
    def work() -> None:
        x = torch.empty(4, 4)
        x[0] = 1.0
        x[1:] = 2.0
        x + 1

    watched = watch(tmp_path, work)
    assert not watched.value(watched.call("torch.empty"), "output").initialized
    assert not watched.value(watched.call("torch.Tensor.__setitem__", 0), "output").initialized
    assert watched.value(watched.call("torch.Tensor.__setitem__", 1), "output").initialized
    assert watched.value(watched.call("torch.Tensor.add"), "input").stats is not None


def test_an_exception_of_the_operation_is_noted_and_passes_through(tmp_path: Path) -> None:
    def work() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)

    call = watch(tmp_path, work).call("torch.Tensor.matmul")
    assert call.error is not None
    assert call.error.startswith("RuntimeError")


def test_kernels_belong_to_the_call_that_caused_them(tmp_path: Path) -> None:
    weight = torch.randn(3, 3, requires_grad=True)

    def work() -> None:
        F.linear(torch.ones(2, 3), weight).sum().backward()

    watched = watch(tmp_path, work, level="kernel")
    linear = watched.call("torch.nn.functional.linear", kind="api")
    assert "aten.mm.default" in watched.ops(kind="kernel", parent=linear.id) or "aten.addmm.default" in watched.ops(
        kind="kernel", parent=linear.id
    )
    backward = watched.call("torch.nn.functional.linear", kind="backward")
    assert watched.ops(kind="kernel", parent=backward.id).count("aten.mm.default") == 1
    assert not [op for op in watched.ops(kind="api") if op.startswith("aten.")]


def test_edges_lead_from_a_result_to_its_readers(tmp_path: Path) -> None:
    def work() -> None:
        y = torch.ones(3).mul(2)
        y.view(3, 1).exp()

    watched = watch(tmp_path, work)
    mul, view, exp = (watched.call(f"torch.Tensor.{name}") for name in ("mul", "view", "exp"))
    assert watched.value(exp, "input").producer == view.id
    assert watched.value(view, "input").producer == mul.id
    assert watched.value(view, "input").storage == watched.value(exp, "input").storage


def test_long_lists_of_tensors_are_seen_whole(tmp_path: Path) -> None:
    tensors = [torch.zeros(1) for _ in range(5000)]
    watched = watch(tmp_path, lambda: torch._foreach_add_(tensors, 1.0))
    roles = [role for role, _ in watched.roles(watched.call("torch._foreach_add_"))]
    assert roles.count("output") == 5000
