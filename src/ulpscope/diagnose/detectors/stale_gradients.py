"""Does a gradient still hold that of an earlier step, because nobody has set it to zero?

A sketch is linear: sketch(target) - sketch(reference) is the sketch of what is left over.
"""

from collections import defaultdict
from dataclasses import replace
from functools import cached_property

import numpy as np

from ulpscope.diagnose.detectors.asking import Answer, Case
from ulpscope.diagnose.detectors.computation import computed
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import GapFinder
from ulpscope.diagnose.limits import LEFTOVER_FEW, LEFTOVER_NEAR, LEFTOVER_NEAR_OF_FEW, LEFTOVERS_TRIED
from ulpscope.numerics.summaries.sketch import Floats
from ulpscope.records.enums import GRADIENT_ROLE
from ulpscope.records.findings import ParameterHistory

LEFTOVER = "leftover"


class StaleGradient:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.leftovers = Leftovers(case.evidence, case.gaps)

    def ask(self, birth: Birth) -> Answer | None:
        leftover = self.leftovers.of(birth.slot)
        if leftover is None:
            return None
        found = replace(computed(self.case, birth), story=LEFTOVER)
        if found.evidence.operand.shown != "summed":
            return found
        return replace(found, evidence=replace(found.evidence, history=ParameterHistory(leftover=leftover)))


class Leftovers:
    """Compares what a gradient has too much with its own earlier contents."""

    def __init__(self, evidence: RankEvidence, gaps: GapFinder) -> None:
        self.evidence = evidence
        self.gaps = gaps

    def of(self, slot: Slot) -> tuple[str, int] | None:
        """The run whose gradient holds an earlier one, and the step of that; none if that is not it."""
        values = self.evidence.sides
        sketches = values.reference.summaries.sketch, values.target.summaries.sketch
        name = self._name(slot)
        if name is None or slot.makes or sketches[0] is None or sketches[1] is None:
            return None
        surplus: Floats = sketches[1][slot.values].astype(np.float64) - sketches[0][slot.values]
        near = LEFTOVER_NEAR if self.evidence.operands[slot.values].elements >= LEFTOVER_FEW else LEFTOVER_NEAR_OF_FEW
        step = self.evidence.calls["step"][slot.pair]
        for other in [each for each in reversed(self._shown.get(name, [])) if self._may_be_left(each, step)][
            :LEFTOVERS_TRIED
        ]:
            found = int(self.evidence.calls["step"][other.pair])
            if _is_like(surplus, sketches[1][other.values], near):
                return "target", found
            if _is_like(-surplus, sketches[0][other.values], near):
                return "reference", found
        return None

    def _may_be_left(self, slot: Slot, step: int) -> bool:
        """Whether a content is of an earlier step, and the same in both runs: else both may hold theirs."""
        return (
            self.evidence.calls["step"][slot.pair] < step and self.evidence.operands[slot.values].error <= LEFTOVER_NEAR
        )

    @cached_property
    def _shown(self) -> dict[str, list[Slot]]:
        """By parameter: where its gradient was shown, in order."""
        found: dict[str, list[Slot]] = defaultdict(list)
        for slot in self.evidence.slots:
            if slot.role == GRADIENT_ROLE and (name := self._name(slot)) is not None:
                found[name].append(slot)
        return found

    def _name(self, slot: Slot) -> str | None:
        """Of the parameter: a module names its own, an optimizer with their modules' paths. Clipping shows none."""
        if slot.role != GRADIENT_ROLE:
            shown = self.gaps.gradient_storages.get(self.evidence.storage(slot))
            return self._name(shown[0]) if shown else None
        module = self.evidence.calls["module"][slot.pair]
        return slot.place if module is None else f"{module}.{slot.place}"


def _is_like(surplus: Floats, earlier: np.ndarray, near: float) -> bool:
    size = float(np.linalg.norm(earlier))
    return size > 0 and float(np.linalg.norm(surplus - earlier)) <= near * size
