"""Summaries in one read, compiled by numba. Import only through compiled.py: importing this imports numba."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import Any, NamedTuple

import numpy as np

from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.kernel_blocks import (
    BLOCK,
    COLUMNS,
    LANES,
    PADDED,
    SIGNS_32,
    SIGNS_64,
    SUMS,
    add_sums,
    compiled,
    correct_squares,
    digest_part,
    elements_at,
    kernel,
    read_block,
    sum_bytes,
    sum_doubles,
    sum_halves,
    sum_singles,
)
from ulpscope.numerics.summaries.kernel_counts import Layout, add_counts, add_set_aside, key, layout, scan, scan_finite

_LAYOUT_64 = layout(64, 11)
_LAYOUT_32 = layout(32, 8)
_LAYOUT_BFLOAT16 = layout(16, 8)
_LAYOUT_FLOAT16 = _LAYOUT_32._replace(normal=(127 - 14) << 23)
_NO_KEY = np.int64((1 << 63) - 1)


class Work(NamedTuple):
    """Scratch memory of one call.

    All of it is one allocation, which this keeps alive; arrays of numba's own would cost one each, and a locked
    instruction wherever they are sliced.
    """

    memory: Any
    raw: Any
    kept: Any
    """Bits of a block's numbers, which are float32 or float64; those set aside are cleared."""
    columns: Any
    sketch: Any
    digests: Any


@compiled
def _work(raw, bits, number):
    memory = np.empty(2 * SUMS + COLUMNS + 4 * LANES + 2 * PADDED)
    memory[: 2 * SUMS] = 0.0
    digests = memory.ctypes.data + 8 * 2 * SUMS
    columns = digests + 8 * COLUMNS
    block = columns + 8 * 4 * LANES
    return Work(
        memory,
        elements_at(block, PADDED, raw),
        elements_at(block + 8 * PADDED, PADDED, bits),
        elements_at(columns, 4 * LANES, number),
        elements_at(memory.ctypes.data, 2 * SUMS, np.float64),
        elements_at(digests, COLUMNS, np.int64),
    )


@compiled
def _reset(row):
    row[:] = 0.0
    row[constants.MIN] = np.inf
    row[constants.MAX] = -np.inf


@compiled
def _clear_set_aside(bits, mask, set_aside, kept):
    kind = kept.dtype.type
    mask, set_aside = kind(mask), kind(set_aside)
    for i in range(PADDED):
        kept[i] = bits[i] if kind(bits[i] & mask) < set_aside else kind(0)


@compiled
def _add_block(codes, unsigned, bits, n, block, rules, signs, work, row):
    """Counts a block's codes and sums its numbers; gives the keys of its lowest and its highest finite number."""
    codes_rules, bits_rules = rules
    low, high, smallest, largest = scan(codes, unsigned, n, codes_rules.mask)
    add_counts(codes, n, smallest, largest, codes_rules, row)
    if largest >= codes_rules.infinity:
        low, high = scan_finite(codes, n, codes_rules)
    set_aside = largest >= codes_rules.set_aside
    if set_aside:
        add_set_aside(codes, n, codes_rules, row)
        _clear_set_aside(bits, bits_rules.mask, bits_rules.set_aside, work.kept)  # codes may lie there, too
        bits = work.kept
    numbers = bits.view(work.columns.dtype)
    add_sums(numbers, block, signs, work.columns, work.sketch, row)
    if set_aside or largest < codes_rules.tiny:
        correct_squares(numbers, work.columns, row)
    return low, high


@compiled
def _finish(low, high, rules, work, digest, row):
    if low <= high:
        codes_rules, bits_rules = rules
        scale = (bits_rules.mask + 1) // (codes_rules.mask + 1)
        work.kept[0] = key(low, codes_rules.mask) * scale
        work.kept[1] = key(high, codes_rules.mask) * scale
        numbers = work.kept.view(work.columns.dtype)
        row[constants.MIN] = np.float64(numbers[0]) + 0.0
        row[constants.MAX] = np.float64(numbers[1]) + 0.0
    for k in range(SUMS):
        row[constants.SKETCH + k] = work.sketch[k] + work.sketch[k + SUMS]
    row.view(np.uint64)[constants.DIGEST] = digest


def _summarizer(name, sum_words, widen):
    """sum_words: the digest's, for elements of this size. widen: gives codes and the bits of numbers of elements.

    A function of its own for each type: where functions are arguments, numba does not cache.
    """

    def summarize(address, count, table, work, rules, signs, place):
        row = elements_at(place, constants.ROW_LENGTH, np.float64)
        _reset(row)
        flat = elements_at(address, count, work.raw.dtype)
        low, high, digest = _NO_KEY, -_NO_KEY, np.uint64(0)
        for block in range((count + BLOCK - 1) // BLOCK):
            n = min(count - block * BLOCK, BLOCK)
            raw = read_block(address, flat, block, work.raw)
            sum_words(raw, work.digests)
            digest += digest_part(work.digests, block)
            codes, unsigned, bits = widen(raw, n, table, work.kept)
            first, last = _add_block(codes, unsigned, bits, n, block, rules, signs, work, row)
            low, high = min(low, first), max(high, last)
        _finish(low, high, rules, work, digest, row)

    # By this name machine code is linked: of two cached kernels whose parts had one name, one would run the other's.
    summarize.__qualname__ = f"summarize_{name}"
    return compiled(summarize)


@compiled
def _float64_bits(raw, n, table, kept):
    return raw, raw.view(np.uint64), raw


_summarize_float64 = _summarizer("float64", sum_doubles, _float64_bits)


@kernel
def float64(address, count, place):
    work = _work(np.int64, np.int64, np.float64)
    rules = (_LAYOUT_64, _LAYOUT_64)
    _summarize_float64(address, count, None, work, rules, SIGNS_64, place)


@compiled
def _float32_bits(raw, n, table, kept):
    return raw, raw.view(np.uint32), raw


_summarize_float32 = _summarizer("float32", sum_singles, _float32_bits)


@kernel
def float32(address, count, place):
    work = _work(np.int32, np.int32, np.float32)
    rules = (_LAYOUT_32, _LAYOUT_32)
    _summarize_float32(address, count, None, work, rules, SIGNS_32, place)


@compiled
def _widen_bfloat16(raw, n, table, kept):
    for i in range(PADDED):
        kept[i] = np.int32(raw[i]) << 16
    return raw, raw.view(np.uint16), kept


_summarize_bfloat16 = _summarizer("bfloat16", sum_halves, _widen_bfloat16)


@kernel
def bfloat16(address, count, place):
    work = _work(np.int16, np.int32, np.float32)
    rules = (_LAYOUT_BFLOAT16, _LAYOUT_32)
    _summarize_bfloat16(address, count, None, work, rules, SIGNS_32, place)


@compiled
def _widen_float16(raw, n, table, kept):
    """Rebiases the exponent; a subnormal, an integer times 2**-24, is converted."""
    numbers = kept.view(np.float32)
    for i in range(PADDED):
        numbers[i] = np.float32(np.int32(raw[i] & 0x7FFF)) * np.float32(2.0**-24)
    for i in range(PADDED):
        size = np.int32(raw[i] & 0x7FFF)
        wide = np.int32((size << 13) + (112 << 23))
        wide = wide if size < 0x7C00 else np.int32(wide | 0x7F800000)
        wide = wide if size >= 0x400 else kept[i]
        kept[i] = wide | (np.int32(raw[i] & -0x8000) << 16)
    return kept, kept.view(np.uint32), kept


_summarize_float16 = _summarizer("float16", sum_halves, _widen_float16)


@kernel
def float16(address, count, place):
    work = _work(np.int16, np.int32, np.float32)
    rules = (_LAYOUT_FLOAT16, _LAYOUT_32)
    _summarize_float16(address, count, None, work, rules, SIGNS_32, place)


@compiled
def _widen_float8(raw, n, table, kept):
    for i in range(n):
        kept[i] = table[raw[i]]
    kept[n:] = 0  # byte 0 need not stand for 0: in float8_e8m0fnu it is 2**-127
    return kept, kept.view(np.uint32), kept


_summarize_float8 = _summarizer("float8", sum_bytes, _widen_float8)


@kernel
def float8(table, normal, address, count, place):
    """table: the bits of all 256 numbers as float32; normal: those of the smallest normal one."""
    work = _work(np.uint8, np.int32, np.float32)
    wide = _LAYOUT_32
    counted = Layout(wide.mask, wide.first_bin, wide.bin_shift, normal, wide.set_aside, wide.infinity, wide.tiny)
    _summarize_float8(address, count, table, work, (counted, wide), SIGNS_32, place)


@compiled
def _sum_integer_words(raw, sums):
    if raw.itemsize == 1:
        sum_bytes(raw, sums)
    elif raw.itemsize == 2:
        sum_halves(raw, sums)
    elif raw.itemsize == 4:
        sum_singles(raw, sums)
    else:
        sum_doubles(raw, sums)


@kernel
def integers(like, address, count, place):
    """like: an array of the elements' type; of a bool the bytes'."""
    row = elements_at(place, constants.ROW_LENGTH, np.float64)
    _reset(row)
    flat = elements_at(address, count, like.dtype)
    work = _work(like.dtype, np.int64, np.float64)
    scratch, sums = work.raw, work.digests
    zeros = 0
    digest = np.uint64(0)
    for block in range((count + BLOCK - 1) // BLOCK):
        numbers = read_block(address, flat, block, scratch)
        _sum_integer_words(numbers, sums)
        digest += digest_part(sums, block)
        low, high, total = numbers[0], numbers[0], 0.0
        for i in range(min(count - block * BLOCK, BLOCK)):
            low = min(low, numbers[i])
            high = max(high, numbers[i])
            total += np.float64(numbers[i])
            zeros += numbers[i] == 0
        row[constants.MIN] = min(row[constants.MIN], np.float64(low))
        row[constants.MAX] = max(row[constants.MAX], np.float64(high))
        row[constants.SUM] += total
    row[constants.ZERO] = zeros
    row.view(np.uint64)[constants.DIGEST] = digest
