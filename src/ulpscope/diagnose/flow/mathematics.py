"""What no rounding makes, however small it is: a factor, and what an argument asks for.

Rounding moves elements to either side, and hardly any norm: of its error, the part along the value itself is one of as
many directions as there are elements that count. Norms are summed over all elements, not estimated: so a factor of one
percent is seen below noise of one percent.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from ulpscope.align.tensors import BACKWARD_KINDS, GRADIENT_ROLES, KEPT_ROLES
from ulpscope.diagnose.arguments import numbers_differ, states_a_number
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.explaining import Explained
from ulpscope.diagnose.flow.states import IDENTICAL, ROUNDING, State
from ulpscope.diagnose.flow.unpaired import Gap, GapFinder
from ulpscope.diagnose.flow.updates import Update
from ulpscope.diagnose.limits import (
    CHANCE,
    CHANGED_ROUNDOFFS,
    CHANGED_SHARE,
    FACTOR_DEVIATIONS,
    FACTOR_ELEMENTS,
    FACTOR_NOISE,
    FACTOR_SHARE,
    LAST_BITS,
    NEARLY_SAME,
)
from ulpscope.judge.rounding.limits import LIMITS, Limits, unit_roundoff
from ulpscope.numerics.summaries.constants import SKETCH_LENGTH
from ulpscope.operations.registry import Family, Trait
from ulpscope.records.enums import OPERATION_KINDS, OPTIMIZER_KIND, PARAMETER_AFTER_ROLE


@dataclass(frozen=True)
class Mathematics:
    """Asks whether an error that is no larger than rounding is none."""

    evidence: RankEvidence
    gaps: GapFinder
    updates: dict[int, Update]
    limits: Limits

    def is_other(
        self, slot: Slot, sources: Sequence[int], explained: Explained, *, gap: Gap | None, states: Sequence[State]
    ) -> bool:
        """Whether it is the work of an argument, a change that one run lacks, a coarser type, or a factor."""
        if follows_from_argument(self.evidence, slot, explained, self.limits):
            return True
        if gap is not None and self._is_changed_in_one_run(slot, gap, states):
            return True
        if loses_precision(self.evidence, slot, sources):
            return True
        if slot.row in self.updates or not (slot.makes if gap is None else self._is_followed(slot, gap)):
            return False
        sound = all(states[row] in (IDENTICAL, ROUNDING) for row in sources)
        return sound and makes_factor(self.evidence, slot, sources, explained.widened, self.gaps.parameter_storages)

    def _is_followed(self, slot: Slot, gap: Gap) -> bool:
        """Whether all is known that a value behind calls without partners was made of."""
        return bool(gap.calls) and bool(gap.sources) and not (gap.half_seen or gap.adds or gap.written)

    def _is_changed_in_one_run(self, slot: Slot, gap: Gap, states: Sequence[State]) -> bool:
        if not gap.calls or not gap.one_sided or slot.role in GRADIENT_ROLES:
            return False
        # The other run may make the same update with another group: who updates what is asked on its own.
        if not self.gaps.updates.isdisjoint(gap.calls):
            return False
        origins = self.gaps.origins(gap)
        sound = [origin for origin in origins if states[origin] in (IDENTICAL, ROUNDING)]
        # What is put in the place of a parameter is no error of it, whatever it is.
        if len(sound) < len(origins) and slot.role not in KEPT_ROLES:
            return False
        return changes_in_one_run(self.evidence, slot, gap, sound)


def follows_from_argument(evidence: RankEvidence, slot: Slot, explained: Explained, limits: Limits) -> bool:
    """Whether an error is the work of an argument that differs: of some size, or in noise, where it may drown."""
    if slot.row in evidence.regrouped:
        return slot.role == PARAMETER_AFTER_ROLE and numbers_differ(*evidence.regrouped[slot.row])
    if not slot.makes:
        return False
    in_noise = explained.error > 0 and max(explained.floor, explained.incoming) > LAST_BITS
    if in_noise and slot.pair in evidence.asked_for_more:
        return True
    if slot.pair not in evidence.other_numbers:
        return False
    kind = evidence.calls["kind"][slot.pair]
    if kind == OPTIMIZER_KIND:
        return slot.role == PARAMETER_AFTER_ROLE
    of_some_size = explained.error > max(explained.floor, limits.argument * explained.incoming)
    # What the run has computed itself is as wrong as what it was made of.
    return kind not in BACKWARD_KINDS and of_some_size and states_a_number(evidence, slot.pair)


def is_asked_otherwise(evidence: RankEvidence, pair: int) -> bool:
    """Whether a call, or the forward of a backward, is given an argument that asks for something else."""
    asked = (evidence.other_numbers, evidence.asked_for_more)
    return any(call in pairs for pairs in asked for call in (pair, evidence.forwards[pair]))


def loses_precision(evidence: RankEvidence, slot: Slot, sources: Sequence[int]) -> bool:
    """Whether a call of one run gives its result in a coarser type than all that both runs are in, of operands that
    have the same types."""
    common, types = evidence.precision.common_roundoff, [side.dtype for side in evidence.sides]
    # Of a module nobody has recorded what autocast was told inside.
    is_module = evidence.calls["kind"][slot.pair] not in OPERATION_KINDS
    if common is None or is_module or not slot.makes or types[0][slot.values] == types[1][slot.values]:
        return False
    coarser = max(unit_roundoff(side[slot.values]) for side in types)
    return coarser > common and all(types[0][row] == types[1][row] for row in sources)


def changes_in_one_run(evidence: RankEvidence, slot: Slot, gap: Gap, origins: Sequence[int]) -> bool:
    """Whether calls that only one run makes change a value by more than that run rounds, and the other run's lies where
    it was before: in noise, too, for of a difference in a given direction a sketch tells more than of one in any.

    `origins`: what these calls read. The nearest of them is what they have changed.
    """
    side, other, executed = evidence.sides.reference, evidence.sides.target, evidence.executed.reference
    if gap.only_target:
        side, other, executed = other, side, evidence.executed.target
    row, known = slot.values, [each.summaries.sketch for each in (side, other)]
    like = [each for each in origins if side.shape(each) == side.shape(row) == other.shape(row)]
    norm = float(side.summaries.norm[row])
    if known[0] is None or known[1] is None or not like or not norm > 0:
        return False
    changes = [np.asarray(known[0][row], np.float64) - known[0][each] for each in like]
    change, origin = min(zip(changes, like, strict=True), key=lambda each: float(np.linalg.norm(each[0])))
    apart = np.asarray(known[1][row], np.float64) - known[0][origin]
    size = float(np.linalg.norm(change))
    least = CHANGED_ROUNDOFFS * max(unit_roundoff(side.dtype[each]) for each in (row, origin))
    if all(executed[call].has(Trait.MOVING, Trait.VIEW) for call in gap.calls):
        if slot.role not in KEPT_ROLES:
            return False
        # Another content has been put in its place; or the same, rounded once.
        least = evidence.precision.coarsest
    # What is changed by more stands out by itself, or is a loss scale.
    if not max(LAST_BITS, least) * norm < size < NEARLY_SAME * norm:
        return False
    share = float(apart @ change) / size**2
    doubt = float(np.linalg.norm(apart - share * change)) / size / math.sqrt(SKETCH_LENGTH)
    return abs(share) + CHANCE * doubt < CHANGED_SHARE


def factor_of(evidence: RankEvidence, row: int) -> float | None:
    """How many times as large the target's value is as the reference's, if that is most of what differs."""
    error = evidence.operands[row].error
    if not LAST_BITS < error < math.inf or independent_elements(evidence, row) < FACTOR_ELEMENTS:
        return None
    factor = math.exp(_logarithm(evidence, row))
    return factor if math.isfinite(factor) and error <= abs(factor - 1.0) / FACTOR_SHARE else None


def makes_factor(
    evidence: RankEvidence, slot: Slot, sources: Sequence[int], widened: float, parameters: Container[int]
) -> bool:
    """Whether a call made a factor that neither its operands have nor rounding makes.

    `widened`: by how much its output has cancelled; `parameters`: where they lie in the target.
    """
    # What a recurrent call rounds inside, and how often, nobody sees; and a part may be larger where the whole is not.
    known = evidence.operations[slot.pair]
    if known.family in (Family.RECURRENT, Family.SELECTION) or known.has(Trait.MOVING):
        return False
    if factor_of(evidence, slot.values) is None:
        return False
    values = evidence.values
    floats = [row for row in sources if not values.discrete[row]]
    # A weight that was updated otherwise acts along its inputs, as a factor does.
    updated = (slot.values for slot in evidence.slots_of[slot.pair] if evidence.storage(slot) in parameters)
    if any(evidence.operands[row].error > LIMITS.gain * evidence.precision.roundoffs[row] for row in updated):
        return False
    noise = math.hypot(evidence.worst_error(floats), evidence.precision.roundoffs[slot.values])
    came_in = [abs(_logarithm(evidence, row)) for row in floats if not values.identical[row]]
    if not floats or noise > FACTOR_NOISE or not all(map(math.isfinite, came_in)):
        return False
    # All of a result has the rounding of a weight in common: no more draws than the operand of fewest elements has.
    draws = min(independent_elements(evidence, row) for row in (slot.values, *floats))
    by_chance = noise / math.sqrt(draws)
    explained = (max(came_in, default=0.0) + by_chance) * widened
    return abs(_logarithm(evidence, slot.values)) > FACTOR_DEVIATIONS * explained


def _logarithm(evidence: RankEvidence, row: int) -> float:
    """Of the factor between two values' norms."""
    reference, target = (float(side.summaries.norm[row]) for side in evidence.sides)
    return math.log(target / reference) if reference > 0 and target > 0 else math.nan


def independent_elements(evidence: RankEvidence, row: int) -> float:
    """How many elements make up a value's error: as many as are about as large as the largest."""
    stats = evidence.sides.reference.summaries
    largest = max(abs(float(stats.min[row])), abs(float(stats.max[row])))
    alike = (float(stats.norm[row]) / largest) ** 2 if largest > 0 else 1.0
    return max(alike, 1.0) if math.isfinite(alike) else 1.0
