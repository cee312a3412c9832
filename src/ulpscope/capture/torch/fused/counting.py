"""Zeros, ranges and exponents, several in one register."""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.loading import as_float32
from ulpscope.capture.torch.fused.numbers import BFLOAT16, BINS, FLOAT16, FLOAT32


@triton.jit
def shifted_one(amount):
    """1 << amount, 0 for an amount that is negative or above 31."""
    return tl.inline_asm_elementwise("shl.b32 $0, 1, $1;", "=r,r", [amount], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def shifted_long(amount):
    """The same of 64 bits."""
    return tl.inline_asm_elementwise("shl.b64 $0, 1, $1;", "=l,r", [amount], dtype=tl.int64, is_pure=True, pack=1)


@triton.jit
def is_zero(number):
    return tl.inline_asm_elementwise(
        "set.eq.f32.f32 $0, $1, 0f00000000;", "=f,f", [number], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _apply(code: tl.constexpr, one, other):
    return tl.inline_asm_elementwise(code, "=r,r,r", [one, other], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def no_zeros(like, KIND: tl.constexpr):
    return tl.zeros(like.shape, tl.float32 if KIND == FLOAT32 else tl.int32)


@triton.jit
def add_zeros(zeros, word0, word1, KIND: tl.constexpr):
    """Counts zeros, of pairs as two float16: zero has the same bits in all types of two bytes."""
    if KIND == FLOAT32:
        zeros += is_zero(word0.to(tl.float32, bitcast=True))
        return zeros + is_zero(word1.to(tl.float32, bitcast=True))
    else:
        held = _apply("set.eq.f16x2.f16x2 $0, $1, $2;", word0, tl.zeros(word0.shape, tl.int32))
        return _apply("add.f16x2 $0, $1, $2;", zeros, held)


@triton.jit
def count_of(zeros, KIND: tl.constexpr):
    if KIND == FLOAT32:
        return zeros
    else:
        return as_float32(zeros & 0xFFFF, FLOAT16) + as_float32(zeros >> 16, FLOAT16)


@triton.jit
def no_range(like, KIND: tl.constexpr):
    if KIND == FLOAT32:
        low = tl.full(like.shape, float("inf"), tl.float32)
        return low, -low
    elif KIND == BFLOAT16:
        return tl.full(like.shape, 0x7F807F80, tl.int32), tl.full(like.shape, 0x7F807F80, tl.int32) ^ -0x7FFF8000
    else:
        return tl.full(like.shape, 0x7C007C00, tl.int32), tl.full(like.shape, 0x7C007C00, tl.int32) ^ -0x7FFF8000


@triton.jit
def add_range(low, high, word0, word1, KIND: tl.constexpr):
    """Lowest and highest of ordinary numbers; pairs of two bytes as they are."""
    if KIND == FLOAT32:
        number0 = word0.to(tl.float32, bitcast=True)
        number1 = word1.to(tl.float32, bitcast=True)
        return tl.minimum(tl.minimum(low, number0), number1), tl.maximum(tl.maximum(high, number0), number1)
    elif KIND == BFLOAT16:
        return _apply("min.bf16x2 $0, $1, $2;", low, word0), _apply("max.bf16x2 $0, $1, $2;", high, word0)
    else:
        return _apply("min.f16x2 $0, $1, $2;", low, word0), _apply("max.f16x2 $0, $1, $2;", high, word0)


@triton.jit
def join_range(low, high, other_low, other_high, KIND: tl.constexpr):
    if KIND == FLOAT32:
        return tl.minimum(low, other_low), tl.maximum(high, other_high)
    else:
        low, _high = add_range(low, high, other_low, other_low, KIND)
        _low, high = add_range(low, high, other_high, other_high, KIND)
        return low, high


@triton.jit
def lowest(low, KIND: tl.constexpr):
    if KIND == FLOAT32:
        return low
    else:
        return tl.minimum(as_float32(low & 0xFFFF, KIND), as_float32((low >> 16) & 0xFFFF, KIND))


@triton.jit
def highest(high, KIND: tl.constexpr):
    if KIND == FLOAT32:
        return high
    else:
        return tl.maximum(as_float32(high & 0xFFFF, KIND), as_float32((high >> 16) & 0xFFFF, KIND))


@triton.jit
def spread_bins(even, odd, window):
    """Counts by bin, of packed counts that begin at the window."""
    number = tl.arange(0, BINS)[None, :]
    evens = tl.sum(even, 1, keep_dims=True)
    odds = tl.sum(odd, 1, keep_dims=True)
    bin0 = window >> 3
    bins = tl.where(number == bin0, evens & 0xFFFF, 0)
    bins += tl.where(number == bin0 + 1, odds & 0xFFFF, 0)
    bins += tl.where(number == bin0 + 2, (evens >> 16) & 0xFFFF, 0)
    bins += tl.where(number == bin0 + 3, (odds >> 16) & 0xFFFF, 0)
    return tl.sum(bins, 0)


@triton.jit
def unpacked_bins(even, odd, first):
    """All counts, eight of which are those of two words of four counts of two bytes each."""
    number = tl.arange(0, BINS) - first
    source = tl.where((number & 1) == 0, even, odd)
    count = (source >> (((number >> 1) & 3) * 16).to(tl.int64)) & 0xFFFF
    return tl.where((number >= 0) & (number < 8), count, 0).to(tl.int32)
