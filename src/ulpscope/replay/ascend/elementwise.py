"""Operators that compute each element by itself: of one tensor, or of several that are spread over each other."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ulpscope.dialects.ascend.logical import VECTOR
from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Operand,
    Operands,
    Setting,
    along,
    channel_axis,
    one,
    permuted,
)
from ulpscope.replay.recorded import CannotReplayError

Formula = Callable[..., Array]

NATURAL_BASE = -1.0
"""What the attribute `base` of Exp and Log says for e."""


def spread(operands: Operands, setting: Setting) -> list[Array]:
    """Operands in one order of axes, so that numpy spreads them as the network does."""
    whole = max(operands, key=lambda operand: operand.array.ndim)
    arrays = [_beside(operand, whole, setting) for operand in operands]
    setting.expect(np.broadcast_shapes(*(array.shape for array in arrays)))
    return arrays


def _beside(operand: Operand, whole: Operand, setting: Setting) -> Array:
    if operand.layout == VECTOR and whole.array.ndim > 1:
        return along(operand.array, channel_axis(whole, setting), whole.array.ndim)
    if operand.array.ndim == whole.array.ndim > 1:
        return permuted(operand.array, operand.layout, whole.layout)
    return operand.array


def _of_one(function: Formula, *, rule: Rule = Rule.ROUNDED) -> Definition:
    def defined(operands: Operands, setting: Setting) -> Defined:
        return one(function(operands[0].array))

    return Definition(defined, least=1, most=1, rule=rule)


def _with_attributes(function: Formula) -> Definition:
    def defined(operands: Operands, setting: Setting) -> Defined:
        return one(function(operands[0].array, setting))

    return Definition(defined, least=1, most=1)


def _of_several(count: int, function: Formula, *, rule: Rule = Rule.ROUNDED) -> Definition:
    def defined(operands: Operands, setting: Setting) -> Defined:
        return one(function(*spread(operands[:count], setting)))

    return Definition(defined, least=count, most=count, rule=rule)


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1.0 / (1.0 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1.0 + np.exp(-np.abs(x))))


def _gelu_tanh(x: Array) -> Array:
    """The form of Gelu that CANN's operator has, in the steps that its kernels take: 1 + tanh would lose what is far
    below zero."""
    return np.asarray(x / (1.0 + np.exp(-np.sqrt(8.0 / np.pi) * (x + 0.044715 * x**3))))


def _divide(x: Array, y: Array) -> Array:
    """Div of integers rounds, to which side depends on the framework."""
    if x.dtype.kind != "f" or y.dtype.kind != "f":
        raise CannotReplayError("a quotient of integers is not defined here")
    return np.true_divide(x, y)


def _ordered(function: Formula) -> Formula:
    """The prototypes promise nothing for whole numbers that are farther apart than int32 reaches."""

    def ordered(x: Array, y: Array) -> Array:
        whole = x.dtype.kind in "iu" and y.dtype.kind in "iu"
        if whole and np.any(np.abs(x.astype(float) - y.astype(float)) >= 2.0**31):
            raise CannotReplayError("an order of whole numbers so far apart is not defined")
        return function(x, y)

    return ordered


def _scaled(x: Array, setting: Setting) -> Array:
    return np.asanyarray(x * setting.number("scale", 1.0) + setting.number("shift", 0.0))


def _log_of_base(setting: Setting) -> float:
    base = setting.number("base", NATURAL_BASE)
    return 1.0 if base == NATURAL_BASE else float(np.log(base))


def _elu(x: Array, setting: Setting) -> Array:
    below = setting.number("alpha", 1.0) * np.expm1(np.minimum(x, 0.0) * setting.number("input_scale", 1.0))
    return np.where(x > 0, x, below) * setting.number("scale", 1.0)


def _round(x: Array, setting: Setting) -> Array:
    setting.need("decimals", 0)
    return np.rint(x)


def _where(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition.astype(bool), x, y)


def _select(operands: Operands, setting: Setting) -> Defined:
    """Select's condition may be a vector, which chooses whole rows."""
    condition = operands[0].array
    x, y = spread(operands[1:3], setting)
    if condition.ndim == 1 and x.ndim > 1 and condition.shape[0] == x.shape[0]:
        condition = along(condition, 0, x.ndim)
    return one(_where(condition, x, y))


def _bias_add(operands: Operands, setting: Setting) -> Defined:
    x, bias = operands[:2]
    axis = channel_axis(x, setting)
    if bias.array.size != x.array.shape[axis]:
        raise CannotReplayError(f"its bias has {bias.array.size} elements for {x.array.shape[axis]} channels")
    return one(x.array + along(bias.array.ravel(), axis, x.array.ndim))


def _add_n(operands: Operands, setting: Setting) -> Defined:
    arrays = spread(operands, setting)
    return one(np.asarray(sum(arrays[1:], start=arrays[0])), length=float(len(arrays)))


_FUNCTIONS: dict[str, Formula] = {
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
    "Gelu": _gelu_tanh,
    "FastGelu": lambda x: x / (1.0 + np.exp(-1.702 * x)),
    "Softplus": lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1.0 / np.sqrt(x),
    "Square": np.square,
    "Reciprocal": np.reciprocal,
    "Inv": np.reciprocal,
    "Expm1": np.expm1,
    "Log1p": np.log1p,
    "Sin": np.sin,
    "Cos": np.cos,
}
_EXACT_FUNCTIONS: dict[str, Formula] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "Abs": np.abs,
    "Neg": np.negative,
    "Sign": np.sign,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Rint": np.rint,
    "LogicalNot": np.logical_not,
    "ZerosLike": np.zeros_like,
    "OnesLike": np.ones_like,
}
_ATTRIBUTED: dict[str, Formula] = {
    "Exp": lambda x, setting: np.exp(_scaled(x, setting) * _log_of_base(setting)),
    "Log": lambda x, setting: np.log(_scaled(x, setting)) / _log_of_base(setting),
    "Power": lambda x, setting: np.power(_scaled(x, setting), setting.number("power", 1.0)),
    "Adds": lambda x, setting: x + setting.number("value"),
    "Muls": lambda x, setting: x * setting.number("value"),
    "LeakyRelu": lambda x, setting: np.where(x >= 0, x, x * setting.number("negative_slope", 0.0)),
    "Elu": _elu,
    "Swish": lambda x, setting: x * _sigmoid(setting.number("scale", 1.0) * x),
}
_ARITHMETIC: dict[str, Formula] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.true_divide,
    "Div": _divide,
    "DivNoNan": lambda x, y: np.where(y == 0, 0.0, x / np.where(y == 0, 1.0, y)),
    "SquaredDifference": lambda x, y: np.square(x - y),
    "Pow": np.power,
}
_CHOICES: dict[str, Formula] = {
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Greater": _ordered(np.greater),
    "GreaterEqual": _ordered(np.greater_equal),
    "Less": _ordered(np.less),
    "LessEqual": _ordered(np.less_equal),
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "ReluGrad": lambda gradient, features: np.where(features > 0, gradient, 0.0),
}
_CHOICES_OF_THREE: dict[str, Formula] = {
    "ClipByValue": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "SelectV2": _where,
}

DEFINITIONS: Definitions = {
    **{name: _of_one(function) for name, function in _FUNCTIONS.items()},
    **{name: _of_one(function, rule=Rule.EXACT) for name, function in _EXACT_FUNCTIONS.items()},
    **{name: _with_attributes(function) for name, function in _ATTRIBUTED.items()},
    **{name: _of_several(2, function) for name, function in _ARITHMETIC.items()},
    **{name: _of_several(2, function, rule=Rule.EXACT) for name, function in _CHOICES.items()},
    **{name: _of_several(3, function, rule=Rule.EXACT) for name, function in _CHOICES_OF_THREE.items()},
    "Round": replace(_with_attributes(_round), rule=Rule.EXACT),
    "Select": Definition(_select, least=3, most=3, rule=Rule.EXACT),
    "BiasAdd": Definition(_bias_add, least=2, most=2),
    "AddN": Definition(_add_n, least=1),
    "AccumulateNV2": Definition(_add_n, least=1),
}
