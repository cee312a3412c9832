"""What msaccucmp adds up over pairs of elements, compiled by numba: the same bits as msaccucmp_plain.

Sides are given by address and form, so that one compilation serves all.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numba
import numpy as np

from ulpscope.numerics.pairs.metric_loading import compiled as compiled_fast
from ulpscope.numerics.pairs.msaccucmp import lanes
from ulpscope.numerics.pairs.msaccucmp.lanes import LANES, BestLanes, Lanes, Terms, widen_bfloat16, widen_float16
from ulpscope.numerics.pairs.msaccucmp.plain import APART, RELATIVE, SUMS, AnyArray, Singles
from ulpscope.numerics.summaries.kernel_blocks import copy

RUN = 128
"""Numbers that numpy adds up in lanes; longer runs are halved."""
_DEEPEST = 64
"""Halvings that any array takes."""
SUMS_AT_ONCE = 1 << 20
"""Numbers of a call: as many as may be converted to float32 first."""
LOGARITHMS_AT_ONCE = 1 << 16
"""The same where two results of each are kept, in a core's own cache."""

_FLOAT32, _FLOAT16, _BFLOAT16 = range(3)
_FORMS = {
    np.dtype(np.float32): _FLOAT32,
    np.dtype(np.float16): _FLOAT16,
    np.dtype(ml_dtypes.bfloat16): _BFLOAT16,
}

# Work memory of a call: a run of either side, the plan, a tail, the largest terms and the rows of a tail, then the sums
# that wait for their other half. The caller allocates it: numba frees an array of its own once its address is taken.
_PLAN = 2 * RUN
_TAIL = _PLAN + lanes.PLANNED
_LARGEST = _TAIL + LANES
_ROWS = _LARGEST + 2 * LANES
_STACK = _ROWS + LANES * LANES
_WORK = _STACK + _DEEPEST * LANES

_DIVISORS, _INVERSES = lanes.DIVISORS, lanes.INVERSES
_LEAST, _MOST = np.float32(lanes.LEAST), np.float32(lanes.MOST)


def _exactly(function: Callable[..., Any]) -> Callable[..., Any]:
    """For parts of kernels: every operation as it is written."""
    return numba.njit(function, nogil=True, error_model="numpy")  # type: ignore[no-any-return]


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at the first call, cached on disk."""
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy")  # type: ignore[no-any-return]
    except RuntimeError:  # no directory to cache in: compile anew in each process
        return _exactly(function)


@_exactly
def _address(array, index):
    return np.int64(array.ctypes.data) + 4 * index


@_exactly
def _widen(form, source, count, target):
    if form == _FLOAT16:
        widen_float16(source, count, target)
    elif form == _BFLOAT16:
        widen_bfloat16(source, count, target)
    else:
        copy(target, source, 4 * count)


@_exactly
def _singles(side, form, start, count, work, index):
    """Where a run lies as float32, filled up to whole vectors: where it is already, or in the work memory."""
    size = 4 if form == _FLOAT32 else 2
    source, whole = side + size * start, count - count % LANES
    if form == _FLOAT32 and whole == count:
        return source
    _widen(form, source, whole, _address(work, index))
    if whole < count:
        work[_TAIL : _TAIL + LANES] = np.float32(0.0)
        copy(_address(work, _TAIL), source + size * whole, size * (count - whole))
        _widen(form, _address(work, _TAIL), LANES, _address(work, index + whole))
    return _address(work, index)


def _pairwise(terms: Terms, kind: type[Lanes], rows: int, tops: Sequence[int] = ()) -> Callable[..., Any]:
    """Adds up terms over an array as numpy does: halves it down to runs, adds up each, and their sums in pairs."""
    add_up, store = lanes.sum_of(terms, kind, tops), lanes.rows_of(terms, kind)

    @_exactly
    def add_run(my, golden, count, plan, work, index):
        whole = count - count % LANES
        largest, scrap = _address(work, _LARGEST), _address(work, _ROWS)
        if whole:
            add_up(my, golden, whole, plan, largest, _address(work, index))
        else:
            work[index : index + LANES] = np.float32(-0.0)
        if whole < count:
            my, golden = my + 4 * whole, golden + 4 * whole
            add_up(my, golden, LANES, plan, largest, scrap)
            store(my, golden, LANES, plan, scrap, LANES)
            for row in range(rows):
                for place in range(count - whole):
                    work[index + row] += work[_ROWS + LANES * row + place]

    @_exactly
    def add_all(my, my_form, golden, golden_form, count, plan, work):
        counts, depths, levels = (
            np.empty(_DEEPEST, np.int64),
            np.empty(_DEEPEST, np.int64),
            np.empty(_DEEPEST, np.int64),
        )
        work[_LARGEST : _LARGEST + 2 * LANES] = np.float32(0.0)
        counts[0], depths[0] = count, 0
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
            mine = _singles(my, my_form, start, length, work, 0)
            theirs = _singles(golden, golden_form, start, length, work, RUN)
            add_run(mine, theirs, length, plan, work, _STACK + LANES * known)
            start += length
            while known and levels[known - 1] == depth:  # the other half waits
                known -= 1
                depth -= 1
                for row in range(_STACK + LANES * known, _STACK + LANES * known + rows):
                    work[row] += work[row + LANES]
            levels[known] = depth
            known += 1

    return add_all


_add_pairs = _pairwise(lanes.pair_terms, Lanes, SUMS, tops=(APART, RELATIVE))
_add_pairs_quickly = _pairwise(lanes.pair_terms, BestLanes, SUMS, tops=(APART, RELATIVE))
_add_products = _pairwise(lanes.product_terms, Lanes, 1)
_store_ratios = lanes.rows_of(lanes.ratio_terms, Lanes)
_store_ratios_quickly = lanes.rows_of(lanes.ratio_terms, BestLanes)


@_exactly
def _prepare(plan, work):
    """Puts the plan into the work memory; gives which of the divisors can be divided by quickly."""
    quick = np.empty(len(_DIVISORS), np.bool_)
    work[_PLAN : _PLAN + _INVERSES] = plan
    for number, slot in enumerate(_DIVISORS):
        divisor = plan[slot]
        inverse = np.float32(np.float32(1.0) / divisor)
        place = _PLAN + _INVERSES + 2 * number
        work[place] = inverse
        work[place + 1] = (1.0 - np.float64(divisor) * np.float64(inverse)) / np.float64(divisor)
        quick[number] = _LEAST <= divisor <= _MOST
    return quick


@_exactly
def _largest(lanes):
    """nan, if there is one."""
    largest = np.float32(0.0)
    for number in lanes:
        largest = number if number > largest or number != number else largest
    return largest


@_kernel
def _sums(my, my_form, golden, golden_form, count, plan, work, found):
    quick, planned = _prepare(plan, work), _address(work, _PLAN)
    if quick[0] and quick[1]:
        _add_pairs_quickly(my, my_form, golden, golden_form, count, planned, work)
    else:
        _add_pairs(my, my_form, golden, golden_form, count, planned, work)
    found[:SUMS] = work[_STACK : _STACK + SUMS]
    found[SUMS] = _largest(work[_LARGEST : _LARGEST + LANES])
    found[SUMS + 1] = _largest(work[_LARGEST + LANES : _LARGEST + 2 * LANES])


@_kernel
def _ratios(my, my_form, golden, golden_form, count, plan, work, rows):
    quick, planned = _prepare(plan, work).all(), _address(work, _PLAN)
    for start in range(0, count, RUN):
        length = min(RUN, count - start)
        mine = _singles(my, my_form, start, length, work, 0)
        theirs = _singles(golden, golden_form, start, length, work, RUN)
        filled = -(-length // LANES) * LANES
        if quick:
            _store_ratios_quickly(mine, theirs, filled, planned, _address(rows, start), rows.shape[1])
        else:
            _store_ratios(mine, theirs, filled, planned, _address(rows, start), rows.shape[1])


@_kernel
def _products(rows, count, work):
    one, other = _address(rows, 0), _address(rows, rows.shape[1])
    _add_products(one, _FLOAT32, other, _FLOAT32, count, _address(work, _PLAN), work)
    return work[_STACK]


@compiled_fast
def _moments(part, shift):
    total, squares = 0.0, 0.0
    for i in range(len(part)):
        distance = np.float64(part[i]) - shift
        total += distance
        squares += distance * distance
    return total, squares


def readable(part: AnyArray) -> AnyArray:
    """The part as the functions below take it: float32, float16 or bfloat16."""
    return part if part.dtype in _FORMS else part.astype(np.float32)


def moments(part: Singles, shift: float) -> tuple[float, float]:
    """As msaccucmp_plain.moments."""
    total, squares = _moments(part, shift)
    return float(total), float(squares)


def sums(my: AnyArray, golden: AnyArray, plan: Singles) -> tuple[Singles, Singles]:
    """As msaccucmp_plain.sums."""
    found = np.empty(SUMS + 2, np.float32)
    _sums(*_given(my), *_given(golden), len(my), plan, _work(), found)
    return found[:SUMS], found[SUMS:]


def divergence(my: AnyArray, golden: AnyArray, plan: Singles) -> np.float32:
    """As msaccucmp_plain.divergence. numpy's own logarithm, as another one has other last bits."""
    rows, work = np.empty((2, -(-len(my) // LANES) * LANES), np.float32), _work()
    _ratios(*_given(my), *_given(golden), len(my), plan, work, rows)
    np.log(rows[1], out=rows[1])
    return np.float32(_products(rows, len(my), work))


def _given(part: AnyArray) -> tuple[int, int]:
    return part.__array_interface__["data"][0], _FORMS[part.dtype]


def _work() -> Singles:
    return np.empty(_WORK, np.float32)
