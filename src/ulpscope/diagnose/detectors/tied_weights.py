"""Is it the gradient of a parameter that only one run shares between modules?"""

from dataclasses import replace
from functools import cached_property

from ulpscope.diagnose.detectors.asking import Answer, Case, is_only_shown
from ulpscope.diagnose.detectors.computation import computed
from ulpscope.diagnose.flow.evidence import Slot
from ulpscope.diagnose.flow.states import Birth
from ulpscope.records.enums import GRADIENT_ROLE, PARAMETER_ROLE
from ulpscope.records.findings import ParameterHistory


class TiedWeight:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.evidence = case.evidence

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
