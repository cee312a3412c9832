"""Executes a case on a device and in high precision, and gives the evidence.

engine = Engine("gpu:0", seed=0)
executed = engine.execute(case, recorded, rank)
executed.evidence                 one entry an output or gradient
executed.refine()                 adds sensitivities: a few more runs in float64

Where the run's own results are saved, and are not what came out here bit for bit, they are evidence, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import FLOATING
from ulpscope.numerics.regenerate.whole import whole_numbers
from ulpscope.records.calls import Value
from ulpscope.records.checks import RECORDED, CaseId, DataSource, OutputEvidence, Variant
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.data import drawn_array, saved_array
from ulpscope.replay.memory import check_size
from ulpscope.replay.planning import longer
from ulpscope.replay.recorded import FEW_NUMBERS, CannotReplayError, Places, RecordedCall
from ulpscope.replay.registry import load_references
from ulpscope.replay.tensorflow.composing import measure_composition
from ulpscope.replay.tensorflow.evidence import compare, measure_reductions, measure_sensitivity
from ulpscope.replay.tensorflow.running import Feed, Ran, Recipe, make_recipe, run, run_precise
from ulpscope.replay.tensorflow.tensors import to_floats
from ulpscope.replay.yardsticks import ROUNDOFF_64, refined, tf32_roundoff, unrefined
from ulpscope.trace.reader import RankTrace

NOT_SAVED = "the whole numbers that say what it does were not saved, and cannot be told"


class Engine:
    """Executes cases on one device."""

    def __init__(self, device: str, *, seed: int = 0, references: Sequence[Path] = ()) -> None:
        _use_one_thread()
        self._device, self._seed = device, seed
        self._known: dict[str, frozenset[int]] = {}
        for file in references:
            load_references(file)
        _check_device(device)

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> "Executed":
        """Run the case on the device and in float64."""
        check_size(recorded)
        recipe = make_recipe(recorded)
        feed = self.feed(case, recorded, rank)
        ran = self._run(case, recorded, recipe, feed)
        precise = run_precise(recipe, feed)
        found = compare(recipe, feed, ran, precise, inside=self._inside(recipe, feed))
        if case.source is DataSource.REAL:
            kept = other_than(saved_results(recorded, rank), ran)
            found += compare(recipe, feed, kept, precise, prefix=RECORDED, inside=inside_of(recipe, recorded, rank))
        return Executed(recipe, feed, precise, found)

    def _run(self, case: CaseId, recorded: RecordedCall, recipe: Recipe, feed: Feed) -> Ran:
        """On the device; drawn whole numbers may ask for what cannot be, or for something else than the run did."""
        drawn = case.source is DataSource.RANDOM and any(array.dtype.kind in "iu" for array in feed.tensors.values())
        try:
            ran = run(recipe, feed, device=self._device)
        except tf.errors.OpError as error:
            if drawn:
                raise CannotReplayError(NOT_SAVED) from error
            raise
        if drawn and case.variant is not Variant.LONG and not _as_recorded(recorded, ran):
            raise CannotReplayError(NOT_SAVED)
        return ran

    def _inside(self, recipe: Recipe, feed: Feed) -> float | None:
        """What this device rounds float32 operands to because TensorFlow lets it: TF32."""
        allowed = tf.config.experimental.tensor_float_32_execution_enabled()
        single = any(array.dtype == np.float32 for array in feed.tensors.values())
        on_cpu = self._device.startswith("cpu")
        return None if on_cpu or not single else tf32_roundoff(recipe.name, products=allowed, by_cudnn=allowed)

    def feed(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Feed:
        """What the case is executed with."""
        inputs, grads = recorded.inputs, recorded.grad_outputs
        if case.variant is Variant.LONG:
            inputs, grads = longer(recorded)
        again = recorded.repeated
        first = next((place for place, value in inputs.items() if value.dtype in FLOATING), None)

        def array(place: str, value: Value) -> NDArray[Any]:
            variant = case.variant if place == first else Variant.RECORDED
            if case.source is DataSource.REAL:
                return saved_array(rank, value)
            told = self._whole_numbers(recorded, value, rank) if value.dtype not in FLOATING else None
            return drawn_array(case, place, value, seed=self._seed, variant=variant) if told is None else told

        return Feed(
            {place: array(again.get(place, place), value) for place, value in inputs.items()},
            {place: array(f"grad.{place}", value) for place, value in grads.items()},
        )

    def _whole_numbers(self, recorded: RecordedCall, value: Value, rank: RankTrace) -> NDArray[Any] | None:
        """The few numbers that say what an op does: lengths of its own axes, or of any in the run."""
        if value.data is not None and prod(value.shape) <= FEW_NUMBERS:
            return saved_array(rank, value)
        told = whole_numbers(value, sizes=_sizes((*recorded.inputs.values(), *recorded.outputs.values())))
        return whole_numbers(value, sizes=self._lengths(rank)) if told is None else told

    def _lengths(self, rank: RankTrace) -> frozenset[int]:
        """Of all axes of a run."""
        if rank.name not in self._known:
            shapes = rank.collect(rank.values().select(pl.col("shape").explode().unique()))["shape"]
            self._known[rank.name] = frozenset(shapes.drop_nulls().to_list())
        return self._known[rank.name]


def inside_of(recipe: Recipe, recorded: RecordedCall, rank: RankTrace) -> float | None:
    """The same of the run's device; TensorFlow allows it unless it is told otherwise."""
    allowed = bool(rank.info.environment.get("switches", {}).get("tensor_float_32", True))
    single = any(value.dtype == "float32" for value in recorded.inputs.values())
    return None if recipe.on_cpu or not single else tf32_roundoff(recipe.name, products=allowed, by_cudnn=allowed)


def saved_results(recorded: RecordedCall, rank: RankTrace) -> Ran:
    """What the run itself got, as far as it was saved."""
    return Ran(_saved(recorded.outputs, rank), _saved(recorded.grad_inputs, rank))


def _saved(places: Places, rank: RankTrace) -> dict[str, NDArray[Any]]:
    return {place: saved_array(rank, value) for place, value in places.items() if value.data is not None}


def other_than(results: Ran, ran: Ran) -> Ran:
    """Those that are not what came out here, bit for bit."""

    def others(kept: dict[str, NDArray[Any]], here: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {
            place: array
            for place, array in kept.items()
            if place in here and (array.dtype != here[place].dtype or array.tobytes() != here[place].tobytes())
        }

    return Ran(others(dict(results.outputs), dict(ran.outputs)), others(dict(results.gradients), dict(ran.gradients)))


@dataclass(slots=True)
class Executed:
    """An executed case."""

    recipe: Recipe
    feed: Feed
    precise: Ran
    evidence: list[OutputEvidence]

    def refine(self) -> None:
        """Fill in what judging a rounded result needs: the condition of each element, the length of its sums."""
        wanted = unrefined(self.evidence)
        if not wanted:
            return
        exact = {place: to_floats(array) for place, array in self.precise.results().items()}
        unit = max(each.input_roundoff for each in wanted)
        sensitivity = measure_sensitivity(self.recipe, self.feed, exact, unit=max(unit, ROUNDOFF_64**0.5))
        reductions = measure_reductions(self.recipe, self.feed)
        composed = measure_composition(self.recipe, self.feed, exact, unit=unit)
        better = {
            each.place: refined(each, sensitivity, reductions, composed, place=each.place.removeprefix(RECORDED))
            for each in wanted
        }
        self.evidence = [better.get(each.place, each) for each in self.evidence]

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Operands, what was computed and what is true, by place."""
        found = {f"input.{place}": to_floats(array) for place, array in self.feed.tensors.items()}
        found |= {f"grad_output.{place}": to_floats(array) for place, array in self.feed.grad_outputs.items()}
        for each in self.evidence:
            found[f"computed.{each.place}"] = each.computed
            found[f"exact.{each.place}"] = each.exact
        return {name: np.ascontiguousarray(array) for name, array in found.items()}


def _sizes(values: Iterable[Value]) -> frozenset[int]:
    return frozenset(size for value in values for size in value.shape)


def _as_recorded(recorded: RecordedCall, ran: Ran) -> bool:
    """Whether results have the recorded shapes."""
    shapes = {place: array.shape for place, array in ran.outputs.items()}
    return all(shapes.get(place, value.shape) == value.shape for place, value in recorded.outputs.items())


def _use_one_thread() -> None:
    """Sums then do not depend on how many threads share them."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:  # TensorFlow has computed before: whoever did so has chosen
        return


def _check_device(device: str) -> None:
    known = sorted(
        f"{each.device_type.lower()}:{each.name.rpartition(':')[2]}" for each in tf.config.list_logical_devices()
    )
    if device not in known and f"{device}:0" not in known:
        raise UlpscopeError(
            f"device {device} is not there: TensorFlow knows {', '.join(known)}",
            expected=f"one of {', '.join(known)}",
            next_step="name another with --device",
        )
