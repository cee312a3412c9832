"""Executes a recorded op once: on a device as it was, or on the CPU in high precision.

recipe = make_recipe(recorded)
run(recipe, feed, device="gpu:0")            what the device computes
run_precise(recipe, feed)                    what is true

The backward is what a gradient tape makes of the op, from the gradients that the recorded one was sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf
from numpy.typing import NDArray

from ulpscope.records.checks import GRADIENT
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.tensorflow.ops import Op, op_of
from ulpscope.replay.tensorflow.references import Function, by_number, reference_of
from ulpscope.replay.tensorflow.tensors import Arrays, array_of, raised

Cast = Callable[[Any], Any]
Result = TypeVar("Result")

NO_TRUTH = "this TensorFlow has no float64 kernel of it"
SIDE = 64
ROWS = ".indices"
"""How the place ends of the numbers of the rows that a gradient tells."""
NO_KERNEL = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError, TypeError)
"""What TensorFlow answers where an op has no kernel for an element type."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a recorded op is executed."""

    name: str
    op: Op
    differentiated: tuple[str, ...]
    """Operands whose gradients the recorded backward computed; a tensor that is given twice has two."""
    on_cpu: bool
    """Whether the run computed it on the CPU, whose kernels keep other things for the backward than others do."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What one execution is given, in its own dtypes."""

    tensors: Arrays
    grad_outputs: Arrays

    def changed(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "Feed":
        return Feed(
            {place: change(array) for place, array in self.tensors.items()},
            {place: change(array) for place, array in self.grad_outputs.items()},
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """What one execution gave."""

    outputs: Arrays
    gradients: Arrays
    """By place of the operand; of rows only, the rows, and at `PLACE.indices` which they are."""

    def results(self) -> dict[str, NDArray[Any]]:
        """Everything, by the places that evidence has."""
        return {**self.outputs, **{f"{GRADIENT}{place}": array for place, array in self.gradients.items()}}


def make_recipe(recorded: RecordedCall) -> Recipe:
    op = op_of(recorded)
    if any(place.endswith(ROWS) for place in recorded.grad_outputs):
        raise CannotReplayError("the gradient that it was sent is of single rows")
    wanted = recorded.grad_inputs if recorded.grad_outputs else {}
    floats = ("float", "bfloat", "complex")
    return Recipe(
        name=recorded.call.op,
        op=op,
        differentiated=tuple(
            place for place in op.places if place in wanted and recorded.inputs[place].dtype.startswith(floats)
        ),
        on_cpu=all(value.device == "cpu" for value in recorded.outputs.values()),
    )


def run(recipe: Recipe, feed: Feed, *, device: str) -> Ran:
    """Execute the op in its own dtypes."""
    with tf.device(device_name(device)):
        return _execute(by_number(recipe.op), recipe, feed, lambda dtype: dtype)


def run_precise(recipe: Recipe, feed: Feed) -> Ran:
    """Execute the op in float64 on the CPU; what has no such kernel by its definition."""
    with tf.device("/CPU:0"):
        return with_precise(recipe, lambda function, cast: _execute(function, recipe, feed, cast))


def run_with_float64(recipe: Recipe, feed: Feed) -> Ran:
    """Execute TensorFlow's own float64 kernel, which there may not be."""
    with tf.device("/CPU:0"):
        return _execute(by_number(recipe.op.retyped(raised)), recipe, feed, raised)


def with_precise(recipe: Recipe, use: Callable[[Function, Cast], Result]) -> Result:
    """Use the function that computes the op in float64: a definition of it, or TensorFlow's own kernel.

    Float32 would be no truth, not even for coarser types: what is wrong may be wrong there, too.
    """
    defined = reference_of(recipe.name, recipe.op, on_cpu=recipe.on_cpu)
    if defined is not None:
        return use(defined, raised)
    try:
        return use(by_number(recipe.op.retyped(raised)), raised)
    except NO_KERNEL as error:
        raise CannotReplayError(NO_TRUTH) from error


def device_name(device: str) -> str:
    """TensorFlow's name of `cpu` or `gpu:1`."""
    kind, _, number = device.partition(":")
    return f"/{kind.upper()}:{number or 0}"


def leaves_of(feed: Feed, cast: Cast) -> dict[str, Any]:
    """A tensor of its own for each operand."""
    return {place: _tensor(array, cast) for place, array in feed.tensors.items()}


def spread(gradients: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Gradients as arrays: of one that tells only some rows, the rows and which they are."""
    found = {}
    for place, gradient in gradients.items():
        if isinstance(gradient, tf.IndexedSlices):
            found[place] = array_of(gradient.values)
            found[f"{place}{ROWS}"] = array_of(gradient.indices)
        elif gradient is not None:
            found[place] = array_of(gradient)
    return found


def _execute(function: Function, recipe: Recipe, feed: Feed, cast: Cast) -> Ran:
    tensors = leaves_of(feed, cast)
    with tf.GradientTape() as tape:
        for place in recipe.differentiated:
            tape.watch(tensors[place])
        made = function([tensors[place] for place in recipe.op.places])
    outputs = {f"output.{number}": tensor for number, tensor in made.items()}
    sent = {place: _tensor(grad, cast) for place, grad in feed.grad_outputs.items() if place in outputs}
    gradients: dict[str, Any] = {}
    if sent and recipe.differentiated:
        leaves = {place: tensors[place] for place in recipe.differentiated}
        gradients = tape.gradient([outputs[place] for place in sent], leaves, output_gradients=list(sent.values()))
    return Ran({place: array_of(tensor) for place, tensor in outputs.items()}, spread(gradients))


def _tensor(array: NDArray[Any], cast: Cast) -> Any:
    tensor = tf.constant(array)
    return tf.cast(tensor, cast(tensor.dtype))


def probe() -> None:
    """Use TensorFlow once, so that no case pays for what it loads late, or dies of what this machine cannot do."""
    square = tf.ones([SIDE, SIDE], tf.bfloat16)
    array_of(tf.linalg.matmul(square, square))
