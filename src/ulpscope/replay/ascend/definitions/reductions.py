"""Sums, means and extremes over axes, and the places of extremes."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Operand,
    Setting,
    Shape,
    axis_of,
    numbers_of,
    one,
    whole_numbers,
)
from ulpscope.replay.recorded import CannotReplayError

Reduction = Callable[..., Array]


def _reduce(function: Reduction, operands: Sequence[Operand], setting: Setting) -> Defined:
    x = operands[0].array
    axes = _axes(operands, setting)
    return one(function(x, axis=axes, keepdims=setting.flag("keep_dims")), length=_length(x, axes))


def _axes(operands: Sequence[Operand], setting: Setting) -> Shape:
    """The second operand of ReduceSum, an attribute of ReduceSumD. An empty list means all axes or none, which depends
    on the version and the framework: the result's shape tells."""
    x = operands[0].array
    told = numbers_of(operands, 1, setting, "axes")
    if not told:
        return () if math.prod(setting.results[0].shape) == x.size else tuple(range(x.ndim))
    return tuple(sorted({axis_of(each, x.ndim) for each in told}))


def _length(x: Array, axes: Shape) -> float:
    return float(math.prod(x.shape[axis] for axis in axes))


def _place(function: Callable[..., Array], operands: Sequence[Operand], setting: Setting) -> Defined:
    return one(np.asarray(function(operands[0].array, axis=_dimension(operands, setting))))


def _dimension(operands: Sequence[Operand], setting: Setting) -> int:
    """The second operand, an attribute, or the one axis that the result lacks."""
    x = operands[0].array
    if len(operands) > 1:
        return axis_of(whole_numbers(operands[1])[0], x.ndim)
    if "dimension" in setting.attributes:
        return axis_of(setting.integer("dimension"), x.ndim)
    shape = setting.results[0].shape
    fits = [axis for axis in range(x.ndim) if x.shape[:axis] + x.shape[axis + 1 :] == shape]
    if len(fits) != 1:
        raise CannotReplayError("the graph does not tell its attribute dimension")
    return fits[0]


def _chosen(operands: Sequence[Operand], setting: Setting, places: Array) -> Array:
    """The elements at these places, one for each of the other axes."""
    x, axis = operands[0].array, _dimension(operands, setting)
    if places.size and not 0 <= places.min() <= places.max() < x.shape[axis]:
        raise IndexError(f"index {places.min()} to {places.max()} of an axis of {x.shape[axis]}")
    return np.take_along_axis(x, np.expand_dims(places.astype(np.int64), axis), axis).squeeze(axis)


def _half_square_sum(operands: Sequence[Operand], setting: Setting) -> Defined:
    x = operands[0].array
    return one(np.asarray(np.square(x).sum() / 2.0).reshape(setting.results[0].shape), length=float(x.size))


_SUMS: dict[str, Reduction] = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceProd": np.prod}
_EXTREMES: dict[str, Reduction] = {
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceAll": np.all,
    "ReduceAny": np.any,
}


def _both(name: str, function: Reduction, rule: Rule) -> Definitions:
    """With axes as an operand, and as an attribute."""
    reduce = partial(_reduce, function)
    return {name: Definition(reduce, 2, 2, rule), f"{name}D": Definition(reduce, 1, 1, rule)}


def _all_places() -> Definitions:
    largest, smallest = (partial(_place, function) for function in (np.argmax, np.argmin))
    return {
        **{name: Definition(largest, 2, 2, Rule.EXACT, chosen=_chosen) for name in ("ArgMax", "ArgMaxV2")},
        "ArgMaxD": Definition(largest, 1, 1, Rule.EXACT, chosen=_chosen),
        "ArgMin": Definition(smallest, 2, 2, Rule.EXACT, chosen=_chosen),
        "ArgMinD": Definition(smallest, 1, 1, Rule.EXACT, chosen=_chosen),
    }


def _all_reductions() -> Definitions:
    found: Definitions = {}
    for name, function in _SUMS.items():
        found |= _both(name, function, Rule.ROUNDED)
    for name, function in _EXTREMES.items():
        found |= _both(name, function, Rule.EXACT)
    return found


DEFINITIONS: Definitions = {
    **_all_reductions(),
    **_all_places(),
    "L2Loss": Definition(_half_square_sum, least=1, most=1),
}
