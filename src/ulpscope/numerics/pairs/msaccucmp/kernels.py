"""What msaccucmp adds up over pairs of elements, compiled by numba: the same bits as in sums.py.

numpy adds up a run of up to 128 numbers in eight lanes, number i in lane i % 8, then the lanes in pairs, then what is
left of it one by one; longer runs are halved. So the terms of a run are written side by side, a row each, and added up
lane by lane. LLVM makes vectors of these loops, but only because all rows lie in one array: of two it would have to ask
each time whether they overlap.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import ml_dtypes
import numpy as np

from ulpscope.numerics.dtypes import AnyArray, Singles
from ulpscope.numerics.machine_code import by_numba
from ulpscope.numerics.pairs.metric_loading import BFLOAT16, FLOAT16, NO_TABLE, compiled, load
from ulpscope.numerics.pairs.msaccucmp.sums import (
    EPSILON,
    FLOOR,
    GOLDEN_LOW,
    GOLDEN_SCALE,
    GOLDEN_WIDTH,
    MY_LOW,
    MY_SCALE,
    MY_WIDTH,
    RELATIVE,
    SUMS,
)
from ulpscope.numerics.pairs.pieces import aligned

AT_ONCE = 1 << 17
"""Numbers of a call: more would leave a core's own caches once they are float32."""
RUN, LANES = 128, 8
_DEEPEST = 64
"""Halvings that any array takes."""
_LANES = SUMS * RUN
"""Where the lanes' sums lie, behind the rows."""
_TAIL = _LANES + SUMS * LANES
"""Where what is left of a run waits, behind these."""
_FORMS = {np.dtype(np.float16): FLOAT16, np.dtype(ml_dtypes.bfloat16): BFLOAT16}
_ZERO, _ONE, _EPSILON, _FLOOR = (np.float32(number) for number in (0.0, 1.0, EPSILON, FLOOR))


_exactly, _kernel = by_numba(kept=False, exact=True), by_numba(kept=True, exact=True)


@_exactly
def _inverse(divisor):
    return 1.0 / np.float64(divisor)


@_exactly
def _divided(number, inverse):
    """number / divisor, rounded as division does, in a fifth of its time.

    A quotient of two float32 is at least 2**-49 of itself away from where rounding to a normal float32 changes; this
    product is within 2**-52 of it.
    """
    return np.float32(np.float64(number) * inverse)


@_exactly
def _share(number, low, inverse):
    share = _divided(np.float32(number - low), inverse)
    return _FLOOR if share < _FLOOR else share


@_exactly
def _write_terms(my, golden, start, n, plan, rows):
    """A row each: the terms whose sums are asked for."""
    mine, theirs = my[start : start + n], golden[start : start + n]
    my_inverse, golden_inverse = _inverse(plan[MY_WIDTH]), _inverse(plan[GOLDEN_WIDTH])
    for i in range(n):
        x, y = mine[i], theirs[i]
        apart, relative = abs(x - y), abs(x / y - _ONE)
        rows[i] = apart
        rows[i + RUN] = apart * apart
        rows[i + 2 * RUN] = y * y
        rows[i + 3 * RUN] = relative if abs(y) > _EPSILON else _ZERO
        rows[i + 4 * RUN] = (x / plan[MY_SCALE]) * (y / plan[GOLDEN_SCALE])
        rows[i + 5 * RUN] = _share(x, plan[MY_LOW], my_inverse)
        rows[i + 6 * RUN] = _share(y, plan[GOLDEN_LOW], golden_inverse)


@_exactly
def _raise_largest(rows, n, largest):
    """By their bits, which are ordered as sizes are, nan above all."""
    bits = rows.view(np.int32)
    apart, relative = largest[0], largest[1]
    for i in range(n):
        apart = max(apart, bits[i])
        relative = max(relative, bits[i + RELATIVE * RUN])
    largest[0], largest[1] = apart, relative


@_exactly
def _lane(rows, i):
    total = rows[i]
    for step in range(1, RUN // LANES):
        total += rows[i + LANES * step]
    return total


@_exactly
def _add_lanes(rows):
    for i in range(LANES):
        rows[i + _LANES] = _lane(rows, i)
        rows[i + _LANES + LANES] = _lane(rows, i + RUN)
        rows[i + _LANES + 2 * LANES] = _lane(rows, i + 2 * RUN)
        rows[i + _LANES + 3 * LANES] = _lane(rows, i + 3 * RUN)
        rows[i + _LANES + 4 * LANES] = _lane(rows, i + 4 * RUN)
        rows[i + _LANES + 5 * LANES] = _lane(rows, i + 5 * RUN)
        rows[i + _LANES + 6 * LANES] = _lane(rows, i + 6 * RUN)


@_exactly
def _add_run(rows, n, sums, place):
    """Adds up each row; zeros behind its end change no sum."""
    whole = n - n % LANES
    for k in range(SUMS if whole < RUN else 0):
        for i in range(n - whole):
            rows[_TAIL + LANES * k + i] = rows[k * RUN + whole + i]
        rows[k * RUN + whole : (k + 1) * RUN] = _ZERO
    _add_lanes(rows)
    for k in range(SUMS):
        i = _LANES + LANES * k
        left, right = (rows[i] + rows[i + 1]) + (rows[i + 2] + rows[i + 3]), rows[i + 4] + rows[i + 5]
        total = left + (right + (rows[i + 6] + rows[i + 7]))
        for tail in range(n - whole):
            total += rows[_TAIL + LANES * k + tail]
        sums[SUMS * place + k] = total


@_kernel
def _sums(my, golden, plan, found, largest):
    rows, sums = np.zeros(_TAIL + SUMS * LANES, np.float32), np.zeros(SUMS * _DEEPEST, np.float32)
    counts, depths, levels = (
        np.zeros(_DEEPEST, np.int64),
        np.zeros(_DEEPEST, np.int64),
        np.zeros(_DEEPEST, np.int64),
    )
    counts[0] = len(my)
    start, waiting, known = 0, 1, 0
    while waiting:
        waiting -= 1
        length, depth = counts[waiting], depths[waiting]
        while length > RUN:
            half = length // 2
            half -= half % LANES
            depth += 1
            counts[waiting], depths[waiting] = length - half, depth
            waiting += 1
            length = half
        _write_terms(my, golden, start, length, plan, rows)
        _raise_largest(rows, length, largest)
        _add_run(rows, length, sums, known)
        start += length
        while known and levels[known - 1] == depth:  # the other half waits
            known -= 1
            depth -= 1
            for k in range(SUMS * known, SUMS * known + SUMS):
                sums[k] += sums[k + SUMS]
        levels[known] = depth
        known += 1
    found[:] = sums[:SUMS]


@_kernel
def _ratios(my, golden, plan, shares, ratios):
    """Shares of my side, and their ratio to golden's."""
    my_low, golden_low = plan[MY_LOW], plan[GOLDEN_LOW]
    my_width, golden_width = _inverse(plan[MY_WIDTH]), _inverse(plan[GOLDEN_WIDTH])
    my_scale, golden_scale = _inverse(plan[MY_SCALE]), _inverse(plan[GOLDEN_SCALE])
    for i in range(len(my)):
        share = _divided(_share(my[i], my_low, my_width), my_scale)
        shares[i] = share
        ratios[i] = share / _divided(_share(golden[i], golden_low, golden_width), golden_scale)


@compiled
def _moments(part, shift):
    total, squares = 0.0, 0.0
    for i in range(len(part)):
        distance = np.float64(part[i]) - shift
        total += distance
        squares += distance * distance
    return total, squares


def readable(part: AnyArray, memory: Singles) -> Singles:
    """The part as float32, where and how one compilation of the functions below takes it."""
    form = _FORMS.get(part.dtype)
    if form is None:
        return aligned(part.astype(np.float32, copy=False), 4)
    found = memory[: len(part)]
    load(aligned(part, 2).view(np.uint8), form, NO_TABLE, 0, len(part), found)
    return aligned(found, 4)


def moments(part: Singles, shift: float) -> tuple[float, float]:
    """As sums.moments."""
    total, squares = _moments(part, shift)
    return float(total), float(squares)


def sums(my: Singles, golden: Singles, plan: Singles) -> tuple[Singles, Singles]:
    """As sums.sums."""
    found, largest = np.empty(SUMS, np.float32), np.zeros(2, np.int32)
    _sums(my, golden, plan, found, largest)
    return found, largest.view(np.float32)


def divergence(my: Singles, golden: Singles, plan: Singles, memory: Singles) -> np.float32:
    """As sums.divergence. numpy's own logarithm, as another one has other last bits."""
    shares, ratios = memory[0, : len(my)], memory[1, : len(my)]
    _ratios(my, golden, plan, shares, ratios)
    np.log(ratios, out=ratios)
    ratios *= shares
    return np.float32(ratios.sum())
