"""Differences that are excused: nobody recorded what made them, or nobody reads them."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ulpscope.align.tensors import KEPT_ROLES
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.states import SOUND, UNKNOWN, State
from ulpscope.diagnose.flow.unpaired import GapFinder, first_from
from ulpscope.diagnose.limits import STARTING_ERROR
from ulpscope.judge.rounding.limits import Limits, update_error
from ulpscope.records.enums import GRADIENT_ROLE, OUTPUT_ROLE, PARAMETER_ROLE, Kind


class Starts:
    """Parameters and states of one rank that differ a little because nobody recorded their last update."""

    def __init__(self, evidence: RankEvidence, gaps: GapFinder, limits: Limits) -> None:
        self.evidence = evidence
        self.gaps = gaps
        self.limits = limits

    def has(self, slot: Slot, states: Sequence[State]) -> bool:
        """A parameter whose last update was not seen: before the first compared step, or without an optimizer."""
        first, step = self.evidence.plan.steps[0], self.evidence.calls["step"][slot.pair]
        updates_seen = self.evidence.has_optimizer and self.evidence.complete
        unseen = (first != 0 and step == first) or (step != first and not updates_seen)
        if not unseen or not self.evidence.values.compared[slot.values]:
            return False
        owned = slot.role in KEPT_ROLES
        persistent = owned or self.gaps.is_parameter(slot) or (step != first and not self.evidence.complete)
        allowed = max(STARTING_ERROR, self._of_update(slot, states))
        return persistent and 0 < self.evidence.operands[slot.values].error <= allowed

    def _of_update(self, slot: Slot, states: Sequence[State]) -> float:
        """What the gradient's error makes of a parameter that is all update, as a bias that began at zero."""
        shown = self._gradients.get((self.evidence.calls["module"][slot.pair], slot.place), [])
        before = first_from(shown, slot.row)
        if slot.role != PARAMETER_ROLE or not before or states[shown[before - 1].values] not in SOUND:
            return 0.0
        gradient = shown[before - 1]
        error, lost = self.evidence.operands[gradient.values].error, 2.0 * math.sqrt(self._turned(gradient))
        return update_error(error, self.limits.loose_gain, self.limits, lost=lost)

    def _turned(self, gradient: Slot) -> float:
        """Share of elements with another sign, where data tells it: Adam's first update is the gradient's sign.

        Of a key's bias all are noise, because softmax does not feel it.
        """
        arrays = self.evidence.arrays(gradient)
        if arrays is None or not arrays.target.size:
            return 0.0
        return float(np.mean(np.sign(arrays.reference) != np.sign(arrays.target)))

    @cached_property
    def _gradients(self) -> dict[tuple[str | None, str], list[Slot]]:
        """Parameters' gradients that modules show, by module and name, in order."""
        modules = self.evidence.calls["module"]
        return grouped(self.evidence.by_role.get(GRADIENT_ROLE, []), lambda slot: (modules[slot.pair], slot.place))


class UnreadOutputs:
    """Outputs of one rank that nothing reads: other tools record them although nobody may have written them.

    A kernel may return memory that it reserves for its backward (the batch norm of an inference). A capture of ours
    knows what was never written; another tool's dump shows numbers that lay there before.
    """

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence

    def has(self, slot: Slot, states: Sequence[State]) -> bool:
        """Whether nothing reads this output, and what is read of its call agrees: then it did to no one any harm."""
        evidence = self.evidence
        is_api = evidence.calls["kind"][slot.pair] == Kind.API.value
        if evidence.complete or not is_api or slot.role != OUTPUT_ROLE or self._readers[slot.values]:
            return False
        others = [other.values for other in evidence.in_role(slot.pair, OUTPUT_ROLE) if self._readers[other.values]]
        return bool(others) and all(states[other] in SOUND - {UNKNOWN} for other in others)

    @cached_property
    def _readers(self) -> Counter[int]:
        """How many calls, backwards among them, read each pair of values."""
        return Counter(slot.values for slot in self.evidence.slots if not slot.makes)
