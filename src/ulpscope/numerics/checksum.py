"""CRC32C, the cyclic redundancy check of Castagnoli's polynomial, by which record files tell what was damaged."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, with its bits in reverse."""
_BITS_32 = 0xFFFF_FFFF
_BLOCK = 1024
"""Bytes that are looked up at once."""
_STATE_BYTES = 4
_STARTS = np.arange(_BLOCK, dtype=np.intp) * 256
"""Where the rows of a block's places begin."""
_TABLES = 8
"""Bytes that compiled code looks up at once."""
_WORTH_COMPILING = 1 << 20
"""Bytes: 25 ms without numba (40 MB/s on a core), which itself takes 0.5 s to be imported."""

Content: TypeAlias = "bytes | memoryview"
Walk: TypeAlias = Callable[[NDArray[np.uint8], NDArray[np.uint32]], int]


def crc32c(data: Content) -> int:
    """The check of some bytes.

    It is linear: what a byte contributes depends on the byte and on how many follow it, and all contributions are added
    without carry. So a block is one lookup in a table with a row for each distance from the end.
    """
    walk = _compiled() if len(data) >= _WORTH_COMPILING else None
    if walk is not None:
        return int(walk(np.frombuffer(data, np.uint8), _contributions()[-_TABLES:]))
    state = _BITS_32
    for start in range(0, len(data), _BLOCK):
        state = _continued(state, bytes(data[start : start + _BLOCK]))
    return state ^ _BITS_32


def _continued(state: int, block: bytes) -> int:
    """The state after a block: what was before it is added to its first bytes, or moves on if there are too few."""
    size, begin = len(block), state ^ int.from_bytes(block[:_STATE_BYTES], "little")
    whole = begin.to_bytes(_STATE_BYTES, "little") + block[_STATE_BYTES:]
    rows = _contributions()[-size:].reshape(-1)
    places = _STARTS[:size] + np.frombuffer(whole, dtype=np.uint8, count=size)
    return int(np.bitwise_xor.reduce(rows[places])) ^ begin >> 8 * size


@cache
def _contributions() -> NDArray[np.uint32]:
    """A row for each place of a block, a column for each byte; the last row is for a byte that none follows."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, states >> 1 ^ np.uint32(_POLYNOMIAL), states >> 1)
    rows = np.empty((_BLOCK, 256), dtype=np.uint32)
    rows[-1] = states
    for place in range(_BLOCK - 2, -1, -1):
        after = rows[place + 1]
        rows[place] = states[after & 0xFF] ^ after >> 8
    return rows


@cache
def _compiled() -> Walk | None:
    try:
        from ulpscope.numerics.machine_code import by_numba

        return by_numba(kept=True, exact=True)(_walk)
    except Exception:  # an absent or broken numba only makes it slower
        return None


def _walk(data: Any, tables: Any) -> Any:
    """Eight bytes at once, each looked up in the table of its distance from the last of them."""
    state, byte, at = np.uint32(_BITS_32), np.uint32(0xFF), 0
    while at + _TABLES <= len(data):
        found = np.uint32(0)
        for place in range(_TABLES):
            before = (state >> np.uint32(8 * place)) & byte if place < _STATE_BYTES else np.uint32(0)
            found ^= tables[place, before ^ data[at + place]]
        state, at = found, at + _TABLES
    while at < len(data):
        state = tables[_TABLES - 1, (state ^ data[at]) & byte] ^ (state >> np.uint32(8))
        at += 1
    return state ^ np.uint32(_BITS_32)
