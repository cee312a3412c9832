"""Executes a recorded op again from its saved operands, and puts what the run got beside it."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from ulpscope.operations.registry import Trait, operation
from ulpscope.records.checks import OutputEvidence
from ulpscope.records.evidence import PairEvidence
from ulpscope.records.pairs import Pair
from ulpscope.replay.data import saved_array
from ulpscope.replay.memory import check_size
from ulpscope.replay.pairs import evidence_of_pair
from ulpscope.replay.recorded import CannotReplayError, Places, RecordedCall
from ulpscope.replay.tensorflow.engine import Executed, inside_of, saved_results
from ulpscope.replay.tensorflow.evidence import compare
from ulpscope.replay.tensorflow.running import NO_KERNEL, Feed, Ran, make_recipe, run, run_precise
from ulpscope.replay.tensorflow.tensors import to_floats
from ulpscope.trace.reader import RankTrace


class ReplayedCall:
    """One run's op with its saved operands and results."""

    def __init__(self, recorded: RecordedCall, rank: RankTrace) -> None:
        check_size(recorded)
        self.recorded = recorded
        self.recipe = make_recipe(recorded)

        def saved(places: Places) -> dict[str, NDArray[Any]]:
            return {place: saved_array(rank, value) for place, value in places.items()}

        self.feed = Feed(saved(recorded.inputs), saved(recorded.grad_outputs))
        self._results = saved_results(recorded, rank)
        self._inside = inside_of(self.recipe, recorded, rank)

    @property
    def on_cpu(self) -> bool:
        return self.recipe.on_cpu

    @cached_property
    def precise(self) -> Ran:
        """The op in float64, from its operands as they were stored."""
        return run_precise(self.recipe, self.feed)

    @cached_property
    def executed(self) -> Executed:
        """The run's own results as evidence."""
        found = compare(self.recipe, self.feed, self._results, self.precise, inside=self._inside)
        return Executed(self.recipe, self.feed, self.precise, found)

    def exact(self) -> dict[str, NDArray[Any]]:
        return {place: to_floats(array) for place, array in self.precise.results().items()}

    def evidence(self) -> dict[str, OutputEvidence]:
        return {each.place: each for each in self.executed.evidence}

    def native(self) -> dict[str, OutputEvidence]:
        """The same with what this machine's own kernel gives for these operands."""
        return {
            place: replace(each, computed=self._native[place])
            for place, each in self.evidence().items()
            if place in self._native and self._native[place].shape == each.exact.shape
        }

    @cached_property
    def _native(self) -> dict[str, NDArray[Any]]:
        if self._inside is not None:
            return {}  # no yardstick for a device that has rounded its operands
        try:
            ran = run(self.recipe, self.feed, device="cpu")
            return {each.place: each.computed for each in compare(self.recipe, self.feed, ran, self.precise)}
        except NO_KERNEL:
            return {}

    def casts(self, _precisions: Collection[str]) -> "Iterator[ReplayedCall]":
        """As a cast that nobody recorded might have made it: TensorFlow's casts are ops of their own."""
        yield from ()


@dataclass(frozen=True, slots=True)
class ReplayedPair:
    """A pair of ops, both executed again."""

    sides: Pair[ReplayedCall]
    crossed: Ran | None
    """The reference's op with the target's operands, where the two ops' attributes differ."""

    def with_sides(self, sides: Pair[ReplayedCall]) -> "ReplayedPair":
        """The same pair, its calls taken otherwise."""
        return replace(self, sides=sides)

    def evidence(self) -> list[PairEvidence]:
        """Outputs and gradients that both runs have."""
        crossed = {} if self.crossed is None else self.crossed.results()
        told = {place: to_floats(array) for place, array in crossed.items()}
        return evidence_of_pair(
            self.sides.map(lambda side: side.evidence()), self.sides.map(lambda side: side.exact()), told
        )


def replay_pair(recorded: Pair[RecordedCall], ranks: Pair[RankTrace]) -> ReplayedPair:
    """Execute both ops of a pair again."""
    if recorded.reference.call.op != recorded.target.call.op:
        raise CannotReplayError("another op in the other run")
    sides = Pair(ReplayedCall(recorded.reference, ranks.reference), ReplayedCall(recorded.target, ranks.target))
    options = recorded.map(_options)
    crossed = None
    if options.reference != options.target and not operation(recorded.target.call.op).has(Trait.SELECTING):
        crossed = run_precise(sides.reference.recipe, sides.target.feed)
    return ReplayedPair(sides, crossed)


def _options(recorded: RecordedCall) -> str:
    """What an op is told beside its operands, but for their types."""
    told = recorded.call.arguments.get("kwargs", {})
    return json.dumps({name: item for name, item in told.items() if "$dtype" not in str(item)}, sort_keys=True)
