"""Definitions in float64 of ops for which TensorFlow has no such kernel, composed of ops for which it has."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.registry import registered
from ulpscope.replay.tensorflow.ops import Op, tensor_count
from ulpscope.replay.tensorflow.tensors import raised

Function = Callable[[list[Any]], Mapping[int, Any]]
"""Gives outputs by their number, for tensors in the order of the op's operands."""


def reference_of(name: str, op: Op, *, on_cpu: bool) -> Function | None:
    """What stands for this op in float64: the user's own function, or a definition of ours; none: its own kernel."""
    own = registered(name)
    if own is not None:
        reference = own.reference
        return lambda inputs: dict(enumerate(_listed(reference(*inputs, **op.attributes))))
    plain = _without_library(op)
    if plain.word in _KEPT_BY_CPU and not on_cpu:
        return None
    defined = _DEFINITIONS.get(plain.word)
    if defined is not None:
        return lambda inputs: defined(plain, inputs)
    return None if plain is op else by_number(plain.retyped(raised))


def by_number(op: Op) -> Function:
    # TensorFlow does not refuse operands that an op does not take: it ends the process.
    return lambda inputs: dict(enumerate(op.execute(inputs[: len(op.places)])))


def _without_library(op: Op) -> Op:
    """The op that a kernel of a library (oneDNN) stands for in a graph that was optimised."""
    word = next((op.word.removeprefix(mark) for mark in _LIBRARIES if op.word.startswith(mark)), op.word)
    if word == op.word:
        return op
    return replace(op, word=word) if word in _DEFINITIONS else _as(op, word)


def _as(op: Op, word: str) -> Op:
    """Another op with the attributes and the first operands that both have; a kernel's workspace stands behind them."""
    definition = op_def_registry.get(word)
    if definition is None:
        raise CannotReplayError(f"{op.word} has no definition here")
    names = {one.name for one in definition.attr}
    attributes = {name: value for name, value in op.attributes.items() if name in names}
    operands, outputs = (tensor_count(each, attributes) for each in (definition.input_arg, definition.output_arg))
    if operands > len(op.places):
        raise CannotReplayError(f"{op.word} has fewer operands than {word}")
    return replace(op, word=word, places=op.places[:operands], attributes=attributes, outputs=outputs)


def _fused(op: Op, inputs: list[Any]) -> Mapping[int, Any]:
    """A product with what follows it in one kernel."""
    base = _as(op, op.word.lstrip("_").removeprefix("Fused")).retyped(raised)
    (result,), more = base.execute(inputs[:2]), inputs[2:]
    for name in op.attributes.get("fused_ops", ()):
        if name in ("BiasAdd", "Add"):
            channels_first = name == "BiasAdd" and str(op.attributes.get("data_format", "NHWC")).startswith("NC")
            added = more.pop(0)
            result = result + (tf.reshape(added, [-1] + [1] * (len(result.shape) - 2)) if channels_first else added)
        elif name in _ACTIVATIONS:
            result = _ACTIVATIONS[name](result)
        else:
            raise CannotReplayError(f"what it does for {name} is not defined here")
    return {0: result}


def _conv_with_bias_grad(op: Op, inputs: list[Any]) -> Mapping[int, Any]:
    """The gradients of a filter and of what was added to each channel."""
    base, sent = _as(op, op.word.removesuffix("WithBias")), inputs[2]
    return {
        0: replace(base, outputs=1).retyped(raised).execute(inputs)[0],
        1: tf.reduce_sum(sent, _channels(op, sent)[0]),
    }


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _number(op: Op, name: str, default: float) -> float:
    """An attribute as kernels get it: in float32."""
    return float(np.float32(op.attributes.get(name, default)))


def _channels(op: Op, tensor: Any) -> tuple[list[int], list[int]]:
    """The axes over which channels are normalised, and the shape in which a channel's number stands."""
    axis = 1 if str(op.attributes.get("data_format", "NHWC")).startswith("NC") else len(tensor.shape) - 1
    shape = [1] * len(tensor.shape)
    shape[axis] = -1
    return [other for other in range(len(shape)) if other != axis], shape


def _batch_norm(op: Op, inputs: list[Any]) -> Mapping[int, Any]:
    """Without what is kept for the backward, which every device keeps in its own way."""
    x, scale, offset, mean, variance = inputs
    epsilon, (axes, shape) = _number(op, "epsilon", 1e-4), _channels(op, x)
    if not op.attributes.get("is_training", True):
        spread = tf.math.rsqrt(variance + epsilon)
        return {0: (x - tf.reshape(mean, shape)) * tf.reshape(spread * scale, shape) + tf.reshape(offset, shape)}
    found = tf.reduce_mean(x, axes)
    centred = x - tf.reshape(found, shape)
    spread = tf.reduce_mean(centred * centred, axes)
    normal = centred * tf.reshape(tf.math.rsqrt(spread + epsilon) * scale, shape) + tf.reshape(offset, shape)
    count = float(np.prod([x.shape[axis] for axis in axes]))
    factor = _number(op, "exponential_avg_factor", 1.0)
    unbiased = spread * (count / max(count - 1.0, 1.0))
    if factor != 1.0:
        found, unbiased = mean + factor * (found - mean), variance + factor * (unbiased - variance)
    return {0: normal, 1: found, 2: unbiased}


def _batch_norm_grad(op: Op, inputs: list[Any]) -> Mapping[int, Any]:
    """From mean and variance as the CPU's kernel has kept them."""
    sent, x, scale, mean, variance = inputs[:5]
    axes, shape = _channels(op, x)
    spread = tf.reshape(tf.math.rsqrt(variance + _number(op, "epsilon", 1e-4)), shape)
    normal = (x - tf.reshape(mean, shape)) * spread
    to_scale, to_offset = tf.reduce_sum(sent * normal, axes), tf.reduce_sum(sent, axes)
    left = sent
    if op.attributes.get("is_training", True):
        means = (tf.reduce_mean(sent, axes), tf.reduce_mean(sent * normal, axes))
        left = sent - tf.reshape(means[0], shape) - normal * tf.reshape(means[1], shape)
    return {0: left * spread * tf.reshape(scale, shape), 1: to_scale, 2: to_offset}


def _local_norm(op: Op, inputs: list[Any]) -> Mapping[int, Any]:
    (x,) = inputs
    radius = int(op.attributes.get("depth_radius", 5))
    padded = tf.pad(x * x, [[0, 0], [0, 0], [0, 0], [radius, radius]])
    total = tf.add_n([padded[..., place : place + x.shape[-1]] for place in range(2 * radius + 1)])
    base = _number(op, "bias", 1.0) + _number(op, "alpha", 1.0) * total
    return {0: x / base ** _number(op, "beta", 0.5)}


def _leaky(op: Op, inputs: list[Any]) -> Mapping[int, Any]:
    """Its slope is a number of the operands' own type."""
    (x,) = inputs
    return {0: tf.where(x > 0, x, x * _slope(op))}


def _leaky_grad(op: Op, inputs: list[Any]) -> Mapping[int, Any]:
    sent, x = inputs
    return {0: tf.where(x > 0, sent, sent * _slope(op))}


def _slope(op: Op) -> Any:
    dtype = op.attributes.get("T", tf.float32)
    return tf.cast(tf.cast(_number(op, "alpha", 0.2), dtype), raised(dtype))


_LIBRARIES = ("_MklNative", "_Mkl")
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "Relu": tf.nn.relu,
    "Relu6": tf.nn.relu6,
    "Elu": tf.nn.elu,
    "Tanh": tf.math.tanh,
    "Sigmoid": tf.math.sigmoid,
    "GeluExact": lambda x: tf.nn.gelu(x, approximate=False),
    "GeluApproximate": lambda x: tf.nn.gelu(x, approximate=True),
}
_KEPT_BY_CPU = frozenset(("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"))
_DEFINITIONS: dict[str, Callable[[Op, list[Any]], Mapping[int, Any]]] = {
    "FusedBatchNorm": _batch_norm,
    "FusedBatchNormV2": _batch_norm,
    "FusedBatchNormV3": _batch_norm,
    "FusedBatchNormGrad": _batch_norm_grad,
    "FusedBatchNormGradV2": _batch_norm_grad,
    "FusedBatchNormGradV3": _batch_norm_grad,
    "LRN": _local_norm,
    "FusedMatMul": _fused,
    "_FusedMatMul": _fused,
    "FusedConv2D": _fused,
    "_FusedConv2D": _fused,
    "Conv2DBackpropFilterWithBias": _conv_with_bias_grad,
    "LeakyRelu": _leaky,
    "LeakyReluGrad": _leaky_grad,
}
