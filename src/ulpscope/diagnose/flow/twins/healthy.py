"""Healthy error, measured: what runs of the reference with the target's roundings (its twins) differ from it.

A sound target is about as far from the reference as its twins are, tensor by tensor, whatever amplifies errors on the
way: the twins went through the same. So a call has made an error itself where its output stands further above the
twins' than its operands do. By how much that happens by chance is told by the run's own calls, most of which are sound,
by the number of elements, and by the number of twins.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.mathematics import independent_elements
from ulpscope.diagnose.flow.updates import Update, compare_updates
from ulpscope.diagnose.limits import (
    INDEPENDENT_ELEMENTS,
    LEAST_SCATTER,
    SOUND_DEVIATIONS,
    SOUND_SHARE,
    SURE_CHANCE,
    SURE_DEVIATIONS,
)
from ulpscope.judge.rounding.families import felt_error
from ulpscope.judge.rounding.limits import LIMITS
from ulpscope.numerics.chance import largest_ratio, ratio_chance
from ulpscope.numerics.dtypes import Floats
from ulpscope.numerics.summaries.estimates import PIECE, mean_squared_cosines
from ulpscope.records.enums import PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE

Sources = Callable[[int], Sequence[int]]
"""Rows of values that outputs of a pair of calls depend on."""


@dataclass(frozen=True, slots=True)
class Healthy:
    """What a sound call's output may differ by."""

    error: float
    """Its twins' error, times as much as its operands stand above theirs."""
    elements: float
    """How many independent ones make up an error."""
    twins: int
    allowance: float
    """Factor by which sound errors of many elements are larger now and then."""

    @property
    def by_chance(self) -> float:
        """How many times as large as the twins' error a sound one is once in a million."""
        return math.sqrt(largest_ratio(SURE_CHANCE, self.elements, self.elements * self.twins))

    @property
    def most(self) -> float:
        """More is not healthy."""
        return self.error * self.allowance * self.by_chance

    def chance_of(self, error: float) -> float:
        """How likely a sound call has this error or more."""
        ratio = (error / self.error / self.allowance) ** 2
        return ratio_chance(ratio, self.elements, self.elements * self.twins)


class Twins:
    """The twins of one rank's reference, seen from its comparison with the target."""

    def __init__(self, evidence: RankEvidence, twins: Sequence[RankEvidence], sources: Sources) -> None:
        self.evidence = evidence
        self._sources = sources
        self._twins = twins
        self._updates = [_by_parameter(twin, compare_updates(twin)) for twin in twins]
        self._rows = [_rows_by_reference(twin, evidence.sides.reference.id) for twin in twins]
        self.errors = self._root_mean_squares()
        """Of each pair of values; nan where no twin tells."""
        self.directions = self._directions()
        """In how many the errors of independent draws lie; inf where nothing tells."""

    def _root_mean_squares(self) -> NDArray[np.float64]:
        of_twins = zip(self._twins, self._rows, strict=True)
        found = np.array([np.where(rows >= 0, twin.values.error[rows], np.nan) for twin, rows in of_twins])
        with np.errstate(invalid="ignore"):
            healthy: NDArray[np.float64] = np.sqrt(np.mean(np.square(found), axis=0))
        # A twin that has not rounded where the target has says nothing; a sketch tells nothing below its resolution.
        precision = self.evidence.precision
        least = np.maximum(LIMITS.rounding * np.array(precision.roundoffs), precision.resolutions)
        return np.where(healthy >= least, healthy, np.nan)

    def _directions(self) -> NDArray[np.float64]:
        """Told by how alike the errors of the target and its twins are: of n elements that err each by itself, the
        squares of the cosines between draws are one in n. Behind an optimizer's signs or a noisy loss, elements err
        together: then there are as many errors as directions, however many elements there are."""
        if any(side.summaries.sketch is None for one in (self.evidence, *self._twins) for side in one.sides):
            return np.full(len(self.errors), np.inf)
        pieces = np.split(np.arange(len(self.errors)), range(PIECE, len(self.errors), PIECE))
        alike = np.concatenate([mean_squared_cosines(list(self._errors_of(rows))) for rows in pieces])
        with np.errstate(divide="ignore"):
            return np.where(alike > 0, 1.0 / alike, np.inf)

    def _errors_of(self, rows: NDArray[np.intp]) -> Iterator[Floats]:
        """Sketches of the target's errors, and of each twin's; nan where there is none."""
        yield _sketched_errors(self.evidence, rows)
        for twin, known in zip(self._twins, self._rows, strict=True):
            places = known[rows]
            yield np.where((places >= 0)[:, None], _sketched_errors(twin, places.clip(min=0)), np.nan)

    def of(self, slot: Slot, sources: Sequence[int], update: Update | None) -> Healthy | None:
        """What is healthy for a value that was made of these; None where the twins do not tell."""
        own = self.own(slot, update)
        if own is None or any(self._is_foreign(source, own, slot) for source in sources):
            return None
        above = max((ratio for source in sources if (ratio := self.ratio(source)) is not None), default=1.0)
        elements = float(round(self._independent(slot.values)))
        healthy = Healthy(own * max(above, 1.0), elements, len(self._twins), self._allowance)
        # Of few elements two draws say less than the rules do.
        return healthy if healthy.by_chance <= LIMITS.gain else None

    def _is_foreign(self, source: int, healthy: float, slot: Slot) -> bool:
        """Whether an operand has more error than the output may have, and of a kind that no twin has."""
        values = self.evidence.values
        if values.discrete[source] or values.identical[source]:
            return False
        if not values.compared[source]:
            return True
        return math.isnan(self.errors[source]) and self._felt(source, slot) > healthy

    def _felt(self, source: int, slot: Slot) -> float:
        """The error that an operand makes of a result: a bias that began at zero is all update, and changes little."""
        operand = self.evidence.operands[source]
        added = slot.makes and source in self.evidence.addends(slot.pair)
        return felt_error([operand], self.evidence.operands[slot.values]) if added else operand.error

    def counts(self, source: int, slot: Slot, update: Update | None) -> bool:
        """Whether an operand has enough error to have made that of a result."""
        own = self.own(slot, update)
        return own is None or update is not None or self._felt(source, slot) > own

    def alone(self, slot: Slot, update: Update | None) -> Healthy | None:
        """What is healthy whatever it was made of."""
        return self.of(slot, (), update)

    def ratio(self, row: int) -> float | None:
        """How many times as far from the reference as its twins a value is."""
        error, healthy = self.evidence.operands[row].error, self.errors[row]
        return None if math.isnan(healthy) or not math.isfinite(error) else error / float(healthy)

    def own(self, slot: Slot, update: Update | None) -> float | None:
        """The twins' error; None where they do not tell."""
        if update is None:
            healthy = float(self.errors[slot.values])
            return None if math.isnan(healthy) else healthy
        key = self.evidence.calls["reference_id"][slot.pair], slot.place
        known = [updates[key] for updates in self._updates if key in updates]
        healthy = math.sqrt(sum(each.error**2 for each in known) / len(known)) if known else 0.0
        return healthy if healthy > update.resolution else None

    def _independent(self, row: int) -> float:
        return min(independent_elements(self.evidence, row), float(self.directions[row]), INDEPENDENT_ELEMENTS)

    @cached_property
    def _allowance(self) -> float:
        """How many times more than the twins' a sound error is beyond chance: kernels round inside, as no twin does.

        Told by how far outputs stand above their operands in this run: nearly all of its calls are sound.
        """
        found = np.array(list(self._jumps()))
        scatter = float(np.quantile(found, SOUND_SHARE)) / SOUND_DEVIATIONS if len(found) else 0.0
        drawn = math.sqrt((1.0 + 1.0 / len(self._twins)) / INDEPENDENT_ELEMENTS / 2.0)
        beyond = math.sqrt(scatter**2 - drawn**2) if scatter > drawn else 0.0
        return math.exp(SURE_DEVIATIONS * max(beyond, LEAST_SCATTER))

    def _jumps(self) -> Iterator[float]:
        """Of outputs of many elements: logarithms of their ratios over those of their operands."""
        for slot in self.evidence.slots:
            if not slot.makes or slot.role in (PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE):
                continue
            ratio, healthy = self.ratio(slot.values), float(self.errors[slot.values])
            if not ratio or self._independent(slot.values) < INDEPENDENT_ELEMENTS:
                continue
            sources = self._sources(slot.pair)
            if sources and not any(self._is_foreign(source, healthy, slot) for source in sources):
                yield math.log(ratio / max(1.0, *(self.ratio(source) or 0.0 for source in sources)))


def _rows_by_reference(twin: RankEvidence, ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """For each of these values of the reference its row in a twin's comparison; -1 where that tells no distance."""
    known = np.flatnonzero(twin.values.compared & ~twin.values.discrete & np.isfinite(twin.values.error))
    own = twin.sides.reference.id[known]
    if not len(own):
        return np.full(len(ids), -1)
    order = np.argsort(own)
    places = order[np.searchsorted(own, ids, sorter=order).clip(max=len(own) - 1)]
    return np.where(own[places] == ids, known[places], -1)


def _sketched_errors(evidence: RankEvidence, rows: NDArray[np.intp]) -> Floats:
    reference, target = (np.asarray(side.summaries.sketch)[rows].astype(np.float64) for side in evidence.sides)
    errors: Floats = target - reference
    return errors


def _by_parameter(evidence: RankEvidence, updates: dict[int, Update]) -> dict[tuple[int, str], Update]:
    """Updates by the reference's call and the parameter."""
    slots, calls = evidence.slots, evidence.calls["reference_id"]
    return {(calls[slots[row].pair], slots[row].place): update for row, update in updates.items()}
