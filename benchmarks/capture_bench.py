"""The process of one variant of capture.py: runs blocks of steps when it is asked to."""

import contextlib
import os
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from capture_profile import device_work
from capture_tools import MODELS, VARIANTS, Size, Training, Variant, Written, make_tool, synchronize

WARM_STEPS = 2
SINGLE_STEPS = 3
CHECKED_STEPS = 2


@dataclass(frozen=True)
class Elapsed:
    """Seconds on the clock, of all threads of the process, and of the training's."""

    wall: float
    cpu: float
    thread: float


@dataclass(frozen=True)
class BlockTimes:
    """A block of steps, as its process measured it; seconds and bytes."""

    per_step: float
    cpu_per_step: float
    thread_per_step: float
    single: float
    """The best of steps that were each waited for."""
    closing: float
    """What came after the last step, shared among the block's steps."""
    peak: int
    written: Written


@dataclass(frozen=True)
class Inspected:
    """One step, looked at when all timing is done."""

    launches: float
    """Kernels and copies, the model's included."""
    synchronised: str | None


@dataclass(frozen=True)
class Failure:
    text: str


@dataclass(frozen=True)
class Work:
    """What a process is asked for: a block of so many steps, or (none) an inspection."""

    steps: int | None
    warm: int = WARM_STEPS
    singles: int = SINGLE_STEPS


class Bench:
    """Runs the blocks of one variant."""

    def __init__(self, variant: Variant, size: Size, device: str, folder: Path) -> None:
        torch.set_num_threads(1)
        self.device = device
        self.variant = variant
        self.tool = make_tool(variant, Training(size, device), folder)

    def answer(self, work: Work) -> BlockTimes | Inspected:
        return self.inspect() if work.steps is None else self.block(work, work.steps)

    def block(self, work: Work, steps: int) -> BlockTimes:
        tool = self.tool
        tool.begin()
        self._run(work.warm)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        elapsed = self._run(steps)
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else 0
        single = min([self._run(1).wall for _ in range(work.singles)], default=elapsed.wall / steps)
        began = time.perf_counter()
        tool.end()
        all_steps = work.warm + steps + work.singles
        closing = (time.perf_counter() - began) / all_steps
        written = tool.take(all_steps)
        per_step = (seconds / steps for seconds in (elapsed.wall, elapsed.cpu, elapsed.thread))
        return BlockTimes(*per_step, single, closing, peak, written)

    def inspect(self) -> Inspected:
        synchronised = self._synchronised() if self.variant.tool != "msprobe" else None
        self.tool.begin()
        self._run(WARM_STEPS)
        work = device_work(self.tool.step, device=self.device, steps=1)
        self.tool.end()
        self.tool.take(WARM_STEPS + 1)
        return Inspected(sum(one.count for one in work.values()), synchronised)

    def _run(self, steps: int) -> Elapsed:
        synchronize(self.device)
        began = time.perf_counter(), time.process_time(), time.thread_time()
        for _ in range(steps):
            self.tool.step()
        synchronize(self.device)
        ended = time.perf_counter(), time.process_time(), time.thread_time()
        return Elapsed(*(last - first for first, last in zip(began, ended, strict=True)))

    def _synchronised(self) -> str | None:
        """What torch says of steps in which the host may not wait for the device; a tool may keep it to itself."""
        self.tool.begin()
        self._run(WARM_STEPS)
        try:
            with contextlib.ExitStack() as ending:
                ending.callback(self.tool.end)
                ending.enter_context(waiting_forbidden(self.device))
                for _ in range(CHECKED_STEPS):
                    self.tool.step()
            self.tool.take(WARM_STEPS + CHECKED_STEPS)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None


@contextlib.contextmanager
def waiting_forbidden(device: str) -> Iterator[None]:
    if device != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def serve(channel: Connection, variant: str, model: str, device: str, folder: Path) -> None:
    """The process of a variant: answers until it is asked nothing more."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        bench = Bench(VARIANTS[variant], MODELS[model], device, folder)
        channel.send("ready")
        while (work := channel.recv()) is not None:
            channel.send(bench.answer(work))
    except Exception as error:
        traceback.print_exc()
        channel.send(Failure(f"{type(error).__name__}: {error}"))
