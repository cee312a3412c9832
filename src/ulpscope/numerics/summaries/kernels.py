"""Summaries compiled by numba, for machines without a C++ compiler. Import only through compiled.py: it imports numba.

Written for few lines, not for speed: all types go through float64, and one kernel serves them. Loops run over a block
while it lies in the near caches.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import Bytes, Dtype, DtypeKind, Floats
from ulpscope.numerics.machine_code import by_numba
from ulpscope.numerics.pairs.metric_loading import form_and_table, load
from ulpscope.numerics.pairs.pieces import aligned
from ulpscope.numerics.summaries import constants as at
from ulpscope.numerics.summaries import summary
from ulpscope.numerics.summaries.summary import digest_keys, sum_signs, word_type, words_per_pair

_part, _kernel = by_numba(kept=False), by_numba(kept=True)

_WIDTH, _SUMS, _BLOCK = at.ROW_ELEMENTS, at.SKETCH_LENGTH, at.BLOCK_ELEMENTS
_GAMMA, _MUL_1, _MUL_2, _SALT, _ROTATION, _HALF, _ONE = (
    np.uint64(word)
    for word in (at.SPLITMIX_GAMMA, at.SPLITMIX_MUL_1, at.SPLITMIX_MUL_2, at.BLOCK_SALT, at.ROTATION_MUL, 32, 1)
)
_SIZE = np.int64((1 << 63) - 1)
_INFINITY = np.int64(0x7FF) << np.int64(52)
_SET_ASIDE = np.int64(1023 + at.SET_ASIDE_EXPONENT) << np.int64(52)
# Each row of signs twice, one behind the other, so that a rotation is an offset.
_SIGNS = np.tile(sum_signs().reshape(at.BLOCK_ROWS, _WIDTH), 2)


@_part
def _mix(word):
    word = (word ^ (word >> np.uint64(30))) * _MUL_1
    word = (word ^ (word >> np.uint64(27))) * _MUL_2
    return word ^ (word >> np.uint64(31))


@_part
def _key(bits):
    """Orders the bits of float64 of either sign like the numbers; its own inverse."""
    return bits ^ ((bits >> np.int64(63)) & _SIZE)


@_part
def _add_range(bits, n, ends):
    low, high = ends[0], ends[1]
    for i in range(n):
        finite = (bits[i] & _SIZE) < _INFINITY
        key = _key(bits[i])
        low = min(low, key if finite else _SIZE)
        high = max(high, key if finite else -_SIZE)
    ends[0], ends[1] = low, high


@_part
def _add_counts(bits, n, normal, row):
    zero, subnormal, aside, infinite, nan, positive = 0, 0, 0, 0, 0, 0
    for i in range(n):
        size = bits[i] & _SIZE
        zero += size == 0
        subnormal += size < normal
        aside += size >= _SET_ASIDE
        infinite += size == _INFINITY
        nan += size > _INFINITY
        positive += bits[i] == _INFINITY
    row[at.ZERO] += zero
    row[at.SUBNORMAL] += subnormal - zero
    row[at.SET_ASIDE] += aside
    row[at.NAN] += nan
    row[at.POS_INF] += positive
    row[at.NEG_INF] += infinite - positive


@_part
def _add_exponents(bits, n, bins):
    """In four rows of bins in turn, and one more bin for 0, inf and nan: additions to one place wait for each other."""
    for i in range(n):
        size = bits[i] & _SIZE
        exponent = (size >> np.int64(52)) - np.int64(1023 - at.EXPONENT_BIAS)
        place = min(max(exponent >> np.int64(at.EXPONENT_BIN_SHIFT), 0), at.EXPONENT_BINS - 1)
        bins[i & 3, place if 0 < size < _INFINITY else at.EXPONENT_BINS] += 1


@_part
def _add_sums(numbers, block, columns, row):
    """Sums over a block of numbers, those set aside cleared, and its part of the sketch."""
    word = _mix(_SALT + np.uint64(block + 1) * _GAMMA)
    rotation = np.int64((((word * _ROTATION) >> _HALF) * np.uint64(_SUMS)) >> _HALF)
    one, two = (word >> np.uint64(_SUMS)) & _ONE, (word >> np.uint64(_SUMS + 1)) & _ONE
    turns = (1.0, 1.0 - 2.0 * one, 1.0 - 2.0 * two, 1.0 - 2.0 * (one ^ two))
    total, squares, sizes = 0.0, 0.0, 0.0
    columns[:] = 0.0
    for r in range(at.BLOCK_ROWS):
        signs, part, turn = _SIGNS[r, 2 * rotation :], numbers[r * _WIDTH :], turns[r // at.GROUP_ROWS]
        for e in range(_WIDTH):
            number = part[e]
            total += number
            squares += number * number
            sizes += abs(number)
            columns[e] += turn * signs[e] * number
    row[at.SUM] += total
    row[at.SUM_SQUARES] += squares
    row[at.ABS_SUM] += sizes
    for c in range(_SUMS):
        k = (c + rotation) % _SUMS
        sign = 1.0 - 2.0 * ((word >> np.uint64(k)) & _ONE)
        row[at.SKETCH + k] += sign * (columns[2 * c] + columns[2 * c + 1])


@_part
def _clear(numbers, bits, n):
    for i in range(n):
        numbers[i] = numbers[i] if (bits[i] & _SIZE) < _SET_ASIDE else 0.0
    numbers[n:] = 0.0


@_kernel
def _add_numbers(raw, size, form, table, normal, row):
    numbers, columns, ends = np.empty(_BLOCK), np.empty(_WIDTH), np.array([_SIZE, -_SIZE])
    bits, count, bins = numbers.view(np.int64), len(raw) // size, np.zeros((4, at.EXPONENT_BINS + 1), np.int64)
    for block in range((count + _BLOCK - 1) // _BLOCK):
        n = min(count - block * _BLOCK, _BLOCK)
        load(raw, form, table, block * _BLOCK, n, numbers)
        _add_range(bits, n, ends)
        _add_counts(bits, n, normal, row)
        _add_exponents(bits, n, bins)
        _clear(numbers, bits, n)
        _add_sums(numbers, block, columns, row)
    for place in range(at.EXPONENT_BINS):
        row[at.EXPONENTS + place] = bins[:, place].sum()
    if ends[0] <= ends[1]:
        row[at.MIN] = np.int64(_key(ends[0])).view(np.float64) + 0.0
        row[at.MAX] = np.int64(_key(ends[1])).view(np.float64) + 0.0


@_kernel
def _digest(words, keys):
    """`keys`: one a row and word."""
    rows, width = keys.shape
    sums, digest, u = np.empty(width, np.int64), np.uint64(0), width // _SUMS
    for block in range((len(words) + rows * width - 1) // (rows * width)):
        sums[:] = 0
        for r in range(rows):
            part, row_keys = words[(block * rows + r) * width :][:width], keys[r]
            for j in range(len(part)):
                sums[j] += row_keys[j] * np.int64(part[j])
        for c in range(_SUMS):
            total = sums[u * c : u * c + u].sum()
            digest += _mix(np.uint64(total) + np.uint64(block * _SUMS + c + 1) * _GAMMA)
    return digest


@cache
def _keys(item_size: int) -> NDArray[np.int64]:
    count = words_per_pair(item_size)
    return np.tile(digest_keys(at.BLOCK_ROWS * count).reshape(at.BLOCK_ROWS, 1, count), (1, _SUMS, 1)).reshape(
        at.BLOCK_ROWS, -1
    )


def summarize_into(raw: Bytes, dtype: Dtype, row: Floats) -> None:
    """As summary.summarize_into, of the bytes of a real type."""
    summary.reset_row(row)
    raw = aligned(raw, 8)
    if dtype.has_sketch:
        form, table = form_and_table(dtype.name)
        _add_numbers(raw, dtype.item_size, form, table, int(np.float64(dtype.smallest_normal).view(np.int64)), row)
    else:
        integers = raw.view(np.uint8 if dtype.kind is DtypeKind.BOOL else dtype.name)
        for start in range(0, len(integers), summary.CHUNK):
            summary.add_integers(row, integers[start : start + summary.CHUNK])
    word = word_type(dtype.item_size)
    padding = np.zeros(-len(raw) % word.itemsize, np.uint8)
    words = aligned(np.append(raw, padding) if len(padding) else raw, word.itemsize).view(word)
    row.view(np.uint64)[at.DIGEST] = _digest(words, _keys(dtype.item_size))


def were_kept() -> bool:
    """Whether an earlier run had compiled them."""
    return bool(_digest.stats.cache_hits)  # type: ignore[attr-defined]
