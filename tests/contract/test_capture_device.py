"""A capture on a device that has nothing but torch's own operations: the CPU stands for it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launched import CpuReader
from torch import nn
from watched import Watched, watch

import ulpscope
from ulpscope.capture.torch.summaries import device as rows
from ulpscope.capture.torch.summaries import launching
from ulpscope.trace.reader import open_trace


@pytest.fixture
def as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summaries go the way of an accelerator's: rows on the device, settled in blocks, brought by a stream."""
    monkeypatch.setattr(rows.RowPool, "_summarize_here", rows.RowPool._summarize_there)
    monkeypatch.setattr(rows, "_pinned", lambda count: torch.empty((count, rows.ROW_LENGTH), dtype=torch.int64))


def train(*, fused: bool = False) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(50, 6).relu()), torch.arange(50) % 3).backward()
        optimizer.step()


def summaries(watched: Watched) -> dict[str, list[Any]]:
    frame = watched.trace.values().collect().sort("id")
    return frame.select("dtype", "shape", "zero", "min", "max", "digest", "exponents").to_dict(as_series=False)


@pytest.mark.usefixtures("as_device")
@pytest.mark.parametrize("save", ["stats", "tensors"])
def test_a_device_gives_what_the_cpu_gives(tmp_path: Path, save: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = watch(tmp_path / "there", train, save=save, verify=True)
    monkeypatch.undo()
    here = watch(tmp_path / "here", train, save=save)
    assert there.trace.info.errors == ()
    assert there.trace.info.coverage.summaries_wrong == 0
    assert there.trace.info.coverage.summaries_verified > 0
    assert summaries(there) == summaries(here)


@pytest.mark.usefixtures("as_device")
def test_more_values_than_a_batch_holds(tmp_path: Path) -> None:
    count = 2 * rows.BATCH_ROWS + 5
    watched = watch(tmp_path / "trace", lambda: [torch.full((3,), float(i)).neg() for i in range(count)])
    frame = watched.trace.values().collect()
    assert set(range(count)) == {-int(low) for low in frame["min"] if low <= 0}


@pytest.mark.usefixtures("as_device")
@pytest.mark.parametrize("level", ["module", "api", "kernel"])
@pytest.mark.parametrize("save", ["stats", "tensors"])
def test_values_that_wait_for_a_launch_are_read_as_they_were(
    tmp_path: Path, level: str, save: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer counts its steps in place, while no mode of ours looks on."""

    def work() -> None:
        train(fused=True)

    monkeypatch.setattr(launching, "make_reader", lambda device: CpuReader())
    there = watch(tmp_path / "there", work, level=level, save=save)
    monkeypatch.undo()
    here = watch(tmp_path / "here", work, level=level, save=save)
    assert there.trace.info.errors == ()
    assert summaries(there) == summaries(here)


class BrokenReader:
    """Stands for kernels that cannot be compiled here."""

    def read(self, reads: list[launching.Read]) -> None:
        raise RuntimeError("no compiler")

    def join(self) -> None:
        pass


@pytest.mark.usefixtures("as_device")
def test_kernels_that_do_not_run_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "make_reader", lambda device: BrokenReader())
    with pytest.warns(UserWarning, match="no compiler"), ulpscope.capture(tmp_path / "there"):
        train()
    there = Watched(open_trace(tmp_path / "there").ranks[0])
    monkeypatch.undo()
    here = watch(tmp_path / "here", train)
    assert summaries(there) == summaries(here)
    (told,) = there.trace.info.errors
    assert "fused kernels" in told
    assert "no compiler" in told


def test_nothing_waits_when_control_returns_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a call's summaries need is launched before the next line of the user's code."""
    pools: list[rows.RowPool] = []
    original = rows.RowPool.__init__

    def remember(self: rows.RowPool) -> None:
        original(self)
        pools.append(self)

    monkeypatch.setattr(rows.RowPool, "__init__", remember)
    monkeypatch.setattr(rows.RowPool, "_summarize_here", rows.RowPool._summarize_there)
    monkeypatch.setattr(rows, "_pinned", lambda count: torch.empty((count, rows.ROW_LENGTH), dtype=torch.int64))
    waiting: list[int] = []

    def look(*_: Any) -> None:
        waiting.extend(len(pool._unsettled) for pool in pools)

    def work() -> None:
        model = nn.Linear(4, 4)
        model.register_forward_hook(look)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(look)
        optimizer.register_step_post_hook(look)
        x = torch.randn(3, 4, requires_grad=True)
        look()
        loss = model(x.exp()).sum()
        look()
        loss.grad_fn.register_prehook(look)  # type: ignore[union-attr]
        loss.backward()
        look()
        optimizer.step()
        look()

    watch(tmp_path / "trace", work)
    assert waiting
    assert set(waiting) == {0}
