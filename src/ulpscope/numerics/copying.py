"""Copies of memory that nobody reads again soon."""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.numerics.summaries import native

# The C library's copy reads its target first and leaves it in the caches, where the run's own data was. At 1 MiB a copy
# past them takes 60 us instead of 125; at 64 KiB there is no difference.
STREAMED_BYTES = 2**18
ALIGNMENT = 64

Copier = Callable[[int, int, int], object]
"""Addresses of target and source, and how many bytes."""


def copy_memory(target: int, source: int, nbytes: int) -> None:
    """Copies bytes; many of them past the caches, if the target's address is a multiple of ALIGNMENT."""
    if nbytes < STREAMED_BYTES or target % ALIGNMENT:
        ctypes.memmove(target, source, nbytes)
    else:
        _streamer()(target, source, nbytes)


def prepare_copies() -> None:
    """Compile what copies, which takes a second when it is done for the first time."""
    _streamer()


@cache
def _streamer() -> Copier:
    try:
        streamer = native.streamer()
    except NotCompiledError:
        return ctypes.memmove
    return streamer if _copies(streamer) else ctypes.memmove


def _copies(copier: Copier) -> bool:
    """Whether a copier does what it should, at all ends that a copy can have."""
    sample = np.arange(3 * ALIGNMENT + 7, dtype=np.uint8)
    memory = np.zeros(5 * ALIGNMENT, np.uint8)
    target = memory[-memory.ctypes.data % ALIGNMENT :]
    copier(target.ctypes.data, sample.ctypes.data + 1, sample.size - 1)
    return bool(np.array_equal(target[: sample.size - 1], sample[1:])) and not target[sample.size - 1 :].any()
