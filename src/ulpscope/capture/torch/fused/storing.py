"""A program's partial row."""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.numbers import (
    ABS,
    ASIDE,
    BINS,
    COLUMNS,
    DIGEST,
    EXPONENTS,
    MIN,
    NAN,
    NEG_INF,
    POS_INF,
    SKETCH,
    SQUARES,
    SUBNORMAL,
    SUM,
    ZERO,
)


@triton.jit
def store_row(
    row,
    low,
    high,
    total,
    squares,
    sizes,
    nans,
    positive,
    negative,
    aside,
    zeros,
    subnormal,
    bins,
    sketch0,
    sketch1,
    digest,
):
    floats = row.to(tl.pointer_type(tl.float64), bitcast=True)
    slot = tl.arange(0, 16)
    # Adding 0.0 turns -0.0 into 0.0.
    number = tl.where(slot == MIN, low.to(tl.float64) + 0.0, high.to(tl.float64) + 0.0)
    number = tl.where(slot == SUM, total, number)
    number = tl.where(slot == SQUARES, squares, number)
    number = tl.where(slot == ABS, sizes, number)
    number = tl.where(slot == NAN, nans.to(tl.float64), number)
    number = tl.where(slot == POS_INF, positive.to(tl.float64), number)
    number = tl.where(slot == NEG_INF, negative.to(tl.float64), number)
    number = tl.where(slot == ASIDE, aside.to(tl.float64), number)
    number = tl.where(slot == ZERO, zeros.to(tl.float64), number)
    number = tl.where(slot == SUBNORMAL, subnormal.to(tl.float64), number)
    tl.store(floats + slot, number, mask=slot < EXPONENTS)
    lane = tl.arange(0, 32)
    tl.store(floats + SKETCH + lane, sketch0)
    tl.store(floats + SKETCH + 32 + lane, sketch1, mask=lane + 32 < COLUMNS)
    tl.store(floats + EXPONENTS + tl.arange(0, BINS), bins.to(tl.float64))
    tl.store(row + DIGEST, digest.to(tl.int64))
