"""What it costs that a backward is composed of ops which hand rounded results on to each other.

TensorFlow writes an op and its gradient into a graph that never runs. The nodes of that graph are executed one by one,
each in float64 and rounded once: as ideal kernels would.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.framework import op_def_library, op_def_registry

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.checks import GRADIENT
from ulpscope.replay.tensorflow.ops import PREFIX, Op
from ulpscope.replay.tensorflow.running import Feed, Recipe
from ulpscope.replay.tensorflow.tensors import Arrays, raised, to_floats
from ulpscope.replay.yardsticks import CHANCES, Composed, Composition, composition_of

Round = Callable[[Any, Any], Any]
"""A result in float64, as one that was rounded to this type."""

# A graph may hold what cannot be executed by itself, or has no kernel in float64: then nothing is known of it.
CANNOT = (tf.errors.OpError, LookupError, TypeError, ValueError, NotImplementedError, RuntimeError)


def measure_composition(recipe: Recipe, feed: Feed, exact: Arrays, *, unit: float) -> Composition:
    """Execute the op and its backward with ideal kernels a few times."""
    try:
        with tf.device("/CPU:0"):
            program = _program(recipe, feed)
            chance = np.random.default_rng(CHANCES)
            return composition_of(
                lambda: program.execute(feed, _to_nearest),
                lambda: program.execute(feed, lambda high, dtype: _by_chance(high, dtype, chance)),
                exact,
                unit=unit,
                cannot=CANNOT,
            )
    except CANNOT:
        return Composition()


@dataclass(frozen=True, slots=True)
class Program:
    """An op with its backward, written down."""

    graph: Any
    fed: Mapping[str, str]
    """Names of placeholders, each with the place in a feed; gradients that are sent begin with `grad.`."""
    results: Mapping[str, Any]
    """Tensors of the graph, by the places that evidence has."""

    def execute(self, feed: Feed, rounded: Round) -> Composed:
        given = {**feed.tensors, **{f"{GRADIENT}{place}": grad for place, grad in feed.grad_outputs.items()}}
        values = _Values(rounded)
        for node in self.graph.get_operations():
            if node.name in self.fed:
                tensor = tf.constant(given[self.fed[node.name]])
                values.put(node.outputs[0], tf.cast(tensor, raised(tensor.dtype)))
            else:
                values.compute(node)
        results = {place: values.known[tensor.name] for place, tensor in self.results.items()}
        before = {place: values.before[tensor.name] for place, tensor in self.results.items()}
        return _arrays(results), _arrays(before)


@dataclass(slots=True)
class _Values:
    """What the nodes of a graph gave, by the names of its tensors: floats in float64."""

    rounded: Round
    known: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    """The same before the last rounding."""

    def put(self, tensor: Any, value: Any) -> None:
        self.known[tensor.name] = self.before[tensor.name] = value

    def compute(self, node: Any) -> None:
        outputs = _raised_outputs(node, [self.known[tensor.name] for tensor in node.inputs])
        moves = operation(PREFIX + node.type).has(Trait.MOVING, Trait.VIEW)
        # What is only moved is as precise as it was before.
        high = _raised_outputs(node, [self.before[tensor.name] for tensor in node.inputs]) if moves else outputs
        for tensor, output, precise in zip(node.outputs, outputs, high, strict=True):
            self.known[tensor.name] = self.rounded(output, tensor.dtype)
            self.before[tensor.name] = precise


def _raised_outputs(node: Any, inputs: list[Any]) -> list[Any]:
    if node.type == "Const":
        value = tf.constant(tf.make_ndarray(node.get_attr("value")))
        return [tf.cast(value, raised(value.dtype))]
    attributes = {one.name: node.get_attr(one.name) for one in node.op_def.attr}
    kinds = frozenset(one.name for one in node.op_def.attr if one.type in ("type", "list(type)"))
    told = {name: value for name, value in attributes.items() if not isinstance(value, tf.compat.v1.AttrValue)}
    op = Op(node.type, (), {**told, **_shapes(node)}, kinds, len(node.outputs))
    return op.retyped(raised).execute(inputs)


def _shapes(node: Any) -> dict[str, Any]:
    names = [one.name for one in node.op_def.attr if one.type == "shape"]
    return {name: tf.TensorShape(node.get_attr(name)) for name in names}


def _to_nearest(high: Any, dtype: Any) -> Any:
    return high if raised(dtype) == dtype else tf.cast(tf.cast(high, dtype), raised(dtype))


def _by_chance(high: Any, dtype: Any, chance: np.random.Generator) -> Any:
    known = DTYPES.get(dtype.name if dtype != tf.float16 else "float16")
    if known is None or raised(dtype) == dtype or not dtype.is_floating:
        return high
    noise = chance.random(tuple(high.shape)) * 2 - 1
    return high * (1 + known.unit_roundoff * noise)


def _arrays(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {place: to_floats(tensor.numpy()) for place, tensor in tensors.items()}


def _program(recipe: Recipe, feed: Feed) -> Program:
    graph, fed = tf.Graph(), {}

    def placeholder(place: str, array: NDArray[Any]) -> Any:
        tensor = tf.compat.v1.placeholder(array.dtype, array.shape)
        fed[tensor.op.name] = place
        return tensor

    with graph.as_default():
        # Whole numbers say what an op does, and gradients look at them while they are written.
        leaves = {
            place: placeholder(place, array) if _is_computed(array) else tf.constant(array)
            for place, array in feed.tensors.items()
        }
        outputs = _write(recipe.op, [leaves[place] for place in recipe.op.places])
        results = {f"output.{number}": tensor for number, tensor in enumerate(outputs)}
        sent = {place: placeholder(f"{GRADIENT}{place}", grad) for place, grad in feed.grad_outputs.items()}
        if sent and recipe.differentiated:
            wanted = [leaves[place] for place in recipe.differentiated]
            found = tf.gradients([results[place] for place in sent], wanted, list(sent.values()))
            for place, gradient in zip(recipe.differentiated, found, strict=True):
                if gradient is not None:
                    rows = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
                    results[f"{GRADIENT}{place}"] = rows
    return Program(graph, fed, results)


def _is_computed(array: NDArray[Any]) -> bool:
    return array.dtype.kind not in "iub"


def _write(op: Op, inputs: list[Any]) -> list[Any]:
    """The op as a node of the graph that is open; types and lengths that its operands tell are not told again."""
    definition = op_def_registry.get(op.word)
    waiting, given, inferred = list(inputs), {}, set()
    for one in definition.input_arg:
        inferred |= {one.type_attr, one.number_attr, one.type_list_attr}
        counter = one.number_attr or one.type_list_attr
        if not counter:
            given[one.name] = waiting.pop(0)
            continue
        size = op.attributes[counter]
        length = size if isinstance(size, int) else len(size)
        given[one.name], waiting = waiting[:length], waiting[length:]
    told = {name: value for name, value in op.attributes.items() if name not in inferred}
    _, _, node, _ = op_def_library._apply_op_helper(op.word, **given, **told)
    return list(node.outputs)
