"""The digest of a block of elements of 1, 2, 4 or 8 bytes, compiled: the sum of each column, then all of them mixed."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import numpy as np

from ulpscope.numerics.hashing import count_up, weyl
from ulpscope.numerics.summaries.digest import digest_keys
from ulpscope.numerics.summaries.kernel_blocks import GAMMA, LANES, ROWS, SUMS, WIDTH, compiled, mix

COLUMNS = LANES // 2
_KEYS = digest_keys(4 * ROWS).copy()
_WEYL = weyl(count_up(0, SUMS))


@compiled
def _sum_words(words, sums):
    """One word a pair."""
    for c in range(COLUMNS):
        total = np.int64(0)
        for r in range(ROWS):
            total += _KEYS[r] * np.int64(words[r * SUMS + c])
        sums[c] = total


@compiled
def sum_bytes(block, sums):
    _sum_words(block.view(np.int16), sums)


@compiled
def sum_halves(block, sums):
    _sum_words(block.view(np.int32), sums)


@compiled
def sum_singles(block, sums):
    """Two words a pair, read as one of 64 bits."""
    words = block.view(np.int64)
    for c in range(COLUMNS):
        total = np.int64(0)
        for r in range(ROWS):
            word = words[r * SUMS + c]
            total += _KEYS[2 * r] * np.int64(np.int32(word)) + _KEYS[2 * r + 1] * (word >> np.int64(32))
        sums[c] = total


@compiled
def _add_elements(words, half, sums):
    for c in range(COLUMNS):
        total = np.int64(0)
        for r in range(ROWS):
            word = words[r * WIDTH + 2 * c + half]
            low, high = _KEYS[4 * r + 2 * half], _KEYS[4 * r + 2 * half + 1]
            total += low * np.int64(np.int32(word)) + high * (word >> np.int64(32))
        sums[c] += total


@compiled
def sum_doubles(block, sums):
    """Four words a pair, read as two of 64 bits."""
    sums[:] = 0
    _add_elements(block.view(np.int64), 0, sums)
    _add_elements(block.view(np.int64), 1, sums)


@compiled
def digest_part(sums, block):
    first = np.uint64(block * SUMS) * GAMMA
    total = np.uint64(0)
    for c in range(SUMS):
        total += mix(np.uint64(sums[c]) + first + _WEYL[c])
    return total
