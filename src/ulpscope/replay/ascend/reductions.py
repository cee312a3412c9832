"""Sums, means and extremes over axes, the places of extremes; softmax, layer and batch normalisation, cross entropy."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ulpscope.numerics.dtypes import Shape
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
    axis_of,
    channel_axis,
    numbers_of,
    one,
    whole_numbers,
)
from ulpscope.replay.recorded import CannotReplayError

Reduction = Callable[..., Array]


def _reduce(function: Reduction, operands: Operands, setting: Setting) -> Defined:
    """Axes are the second operand of ReduceSum, an attribute of ReduceSumD. An empty list means all axes or none, which
    depends on the version and the framework: the result's shape tells."""
    x, told = operands[0].array, numbers_of(operands, 1, setting, "axes")
    axes = _axes(x, told)
    if not told and math.prod(setting.results[0].shape) != x.size:
        axes = tuple(range(x.ndim))
    return one(function(x, axis=axes, keepdims=setting.flag("keep_dims")), length=_length(x, axes))


def _axes(x: Array, told: Shape) -> Shape:
    return tuple(sorted({axis_of(each, x.ndim) for each in told}))


def _length(x: Array, axes: Shape) -> float:
    return float(math.prod(x.shape[axis] for axis in axes))


def _place(function: Reduction, operands: Operands, setting: Setting) -> Defined:
    return one(np.asarray(function(operands[0].array, axis=_dimension(operands, setting))))


def _dimension(operands: Operands, setting: Setting) -> int:
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


def _chosen(operands: Operands, setting: Setting, places: Array) -> Array:
    """The elements at these places, one for each of the other axes."""
    x, axis = operands[0].array, _dimension(operands, setting)
    if places.size and not 0 <= places.min() <= places.max() < x.shape[axis]:
        raise IndexError(f"index {places.min()} to {places.max()} of an axis of {x.shape[axis]}")
    return np.take_along_axis(x, np.expand_dims(places.astype(np.int64), axis), axis).squeeze(axis)


def _half_square_sum(operands: Operands, setting: Setting) -> Defined:
    x = operands[0].array
    return one(np.asarray(np.square(x).sum() / 2.0).reshape(setting.results[0].shape), length=float(x.size))


def _softmax(
    finish: Callable[[Array], Array], attribute: str, default: Shape | None, operands: Operands, setting: Setting
) -> Defined:
    x = operands[0].array
    axes = _axes(x, setting.integers(attribute, default))
    return one(finish(_log_softmax(x, axes)), length=_length(x, axes))


def _log_softmax(x: Array, axes: Shape) -> Array:
    shifted = x - x.max(axis=axes, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True))
    return result


def _layer_norm(operands: Operands, setting: Setting) -> Defined:
    x, gamma, beta = (operand.array for operand in operands[:3])
    if np.broadcast_shapes(x.shape, gamma.shape, beta.shape) != x.shape:
        raise CannotReplayError(f"its scale is {list(gamma.shape)}, its offset {list(beta.shape)} for {list(x.shape)}")
    axes = tuple(range(axis_of(setting.integer("begin_norm_axis", 0), x.ndim), x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = np.square(x - mean).mean(axis=axes, keepdims=True)
    normal = (x - mean) / np.sqrt(variance + setting.number("epsilon", 1e-7))
    return Defined((normal * gamma + beta, mean, variance), _length(x, axes))


def _others(operand: Operand, setting: Setting) -> tuple[int, Shape]:
    """The axis of channels, and all other axes."""
    channel = channel_axis(operand, setting)
    return channel, tuple(axis for axis in range(operand.array.ndim) if axis != channel)


def _batch_sums(operands: Operands, setting: Setting) -> Defined:
    x = operands[0].array
    _, axes = _others(operands[0], setting)
    sums = _like(x.sum(axis=axes), setting, 0), _like(np.square(x).sum(axis=axes), setting, 1)
    return Defined(sums, _length(x, axes))


def _like(vector: Array, setting: Setting, result: int) -> Array:
    """A number a channel, with the axes that the device's result has."""
    shape = setting.results[result].shape if result < len(setting.results) else vector.shape
    return vector.reshape(shape) if math.prod(shape) == vector.size else vector


def _vectors(operands: Operands, channels: int) -> list[Array]:
    """Operands that have a number a channel."""
    if any(operand.array.size != channels for operand in operands):
        raise CannotReplayError(f"its operands do not have one number for each of {channels} channels")
    return [operand.array.ravel() for operand in operands]


def _batch_update(operands: Operands, setting: Setting) -> Defined:
    """Normalised by the sums of the whole batch; running statistics move a part of the way."""
    x = operands[0].array
    channel, _ = _others(operands[0], setting)
    total, squares, scale, offset, mean, variance = _vectors(operands[1:7], x.shape[channel])
    count = x.size // x.shape[channel]
    batch_mean = total / count
    batch_variance = np.maximum(squares / count - np.square(batch_mean), 0.0)
    y = _normalised(x, channel, (scale, offset, batch_mean, batch_variance), setting.number("epsilon"))
    factor, unbiased = setting.number("factor"), count / (count - 1) if count > 1 else 0.0
    running = mean * (1 - factor) + batch_mean * factor, variance * (1 - factor) + batch_variance * unbiased * factor
    statistics = (*running, batch_mean, batch_variance)
    told = tuple(_like(each, setting, place) for place, each in enumerate(statistics, start=1))
    return Defined((y, *told))


def _by_given(operands: Operands, setting: Setting, *, default: float | None = None) -> Defined:
    """By statistics that are given."""
    epsilon = setting.number("epsilon", default)
    x = operands[0].array
    channel, _ = _others(operands[0], setting)
    return one(_normalised(x, channel, _vectors(operands[1:5], x.shape[channel]), epsilon))


def _batch_norm(operands: Operands, setting: Setting) -> Defined:
    """By the batch's own statistics if it is training, else by those that are given."""
    if not setting.attributes.get("is_training", True):
        if len(operands) < 5:
            raise CannotReplayError("an operand of it is not in the dump")
        return _by_given(operands, setting, default=1e-4)
    x = operands[0].array
    channel, axes = _others(operands[0], setting)
    given = _vectors(operands[1:3], x.shape[channel])
    y = _normalised(x, channel, [*given, x.mean(axis=axes), x.var(axis=axes)], setting.number("epsilon", 1e-4))
    return one(y, length=float(x.size // x.shape[channel]))


def _normalised(x: Array, channel: int, vectors: Sequence[Array], epsilon: float) -> Array:
    """`vectors`: scale, offset, mean and variance of each channel."""
    scale, offset, mean, variance = (along(vector, channel, x.ndim) for vector in vectors)
    result: Array = (x - mean) / np.sqrt(variance + epsilon) * scale + offset
    return result


def _cross_entropy(operands: Operands, setting: Setting) -> Defined:
    """The loss a row, and its gradient with respect to the logits."""
    logits, labels = operands[0].array, operands[1].array
    if logits.shape != labels.shape:
        raise CannotReplayError(f"its labels are {list(labels.shape)} for logits of {list(logits.shape)}")
    if logits.ndim != 2:
        raise CannotReplayError(f"its logits have {logits.ndim} axes, and the axis of classes is not told")
    logarithms = _log_softmax(logits, (logits.ndim - 1,))
    loss = -(labels * logarithms).sum(axis=-1)
    return Defined((_like(loss, setting, 0), np.exp(logarithms) - labels), float(logits.shape[-1]))


_REDUCTIONS: dict[str, tuple[Reduction, Rule]] = {
    "ReduceSum": (np.sum, Rule.ROUNDED),
    "ReduceMean": (np.mean, Rule.ROUNDED),
    "ReduceProd": (np.prod, Rule.ROUNDED),
    "ReduceMax": (np.max, Rule.EXACT),
    "ReduceMin": (np.min, Rule.EXACT),
    "ReduceAll": (np.all, Rule.EXACT),
    "ReduceAny": (np.any, Rule.EXACT),
}
# Axes and places of the first are told by an operand, of those with a D behind their name by an attribute.
_PLACES = {"ArgMax": np.argmax, "ArgMaxV2": np.argmax, "ArgMin": np.argmin}
_PLACES_BY_ATTRIBUTE = {"ArgMaxD": np.argmax, "ArgMinD": np.argmin}
# Prototypes of the first version differ in what an axis is that is not told.
_FIRST_VERSION, _SECOND_VERSION = ("axis", None), ("axes", (-1,))

DEFINITIONS: Definitions = {
    **{name: Definition(partial(_reduce, function), 2, 2, rule) for name, (function, rule) in _REDUCTIONS.items()},
    **{
        f"{name}D": Definition(partial(_reduce, function), 1, 1, rule) for name, (function, rule) in _REDUCTIONS.items()
    },
    **{name: Definition(partial(_place, of), 2, 2, Rule.EXACT, chosen=_chosen) for name, of in _PLACES.items()},
    **{
        name: Definition(partial(_place, of), 1, 1, Rule.EXACT, chosen=_chosen)
        for name, of in _PLACES_BY_ATTRIBUTE.items()
    },
    "L2Loss": Definition(_half_square_sum, least=1, most=1),
    "Softmax": Definition(partial(_softmax, np.exp, *_FIRST_VERSION), least=1, most=1),
    "SoftmaxV2": Definition(partial(_softmax, np.exp, *_SECOND_VERSION), least=1, most=1),
    "LogSoftmax": Definition(partial(_softmax, np.positive, *_FIRST_VERSION), least=1, most=1),
    "LogSoftmaxV2": Definition(partial(_softmax, np.positive, *_SECOND_VERSION), least=1, most=1),
    "LayerNorm": Definition(_layer_norm, least=3, most=3),
    "BNTrainingReduce": Definition(_batch_sums, least=1, most=1),
    "BNTrainingUpdate": Definition(_batch_update, least=7, most=7),
    "BNInfer": Definition(_by_given, least=5, most=5),
    "BatchNorm": Definition(_batch_norm, least=3, most=5),
    "SoftmaxCrossEntropyWithLogits": Definition(_cross_entropy, least=2, most=2),
}
