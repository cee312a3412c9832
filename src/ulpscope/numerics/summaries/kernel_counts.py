"""Counts and range of a block, compiled.

They work on codes: integers of a number's bits, whose sizes (the bits without sign) are ordered like the numbers'.
Integer comparison does not depend on the thread's flush-to-zero mode.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import NamedTuple

import numpy as np

from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.kernel_blocks import compiled


class Layout(NamedTuple):
    """Where things begin among the sizes of one float type."""

    mask: int
    """The bits of a size."""
    first_bin: int
    bin_shift: int
    """How wide an exponent bin is, as a power of two."""
    normal: int
    set_aside: int
    infinity: int
    tiny: int
    """Below it float32 might lose squares."""


def layout(bits: int, exponent_bits: int) -> Layout:
    bias = (1 << (exponent_bits - 1)) - 1
    shift = bits - 1 - exponent_bits
    return Layout(
        mask=(1 << (bits - 1)) - 1,
        first_bin=(bias - constants.EXPONENT_BIAS) << shift,
        bin_shift=shift + constants.EXPONENT_BIN_SHIFT,
        normal=1 << shift,
        set_aside=(constants.SET_ASIDE_EXPONENT + bias) << shift,
        infinity=((1 << exponent_bits) - 1) << shift,
        tiny=(bias - 40) << shift,
    )


@compiled
def key(code, mask):
    """Orders codes of either sign like the numbers they stand for; its own inverse."""
    return code ^ ((code >> 63) & mask)


@compiled
def scan(codes, unsigned, n, mask):
    """Keys of the lowest and the highest number, the smallest and the largest size.

    Negative numbers lie below the others as signed integers, above them as unsigned ones; larger sizes upwards in both.
    """
    low, high = codes[0], codes[0]
    unsigned_low, unsigned_high = unsigned[0], unsigned[0]
    for i in range(n):
        low = min(low, codes[i])
        high = max(high, codes[i])
        unsigned_low = min(unsigned_low, unsigned[i])
        unsigned_high = max(unsigned_high, unsigned[i])
    smallest, largest = codes.dtype.type(unsigned_low), codes.dtype.type(unsigned_high)
    return _ends(np.int64(low), np.int64(high), np.int64(smallest), np.int64(largest), mask)


@compiled
def _ends(low, high, unsigned_low, unsigned_high, mask):
    if low >= 0:
        return low, high, low, high
    if high < 0:
        return key(unsigned_high, mask), key(low, mask), low & mask, unsigned_high & mask
    smallest = min(unsigned_low, low & mask)
    return key(unsigned_high, mask), high, smallest, max(high, unsigned_high & mask)


@compiled
def scan_finite(codes, n, rules):
    low, high = rules.mask, ~rules.mask
    for i in range(n):
        code = np.int64(codes[i])
        if code & rules.mask < rules.infinity:
            low = min(low, key(code, rules.mask))
            high = max(high, key(code, rules.mask))
    return low, high


@compiled
def _count_from(codes, n, mask, size):
    kind = codes.dtype.type
    mask, size = kind(mask), kind(size)
    count = kind(0)
    for i in range(n):
        count = kind(count + kind(kind(codes[i] & mask) >= size))
    return np.int64(count)


@compiled
def _count_from_two(codes, n, mask, one, other):
    kind = codes.dtype.type
    mask, one, other = kind(mask), kind(one), kind(other)
    count, beyond = kind(0), kind(0)
    for i in range(n):
        size = kind(codes[i] & mask)
        count = kind(count + kind(size >= one))
        beyond = kind(beyond + kind(size >= other))
    return np.int64(count), np.int64(beyond)


@compiled
def _smallest_nonzero(codes, n, mask):
    kind = codes.dtype.type
    mask = kind(mask)
    smallest = mask
    for i in range(n):
        size = kind(codes[i] & mask)
        smallest = min(smallest, size if size > 0 else mask)
    return np.int64(smallest)


@compiled
def _bin(size, rules):
    return min(max((size - rules.first_bin) >> rules.bin_shift, 0), constants.EXPONENT_BINS - 1)


@compiled
def _add_bins(codes, n, above, smallest, largest, rules, row):
    """Counts only at the few bin borders that lie between this block's smallest and largest size."""
    k = _bin(smallest, rules)
    last = _bin(largest, rules)
    while k < last:
        border = rules.first_bin + ((k + 1) << rules.bin_shift)
        if k + 1 == last:
            here = _count_from(codes, n, rules.mask, border)
        else:
            between, here = _count_from_two(codes, n, rules.mask, border, border + (1 << rules.bin_shift))
            row[constants.EXPONENTS + k] += above - between
            above, k = between, k + 1
        row[constants.EXPONENTS + k] += above - here
        above, k = here, k + 1
    row[constants.EXPONENTS + last] += above


@compiled
def add_counts(codes, n, smallest, largest, rules, row):
    nonzero = n
    if smallest == 0:
        nonzero = _count_from(codes, n, rules.mask, 1)
        smallest = _smallest_nonzero(codes, n, rules.mask)
        row[constants.ZERO] += n - nonzero
    if nonzero == 0:
        return
    if smallest < rules.normal:
        row[constants.SUBNORMAL] += nonzero - _count_from(codes, n, rules.mask, rules.normal)
    _add_bins(codes, n, nonzero, smallest, largest, rules, row)


@compiled
def add_set_aside(codes, n, rules, row):
    aside, infinite = _count_from_two(codes, n, rules.mask, rules.set_aside, rules.infinity)
    row[constants.SET_ASIDE] += aside
    if infinite:
        nans = _count_from(codes, n, rules.mask, rules.infinity + 1)
        positive = 0
        for i in range(n):
            positive += codes[i] == rules.infinity
        row[constants.NAN] += nans
        row[constants.POS_INF] += positive
        row[constants.NEG_INF] += infinite - nans - positive
        row[constants.EXPONENTS + constants.EXPONENT_BINS - 1] -= infinite
