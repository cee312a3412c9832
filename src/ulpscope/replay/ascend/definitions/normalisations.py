"""Softmax, layer and batch normalisation, cross entropy."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Operand,
    Setting,
    Shape,
    along,
    axis_of,
    channel_axis,
    one,
)
from ulpscope.replay.recorded import CannotReplayError

Told = Callable[[Setting], Shape]


def _softmax(told: Told, operands: Sequence[Operand], setting: Setting) -> Defined:
    x, axes = operands[0].array, _axes(operands[0].array, told(setting))
    return one(np.exp(_log_softmax_of(x, axes)), length=float(math.prod(x.shape[axis] for axis in axes)))


def _log_softmax(told: Told, operands: Sequence[Operand], setting: Setting) -> Defined:
    x, axes = operands[0].array, _axes(operands[0].array, told(setting))
    return one(_log_softmax_of(x, axes), length=float(math.prod(x.shape[axis] for axis in axes)))


def _old_axes(setting: Setting) -> Shape:
    """Prototypes of the first version differ in what an axis is that is not told."""
    return setting.integers("axis")


def _new_axes(setting: Setting) -> Shape:
    return setting.integers("axes", (-1,))


def _axes(x: Array, told: Shape) -> Shape:
    return tuple(sorted({axis_of(each, x.ndim) for each in told}))


def _log_softmax_of(x: Array, axes: Shape) -> Array:
    shifted = x - x.max(axis=axes, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True))
    return result


def _layer_norm(operands: Sequence[Operand], setting: Setting) -> Defined:
    x, gamma, beta = (operand.array for operand in operands[:3])
    if np.broadcast_shapes(x.shape, gamma.shape, beta.shape) != x.shape:
        raise CannotReplayError(f"its scale is {list(gamma.shape)}, its offset {list(beta.shape)} for {list(x.shape)}")
    first = axis_of(setting.integer("begin_norm_axis", 0), x.ndim)
    axes = tuple(range(first, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = np.square(x - mean).mean(axis=axes, keepdims=True)
    normal = (x - mean) / np.sqrt(variance + setting.number("epsilon", 1e-7))
    length = float(math.prod(x.shape[axis] for axis in axes))
    return Defined((normal * gamma + beta, mean, variance), length)


def _others(operand: Operand, setting: Setting) -> tuple[int, Shape]:
    """The axis of channels, and all other axes."""
    channel = channel_axis(operand, setting)
    return channel, tuple(axis for axis in range(operand.array.ndim) if axis != channel)


def _batch_sums(operands: Sequence[Operand], setting: Setting) -> Defined:
    x = operands[0].array
    _, axes = _others(operands[0], setting)
    length = float(math.prod(x.shape[axis] for axis in axes))
    return Defined((_like(x.sum(axis=axes), setting, 0), _like(np.square(x).sum(axis=axes), setting, 1)), length)


def _like(vector: Array, setting: Setting, result: int) -> Array:
    """A number a channel, with the axes that the device's result has."""
    shape = setting.results[result].shape if result < len(setting.results) else vector.shape
    return vector.reshape(shape) if math.prod(shape) == vector.size else vector


def _vectors(operands: Sequence[Operand], channels: int) -> list[Array]:
    """Operands that have a number a channel."""
    if any(operand.array.size != channels for operand in operands):
        raise CannotReplayError(f"its operands do not have one number for each of {channels} channels")
    return [operand.array.ravel() for operand in operands]


def _batch_update(operands: Sequence[Operand], setting: Setting) -> Defined:
    """Normalised by the sums of the whole batch; running statistics move a part of the way."""
    x = operands[0].array
    channel, _ = _others(operands[0], setting)
    total, squares, scale, offset, mean, variance = _vectors(operands[1:7], x.shape[channel])
    count = x.size // x.shape[channel]
    batch_mean = total / count
    batch_variance = np.maximum(squares / count - np.square(batch_mean), 0.0)
    normal = _normalised(x, channel, batch_mean, batch_variance, setting.number("epsilon"))
    y = normal * along(scale, channel, x.ndim) + along(offset, channel, x.ndim)
    factor, unbiased = setting.number("factor"), count / (count - 1) if count > 1 else 0.0
    running = mean * (1 - factor) + batch_mean * factor, variance * (1 - factor) + batch_variance * unbiased * factor
    statistics = (*running, batch_mean, batch_variance)
    told = tuple(_like(each, setting, place) for place, each in enumerate(statistics, start=1))
    return Defined((y, *told))


def _batch_infer(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _by_given(operands, setting, setting.number("epsilon"))


def _by_given(operands: Sequence[Operand], setting: Setting, epsilon: float) -> Defined:
    x = operands[0].array
    channel, _ = _others(operands[0], setting)
    scale, offset, mean, variance = _vectors(operands[1:5], x.shape[channel])
    normal = _normalised(x, channel, mean, variance, epsilon)
    return one(normal * along(scale, channel, x.ndim) + along(offset, channel, x.ndim))


def _batch_norm(operands: Sequence[Operand], setting: Setting) -> Defined:
    """By the batch's own statistics if it is training, else by those that are given."""
    epsilon = setting.number("epsilon", 1e-4)
    if not setting.attributes.get("is_training", True):
        if len(operands) < 5:
            raise CannotReplayError("an operand of it is not in the dump")
        return _by_given(operands, setting, epsilon)
    x = operands[0].array
    channel, axes = _others(operands[0], setting)
    scale, offset = _vectors(operands[1:3], x.shape[channel])
    normal = _normalised(x, channel, x.mean(axis=axes), x.var(axis=axes), epsilon)
    y = normal * along(scale, channel, x.ndim) + along(offset, channel, x.ndim)
    return one(y, length=float(x.size // x.shape[channel]))


def _normalised(x: Array, channel: int, mean: Array, variance: Array, epsilon: float) -> Array:
    centred = x - along(mean, channel, x.ndim)
    result: Array = centred / np.sqrt(along(variance, channel, x.ndim) + epsilon)
    return result


def _cross_entropy(operands: Sequence[Operand], setting: Setting) -> Defined:
    """The loss a row, and its gradient with respect to the logits."""
    logits, labels = operands[0].array, operands[1].array
    if logits.shape != labels.shape:
        raise CannotReplayError(f"its labels are {list(labels.shape)} for logits of {list(logits.shape)}")
    if logits.ndim != 2:
        raise CannotReplayError(f"its logits have {logits.ndim} axes, and the axis of classes is not told")
    logarithms = _log_softmax_of(logits, (logits.ndim - 1,))
    loss = -(labels * logarithms).sum(axis=-1)
    return Defined((_like(loss, setting, 0), np.exp(logarithms) - labels), float(logits.shape[-1]))


DEFINITIONS: Definitions = {
    "Softmax": Definition(partial(_softmax, _old_axes), least=1, most=1),
    "SoftmaxV2": Definition(partial(_softmax, _new_axes), least=1, most=1),
    "LogSoftmax": Definition(partial(_log_softmax, _old_axes), least=1, most=1),
    "LogSoftmaxV2": Definition(partial(_log_softmax, _new_axes), least=1, most=1),
    "LayerNorm": Definition(_layer_norm, least=3, most=3),
    "BNTrainingReduce": Definition(_batch_sums, least=1, most=1),
    "BNTrainingUpdate": Definition(_batch_update, least=7, most=7),
    "BNInfer": Definition(_batch_infer, least=5, most=5),
    "BatchNorm": Definition(_batch_norm, least=3, most=5),
    "SoftmaxCrossEntropyWithLogits": Definition(_cross_entropy, least=2, most=2),
}
