"""Whether a call fits into memory when it is executed again, in float64 and several times over."""

import contextlib
import os
from pathlib import Path

import numpy as np

from ulpscope.replay.recorded import CannotReplayError, RecordedCall

MEMORY = Path("/proc/meminfo")
# Copies of a call's elements in float64 that are alive at once: inputs, outputs, gradients, perturbed ones, their sums.
COPIES = 8


def check_size(recorded: RecordedCall) -> None:
    """Refuse what does not fit into memory, by its size."""
    values = [*recorded.inputs.values(), *recorded.outputs.values(), *recorded.grad_outputs.values()]
    needed = COPIES * 8 * sum(int(np.prod(value.shape, dtype=np.float64)) for value in values)
    free = free_memory()
    if needed > free:
        raise CannotReplayError(f"needs about {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free")


def free_memory() -> int:
    """Bytes that can be had without swapping; what the system merely caches counts."""
    with contextlib.suppress(OSError):
        for line in MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
