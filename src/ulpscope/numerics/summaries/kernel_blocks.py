"""What the compiled kernels share: how they are compiled, and how a value's blocks are read.

A value is given by address and count. Its blocks are read where they lie; the last one, and all of them if their words
are not aligned, are copied to scratch memory first.

Loops run over a block while it lies in the first-level cache, and are written so that LLVM vectorises them: hence the
casts (numba widens sums of small integers to 64 bits, and half the speed is gone) and the slices (an index that might
be negative costs a gather).
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from ulpscope.numerics.summaries import constants

BLOCK = constants.BLOCK_ELEMENTS
ROWS = constants.BLOCK_ROWS
SUMS = constants.SKETCH_LENGTH
WIDTH = constants.ROW_ELEMENTS
# Loops over a row run on into the next one, to a whole number of vectors; what they find there is dropped.
LANES = 128
PADDED = BLOCK + LANES - WIDTH

GAMMA = np.uint64(constants.SPLITMIX_GAMMA)
_MUL_1 = np.uint64(constants.SPLITMIX_MUL_1)
_MUL_2 = np.uint64(constants.SPLITMIX_MUL_2)


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "nsz", "contract"}}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For parts of kernels: they are not cached by themselves, as the constants they hold could go stale unseen."""
    return numba.njit(function, **_OPTIONS)  # type: ignore[no-any-return]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return numba.njit(function, cache=True, **_OPTIONS)  # type: ignore[no-any-return]
    except RuntimeError:  # no directory to cache in: compile anew in each process
        return numba.njit(function, **_OPTIONS)  # type: ignore[no-any-return]


@compiled
def mix(word):
    word = (word ^ (word >> np.uint64(30))) * _MUL_1
    word = (word ^ (word >> np.uint64(27))) * _MUL_2
    return word ^ (word >> np.uint64(31))


@intrinsic
def _pointer(context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def copy(context, target, source, size):
    def generate(context, builder, signature, arguments):
        byte = context.get_value_type(types.voidptr)
        ends = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, *ends, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@compiled
def elements_at(address, count, dtype):
    return numba.carray(_pointer(address), (count,), dtype)


@compiled
def read_block(address, flat, block, scratch):
    """A block and some elements behind it: the value's own memory if all of that may be read, else a copy and zeros."""
    start = block * BLOCK
    size = scratch.itemsize
    if start + PADDED <= flat.size and address % (2 * size) == 0:
        return flat[start : start + PADDED]
    n = min(flat.size - start, BLOCK)
    copy(scratch.ctypes.data, address + start * size, n * size)
    scratch[n:] = 0
    return scratch
