"""Operators that compute each element by itself: of one tensor, or of several that are spread over each other."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.defining import (
    VECTOR,
    Array,
    Defined,
    Definition,
    Definitions,
    Operand,
    Setting,
    along,
    channel_axis,
    one,
    permuted,
)
from ulpscope.replay.recorded import CannotReplayError

Unary = Callable[[Array], Array]
Binary = Callable[[Array, Array], Array]

NATURAL_BASE = -1.0
"""What the attribute `base` of Exp and Log says for e."""


def spread(operands: Sequence[Operand], setting: Setting) -> list[Array]:
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


def _apply_one(function: Unary, operands: Sequence[Operand], setting: Setting) -> Defined:
    return one(function(operands[0].array))


def _apply_two(function: Binary, operands: Sequence[Operand], setting: Setting) -> Defined:
    first, second = spread(operands[:2], setting)
    return one(function(first, second))


def _unary(function: Unary, *, rule: Rule = Rule.ROUNDED) -> Definition:
    return Definition(partial(_apply_one, function), least=1, most=1, rule=rule)


def _binary(function: Binary, *, rule: Rule = Rule.ROUNDED) -> Definition:
    return Definition(partial(_apply_two, function), least=2, most=2, rule=rule)


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


def _ordered(function: Binary, x: Array, y: Array) -> Array:
    """The prototypes promise nothing for whole numbers that are farther apart than int32 reaches."""
    if x.dtype.kind in "iu" and y.dtype.kind in "iu" and np.any(np.abs(x.astype(float) - y.astype(float)) >= 2.0**31):
        raise CannotReplayError("an order of whole numbers so far apart is not defined")
    return function(x, y)


def _scaled(function: Unary, operands: Sequence[Operand], setting: Setting) -> Array:
    x = operands[0].array * setting.number("scale", 1.0) + setting.number("shift", 0.0)
    return function(x)


def _exp(operands: Sequence[Operand], setting: Setting) -> Defined:
    base = setting.number("base", NATURAL_BASE)
    factor = 1.0 if base == NATURAL_BASE else np.log(base)
    return one(_scaled(lambda x: np.exp(x * factor), operands, setting))


def _log(operands: Sequence[Operand], setting: Setting) -> Defined:
    base = setting.number("base", NATURAL_BASE)
    factor = 1.0 if base == NATURAL_BASE else np.log(base)
    return one(_scaled(lambda x: np.log(x) / factor, operands, setting))


def _power(operands: Sequence[Operand], setting: Setting) -> Defined:
    return one(_scaled(lambda x: np.power(x, setting.number("power", 1.0)), operands, setting))


def _adds(operands: Sequence[Operand], setting: Setting) -> Defined:
    return one(operands[0].array + setting.number("value"))


def _muls(operands: Sequence[Operand], setting: Setting) -> Defined:
    return one(operands[0].array * setting.number("value"))


def _leaky_relu(operands: Sequence[Operand], setting: Setting) -> Defined:
    x = operands[0].array
    return one(np.where(x >= 0, x, x * setting.number("negative_slope", 0.0)))


def _elu(operands: Sequence[Operand], setting: Setting) -> Defined:
    x, alpha = operands[0].array, setting.number("alpha", 1.0)
    below = alpha * np.expm1(np.minimum(x, 0.0) * setting.number("input_scale", 1.0))
    return one(np.where(x > 0, x, below) * setting.number("scale", 1.0))


def _round(operands: Sequence[Operand], setting: Setting) -> Defined:
    setting.need("decimals", 0)
    return one(np.rint(operands[0].array))


def _swish(operands: Sequence[Operand], setting: Setting) -> Defined:
    x = operands[0].array
    return one(x * _sigmoid(setting.number("scale", 1.0) * x))


def _clipped(operands: Sequence[Operand], setting: Setting) -> Defined:
    x, low, high = spread(operands[:3], setting)
    return one(np.minimum(np.maximum(x, low), high))


def _select(operands: Sequence[Operand], setting: Setting) -> Defined:
    """Select's condition may be a vector, which chooses whole rows."""
    condition = operands[0].array
    x, y = spread(operands[1:3], setting)
    if condition.ndim == 1 and x.ndim > 1 and condition.shape[0] == x.shape[0]:
        condition = along(condition, 0, x.ndim)
    return one(np.where(condition.astype(bool), x, y))


def _select_spread(operands: Sequence[Operand], setting: Setting) -> Defined:
    condition, x, y = spread(operands[:3], setting)
    return one(np.where(condition.astype(bool), x, y))


def _bias_add(operands: Sequence[Operand], setting: Setting) -> Defined:
    x, bias = operands[:2]
    axis = channel_axis(x, setting)
    if bias.array.size != x.array.shape[axis]:
        raise CannotReplayError(f"its bias has {bias.array.size} elements for {x.array.shape[axis]} channels")
    return one(x.array + along(bias.array.ravel(), axis, x.array.ndim))


def _add_n(operands: Sequence[Operand], setting: Setting) -> Defined:
    arrays = spread(operands, setting)
    return one(np.asarray(sum(arrays[1:], start=arrays[0])), length=float(len(arrays)))


def _relu_gradient(operands: Sequence[Operand], setting: Setting) -> Defined:
    gradient, features = spread(operands[:2], setting)
    return one(np.where(features > 0, gradient, 0.0))


_FUNCTIONS: dict[str, Unary] = {
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
_EXACT_FUNCTIONS: dict[str, Unary] = {
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
_ARITHMETIC: dict[str, Binary] = {
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
_CHOICES: dict[str, Binary] = {
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Greater": partial(_ordered, np.greater),
    "GreaterEqual": partial(_ordered, np.greater_equal),
    "Less": partial(_ordered, np.less),
    "LessEqual": partial(_ordered, np.less_equal),
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}

DEFINITIONS: Definitions = {
    **{name: _unary(function) for name, function in _FUNCTIONS.items()},
    **{name: _unary(function, rule=Rule.EXACT) for name, function in _EXACT_FUNCTIONS.items()},
    **{name: _binary(function) for name, function in _ARITHMETIC.items()},
    **{name: _binary(function, rule=Rule.EXACT) for name, function in _CHOICES.items()},
    "Exp": Definition(_exp, least=1, most=1),
    "Log": Definition(_log, least=1, most=1),
    "Power": Definition(_power, least=1, most=1),
    "Adds": Definition(_adds, least=1, most=1),
    "Muls": Definition(_muls, least=1, most=1),
    "LeakyRelu": Definition(_leaky_relu, least=1, most=1),
    "Elu": Definition(_elu, least=1, most=1),
    "Round": Definition(_round, least=1, most=1, rule=Rule.EXACT),
    "Swish": Definition(_swish, least=1, most=1),
    "ClipByValue": Definition(_clipped, least=3, most=3, rule=Rule.EXACT),
    "Select": Definition(_select, least=3, most=3, rule=Rule.EXACT),
    "SelectV2": Definition(_select_spread, least=3, most=3, rule=Rule.EXACT),
    "BiasAdd": Definition(_bias_add, least=2, most=2),
    "AddN": Definition(_add_n, least=1),
    "AccumulateNV2": Definition(_add_n, least=1),
    "ReluGrad": Definition(_relu_gradient, least=2, most=2, rule=Rule.EXACT),
}
