"""Choices that flipped: whether the operands' own differences explain them, as far as data or stats tell."""

import math

from ulpscope.diagnose.arguments import tensor_places
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.judge.rounding.choices import (
    AnyArray,
    all_at_the_threshold,
    comparison_explained,
    places_explained,
    whole_explained,
)
from ulpscope.numerics.summaries.estimates import standard_deviations
from ulpscope.operations.traits import Choosing, Trait
from ulpscope.records.enums import Kind
from ulpscope.records.pairs import Pair


class Choosers:
    """Of the calls of one rank; each is looked at once."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence
        self._known: dict[int, bool] = {}

    def explain(self, slot: Slot) -> bool:
        """Whether an output of integers or bools may differ for what its call was given; so if nothing tells."""
        if slot.row not in self._known:
            self._known[slot.row] = self._explains(slot)
        return self._known[slot.row]

    def _explains(self, slot: Slot) -> bool:
        evidence, pair = self.evidence, slot.pair
        choosing = evidence.operations[pair].chooses
        drawn = evidence.calls["random"][pair] or evidence.calls["reference_random"][pair]
        if choosing is None or drawn or evidence.calls["kind"][pair] != Kind.API.value:
            return True
        is_bool = self._dtypes(slot) == {"bool"}
        if choosing is Choosing.COMPARISON:
            return not is_bool or self._compares(slot)
        given = next((each for each in self._operands(slot) if not evidence.values.discrete[each.values]), None)
        made, scores = evidence.arrays(slot), None if given is None else evidence.arrays(given)
        if is_bool or given is None or made is None or scores is None:
            return True
        if choosing is Choosing.WHOLE:
            same_size = made.target.size == scores.target.size
            return not same_size or whole_explained(made, scores, evidence.roundoffs[given.values])
        return places_explained(made, scores, self._values(slot, made), choosing)

    def _compares(self, slot: Slot) -> bool:
        operands, made = self._operands(slot), self.evidence.arrays(slot)
        found = [self.evidence.arrays(each) for each in operands]
        known = [each for each in found if each is not None]
        if made is None or len(known) < len(operands) or len(known) != self._compared_tensors(slot, operands):
            return self._may_all_flip(slot, operands)
        return comparison_explained(made, known, max(self.evidence.roundoffs[each.values] for each in operands))

    def _compared_tensors(self, slot: Slot, operands: list[Slot]) -> int:
        """How many tensors a comparison was given; one alone was compared with a number only if its call says so."""
        calls, pair = self.evidence.calls, slot.pair
        places = tensor_places(calls["reference_arguments"][pair]), tensor_places(calls["arguments"][pair])
        return len(operands) if len(operands) == 2 or len(places[0]) == len(places[1]) == 1 else 2

    def _may_all_flip(self, slot: Slot, operands: list[Slot]) -> bool:
        evidence, row = self.evidence, slot.values
        spread = [each.values for each in operands if evidence.operands[each.values].elements > 1]
        if len(spread) != 1 or evidence.operations[slot.pair].has(Trait.EXACT_COMPARISON):
            return True
        sides, metrics = evidence.sides, evidence.values.metrics.get(row)
        share = float(abs(sides.reference.summaries.mean[row] - sides.target.summaries.mean[row]))
        if metrics is not None and metrics.elements:
            share = metrics.different / metrics.elements
        stats, operand = sides.reference.summaries, spread[0]
        return math.isnan(share) or all_at_the_threshold(
            share,
            deviation=float(standard_deviations(stats)[operand]),
            error=evidence.operands[operand].absolute,
            width=float(stats.max[operand] - stats.min[operand]),
        )

    def _operands(self, slot: Slot) -> list[Slot]:
        return [each for each in self.evidence.slots_of[slot.pair] if not each.makes]

    def _values(self, slot: Slot, index: Pair[AnyArray]) -> Pair[AnyArray] | None:
        """What the call gave as what lies at the places that it gave."""
        others = [each for each in self.evidence.slots_of[slot.pair] if each.makes and each is not slot]
        arrays = [self.evidence.arrays(each) for each in others if not self.evidence.values.discrete[each.values]]
        found = [each for each in arrays if each is not None and each.target.shape == index.target.shape]
        return found[0] if len(found) == 1 else None

    def _dtypes(self, slot: Slot) -> set[str]:
        return {str(side.dtype[slot.values]) for side in self.evidence.sides}
