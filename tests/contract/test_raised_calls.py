"""Calls that run in float32 on demand: their results, their backward, what they write, and that the trace says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.watched import Watched
from torch import nn
from torch.nn import functional

from ulpscope.capture.torch.session import Session
from ulpscope.cli.main import main
from ulpscope.records.runs import CaptureSettings
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.compare.command import compare


class Working(nn.Module):
    """A forward: what set-up makes stays as it is."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def forward(self) -> None:
        self._work()


def captured(folder: Path, work: Callable[[], Any], *calls: str) -> Watched:
    model = Working(work)
    session = Session(CaptureSettings(folder, in_float32=calls))
    session.start()
    try:
        model()
    finally:
        session.close("ended")
    return Watched(open_trace(folder).ranks[0])


def test_what_float16_loses_inside_is_kept_and_results_have_their_type(tmp_path: Path) -> None:
    x, found = torch.full((16,), 3e4, dtype=torch.float16), list[torch.Tensor]()
    captured(tmp_path / "plain", lambda: found.append(functional.normalize(x, dim=0)))
    watched = captured(tmp_path / "raised", lambda: found.append(functional.normalize(x, dim=0)), "normalize")
    assert [each.tolist() for each in found] == [[0.0] * 16, [0.25] * 16]  # a norm of 120,000 is beyond float16
    assert found[1].dtype is torch.float16
    assert watched.trace.info.coverage.calls_raised == {"float32": 1}


def test_under_autocast_results_have_the_type_that_autocast_gives(tmp_path: Path) -> None:
    weight, x, made = torch.randn(16, 16, requires_grad=True), torch.randn(4, 16), []

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            made.append(functional.linear(x, weight))
            made.append(functional.softmax(made[-1], -1))
        made[-1].float().square().sum().backward()

    captured(tmp_path / "raised", work, "linear", "softmax")
    with torch.autocast("cpu", torch.bfloat16):
        usual = functional.linear(x, weight)
        assert [each.dtype for each in made] == [usual.dtype, functional.softmax(usual, -1).dtype]
    assert torch.equal(made[0], functional.linear(x, weight).bfloat16())  # one rounding, of the result
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32


def test_what_is_written_is_written_where_it_would_be(tmp_path: Path) -> None:
    norm, x = nn.BatchNorm1d(4).bfloat16(), torch.randn(32, 4).bfloat16() + 3
    mean, values = torch.zeros(4), torch.ones(4).bfloat16()

    def work() -> None:
        norm(x)
        assert values.add_(1).data_ptr() == values.data_ptr()

    captured(tmp_path / "raised", work, "*")
    assert norm.running_mean is not None
    assert not torch.equal(norm.running_mean.float(), mean)
    assert values.tolist() == [2.0] * 4


def test_only_what_is_meant_runs_elsewhere(tmp_path: Path) -> None:
    x = torch.ones(4).bfloat16()
    watched = captured(tmp_path / "raised", lambda: (torch.exp(x), torch.exp(x), torch.sin(x)), "torch.exp.1")
    assert watched.trace.info.coverage.calls_raised == {"float32": 1}
    assert watched.ops(kind="api") == ["torch.exp", "torch.exp", "torch.sin"]


def test_compare_tells_that_a_run_was_changed(tmp_path: Path) -> None:
    x = torch.ones(4).bfloat16()
    for name, calls in (("plain", ()), ("raised", ("exp",))):
        captured(tmp_path / name, lambda: torch.exp(x), *calls)
    told = compare(tmp_path / "plain", tmp_path / "raised").comparison.missing
    assert [text for text in told if "not its script's" in text and "--in-float32 exp" in text]


@pytest.mark.parametrize("beside", ["--level module", "--watch gradients", "--watch overflow"])
def test_beside_what_records_no_single_calls_it_is_refused(
    beside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "-o", str(tmp_path / "x"), "--in-float32", "exp", *beside.split(), "--", "true"]) == 2
    assert f"--in-float32 with {beside}" in capsys.readouterr().err
