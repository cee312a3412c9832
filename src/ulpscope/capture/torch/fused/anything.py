"""Blocks of any type that may hold anything: each element is looked at for itself."""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.counting import shifted_long, unpacked_bins
from ulpscope.capture.torch.fused.hashing import column_of, hash_of, mix, odd_bits, turns_of
from ulpscope.capture.torch.fused.loading import as_float32, load_element
from ulpscope.capture.torch.fused.numbers import (
    BLOCK,
    BLOCK_SALT,
    COLUMNS,
    EVEN_BYTES,
    FLOAT64,
    GAMMA,
    INFINITY_32,
    INFINITY_64,
    INTEGER,
    PAIRS,
    SET_ASIDE,
    SUM_SALT,
)
from ulpscope.capture.torch.fused.storing import store_row


@triton.jit
def _words_sum(raw0, raw1, r, keys, ITEM: tl.constexpr):
    """The digest's sum of one pair in row r, from both elements' bits."""
    if ITEM == 1:
        word = ((raw1 << 8) | (raw0 & 0xFF)).to(tl.int16)
        return word.to(tl.int64) * tl.load(keys + r).to(tl.int64)
    elif ITEM == 2:
        word = ((raw1 << 16) | (raw0 & 0xFFFF)).to(tl.int32)
        return word.to(tl.int64) * tl.load(keys + r).to(tl.int64)
    elif ITEM == 4:
        return raw0 * tl.load(keys + 2 * r).to(tl.int64) + raw1 * tl.load(keys + 2 * r + 1).to(tl.int64)
    else:
        first = raw0.to(tl.int32).to(tl.int64) * tl.load(keys + 4 * r).to(tl.int64)
        first += (raw0 >> 32) * tl.load(keys + 4 * r + 1).to(tl.int64)
        second = raw1.to(tl.int32).to(tl.int64) * tl.load(keys + 4 * r + 2).to(tl.int64)
        return first + second + (raw1 >> 32) * tl.load(keys + 4 * r + 3).to(tl.int64)


@triton.jit
def any_blocks(
    address,
    count,
    first,
    blocks,
    row,
    keys,
    layout,
    smallest_normal,
    KIND: tl.constexpr,
    ITEM: tl.constexpr,
    SIGNED: tl.constexpr,
    LIES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Summarises blocks whatever they hold, also those at the end of a value."""
    lane = tl.arange(0, 32)[None, :] + tl.zeros([WARPS, 32], tl.int32)
    warp = tl.arange(0, WARPS)[:, None] + tl.zeros([WARPS, 32], tl.int32)
    total = tl.zeros([WARPS, 32], tl.float64)
    squares = total
    sizes = total
    sketch0 = total
    sketch1 = total
    low = tl.full([WARPS, 32], float("inf"), tl.float64)
    high = -low
    nans = tl.zeros([WARPS, 32], tl.int32)
    positive = nans
    negative = nans
    aside = nans
    zeros = nans
    subnormal = nans
    none = tl.zeros([WARPS, 32], tl.int64)
    even0, even1, even2, even3, odd0, odd1, odd2, odd3 = none, none, none, none, none, none, none, none
    digest = tl.zeros([WARPS, 32], tl.uint64)
    for step in range((blocks + WARPS - 1) // WARPS):
        own = step * WARPS + warp
        b = first + own
        word = hash_of(BLOCK_SALT, b.to(tl.int64))
        turns = turns_of(word)
        start = b.to(tl.int64) * PAIRS
        left = tl.where(own < blocks, tl.minimum(count - start * 2, BLOCK), 0).to(tl.int32)
        for half in range(2):
            k = lane + 32 * half
            real = (left > 0) & (k < COLUMNS)
            c = column_of(word, k)
            signs = hash_of(SUM_SALT, k).to(tl.int32)
            own = (word >> tl.cast(32 * half, tl.uint64)).to(tl.int32) >> lane
            flips = odd_bits(signs >> 6) ^ turns ^ (0 - (own & 1))
            column = none
            sketch = tl.zeros([WARPS, 32], tl.float64)
            packed0, packed1, packed2, packed3 = none, none, none, none
            for group in range(4):
                for r in tl.static_range(4):
                    local = ((group * 4 + r) * COLUMNS + c) * 2
                    inside0 = real & (local < left)
                    inside1 = real & (local + 1 < left)
                    raw0 = load_element(address, start * 2 + local, inside0, layout, ITEM, LIES)
                    raw1 = load_element(address, start * 2 + local + 1, inside1, layout, ITEM, LIES)
                    column += _words_sum(raw0, raw1, group * 4 + r, keys, ITEM)
                    for h in tl.static_range(2):
                        raw = raw0 if h == 0 else raw1
                        inside = inside0 if h == 0 else inside1
                        if KIND == INTEGER:
                            value = _integer_value(raw, ITEM, SIGNED)
                            total += tl.where(inside, value, 0.0)
                            low = tl.where(inside, tl.minimum(low, value), low)
                            high = tl.where(inside, tl.maximum(high, value), high)
                            zeros += (inside & (raw == 0)).to(tl.int32)
                        else:
                            value, size, exponent = _float_value(raw, KIND)
                            infinity = INFINITY_64 if KIND == FLOAT64 else INFINITY_32
                            kept = inside & (exponent < SET_ASIDE + 127)
                            seen = inside & (size < infinity)
                            nans += (inside & (size > infinity)).to(tl.int32)
                            positive += (inside & (size == infinity) & (raw >= 0)).to(tl.int32)
                            negative += (inside & (size == infinity) & (raw < 0)).to(tl.int32)
                            aside += (inside & (exponent >= SET_ASIDE + 127)).to(tl.int32)
                            zeros += (inside & (size == 0)).to(tl.int32)
                            subnormal += (inside & (size != 0) & (size < smallest_normal)).to(tl.int32)
                            low = tl.where(seen, tl.minimum(low, value), low)
                            high = tl.where(seen, tl.maximum(high, value), high)
                            number = tl.where(kept, value, 0.0)
                            total += number
                            squares += number * number
                            sizes += tl.abs(number)
                            pattern = odd_bits(signs) if h == 0 else odd_bits(signs >> 3)
                            minus = ((pattern >> r) ^ (flips >> group)) & 1
                            sketch += tl.where(minus == 1, -number, number)
                            clamped = tl.minimum(tl.maximum(exponent, 0), 255) & 0xF8
                            shift = tl.where(seen & (size != 0), clamped, 1 << 20)
                            packed0 += shifted_long(shift)
                            packed1 += shifted_long(shift - 64)
                            packed2 += shifted_long(shift - 128)
                            packed3 += shifted_long(shift - 192)
            even0 += packed0 & EVEN_BYTES
            even1 += packed1 & EVEN_BYTES
            even2 += packed2 & EVEN_BYTES
            even3 += packed3 & EVEN_BYTES
            odd0 += (packed0 >> 8) & EVEN_BYTES
            odd1 += (packed1 >> 8) & EVEN_BYTES
            odd2 += (packed2 >> 8) & EVEN_BYTES
            odd3 += (packed3 >> 8) & EVEN_BYTES
            place = (b.to(tl.uint64) * COLUMNS + 1) + c.to(tl.uint64)
            digest += tl.where(real, mix(column.to(tl.uint64) + place * GAMMA), 0)
            sketch0 += tl.where(half == 0, sketch, 0.0)
            sketch1 += tl.where(half == 1, sketch, 0.0)
    bins = unpacked_bins(tl.sum(even0), tl.sum(odd0), 0) + unpacked_bins(tl.sum(even1), tl.sum(odd1), 8)
    bins += unpacked_bins(tl.sum(even2), tl.sum(odd2), 16) + unpacked_bins(tl.sum(even3), tl.sum(odd3), 24)
    store_row(
        row,
        tl.min(low),
        tl.max(high),
        tl.sum(total),
        tl.sum(squares),
        tl.sum(sizes),
        tl.sum(nans),
        tl.sum(positive),
        tl.sum(negative),
        tl.sum(aside),
        tl.sum(zeros),
        tl.sum(subnormal),
        bins,
        tl.sum(sketch0, 0),
        tl.sum(sketch1, 0),
        tl.sum(digest),
    )


@triton.jit
def _integer_value(raw, ITEM: tl.constexpr, SIGNED: tl.constexpr):
    if SIGNED:
        return raw.to(tl.float64)
    elif ITEM == 1:
        return (raw & 0xFF).to(tl.float64)
    elif ITEM == 2:
        return (raw & 0xFFFF).to(tl.float64)
    elif ITEM == 4:
        return (raw & 0xFFFFFFFF).to(tl.float64)
    else:
        return raw.to(tl.uint64).to(tl.float64)


@triton.jit
def _float_value(raw, KIND: tl.constexpr):
    """An element as float64, its size as an integer, its exponent as float32 would hold it."""
    if KIND == FLOAT64:
        size = raw & 0x7FFFFFFFFFFFFFFF
        return raw.to(tl.float64, bitcast=True), size, (size >> 52).to(tl.int32) - (1023 - 127)
    else:
        single = as_float32(raw.to(tl.int32), KIND)
        size = single.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        return single.to(tl.float64), size, size >> 23
