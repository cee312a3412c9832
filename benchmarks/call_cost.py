"""What a captured call costs in the thread that makes it, beyond the call itself: microseconds at level api.

    python benchmarks/call_cost.py              the table; exit code 1 if a bar is missed
    python benchmarks/call_cost.py --profile    where the time goes

ULPSCOPE_HOST=compiled measures the compiled host part, which is what captures use where there is an accelerator.

CPU, one thread, tensors so small that a call costs next to nothing: two transformer blocks, forward and backward, their
modules included. Plain and captured steps alternate in one process. `bare` is the cost with summaries replaced by
nothing, which leaves the Python of ours; `whole` that with summaries. `outside` are steps that were not asked for, as a
ratio. All in CPU time of the run's own thread: the writer's thread works beside it.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import contextlib
import cProfile
import gc
import pstats
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.capture.recording.tensors import HostBatch, RowRef
from ulpscope.capture.torch.summaries.device import RowPool
from ulpscope.trace.reader import open_trace

BARE_BAR = 25.0
OUTSIDE_BAR = 1.02
STEPS = 20
ROUNDS = 8
FAR_AWAY = "1000000"


class Block(nn.Module):
    """A transformer block that is written out call by call."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.proj, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.query(y), self.key(y), self.value(y))
        )
        weights = (query @ key.transpose(-2, -1)).softmax(-1)
        x = x + self.proj((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


@dataclass(frozen=True, slots=True)
class Training:
    """A model, and the steps of it that are measured."""

    model: nn.Module
    inputs: Tensor
    optimizer: torch.optim.Optimizer

    @classmethod
    def make(cls, *, width: int, length: int, layers: int) -> "Training":
        torch.manual_seed(0)
        model = nn.Sequential(*(Block(width, 2) for _ in range(layers)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return cls(model, torch.randn(2, length, width), optimizer)

    def pass_through(self) -> None:
        """Forward and backward alone: an optimizer's step is one call with as many values as there are parameters."""
        self.model(self.inputs).square().mean().backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.pass_through()
        self.optimizer.step()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="profile captured steps instead")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"blocks of {STEPS} steps (default: {ROUNDS})")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    tiny = Training.make(width=8, length=4, layers=2)
    for _ in range(3):
        tiny.step()
    if arguments.profile:
        profile(tiny)
        return 0
    return tell(tiny, arguments.rounds)


def tell(tiny: Training, rounds: int) -> int:
    with no_summaries():
        bare = extra_microseconds(tiny, rounds)
    whole = extra_microseconds(tiny, rounds)
    tiny_ratio = outside_ratio(tiny, rounds, steps=STEPS)
    large_ratio = outside_ratio(Training.make(width=256, length=128, layers=4), rounds, steps=3)
    print(f"bare     {bare:8.1f} us a call (at most {BARE_BAR})")
    print(f"whole    {whole:8.1f} us a call")
    print(f"outside  {large_ratio:8.3f} x  (at most {OUTSIDE_BAR}; with tiny tensors {tiny_ratio:.3f} x)")
    missed = bare > BARE_BAR or large_ratio > OUTSIDE_BAR
    print("bars missed" if missed else "all bars hold")
    return 1 if missed else 0


@contextlib.contextmanager
def no_summaries() -> Iterator[None]:
    """Let every content have the same row."""
    batch = HostBatch()
    batch.used = 1

    def summarize(_pool: RowPool, _tensor: Tensor) -> RowRef:
        return batch, 0

    with mock.patch.object(RowPool, "summarize", summarize):
        yield


def extra_microseconds(training: Training, rounds: int) -> float:
    """What a captured call costs beyond the call, in the best steps."""
    plain, captured, calls = [], [], 0
    for _ in range(rounds):
        plain += timed(training.pass_through, STEPS)
        with tempfile.TemporaryDirectory(prefix="ulpscope-call-") as folder:
            with capture(folder, training) as running:
                step = marked(training, running)
                step()
                captured += timed(step, STEPS)
            calls = open_trace(running.path).ranks[0].info.coverage.calls_recorded // (STEPS + 1)
    return (min(captured) - min(plain)) / calls * 1e6


def marked(training: Training, running: Any) -> Callable[[], None]:
    """A pass that is a step of its own: handing a step over is part of the cost."""

    def step() -> None:
        training.pass_through()
        running.step()

    return step


def outside_ratio(training: Training, rounds: int, *, steps: int) -> float:
    plain, captured = [], []
    for _ in range(rounds):
        plain += timed(training.step, steps)
        with (
            tempfile.TemporaryDirectory(prefix="ulpscope-call-") as folder,
            warnings.catch_warnings(action="ignore"),  # nothing is captured, and capture says so
            capture(folder, training, steps=FAR_AWAY),
        ):
            training.step()
            captured += timed(training.step, steps)
    return min(captured) / min(plain)


def capture(folder: str, training: Training, **options: Any) -> Any:
    return ulpscope.capture(Path(folder) / "trace", level="api", save="stats", model=training.model, **options)


def timed(step: Callable[[], None], times: int) -> list[float]:
    gc.collect()
    seconds = []
    for _ in range(times):
        began = time.thread_time()
        step()
        seconds.append(time.thread_time() - began)
    return seconds


def profile(training: Training, steps: int = 50) -> None:
    profiler = cProfile.Profile()
    with (
        no_summaries(),
        tempfile.TemporaryDirectory(prefix="ulpscope-call-") as folder,
        capture(folder, training) as running,
    ):
        step = marked(training, running)
        step()
        profiler.enable()
        for _ in range(steps):
            step()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(60)


if __name__ == "__main__":
    sys.exit(main())
