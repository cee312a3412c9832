"""What a captured step costs the host where a device does the work: milliseconds a step, by phase, without a device.

    python benchmarks/host_cost.py                             plain, level module and level api
    python benchmarks/host_cost.py --level api --steps 2000    one level for long, for a profiler to look at

The 12-layer GPT of capture.py with tensors so small that only the host's work is left, on the CPU, with the compiled
host part. It takes the ways that it takes on CUDA, except that its launches go to a library of our own, which waits for
as long as CUDA's driver takes (--launch), and that rows are never filled. Plain and captured blocks alternate in one
process; of each phase the best step counts. Not measured: the model's own launches, tables that are brought to
the device, and that autograd has a thread of its own for a device.
"""

import os

os.environ.update(ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16", OMP_NUM_THREADS="1", ULPSCOPE_HOST="compiled")

import argparse
import contextlib
import ctypes
import gc
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch

from capture_tools import VARIANTS, Plain, Size, Tool, Training, fused_attention, make_tool
from ulpscope.capture.recording.tensors import HostBatch
from ulpscope.capture.torch.host.loading import load
from ulpscope.capture.torch.host.recorder import Bridge
from ulpscope.capture.torch.summaries.kernels import Kernel

SIZE = Size(12, 32, 2, 50, 2, 16, torch.bfloat16, fused_attention, fused_optimizer=True)
PHASES = ("zero_grad", "forward", "backward", "step")
ROUNDS = 6
STEPS = 20
WARM_STEPS = 3
LAUNCH_MICROSECONDS = 6.4
"""What a launch took by CUDA's driver where capture.py was measured."""
NO_CUDA = """
#include <time.h>
static long nanoseconds() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}
long launches = 0, launch_nanoseconds = 0;
int cuLaunchKernelEx(void* config, void* function, void** arguments, void** extra) {
  long end = nanoseconds() + launch_nanoseconds;
  launches++;
  while (nanoseconds() < end);
  return 0;
}
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=("module", "api"), nargs="*", default=("module", "api"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--launch", type=float, default=LAUNCH_MICROSECONDS, help="microseconds that a launch takes")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"a block (default: {STEPS})")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    load()  # else the capture would do without the compiled part
    with no_launches() as library, tempfile.TemporaryDirectory(prefix="ulpscope-host-") as folder:
        ctypes.c_long.in_dll(library, "launch_nanoseconds").value = int(1000 * arguments.launch)
        launches = ctypes.c_long.in_dll(library, "launches")
        training = Training(SIZE, "cpu")
        tools: dict[str, Tool] = {"plain": Plain(training)}
        tools |= {level: make_tool(VARIANTS[level], training, Path(folder)) for level in arguments.level}
        best: dict[str, list[float]] = {}
        launched: dict[str, float] = {}
        for _ in range(arguments.rounds):
            for name, tool in tools.items():
                before = launches.value
                best[name] = least(best.get(name), block(training, tool, arguments.steps))
                launched[name] = (launches.value - before) / (arguments.steps + WARM_STEPS)
    tell(best, launched)
    return 0


@contextlib.contextmanager
def no_launches() -> Iterator[ctypes.CDLL]:
    """Let the host part believe that the fused kernels run on the CPU; gives what it launches them with."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-host-") as folder:
        library = Path(folder) / "libcuda.so.1"
        command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=NO_CUDA, text=True, check=True)
        loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    address = ctypes.cast(loaded.cuLaunchKernelEx, ctypes.c_void_p).value
    with mock.patch.multiple(
        Bridge,
        make_reader=lambda _self, tensor: (tensor.device, 0, 0, address),
        new_batch=lambda _self, _reader: (HostBatch(), 0),
        land_batch=lambda _self, batch, used: setattr(batch, "used", used),
        kernel=lambda *_: Kernel(1, 128, 0, 528, True),
        join=lambda *_: None,
    ):
        yield loaded


def block(training: Training, tool: Tool, steps: int) -> list[float]:
    """Seconds of each phase, each in the best of these steps."""
    gc.collect()
    tool.begin()
    for _ in range(WARM_STEPS):
        training.step()
    took: list[float] | None = None
    for _ in range(steps):
        took = least(took, timed(training))
    tool.end()
    assert took is not None
    return took


def least(one: list[float] | None, other: list[float]) -> list[float]:
    return other if one is None else [min(pair) for pair in zip(one, other, strict=True)]


def timed(training: Training) -> list[float]:
    marks = [time.perf_counter()]
    training.optimizer.zero_grad()
    marks.append(time.perf_counter())
    loss = training.loss()
    marks.append(time.perf_counter())
    loss.backward()
    marks.append(time.perf_counter())
    training.optimizer.step()
    marks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(marks)]


def tell(best: dict[str, list[float]], launched: dict[str, float]) -> None:
    print(f"{'ms a step':10}" + "".join(f"{head:>11}" for head in (*PHASES, "all", "added", "launches")))
    for name, seconds in best.items():
        whole = (*seconds, sum(seconds), sum(seconds) - sum(best["plain"]))
        print(f"{name:10}" + "".join(f"{1000 * number:11.2f}" for number in whole) + f"{launched[name]:11.0f}")


if __name__ == "__main__":
    sys.exit(main())
