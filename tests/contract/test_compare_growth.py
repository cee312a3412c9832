"""What a comparison costs grows as the runs do: nothing looks through all of a call's tensors for each of them."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import ulpscope

FEW, TIMES = 30, 4
PACKAGE = str(Path(ulpscope.__file__).parent)


def pair(folder: Path, layers: int) -> tuple[Path, Path]:
    """Two runs whose optimizer has four parameters a layer in one call; they differ from the first layer on."""
    for name, eps in (("reference", 1e-5), ("target", 1e-2)):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.LayerNorm(8, eps=eps), *(part for _ in range(layers) for part in (nn.Linear(8, 8), nn.LayerNorm(8)))
        )
        optimizer = torch.optim.AdamW(model.parameters())
        data = torch.randn(2, 8)
        with ulpscope.capture(folder / name, model=model):
            for _ in range(2):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                optimizer.step()
    return folder / "reference", folder / "target"


def lines_run(work: Callable[[], object]) -> int:
    """Lines of ours that are executed: unlike time, the same on every machine."""
    count = 0

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_four_times_the_parameters_are_four_times_the_work(tmp_path: Path) -> None:
    few, many = (pair(tmp_path / str(layers), layers) for layers in (FEW, TIMES * FEW))
    ulpscope.compare(*few)  # what is done once a process
    work = [lines_run(lambda runs=runs: ulpscope.compare(*runs)) for runs in (few, many)]
    assert work[1] < 1.2 * TIMES * work[0]
