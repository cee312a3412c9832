"""Summaries in one read, compiled by numba. Import only through compiled.py: importing this imports numba.

A block of 976 elements is copied to scratch memory of this call (so that threads do not meet and words are aligned);
the loops below run over it while it lies in the first-level cache. They are written so that LLVM vectorises them, hence
the casts: numba widens sums of small integers to 64 bits, and half the speed is gone.

Counting works on codes: 32-bit integers, sign and size, ordered like the numbers' sizes. Of a float32 (and whatever is
widened to it) the code is its bits; of a float64 its upper half, with bit 0 set if anything is left below. Integer
comparison does not depend on the thread's flush-to-zero mode.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from ulpscope.numerics import constants
from ulpscope.numerics.digest import digest_keys
from ulpscope.numerics.sketch import sign_table

BLOCK = constants.BLOCK_ELEMENTS
ROWS = constants.BLOCK_ROWS
COLUMNS = constants.SKETCH_LENGTH
LANES = 64
_GAMMA = np.uint64(constants.SPLITMIX_GAMMA)
_MUL_1 = np.uint64(constants.SPLITMIX_MUL_1)
_MUL_2 = np.uint64(constants.SPLITMIX_MUL_2)
_SIGN_SALT = np.uint64(constants.BLOCK_SIGN_SALT)
_ROTATION_SALT = np.uint64(constants.BLOCK_ROTATION_SALT)
_ROTATION_MASK = np.uint64((1 << constants.ROTATION_BITS) - 1)

FLOAT32, BFLOAT16, FLOAT16, FLOAT8 = range(4)
PLAN_TABLE = 2

_SIZE = np.int32(0x7FFFFFFF)
_LOWEST = np.int32(-0x80000000)

# Where things begin among codes: first exponent bin, its width as a shift, set aside, infinity.
_LAYOUT_32 = (np.int32(0), np.int32(26), np.int32((constants.SET_ASIDE_EXPONENT + 127) << 23), np.int32(0xFF << 23))
_LAYOUT_64 = (
    np.int32((1023 - constants.EXPONENT_BIAS) << 20),
    np.int32(23),
    np.int32((constants.SET_ASIDE_EXPONENT + 1023) << 20),
    np.int32(0x7FF << 20),
)

_KEYS = digest_keys(2 * BLOCK).view(np.int64).copy()
# Rows of 64 signs: the last three are 0 and swallow what is read beyond a row's end.
_TABLE = np.zeros((ROWS, LANES))
_TABLE[:, :COLUMNS] = sign_table()


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    fast = {"reassoc", "nsz", "contract"}
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy", fastmath=fast)  # type: ignore[no-any-return]
    except RuntimeError:  # no directory to cache in: compile anew in each process
        return numba.njit(function, nogil=True, error_model="numpy", fastmath=fast)  # type: ignore[no-any-return]


@_compiled
def _mix(word):
    word = (word ^ (word >> np.uint64(30))) * _MUL_1
    word = (word ^ (word >> np.uint64(27))) * _MUL_2
    return word ^ (word >> np.uint64(31))


@_compiled
def _load(flat, start, raw):
    """Copies a block, or what is left of one and zeros; gives how many elements there were."""
    source = flat[start : start + BLOCK]
    n = source.size
    for i in range(n):
        raw[i] = source[i]
    for i in range(n, BLOCK):
        raw[i] = 0
    return n


@_compiled
def _digest_part(words, block):
    total = np.int64(0)
    for j in range(words.size):
        total += _KEYS[j] * np.int64(words[j])
    return _mix(np.uint64(total) + np.uint64(block + 1) * _GAMMA)


@_compiled
def _add_sums(numbers, values, row):
    total = 0.0
    squares = 0.0
    sizes = 0.0
    for i in range(BLOCK):
        value = np.float64(numbers[i])
        values[i] = value
        total += value
        squares += value * value
        sizes += abs(value)
    row[constants.SUM] += total
    row[constants.SUM_SQUARES] += squares
    row[constants.ABS_SUM] += sizes


@_compiled
def _add_sketch(values, block, columns, sums):
    turn = _mix(_ROTATION_SALT + np.uint64(block + 1) * _GAMMA)
    signs = _mix(_SIGN_SALT + np.uint64(block + 1) * _GAMMA)
    for c in range(LANES):
        columns[c] = 0.0
    for r in range(ROWS):
        sign = 1.0 - 2.0 * np.float64((turn >> np.uint64(constants.ROW_SIGN_SHIFT + r)) & np.uint64(1))
        start = r * COLUMNS
        for c in range(LANES):
            columns[c] += sign * _TABLE[r, c] * values[start + c]
    rotation = np.int64((turn & _ROTATION_MASK) % np.uint64(COLUMNS))
    for c in range(COLUMNS):
        sign = 1.0 - 2.0 * np.float64(np.int64((signs >> np.uint64(c)) & np.uint64(1)))
        sums[rotation + c] += sign * columns[c]


@_compiled
def _fold_sketch(sums, row):
    for k in range(COLUMNS):
        row[constants.SKETCH + k] += sums[k] + sums[k + COLUMNS]


@_compiled
def _key(code):
    """Orders codes of either sign like the numbers they stand for; its own inverse."""
    return np.int32(code ^ np.int32((code >> np.int32(31)) & _SIZE))


@_compiled
def _scan(codes, n):
    """Keys of the lowest and highest number, and the smallest size."""
    low = _SIZE
    high = _LOWEST
    smallest = _SIZE
    for i in range(n):
        key = _key(codes[i])
        low = min(low, key)
        high = max(high, key)
        smallest = min(smallest, np.int32(codes[i] & _SIZE))
    return low, high, smallest


@_compiled
def _count_from(codes, n, size):
    count = np.int32(0)
    for i in range(n):
        count = np.int32(count + np.int32(np.int32(codes[i] & _SIZE) >= size))
    return np.int64(count)


@_compiled
def _smallest_nonzero(codes, n):
    smallest = _SIZE
    for i in range(n):
        size = np.int32(codes[i] & _SIZE)
        smallest = min(smallest, size if size > 0 else _SIZE)
    return smallest


@_compiled
def _bin(size, layout):
    return min(max(np.int64(size - layout[0]) >> np.int64(layout[1]), 0), constants.EXPONENT_BINS - 1)


@_compiled
def _add_bins(codes, n, above, smallest, largest, layout, row):
    """Counts only at the few bin borders that lie between this block's smallest and largest size."""
    first = _bin(smallest, layout)
    last = _bin(largest, layout)
    for k in range(first + 1, last + 1):
        here = _count_from(codes, n, np.int32(layout[0] + (k << layout[1])))
        row[constants.EXPONENTS + k - 1] += above - here
        above = here
    row[constants.EXPONENTS + last] += above


@_compiled
def _add_counts(codes, n, smallest, largest, subnormal_below, layout, row):
    nonzero = n
    if smallest == 0:
        nonzero = _count_from(codes, n, np.int32(1))
        smallest = _smallest_nonzero(codes, n)
        row[constants.ZERO] += n - nonzero
    if nonzero == 0:
        return
    if smallest < subnormal_below:
        row[constants.SUBNORMAL] += nonzero - _count_from(codes, n, subnormal_below)
    _add_bins(codes, n, nonzero, smallest, largest, layout, row)


@_compiled
def _add_set_aside(codes, n, layout, row):
    aside = _count_from(codes, n, layout[2])
    infinite = _count_from(codes, n, layout[3])
    nans = _count_from(codes, n, np.int32(layout[3] + 1))
    positive = np.int32(0)
    for i in range(n):
        positive += np.int32(codes[i] == layout[3])
    row[constants.SET_ASIDE] += aside
    row[constants.NAN] += nans
    row[constants.POS_INF] += positive
    row[constants.NEG_INF] += infinite - nans - positive
    row[constants.EXPONENTS + constants.EXPONENT_BINS - 1] -= infinite


@_compiled
def _scan_finite(codes, n, infinity):
    low = _SIZE
    high = _LOWEST
    for i in range(n):
        key = _key(codes[i])
        finite = np.int32(codes[i] & _SIZE) < infinity
        low = min(low, key if finite else _SIZE)
        high = max(high, key if finite else _LOWEST)
    return low, high


@_compiled
def _clear_set_aside(bits, aside):
    for i in range(BLOCK):
        bits[i] = bits[i] if np.int32(bits[i] & _SIZE) < aside else np.int32(0)


@_compiled
def _add_float32_bits(bits, n, subnormal_below, row):
    """Counts a block of float32 bits, clears what is set aside, gives the keys of its lowest and highest number."""
    low, high, smallest = _scan(bits, n)
    largest = max(high, np.int32(~low))
    _add_counts(bits, n, smallest, largest, subnormal_below, _LAYOUT_32, row)
    if largest >= _LAYOUT_32[2]:
        _add_set_aside(bits, n, _LAYOUT_32, row)
        low, high = _scan_finite(bits, n, _LAYOUT_32[3])
        _clear_set_aside(bits, _LAYOUT_32[2])
    return low, high


@_compiled
def _store_range32(low, high, row):
    if low <= high:
        ends = np.empty(2, np.int32)
        ends[0] = _key(low)
        ends[1] = _key(high)
        numbers = ends.view(np.float32)
        row[constants.MIN] = np.float64(numbers[0]) + 0.0
        row[constants.MAX] = np.float64(numbers[1]) + 0.0


@_compiled
def _widen_bfloat16(raw, bits):
    for i in range(BLOCK):
        bits[i] = np.int32(raw[i]) << 16


@_compiled
def _widen_float16(raw, bits, spare):
    """Rebiases the exponent; a subnormal, an integer times 2**-24, is converted."""
    small = spare.view(np.float32)
    for i in range(BLOCK):
        small[i] = np.float32(np.int32(raw[i] & 0x7FFF)) * np.float32(2.0**-24)
    for i in range(BLOCK):
        size = np.int32(raw[i] & 0x7FFF)
        wide = np.int32((size << 13) + (112 << 23))
        wide = wide if size < 0x7C00 else np.int32(wide | 0x7F800000)
        wide = wide if size >= 0x400 else spare[i]
        bits[i] = wide | (np.int32(raw[i] & -0x8000) << 16)


@_compiled
def _widen_float8(raw, n, table, bits):
    for i in range(n):
        bits[i] = table[np.uint8(raw[i])]
    for i in range(n, BLOCK):  # byte 0 need not stand for 0: in float8_e8m0fnu it is 2**-127
        bits[i] = 0


@_compiled
def _widen(raw, n, plan, bits, spare):
    form = plan[0]
    if form == BFLOAT16:
        _widen_bfloat16(raw, bits)
    elif form == FLOAT16:
        _widen_float16(raw, bits, spare)
    elif form == FLOAT8:
        _widen_float8(raw, n, plan[PLAN_TABLE:], bits)


@_compiled
def _reset(row):
    for k in range(constants.ROW_LENGTH):
        row[k] = 0.0
    row[constants.MIN] = np.inf
    row[constants.MAX] = -np.inf


@_compiled
def widened(flat, plan, row):
    """Any type that float32 holds exactly. The plan: how to widen, the code of the smallest normal number, a table."""
    _reset(row)
    raw = np.empty(BLOCK, flat.dtype)
    words = raw.view(np.int32)
    bits = words if plan[0] == FLOAT32 else np.empty(BLOCK, np.int32)
    spare = np.empty(BLOCK, np.int32)
    numbers = bits.view(np.float32)
    values = np.zeros(BLOCK + LANES - COLUMNS)
    columns = np.empty(LANES)
    sums = np.zeros(2 * COLUMNS)
    low = _SIZE
    high = _LOWEST
    digest = np.uint64(0)
    for block in range((flat.size + BLOCK - 1) // BLOCK):
        n = _load(flat, block * BLOCK, raw)
        digest += _digest_part(words, block)
        _widen(raw, n, plan, bits, spare)
        block_low, block_high = _add_float32_bits(bits, n, plan[1], row)
        low = min(low, block_low)
        high = max(high, block_high)
        _add_sums(numbers, values, row)
        _add_sketch(values, block, columns, sums)
    _fold_sketch(sums, row)
    _store_range32(low, high, row)
    row.view(np.uint64)[constants.DIGEST] = digest


@_compiled
def _codes64(bits, codes):
    for i in range(BLOCK):
        word = bits[i]
        codes[i] = np.int32(word >> 32) | np.int32((word & 0xFFFFFFFF) != 0)


@_compiled
def _add_range64(values, codes, n, row):
    low = np.inf
    high = -np.inf
    for i in range(n):
        if np.int32(codes[i] & _SIZE) < _LAYOUT_64[3]:
            low = min(low, values[i])
            high = max(high, values[i])
    row[constants.MIN] = min(row[constants.MIN], low) + 0.0
    row[constants.MAX] = max(row[constants.MAX], high) + 0.0


@_compiled
def _add_float64_block(bits, values, codes, n, subnormal_below, row):
    """Counts a block, and clears from the values what is set aside."""
    _codes64(bits, codes)
    low, high, smallest = _scan(codes, n)
    largest = max(high, np.int32(~low))
    _add_counts(codes, n, smallest, largest, subnormal_below, _LAYOUT_64, row)
    _add_range64(values, codes, n, row)
    if largest >= _LAYOUT_64[2]:
        _add_set_aside(codes, n, _LAYOUT_64, row)
        for i in range(BLOCK):
            values[i] = values[i] if np.int32(codes[i] & _SIZE) < _LAYOUT_64[2] else 0.0


@_compiled
def float64(flat, plan, row):
    _reset(row)
    bits = np.zeros(BLOCK + LANES - COLUMNS, np.int64)
    words = bits[:BLOCK].view(np.int32)
    values = bits.view(np.float64)
    codes = np.empty(BLOCK, np.int32)
    columns = np.empty(LANES)
    sums = np.zeros(2 * COLUMNS)
    digest = np.uint64(0)
    for block in range((flat.size + BLOCK - 1) // BLOCK):
        n = _load(flat, block * BLOCK, bits)
        digest += _digest_part(words, block)
        _add_float64_block(bits, values, codes, n, plan[1], row)
        _add_sums(values, values, row)
        _add_sketch(values, block, columns, sums)
    _fold_sketch(sums, row)
    row.view(np.uint64)[constants.DIGEST] = digest


@_compiled
def integers(flat, row):
    """flat: any integer type; a bool as its bytes."""
    _reset(row)
    raw = np.empty(BLOCK, flat.dtype)
    words = raw.view(np.int32)
    zeros = 0
    digest = np.uint64(0)
    for block in range((flat.size + BLOCK - 1) // BLOCK):
        n = _load(flat, block * BLOCK, raw)
        digest += _digest_part(words, block)
        low = raw[0]
        high = raw[0]
        total = 0.0
        for i in range(n):
            low = min(low, raw[i])
            high = max(high, raw[i])
            total += np.float64(raw[i])
            zeros += raw[i] == 0
        row[constants.MIN] = min(row[constants.MIN], np.float64(low))
        row[constants.MAX] = max(row[constants.MAX], np.float64(high))
        row[constants.SUM] += total
    row[constants.ZERO] = zeros
    row.view(np.uint64)[constants.DIGEST] = digest
