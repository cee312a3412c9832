"""Blocks of bfloat16 read as if they were ordinary, most of their sums made by the tensor cores.

One instruction multiplies the 16 x 16 numbers of a warp's four words with the 16 x 8 of two others: element (i, k) of
the first lies in lane 4 * (i mod 8) + k div 2 mod 4, element (k, n) of the second in lane 4 * n + k div 2 mod 4, and
(i, n) of the product in lane 4 * (i mod 8) + n div 2. Products are exact, and a block's sums are added to ours before
rounding errors count. With a number's sign, mantissa and lower three bits of the exponent cleared it is 2 ** (8 * bin -
127), so that a sum of these is the counts of three neighbouring bins, eight bits each.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.counting import (
    add_range,
    highest,
    join_range,
    lowest,
    no_range,
)
from ulpscope.capture.torch.fused.hashing import column_of, hash_of, mix, odd_bits, turns_of
from ulpscope.capture.torch.fused.lanes import (
    are_zero,
    from_lane,
    largest_of_lanes,
    multiply,
    multiply_half,
    sum_of_bytes,
    sum_of_lanes,
)
from ulpscope.capture.torch.fused.looking_again import count_below_dense, count_below_runs
from ulpscope.capture.torch.fused.numbers import (
    BFLOAT16,
    BLOCK,
    BLOCK_ROWS,
    BLOCK_SALT,
    COLUMNS,
    DENSE,
    GAMMA,
    KEYS,
    PAIRS,
    SET_ASIDE,
    SUM_SALT,
)
from ulpscope.capture.torch.fused.storing import store_row

# Two ones; what leaves the bin of both numbers; both signs.
ONES: tl.constexpr = tl.constexpr(0x3F803F80)
BIN_BITS: tl.constexpr = tl.constexpr(0x7C007C00)
SIGNS: tl.constexpr = tl.constexpr(-0x7FFF8000)
# What stands for a zero that is counted, as bfloat16; elements of a block in two rows of the first factor, and how many
# more zeros than the block has we see: lanes without a second sum of their own read zeros there.
ZERO_WEIGHT: tl.constexpr = tl.constexpr(2.0**-7)
ROWS_COUNT: tl.constexpr = tl.constexpr(256)
FALSE_ZEROS: tl.constexpr = tl.constexpr(2 * BLOCK_ROWS.value * (64 - COLUMNS.value))
# The largest number's bin: no NaN and no infinity, and nothing that matters whose square float32 cannot hold.
LOWEST_TOP: tl.constexpr = tl.constexpr(9)
HIGHEST_TOP: tl.constexpr = tl.constexpr((SET_ASIDE.value + 127) >> 3)
LARGEST_BELOW: tl.constexpr = tl.constexpr(2.0**SET_ASIDE.value)


@triton.jit
def _sign_bits(pattern0, pattern1, r):
    """What turns the signs of a pair in row r of its group."""
    return (((pattern0 >> r) & 1) << 15) | ((pattern1 >> r) << 31)


@triton.jit
def _add_rows(sums, w00, w10, w01, w11, signs00, signs10, signs01, signs11, key0, key1, columns):
    """Adds two rows, each of two columns a lane."""
    upper, lower, linear, bins, low0, high0, low1, high1, digest0, digest1 = sums
    own_columns, even_columns, odd_columns, total_columns, zero_columns = columns
    upper = multiply_half(upper, w00, w01, w00)
    lower = multiply_half(lower, w00, w01, w01)
    upper = multiply_half(upper, w10, w11, w10)
    lower = multiply_half(lower, w10, w11, w11)
    linear = multiply(linear, w00 ^ signs00, w10 ^ signs10, w01 ^ signs01, w11 ^ signs11, own_columns, own_columns)
    linear = multiply(
        linear, w00 & 0x7FFF7FFF, w10 & 0x7FFF7FFF, w01 & 0x7FFF7FFF, w11 & 0x7FFF7FFF, odd_columns, odd_columns
    )
    bins = multiply(bins, w00 & BIN_BITS, w10 & BIN_BITS, w01 & BIN_BITS, w11 & BIN_BITS, even_columns, even_columns)
    bins = multiply(bins, w00, w01, w10, w11, total_columns, total_columns)
    z00, z10, z01, z11 = are_zero(w00), are_zero(w10), are_zero(w01), are_zero(w11)
    bins = multiply(bins, z00, z10, z01, z11, zero_columns, zero_columns)
    low0, high0 = add_range(low0, high0, w00, w00, BFLOAT16)
    low0, high0 = add_range(low0, high0, w01, w01, BFLOAT16)
    low1, high1 = add_range(low1, high1, w10, w10, BFLOAT16)
    low1, high1 = add_range(low1, high1, w11, w11, BFLOAT16)
    digest0 += w00.to(tl.int64) * key0 + w01.to(tl.int64) * key1
    digest1 += w10.to(tl.int64) * key0 + w11.to(tl.int64) * key1
    return upper, lower, linear, bins, low0, high0, low1, high1, digest0, digest1


@triton.jit
def _find_runs(start, lane, layout, LIES: tl.constexpr):
    """How far into a run of pairs a block begins, and where the run lies that is `lane` behind that one.

    Lies means: what must be added to the number of a pair, counted from that first run's begin, to get its place.
    """
    if LIES == DENSE:
        return lane, lane
    else:
        size0, mul0, shift0, size1, mul1, shift1, size2, mul2, shift2, _stride0, stride1, stride2, stride3 = layout
        begin = start.to(tl.uint32)
        run = tl.umulhi(begin, mul0.to(tl.uint32)) >> shift0.to(tl.uint32)
        into = begin - run * size0.to(tl.uint32)
        run += lane.to(tl.uint32)
        outer = tl.umulhi(run, mul1.to(tl.uint32)) >> shift1.to(tl.uint32)
        offset = (run - outer * size1.to(tl.uint32)) * stride1.to(tl.uint32)
        outermost = tl.umulhi(outer, mul2.to(tl.uint32)) >> shift2.to(tl.uint32)
        offset += (outer - outermost * size2.to(tl.uint32)) * stride2.to(tl.uint32)
        offset += outermost * stride3.to(tl.uint32) - lane.to(tl.uint32) * size0.to(tl.uint32)
        return into.to(tl.int32), offset.to(tl.int32)


@triton.jit
def _read(address, start, column, real, row: tl.constexpr, into, runs, layout, LIES: tl.constexpr, ALL: tl.constexpr):
    """The pair in a row and column of the block that begins at pair `start`, 0 where it is not real."""
    if LIES == DENSE:
        place = start + column + row * COLUMNS
    else:
        _size0, mul0, shift0, _s1, _m1, _h1, _s2, _m2, _h2, _t0, _t1, _t2, _t3 = layout
        number = into + column + row * COLUMNS
        run = tl.umulhi(number.to(tl.uint32), mul0.to(tl.uint32)) >> shift0.to(tl.uint32)
        place = number + from_lane(runs, run.to(tl.int32))
    pointer = address.to(tl.pointer_type(tl.int32)) + place
    return tl.load(pointer) if ALL else tl.load(pointer, mask=real, other=0)


@triton.jit
def _together(
    total0, squares0, sizes0, digest0, low0, high0, top0, found0, zeros0,
    total1, squares1, sizes1, digest1, low1, high1, top1, found1, zeros1,
):  # fmt: skip
    return (
        total0 + total1,
        squares0 + squares1,
        sizes0 + sizes1,
        digest0 + digest1,
        tl.minimum(low0, low1),
        tl.maximum(high0, high1),
        tl.maximum(top0, top1),
        found0 + found1,
        zeros0 + zeros1,
    )


@triton.jit
def _added(a0, b0, c0, a1, b1, c1):
    return a0 + a1, b0 + b1, c0 + c1


@triton.jit
def _spread(bins, lane, first, c0, c1, c2, c3):
    """Adds counts of bins from `first` on; lane k keeps bin k. The lowest bin, where zeros are, is nobody's."""
    place = tl.where(lane > 0, lane - first, -1)
    bins += tl.where(place == 0, c0, 0) + tl.where(place == 1, c1, 0)
    return bins + tl.where(place == 2, c2, 0) + tl.where(place == 3, c3, 0)


@triton.jit
def _count_below(missing, bin, address, start, lane, into, runs, layout, LIES: tl.constexpr):
    if LIES == DENSE:
        return count_below_dense(missing, bin, lane, address + start * 4)
    else:
        _size0, mul0, shift0, _s1, _m1, _h1, _s2, _m2, _h2, _t0, _t1, _t2, _t3 = layout
        return count_below_runs(missing, bin, lane, address, into, runs, mul0, shift0)


@triton.jit
def bfloat16_blocks(address, first, blocks, row, layout, LIES: tl.constexpr, WARPS: tl.constexpr):
    """Summarises whole blocks; gives 0, and has stored the row, if all of them were ordinary."""
    nothing = tl.zeros([32 * WARPS], tl.int32)
    lane = tl.arange(0, 32 * WARPS) & 31
    warp = tl.arange(0, 32 * WARPS) >> 5
    real1 = lane + 32 < COLUMNS
    own_columns = tl.where((lane >> 2) == 2 * (lane & 3), ONES, 0)
    even_columns = tl.where((lane & 4) == 0, ONES, 0)
    odd_columns = tl.where((lane & 4) != 0, ONES, 0)
    total_columns = tl.where((lane & 12) == 4, ONES, 0)
    zero_columns = tl.where((lane & 12) == 12, ONES, 0)
    columns = own_columns, even_columns, odd_columns, total_columns, zero_columns
    diagonal0 = tl.where((lane >> 2) == 2 * (lane & 3), 1.0, 0.0)
    diagonal1 = tl.where((lane >> 2) == 2 * (lane & 3) + 1, 1.0, 0.0)
    signs0 = hash_of(SUM_SALT, lane).to(tl.int32)
    signs1 = hash_of(SUM_SALT, lane + 32).to(tl.int32)
    pattern00, pattern01 = odd_bits(signs0), odd_bits(signs0 >> 3)
    pattern10, pattern11 = odd_bits(signs1), odd_bits(signs1 >> 3)
    group0, group1 = odd_bits(signs0 >> 6), odd_bits(signs1 >> 6)
    none = tl.zeros([32 * WARPS], tl.float32)
    mixed, squares, sizes, sketch0, sketch1 = none, none, none, none, none
    low0, high0 = no_range(none, BFLOAT16)
    low1, high1 = low0, high0
    bins = nothing
    tops = nothing
    digest = tl.zeros([32 * WARPS], tl.uint64)
    no_digest = tl.zeros([32 * WARPS], tl.int64)
    no_sums = none, none, none, none
    steps = (blocks + WARPS - 1) // WARPS
    # Lane k keeps the word of step k's block.
    words = hash_of(BLOCK_SALT, (first + lane * WARPS + warp).to(tl.int64))
    lower_words, upper_words = words.to(tl.int32), (words >> 32).to(tl.int32)
    for step in range(steps):
        own = step * WARPS + warp
        valid = own < blocks
        weight = tl.where(valid, 1.0, 0.0)
        b = first + tl.minimum(own, blocks - 1)
        lower_word = from_lane(lower_words, nothing + step)
        upper_word = from_lane(upper_words, nothing + step)
        word = (upper_word.to(tl.uint32).to(tl.uint64) << 32) | lower_word.to(tl.uint32).to(tl.uint64)
        turns = turns_of(word)
        start = b.to(tl.int64) * PAIRS
        into, runs = _find_runs(start, lane, layout, LIES)
        c0 = column_of(word, lane)
        c1 = column_of(word, lane + 32)
        flips0 = group0 ^ turns ^ (0 - ((lower_word >> lane) & 1))
        flips1 = group1 ^ turns ^ (0 - ((upper_word >> lane) & 1))
        sums = no_sums, no_sums, no_sums, no_sums, low0, high0, low1, high1, no_digest, no_digest
        for r in tl.static_range(0, 16, 2):
            turned0 = (flips0 & (1 << (r // 4))) * (SIGNS >> (r // 4))
            turned1 = (flips1 & (1 << (r // 4))) * (SIGNS >> (r // 4))
            sums = _add_rows(
                sums,
                _read(address, start, c0, real1, r, into, runs, layout, LIES, True),
                _read(address, start, c1, real1, r, into, runs, layout, LIES, False),
                _read(address, start, c0, real1, r + 1, into, runs, layout, LIES, True),
                _read(address, start, c1, real1, r + 1, into, runs, layout, LIES, False),
                _sign_bits(pattern00, pattern01, r % 4) ^ turned0,
                _sign_bits(pattern10, pattern11, r % 4) ^ turned1,
                _sign_bits(pattern00, pattern01, r % 4 + 1) ^ turned0,
                _sign_bits(pattern10, pattern11, r % 4 + 1) ^ turned1,
                KEYS[r],
                KEYS[r + 1],
                columns,
            )
        upper, lower, linear, three, low0, high0, low1, high1, digest0, digest1 = sums
        u0, u1, _u2, _u3 = upper
        _v0, _v1, v2, v3 = lower
        squares += ((u0 + v2) * diagonal0 + (u1 + v3) * diagonal1) * weight
        l0, l1, l2, l3 = linear
        sketch0 += l0 * weight
        sketch1 += l2 * weight
        sizes += (l1 + l3) * weight
        place = b.to(tl.uint64) * COLUMNS + 1
        parts = mix(digest0.to(tl.uint64) + (place + c0.to(tl.uint64)) * GAMMA)
        parts += tl.where(real1, mix(digest1.to(tl.uint64) + (place + c1.to(tl.uint64)) * GAMMA), 0)
        digest += tl.where(valid, parts, 0)
        t0, t1, t2, t3 = three
        mixed += (t1 + t3) * weight
        top = largest_of_lanes(tl.maximum(t0, t2).to(tl.int32, bitcast=True)) >> 26
        tops = tl.maximum(tops, top)
        window = tl.maximum(top, 3)
        scale = ((270 - 8 * window) << 23).to(tl.float32, bitcast=True)
        packed0 = (t0 * scale).to(tl.int32)
        packed1 = (t2 * scale).to(tl.int32)
        seen = sum_of_bytes(packed0) + sum_of_bytes(packed1) + ((t1 + t3) * (1.0 / ZERO_WEIGHT)).to(tl.int32)
        counts = valid & ((lane & 3) == 1) & (top <= HIGHEST_TOP)
        unseen = tl.where(counts, ROWS_COUNT - seen, 0)
        below = _count_below(unseen, window - 2, address, start, lane, into, runs, layout, LIES)
        even = sum_of_lanes((packed0 & 0xFF00FF) + (packed1 & 0xFF00FF))
        odd = sum_of_lanes(((packed0 >> 8) & 0xFF) + ((packed1 >> 8) & 0xFF))
        more = _spread(nothing, lane, window - 2, even & 0xFFFF, odd, even >> 16, nothing)
        bins += tl.where(valid, more, 0) + 4 * below
    bins = bins >> 2
    low1 = tl.where(real1, low1, low0)
    high1 = tl.where(real1, high1, high0)
    low, high = join_range(low0, high0, low1, high1, BFLOAT16)
    total, squares, sizes, digest, low, high, top, found, zeros = tl.reduce(
        (
            tl.where((lane & 1) == 0, mixed, 0.0).to(tl.float64),
            squares.to(tl.float64),
            sizes.to(tl.float64),
            digest,
            lowest(low, BFLOAT16),
            highest(high, BFLOAT16),
            tops,
            bins,
            tl.where((lane & 1) == 0, 0.0, mixed * (1.0 / ZERO_WEIGHT)).to(tl.int32),
        ),
        None,
        _together,
    )
    zeros = zeros // 2 - blocks * FALSE_ZEROS
    missing = blocks * BLOCK - found - zeros
    large = (top > HIGHEST_TOP) | (tl.maximum(high, -low) >= LARGEST_BELOW)
    failed = (large | ((top < LOWEST_TOP) & (top > 0)) | (missing > 0)).to(tl.int32)
    if failed == 0:
        first_sums, last_sums, counts = tl.reduce(
            (
                tl.reshape(sketch0.to(tl.float64), [WARPS, 32]),
                tl.reshape(sketch1.to(tl.float64), [WARPS, 32]),
                tl.reshape(bins, [WARPS, 32]),
            ),
            0,
            _added,
        )
        never = tl.full([], 0, tl.int32)
        store_row(
            row,
            low,
            high,
            total * 0.5,
            squares,
            sizes * 0.25,
            never,
            never,
            never,
            never,
            zeros,
            never,
            counts,
            first_sums,
            last_sums,
            digest,
        )
    return failed
