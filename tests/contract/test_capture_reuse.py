"""A summary is reused only while its content certainly has not changed.

Each case changes memory in a way that the version counter does not show, between two calls that read it. What the
second call read must be what was really there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watched import watch

import ulpscope
from ulpscope.trace.reader import open_trace


@torch.library.custom_op("ulpscope_tests::sneak", mutates_args=())
def sneak(x: torch.Tensor) -> torch.Tensor:
    x.numpy()[:] = 7.0  # a kernel that lies about what it writes
    return torch.ones(1)


class Sneaking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        np.asarray(x.detach())[:] = 8.0
        return torch.ones(1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def through_data(x: torch.Tensor) -> None:
    x.data.fill_(3.0)


def through_numpy(x: torch.Tensor) -> None:
    x.numpy()[:] = 4.0


def through_out(x: torch.Tensor) -> None:
    torch.add(torch.ones(4), 1.0, out=x)


def through_batch_norm(x: torch.Tensor) -> None:
    F.batch_norm(torch.randn(8, 4), x, torch.ones(4), training=True)


def through_detach(x: torch.Tensor) -> None:
    x.detach().view(2, 2).add_(5.0)


def through_fused_optimizer(x: torch.Tensor) -> None:
    parameter = nn.Parameter(x)
    parameter.grad = torch.ones(4)
    torch.optim.AdamW([parameter], lr=0.5, fused=True).step()


def through_foreach(x: torch.Tensor) -> None:
    torch._foreach_add_([x.data], 2.0)


@pytest.mark.parametrize(
    "change",
    [
        through_data,
        through_numpy,
        through_out,
        through_batch_norm,
        through_detach,
        through_fused_optimizer,
        through_foreach,
        sneak,
        Sneaking.apply,
    ],
)
@pytest.mark.parametrize("level", ["api", "kernel"])
def test_a_changed_content_is_read_again(tmp_path: Path, change: Callable[[torch.Tensor], Any], level: str) -> None:
    x = torch.zeros(4)

    def work() -> None:
        x.neg()
        change(x)
        x.neg()

    watched = watch(tmp_path, work, save="tensors", level=level)
    assert x.abs().sum() > 0
    before, after = (watched.call("torch.Tensor.neg", number, kind="api") for number in range(2))
    np.testing.assert_array_equal(watched.data(before, "input"), np.zeros(4, np.float32))
    np.testing.assert_array_equal(watched.data(after, "input"), x.numpy())
    assert watched.value(after, "input").digest != watched.value(before, "input").digest


@pytest.mark.parametrize("change", [through_data, through_batch_norm, through_fused_optimizer])
def test_at_module_level_too(tmp_path: Path, change: Callable[[torch.Tensor], Any]) -> None:
    x, model = torch.zeros(4), nn.Identity()

    def work() -> None:
        model(x)
        change(x)
        model(x)

    watched = watch(tmp_path, work, save="tensors", level="module")
    np.testing.assert_array_equal(watched.data(watched.call("Identity", 1), "input"), x.numpy())


def test_an_unchanged_content_is_one_value(tmp_path: Path) -> None:
    x = torch.ones(4)
    watched = watch(tmp_path, lambda: (x.neg(), x.exp(), x.view(2, 2).exp()))
    assert watched.value(watched.call("neg"), "input").id == watched.value(watched.call("exp"), "input").id
    assert watched.trace.info.coverage.summaries_reused >= 2


def test_inference_tensors_have_no_version_and_are_read_each_time(tmp_path: Path) -> None:
    def work() -> None:
        with torch.inference_mode():
            x = torch.ones(4)
            x.neg()
            x.neg()

    watched = watch(tmp_path, work)
    first, second = (watched.value(watched.call("neg", number), "input") for number in range(2))
    assert first.version is None
    assert first.id != second.id
    assert first.digest == second.digest


def test_memory_that_numpy_owns_is_never_trusted(tmp_path: Path) -> None:
    array = np.zeros(4, np.float32)
    x = torch.from_numpy(array)

    def work() -> None:
        x.neg()
        array[:] = 9.0
        x.neg()

    watched = watch(tmp_path, work, save="tensors")
    np.testing.assert_array_equal(watched.data(watched.call("neg", 1), "input"), array)


def test_verify_mode_counts_what_it_recomputed_and_finds_a_lie(tmp_path: Path) -> None:
    x = torch.zeros(4)

    def work() -> None:
        x.neg()
        x.neg()
        # A write that nothing in torch can see: the one case that verify mode is there to find.
        address = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 4).from_address(pointer))
        address[:] = 1.0
        x.neg()

    pointer = x.data_ptr()
    with ulpscope.capture(tmp_path / "t", verify=True):
        work()
    info = open_trace(tmp_path / "t").ranks[0].info
    assert info.coverage.summaries_verified == 2
    assert info.coverage.summaries_wrong == 1
    assert "reused after its content had changed" in info.errors[0]
