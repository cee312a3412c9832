"""What msaccucmp computes of each pair of elements, compiled by numba: the same bits as msaccucmp_plain.

Nothing here may be reordered but the float64 sums, so only those are compiled with fast arithmetic.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from ulpscope.numerics.metric_loading import compiled as compiled_fast
from ulpscope.numerics.msaccucmp_plain import EPSILON as _EPSILON
from ulpscope.numerics.msaccucmp_plain import FLOOR as _FLOOR
from ulpscope.numerics.msaccucmp_plain import AnyArray, Singles

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_SMALLEST = np.float32(_EPSILON)
_RAISED = np.float32(_FLOOR)
_SIZE = np.int32(0x7FFF)


def _exactly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at the first call, cached on disk, every operation as it is written."""
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy")  # type: ignore[no-any-return]
    except RuntimeError:  # no directory to cache in: compile anew in each process
        return numba.njit(function, nogil=True, error_model="numpy")  # type: ignore[no-any-return]


def widen(part: AnyArray, out: Singles) -> Singles:
    """The part as float32; float16, which numpy converts slowly, into `out`."""
    if part.dtype == np.float32:
        return part
    if part.dtype != np.float16:
        return part.astype(np.float32)
    _widen_float16(part.view(np.int16), out)
    return out


@_exactly
def _widen_float16(bits, out):
    """Rebiases the exponent; a subnormal is an integer times 2**-24."""
    for i in range(len(bits)):
        each = np.int32(bits[i])
        size = np.int32(each & _SIZE)
        wide = np.int32((size << np.int32(13)) + np.int32(112 << 23))
        wide = wide if size < np.int32(0x7C00) else np.int32(wide | np.int32(0x7F800000))
        number = np.int32(wide).view(np.float32) if size >= np.int32(0x400) else np.float32(size) * np.float32(2.0**-24)
        out[i] = -number if each < np.int32(0) else number


@_exactly
def _differences(my, golden, apart, squares, golden_squares, relative):
    for i in range(len(my)):
        x, y = my[i], golden[i]
        distance = np.float32(abs(np.float32(x - y)))
        ratio = np.float32(abs(np.float32(np.float32(x / y) - _ONE)))
        apart[i] = distance
        squares[i] = np.float32(distance * distance)
        golden_squares[i] = np.float32(y * y)
        relative[i] = ratio if abs(y) > _SMALLEST else _ZERO


def differences(my: Singles, golden: Singles, work: Singles) -> None:
    """As msaccucmp_plain.differences."""
    _differences(my, golden, work[0], work[1], work[2], work[3])


@compiled_fast
def _moments(part, shift):
    total, squares = 0.0, 0.0
    for i in range(len(part)):
        distance = np.float64(part[i]) - shift
        total += distance
        squares += distance * distance
    return total, squares


def moments(part: Singles, shift: float) -> tuple[float, float]:
    """As msaccucmp_plain.moments."""
    total, squares = _moments(part, shift)
    return float(total), float(squares)


@_exactly
def _shares(my, golden, plan, product, my_share, golden_share):
    my_low, my_width, golden_low, golden_width = plan[0], plan[1], plan[2], plan[3]
    for i in range(len(my)):
        x, y = my[i], golden[i]
        product[i] = np.float32(np.float32(x / plan[4]) * np.float32(y / plan[5]))
        p = np.float32(np.float32(x - my_low) / my_width) if my_width != _ZERO else x
        q = np.float32(np.float32(y - golden_low) / golden_width) if golden_width != _ZERO else y
        my_share[i] = _RAISED if p < _RAISED else p
        golden_share[i] = _RAISED if q < _RAISED else q


def shares(my: Singles, golden: Singles, plan: Singles, work: Singles) -> None:
    """As msaccucmp_plain.shares."""
    _shares(my, golden, plan, work[0], work[1], work[2])


@_exactly
def _ratios(my, golden, plan, my_share, golden_share):
    my_low, my_width, golden_low, golden_width = plan[0], plan[1], plan[2], plan[3]
    for i in range(len(my)):
        x, y = my[i], golden[i]
        p = np.float32(np.float32(x - my_low) / my_width) if my_width != _ZERO else x
        q = np.float32(np.float32(y - golden_low) / golden_width) if golden_width != _ZERO else y
        p = np.float32((_RAISED if p < _RAISED else p) / plan[4])
        q = np.float32((_RAISED if q < _RAISED else q) / plan[5])
        my_share[i] = p
        golden_share[i] = np.float32(p / q)


def ratios(my: Singles, golden: Singles, plan: Singles, work: Singles) -> None:
    """As msaccucmp_plain.ratios."""
    _ratios(my, golden, plan, work[1], work[2])
