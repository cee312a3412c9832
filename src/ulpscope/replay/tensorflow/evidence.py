"""Puts what a device computed beside what is true, one output or gradient at a time."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.checks import GRADIENT, Direction, OutputEvidence, Rule
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.tensorflow.references import Function
from ulpscope.replay.tensorflow.running import (
    NO_TRUTH,
    Cast,
    Feed,
    Ran,
    Recipe,
    leaves_of,
    run_precise,
    with_precise,
)
from ulpscope.replay.tensorflow.tensors import Arrays, is_float, to_floats, word_of
from ulpscope.replay.yardsticks import PERTURBATIONS, ROUNDOFF_32, ROUNDOFF_64, UNIFORM, rms_changes

# Elements of an output whose dependence on the operands is counted.
PROBED = 3


def roundoff(array: NDArray[Any]) -> float:
    known = DTYPES.get(word_of(array))
    return 0.0 if known is None else known.unit_roundoff


def compare(
    recipe: Recipe, feed: Feed, ran: Ran, precise: Ran, *, prefix: str = "", inside: float | None = None
) -> list[OutputEvidence]:
    """Evidence for all outputs and gradients; places get the prefix.

    `inside`: what a device is known to round operands to before it multiplies them.
    """
    true, found = precise.results(), []
    for place, computed in ran.results().items():
        if place in true:
            each = _one(recipe, feed, place, computed, true[place])
            coarsest = max(inside or 0.0, each.input_roundoff)
            found.append(replace(each, place=f"{prefix}{place}", input_roundoff=coarsest))
    return found


def _one(recipe: Recipe, feed: Feed, place: str, computed: NDArray[Any], exact: NDArray[Any]) -> OutputEvidence:
    if is_float(computed) and roundoff(computed) <= roundoff(exact) and roundoff(computed) > ROUNDOFF_64:
        raise CannotReplayError(NO_TRUTH)
    backward = place.startswith(GRADIENT)
    shapes = computed.shape, exact.shape
    rule, dtype = (
        _rule_of_gradient(recipe, feed, computed) if backward else _rule(recipe, feed, computed),
        word_of(computed),
    )
    own = roundoff(computed)
    accumulation = ROUNDOFF_64 if own == ROUNDOFF_64 else ROUNDOFF_32
    if shapes[0] == shapes[1] and selects(recipe.op.word, place):
        source = feed.tensors[recipe.op.places[0]]
        rule, dtype = Rule.EXACT, word_of(source)
        computed, exact = (_selected(recipe, source, feed, each) for each in (computed, exact))
    return OutputEvidence(
        place=place,
        direction=Direction.BACKWARD if backward else Direction.FORWARD,
        rule=rule,
        dtype=dtype,
        computed=to_floats(computed),
        exact=to_floats(exact),
        reduction=1.0,
        accumulation=accumulation,
        input_roundoff=max(own, *(roundoff(array) for array in feed.tensors.values()), 0.0),
        violation=None if shapes[0] == shapes[1] else f"shape {list(shapes[0])} instead of {list(shapes[1])}",
    )


def _rule(recipe: Recipe, feed: Feed, computed: NDArray[Any]) -> Rule:
    executed = operation(recipe.name)
    moves = executed.has(Trait.EXACT)
    if executed.has(Trait.COMPUTED_IF_COMPLEX):
        moves = not any(array.dtype.kind == "c" for array in feed.tensors.values())
    return Rule.EXACT if moves or not is_float(computed) else Rule.ROUNDED


def _rule_of_gradient(recipe: Recipe, feed: Feed, computed: NDArray[Any]) -> Rule:
    """Of one that was added up over a broadcast operand: rounded."""
    if not is_float(computed):
        return Rule.EXACT
    sent = list(feed.grad_outputs.values())
    whole = len(sent) == 1 and sent[0].size == computed.size and len(recipe.differentiated) == 1
    return Rule.EXACT if whole and operation(recipe.name).has(Trait.PASSING_ON) else Rule.ROUNDED


_SELECTING = {"ArgMax": "output.0", "ArgMin": "output.0", "TopK": "output.1", "TopKV2": "output.1"}


def selects(word: str, place: str) -> bool:
    """Whether an output is places of elements, of which several may be right."""
    return _SELECTING.get(word) == place


def _selected(recipe: Recipe, source: NDArray[Any], feed: Feed, index: NDArray[Any]) -> NDArray[Any]:
    """The elements at the places that the op gave."""
    word, axis = recipe.op.word, -1
    if word.startswith("Arg"):
        axis = int(feed.tensors[recipe.op.places[1]])
        index = np.expand_dims(index, axis)
    if index.size and (int(index.min()) < 0 or int(index.max()) >= source.shape[axis]):
        return np.full(index.shape, np.nan)
    return np.asarray(np.take_along_axis(source, index.astype(np.int64), axis), np.float64)


def measure_sensitivity(recipe: Recipe, feed: Feed, exact: Arrays, *, unit: float) -> dict[str, NDArray[Any]]:
    """RMS change of each element per unit relative change of all operands; without any, of the element itself."""
    if not any(map(is_float, feed.tensors.values())):
        return {place: np.abs(array) for place, array in exact.items() if array.dtype == np.float64}
    random = np.random.default_rng(PERTURBATIONS)

    def move(array: NDArray[Any]) -> NDArray[Any]:
        if not is_float(array):
            return array
        high = np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)
        return high + high * (random.random(high.shape) - 0.5) * (unit * UNIFORM)

    moved = (
        {place: to_floats(array) for place, array in run_precise(recipe, feed.changed(move)).results().items()}
        for _ in range(PERTURBATIONS)
    )
    return rms_changes(exact, moved, unit=unit)


def measure_reductions(recipe: Recipe, feed: Feed) -> dict[str, float]:
    """About how many terms an element of each result is made of: counted where gradients tell, else from sizes."""
    largest = max((array.size for array in feed.tensors.values()), default=1)
    with tf.device("/CPU:0"):
        counted = with_precise(recipe, lambda function, cast: _dependences(function, cast, recipe, feed))
    found: dict[str, float] = {}
    for name, (size, counts) in counted.items():
        found[name] = max(counts.values()) if counts else max(1.0, largest / max(size, 1))
        for place in recipe.differentiated:
            # Each of the output's elements has so many entries in the Jacobian: so many a column, on average.
            length = counts.get(place, found[name]) * size / max(feed.tensors[place].size, 1)
            found[f"{GRADIENT}{place}"] = max(found.get(f"{GRADIENT}{place}", 1.0), length, found[name])
    return found


def _dependences(function: Function, cast: Cast, recipe: Recipe, feed: Feed) -> dict[str, tuple[int, dict[str, float]]]:
    """Of each output its size, and how many elements of each operand one of its elements depends on."""
    leaves = leaves_of(feed, cast)
    floats = {place: leaf for place, leaf in leaves.items() if is_float(feed.tensors[place])}
    found: dict[str, tuple[int, dict[str, float]]] = {}
    with tf.GradientTape(persistent=True) as tape:
        for leaf in floats.values():
            tape.watch(leaf)
        made = function([leaves[place] for place in recipe.op.places])
        probes = {number: _probes(tensor) for number, tensor in made.items()}
    for number, tensor in made.items():
        found[f"output.{number}"] = int(np.prod(tensor.shape)), _counted(tape, probes[number], floats)
    return found


def _probes(output: Any) -> list[Any]:
    """A few elements of an output."""
    size = int(np.prod(output.shape))
    if not size or not output.dtype.is_floating:
        return []
    flat = tf.reshape(output, [-1])
    return [flat[index] for index in sorted({0, size // 2, size - 1})[:PROBED]]


def _counted(tape: Any, probes: list[Any], leaves: Mapping[str, Any]) -> dict[str, float]:
    most: dict[str, float] = {}
    for probe in probes:
        # Not every op can be differentiated: those that compute gradients seldom.
        with contextlib.suppress(LookupError, tf.errors.OpError, ValueError, TypeError):
            for place, gradient in tape.gradient(probe, dict(leaves)).items():
                if gradient is not None:
                    entries = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
                    most[place] = max(most.get(place, 1.0), float(np.count_nonzero(entries.numpy())))
    return most
