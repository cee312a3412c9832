"""Blocks of floats read as if they were ordinary: no selection, all exponents in one packed counter."""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.counting import (
    add_range,
    add_zeros,
    count_of,
    highest,
    join_range,
    lowest,
    no_range,
    no_zeros,
    shifted_one,
    spread_bins,
)
from ulpscope.capture.torch.fused.hashing import column_of, hash_of, mix, odd_bits, sign_of, turns_of
from ulpscope.capture.torch.fused.loading import load_pair
from ulpscope.capture.torch.fused.numbers import (
    BLOCK,
    BLOCK_SALT,
    COLUMNS,
    FLOAT16,
    FLOAT16_NORMAL,
    FLOAT32,
    GAMMA,
    PAIRS,
    SQUARES_ABOVE,
    SQUARES_BELOW,
    SUM_SALT,
)
from ulpscope.capture.torch.fused.storing import store_row


@triton.jit
def _add_pair(
    sums,
    address,
    pair,
    row,
    left,
    key,
    layout,
    sign0,
    sign1,
    window,
    KIND: tl.constexpr,
    LIES: tl.constexpr,
    CUT: tl.constexpr,
):
    """Adds one pair of each lane to its column's sums, as if it were ordinary."""
    total, squares, sizes, zeros, small, low, high, sketch, bins, digest = sums
    number0, number1, word0, word1 = load_pair(address, pair, row, left, layout, KIND, LIES, CUT)
    total += number0
    total += number1
    squares += number0 * number0
    squares += number1 * number1
    sizes += tl.abs(number0)
    sizes += tl.abs(number1)
    zeros = add_zeros(zeros, word0, word1, KIND)
    if CUT:
        # What is not inside is 0 to everything else; here the pair's first number stands for the second.
        second = word0 if KIND == FLOAT32 else (word0 & 0xFFFF) | (word0 << 16)
        whole = row * (2 * COLUMNS) + 1 < left
        if KIND == FLOAT32:
            new_low, new_high = add_range(low, high, word0, tl.where(whole, word1, second), KIND)
        else:
            new_low, new_high = add_range(low, high, tl.where(whole, word0, second), word1, KIND)
        low = tl.where(row * (2 * COLUMNS) < left, new_low, low)
        high = tl.where(row * (2 * COLUMNS) < left, new_high, high)
    else:
        low, high = add_range(low, high, word0, word1, KIND)
    if KIND == FLOAT16:
        small += tl.where(tl.abs(number0) < FLOAT16_NORMAL, 1.0, 0.0)
        small += tl.where(tl.abs(number1) < FLOAT16_NORMAL, 1.0, 0.0)
    sketch += number0 * sign0
    sketch += number1 * sign1
    bits0 = number0.to(tl.int32, bitcast=True)
    bits1 = number1.to(tl.int32, bitcast=True)
    bins += shifted_one(((bits0 >> 23) & 0xF8) - window) + shifted_one(((bits1 >> 23) & 0xF8) - window)
    if KIND == FLOAT32:
        digest += word0.to(tl.int64) * tl.load(key).to(tl.int64)
        digest += word1.to(tl.int64) * tl.load(key + 1).to(tl.int64)
    else:
        digest += word0.to(tl.int64) * tl.load(key).to(tl.int64)
    return total, squares, sizes, zeros, small, low, high, sketch, bins, digest


@triton.jit
def _add_group(
    sums,
    address,
    pair,
    group,
    left,
    keys,
    layout,
    pattern0,
    pattern1,
    flips,
    window,
    KIND: tl.constexpr,
    LIES: tl.constexpr,
    CUT: tl.constexpr,
):
    """Adds four rows of a column to its sums; their own sums first, which keeps rounding errors small."""
    total, squares, sizes, zeros, small, low, high, sketch, bins, digest = sums
    none = tl.zeros(pair.shape, tl.float32)
    part = none, none, none, zeros, small, low, high, none, bins, digest
    pair += group * (4 * COLUMNS)
    left -= group * (8 * COLUMNS)
    keys += group * (8 if KIND == FLOAT32 else 4)
    for r in tl.static_range(4):
        key = keys + (2 * r if KIND == FLOAT32 else r)
        sign0 = sign_of(pattern0, r)
        sign1 = sign_of(pattern1, r)
        part = _add_pair(part, address, pair, r, left, key, layout, sign0, sign1, window, KIND, LIES, CUT)
    a_total, a_squares, a_sizes, zeros, small, low, high, a_sketch, bins, digest = part
    turned = a_sketch.to(tl.int32, bitcast=True) ^ ((flips >> group) << 31)
    sketch += turned.to(tl.float32, bitcast=True)
    return total + a_total, squares + a_squares, sizes + a_sizes, zeros, small, low, high, sketch, bins, digest


@triton.jit
def _is_ordinary(squares, sizes):
    """Whether no number of a column is set aside, and none that matters has a square that float32 cannot hold."""
    return (squares < SQUARES_BELOW) & ((squares > SQUARES_ABOVE) | (sizes == 0.0))


@triton.jit
def _first_window(address, pair, left, layout, KIND: tl.constexpr, LIES: tl.constexpr, CUT: tl.constexpr):
    """Eight times the first of four exponent bins that reach two binary orders above a row's largest number.

    Never the lowest bin, where zeros and subnormals are.
    """
    number0, number1, _word0, _word1 = load_pair(address, pair, 0, left, layout, KIND, LIES, CUT)
    largest = tl.max(tl.maximum(tl.abs(number0), tl.abs(number1)), 1, keep_dims=True)
    top = ((largest.to(tl.int32, bitcast=True) >> 23) + 2) >> 3
    return tl.maximum(top - 3, 1) * 8


@triton.jit
def ordinary_blocks(
    address,
    first,
    blocks,
    left,
    row,
    keys,
    layout,
    KIND: tl.constexpr,
    LIES: tl.constexpr,
    CUT: tl.constexpr,
):
    """Summarises blocks; gives 0, and has stored the row, if all of them were ordinary.

    They are whole, or it is one of which `left` elements are there (CUT).
    """
    lane = tl.arange(0, 32)[None, :]
    real1 = lane + 32 < COLUMNS
    signs0 = hash_of(SUM_SALT, lane).to(tl.int32)
    signs1 = hash_of(SUM_SALT, lane + 32).to(tl.int32)
    total = tl.zeros([1, 32], tl.float32)
    squares = total
    sizes = total
    zeros = total
    small = total
    sketch0 = total
    sketch1 = total
    low, high = no_range(total, KIND)
    even = tl.zeros([1, 32], tl.int32)
    odd = even
    digest = tl.zeros([1, 32], tl.uint64)
    strange = even
    window = _first_window(address, first.to(tl.int64) * PAIRS + lane, left - 2 * lane, layout, KIND, LIES, CUT)
    for b in range(first, first + blocks):
        word = hash_of(BLOCK_SALT, tl.cast(b, tl.int64))
        turns = turns_of(word)
        start = tl.cast(b, tl.int64) * PAIRS
        weyl = (tl.cast(b, tl.uint64) * COLUMNS + 1) * GAMMA
        c0 = column_of(word, lane)
        c1 = column_of(word, lane + 32)
        own0 = word.to(tl.int32) >> lane
        own1 = (word >> 32).to(tl.int32) >> lane
        flips0 = odd_bits(signs0 >> 6) ^ turns ^ (0 - (own0 & 1))
        flips1 = odd_bits(signs1 >> 6) ^ turns ^ (0 - (own1 & 1))
        none = tl.zeros([1, 32], tl.float32)
        nothing = no_zeros(none, KIND)
        no_bins = tl.zeros([1, 32], tl.int32)
        no_digest = tl.zeros([1, 32], tl.int64)
        sums0 = none, none, none, nothing, none, low, high, none, no_bins, no_digest
        sums1 = none, none, none, nothing, none, low, high, none, no_bins, no_digest
        left0 = left - 2 * c0
        left1 = left - 2 * c1
        pattern00, pattern01 = odd_bits(signs0), odd_bits(signs0 >> 3)
        pattern10, pattern11 = odd_bits(signs1), odd_bits(signs1 >> 3)
        for group in range(4):
            sums0 = _add_group(
                sums0,
                address,
                start + c0,
                group,
                left0,
                keys,
                layout,
                pattern00,
                pattern01,
                flips0,
                window,
                KIND,
                LIES,
                CUT,
            )
            sums1 = _add_group(
                sums1,
                address,
                start + c1,
                group,
                left1,
                keys,
                layout,
                pattern10,
                pattern11,
                flips1,
                window,
                KIND,
                LIES,
                CUT,
            )
        a_total, a_squares, a_sizes, a_zeros, a_small, a_low, a_high, a_sketch, a_bins, a_digest = sums0
        b_total, b_squares, b_sizes, b_zeros, b_small, b_low, b_high, b_sketch, b_bins, b_digest = sums1
        strange |= tl.where(_is_ordinary(a_squares, a_sizes) & _is_ordinary(b_squares, b_sizes), 0, 1)
        # Lanes without a second sum of their own have read some other lane's column there.
        total += a_total + tl.where(real1, b_total, 0.0)
        squares += a_squares + tl.where(real1, b_squares, 0.0)
        sizes += a_sizes + tl.where(real1, b_sizes, 0.0)
        zeros += count_of(a_zeros, KIND) + tl.where(real1, count_of(b_zeros, KIND), 0.0)
        small += a_small + tl.where(real1, b_small, 0.0)
        low, high = join_range(a_low, a_high, b_low, b_high, KIND)
        bins_here = a_bins + tl.where(real1, b_bins, 0)
        even += bins_here & 0x00FF00FF
        odd += (bins_here >> 8) & 0x00FF00FF
        sketch0 += a_sketch
        sketch1 += b_sketch
        digest += mix(a_digest.to(tl.uint64) + weyl + c0.to(tl.uint64) * GAMMA)
        digest += tl.where(real1, mix(b_digest.to(tl.uint64) + weyl + c1.to(tl.uint64) * GAMMA), 0)
    failed = tl.max(strange)
    zero = tl.sum(zeros).to(tl.int32) - (BLOCK - left)
    bins = spread_bins(even, odd, window)
    missing = blocks * BLOCK - (BLOCK - left) - zero - tl.sum(bins)
    step = 0
    while (failed == 0) & (missing > 0) & (step < 14):
        # The bins below the sample's, then those above it; never the lowest one, where zeros and subnormals are.
        step += 1
        other = window + 32 * tl.where(step <= 7, -step, step - 7)
        even, odd = _count_window(
            address, first, blocks, left, layout, tl.where(other < 8, 1 << 20, other), KIND, LIES, CUT
        )
        more = spread_bins(even, odd, other)
        bins += more
        missing -= tl.sum(more)
    if missing > 0:
        failed = 1
    if failed == 0:
        none = tl.full([], 0, tl.int32)
        store_row(
            row,
            tl.min(lowest(low, KIND)),
            tl.max(highest(high, KIND)),
            tl.sum(total.to(tl.float64)),
            tl.sum(squares.to(tl.float64)),
            tl.sum(sizes.to(tl.float64)),
            none,
            none,
            none,
            none,
            zero,
            tl.sum(small).to(tl.int32) - (BLOCK - left) - zero if KIND == FLOAT16 else none,
            bins,
            tl.sum(sketch0.to(tl.float64), 0),
            tl.sum(sketch1.to(tl.float64), 0),
            tl.sum(digest),
        )
    return failed


@triton.jit
def _count_window(
    address, first, blocks, left, layout, window, KIND: tl.constexpr, LIES: tl.constexpr, CUT: tl.constexpr
):
    """Packed counts of the four exponent bins at a window, in columns as they lie: counts need no rotation."""
    lane = tl.arange(0, 32)[None, :]
    even = tl.zeros([1, 32], tl.int32)
    odd = even
    for b in range(first, first + blocks):
        start = tl.cast(b, tl.int64) * PAIRS
        for half in range(2):
            column = tl.minimum(lane + 32 * half, COLUMNS - 1)
            packed = tl.zeros([1, 32], tl.int32)
            for r in tl.static_range(16):
                number0, number1, _word0, _word1 = load_pair(
                    address, start + column, r, left - 2 * column, layout, KIND, LIES, CUT
                )
                bits0 = number0.to(tl.int32, bitcast=True)
                bits1 = number1.to(tl.int32, bitcast=True)
                packed += shifted_one(((bits0 >> 23) & 0xF8) - window) + shifted_one(((bits1 >> 23) & 0xF8) - window)
            packed = tl.where(lane + 32 * half < COLUMNS, packed, 0)
            even += packed & 0x00FF00FF
            odd += (packed >> 8) & 0x00FF00FF
    return even, odd
