"""What is launched: values to be read, and partial rows to be joined."""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.anything import any_blocks
from ulpscope.capture.torch.fused.numbers import (
    BFLOAT16,
    BLOCK,
    DENSE,
    DIGEST,
    FLOAT16,
    FLOAT32,
    LINE,
    MANY_WARPS,
    MAX,
    MIN,
    PAIRED,
    PARTIAL,
    RUNS,
)
from ulpscope.capture.torch.fused.ordinary import ordinary_blocks
from ulpscope.capture.torch.fused.tensor_cores import bfloat16_blocks


@triton.jit
def _summarize(
    address,
    count,
    program,
    inner,
    row,
    keys,
    layout,
    smallest_normal,
    KIND: tl.constexpr,
    ITEM: tl.constexpr,
    SIGNED: tl.constexpr,
    LIES: tl.constexpr,
):
    """The whole blocks of a value, `inner` a program, then one program for the elements that are left."""
    whole = (count // BLOCK).to(tl.int32)
    first = tl.minimum(program * inner, whole)
    blocks = tl.minimum(inner, tl.maximum(whole - first, 1))
    failed = tl.full([], 1, tl.int32)
    how: tl.constexpr = PAIRED if LIES == RUNS else LIES
    dense_bfloat16: tl.constexpr = (KIND == BFLOAT16) and ((LIES == DENSE) or (LIES == RUNS))
    warps: tl.constexpr = MANY_WARPS if dense_bfloat16 else 1
    if (KIND == BFLOAT16) or (KIND == FLOAT16) or (KIND == FLOAT32):
        if first >= whole:
            left = (count - whole.to(tl.int64) * BLOCK).to(tl.int32)
            failed = ordinary_blocks(address, first, 1, left, row, keys, layout, KIND, how, True)
        elif dense_bfloat16:
            failed = bfloat16_blocks(address, first, blocks, row, layout, LIES, warps)
        else:
            failed = ordinary_blocks(address, first, blocks, BLOCK, row, keys, layout, KIND, LIES, False)
    if failed != 0:
        any_blocks(address, count, first, blocks, row, keys, layout, smallest_normal, KIND, ITEM, SIGNED, how, warps)


_NUMBERS = ["smallest_normal", "address", "count", "inner", "row", "size0", "mul0", "shift0", "size1", "mul1"]
_NUMBERS += ["shift1", "size2", "mul2", "shift2", "stride0", "stride1", "stride2", "stride3"]
_NUMBERS += [f"{name}{i}" for name in ("address", "count", "end", "inner", "row") for i in range(4)]


@triton.jit(do_not_specialize=_NUMBERS)
def summarize_few(
    keys,
    smallest_normal: tl.int64,
    address0: tl.int64,
    count0: tl.int64,
    end0: tl.int32,
    inner0: tl.int32,
    row0: tl.int64,
    address1: tl.int64,
    count1: tl.int64,
    end1: tl.int32,
    inner1: tl.int32,
    row1: tl.int64,
    address2: tl.int64,
    count2: tl.int64,
    end2: tl.int32,
    inner2: tl.int32,
    row2: tl.int64,
    address3: tl.int64,
    count3: tl.int64,
    inner3: tl.int32,
    row3: tl.int64,
    KIND: tl.constexpr,
    ITEM: tl.constexpr,
    SIGNED: tl.constexpr,
):
    """Up to four dense values of one kind; value i is read by the programs before `end_i`, each leaves a part."""
    program = tl.program_id(0)
    address, count, inner, row, start = address0, count0, inner0, row0, 0
    if program >= end2:
        address, count, inner, row, start = address3, count3, inner3, row3, end2
    elif program >= end1:
        address, count, inner, row, start = address2, count2, inner2, row2, end1
    elif program >= end0:
        address, count, inner, row, start = address1, count1, inner1, row1, end0
    program -= start
    own = row.to(tl.pointer_type(tl.int64)) + program.to(tl.int64) * PARTIAL
    _summarize(address, count, program, inner, own, keys, (), smallest_normal, KIND, ITEM, SIGNED, DENSE)


@triton.jit(do_not_specialize=_NUMBERS)
def summarize_strided(
    keys,
    smallest_normal: tl.int64,
    address0: tl.int64,
    row0: tl.int64,
    address1: tl.int64,
    row1: tl.int64,
    address2: tl.int64,
    row2: tl.int64,
    address3: tl.int64,
    row3: tl.int64,
    count: tl.int64,
    inner: tl.int32,
    size0: tl.int32,
    mul0: tl.int32,
    shift0: tl.int32,
    size1: tl.int32,
    mul1: tl.int32,
    shift1: tl.int32,
    size2: tl.int32,
    mul2: tl.int32,
    shift2: tl.int32,
    stride0: tl.int64,
    stride1: tl.int64,
    stride2: tl.int64,
    stride3: tl.int64,
    KIND: tl.constexpr,
    ITEM: tl.constexpr,
    SIGNED: tl.constexpr,
    LIES: tl.constexpr,
):
    """Up to four values, all of the same up to four dimensions with any strides, of elements or of pairs.

    The first dimension is the innermost.
    """
    program = tl.program_id(0)
    value = tl.program_id(1)
    address, row = address0, row0
    if value == 1:
        address, row = address1, row1
    elif value == 2:
        address, row = address2, row2
    elif value == 3:
        address, row = address3, row3
    layout = (size0, mul0, shift0, size1, mul1, shift1, size2, mul2, shift2, stride0, stride1, stride2, stride3)
    own = row.to(tl.pointer_type(tl.int64)) + program.to(tl.int64) * PARTIAL
    _summarize(address, count, program, inner, own, keys, layout, smallest_normal, KIND, ITEM, SIGNED, LIES)


@triton.jit(do_not_specialize=["smallest_normal"])
def summarize_many(
    keys,
    smallest_normal: tl.int64,
    table,
    owners,
    KIND: tl.constexpr,
    ITEM: tl.constexpr,
    SIGNED: tl.constexpr,
):
    """Many dense values of one kind. A line of the table: its first program, address, count, inner, row."""
    line = table + tl.load(owners + tl.program_id(0)).to(tl.int64) * LINE
    program = (tl.program_id(0) - tl.load(line)).to(tl.int32)
    address = tl.load(line + 1)
    count = tl.load(line + 2)
    inner = tl.load(line + 3).to(tl.int32)
    own = tl.load(line + 4).to(tl.pointer_type(tl.int64)) + program.to(tl.int64) * PARTIAL
    _summarize(address, count, program, inner, own, keys, (), smallest_normal, KIND, ITEM, SIGNED, DENSE)


@triton.jit
def join(table):
    """Adds up the partial rows of a value, always in the same order; a program takes 16 slots."""
    line = table + tl.program_id(0).to(tl.int64) * 3
    row = tl.load(line).to(tl.pointer_type(tl.int64))
    parts = tl.load(line + 1).to(tl.pointer_type(tl.int64))
    count = tl.load(line + 2).to(tl.int32)
    which = tl.arange(0, 256)[:, None]
    slot = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    total = tl.zeros([256, 16], tl.float64)
    whole = tl.zeros([256, 16], tl.int64)
    low = tl.full([256, 16], float("inf"), tl.float64)
    high = -low
    for first in range(0, count, 256):
        there = (first + which < count) & (slot <= DIGEST)
        bits = tl.load(parts + (first + which).to(tl.int64) * PARTIAL + slot, mask=there, other=0)
        number = bits.to(tl.float64, bitcast=True)
        total += tl.where(slot == DIGEST, 0.0, number)
        whole += bits
        low = tl.minimum(low, tl.where(there, number, float("inf")))
        high = tl.maximum(high, tl.where(there, number, -float("inf")))
    slot = tl.program_id(1) * 16 + tl.arange(0, 16)
    result = tl.where(slot == MIN, tl.min(low, 0), tl.where(slot == MAX, tl.max(high, 0), tl.sum(total, 0)))
    result = tl.where(slot == DIGEST, tl.sum(whole, 0), result.to(tl.int64, bitcast=True))
    tl.store(row + slot, result, mask=slot <= DIGEST)
