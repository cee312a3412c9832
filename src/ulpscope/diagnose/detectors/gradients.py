"""Is a parameter's gradient another because of what it was added to, or of where the parameter is used?"""

from dataclasses import replace
from functools import cached_property
from itertools import islice

import numpy as np

from ulpscope.diagnose.detectors.asking import Answer, Case, Detector, computed, is_only_shown
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import GapFinder
from ulpscope.diagnose.limits import LEFTOVER_FEW, LEFTOVER_NEAR, LEFTOVER_NEAR_OF_FEW, LEFTOVERS_TRIED
from ulpscope.numerics.dtypes import Floats
from ulpscope.records.enums import GRADIENT_ROLE, PARAMETER_ROLE
from ulpscope.records.evidence import ParameterHistory

LEFTOVER = "leftover"


class StaleGradient(Detector):
    """Does it still hold that of an earlier step, because nobody has set it to zero?"""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
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
    """Compares what a gradient has too much with its own earlier contents.

    A sketch is linear: sketch(target) - sketch(reference) is the sketch of what is left over.
    """

    def __init__(self, evidence: RankEvidence, gaps: GapFinder) -> None:
        self.evidence = evidence
        self.gaps = gaps

    def of(self, slot: Slot) -> tuple[str, int] | None:
        """The run whose gradient holds an earlier one, and the step of that; none if that is not it."""
        sides, name = self.evidence.sides, self._name(slot)
        reference, target = sides.reference.summaries.sketch, sides.target.summaries.sketch
        if name is None or slot.makes or reference is None or target is None:
            return None
        surplus: Floats = target[slot.values].astype(np.float64) - reference[slot.values]
        near = LEFTOVER_NEAR if self.evidence.operands[slot.values].elements >= LEFTOVER_FEW else LEFTOVER_NEAR_OF_FEW
        steps = self.evidence.calls["step"]
        shown = reversed(self._shown.get(name, []))
        earlier = (each for each in shown if steps[each.pair] < steps[slot.pair] and self._is_same(each))
        for other in islice(earlier, LEFTOVERS_TRIED):
            found = int(steps[other.pair])
            if _is_like(surplus, target[other.values], near):
                return "target", found
            if _is_like(-surplus, reference[other.values], near):
                return "reference", found
        return None

    def _is_same(self, slot: Slot) -> bool:
        """Whether a content is the same in both runs: else both may hold theirs."""
        return self.evidence.operands[slot.values].error <= LEFTOVER_NEAR

    @cached_property
    def _shown(self) -> dict[str | None, list[Slot]]:
        """By parameter: where its gradient was shown, in order."""
        return grouped(self.evidence.by_role.get(GRADIENT_ROLE, []), self._name)

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


class TiedWeight(Detector):
    """Does only one run share the parameter between modules?"""

    def ask(self, birth: Birth) -> Answer | None:
        tied = self._tied(birth.slot)
        if tied is None:
            return None
        found = replace(computed(self.case, birth), story="tied")
        if not is_only_shown(birth, found.place):
            return found
        told = replace(found.evidence, history=ParameterHistory(tied=tied))
        return replace(found, evidence=told, unsaid=("error_in", "expected"))

    def _tied(self, slot: Slot) -> tuple[str, str] | None:
        """The run in which the parameter is that of another module, too, and its name."""
        module = self.evidence.calls["module"][slot.pair]
        if slot.role != GRADIENT_ROLE or module is None:
            return None
        reference, target = (ties.get(f"{module}.{slot.place}", set()) for ties in self._ties)
        for run, only in (("reference", reference - target), ("target", target - reference)):
            if only:
                return run, min(only)
        return None

    @cached_property
    def _ties(self) -> list[dict[str, set[str]]]:
        """Of either run: names of parameters that are one tensor, by each of these names."""
        return [self._ties_of(side.id.tolist()) for side in self.evidence.sides]

    def _ties_of(self, ids: list[int]) -> dict[str, set[str]]:
        # By value, not by storage: parameters that lie flat in one storage are no ties.
        owners: dict[int, set[str]] = {}
        for slot in self.evidence.slots:
            module = self.evidence.calls["module"][slot.pair]
            if slot.role == PARAMETER_ROLE and module is not None:
                owners.setdefault(ids[slot.values], set()).add(f"{module}.{slot.place}")
        return {name: names - {name} for names in owners.values() for name in names if len(names) > 1}
