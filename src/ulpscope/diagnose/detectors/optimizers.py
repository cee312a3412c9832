"""Has an optimizer gone another way?"""

from functools import cached_property

import polars as pl

from ulpscope.diagnose.detectors.asking import Answer, Detector
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.places import place_of_birth
from ulpscope.records.enums import (
    GRADIENT_ROLE,
    OPTIMIZER_KIND,
    PARAMETER_AFTER_ROLE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
)
from ulpscope.records.evidence import Evidence, ParameterHistory
from ulpscope.records.findings import FindingKind
from ulpscope.trace.reader import RankTrace


class OptimizerState(Detector):
    """Does its state differ, whichever call shows it?"""

    def ask(self, birth: Birth) -> Answer | None:
        is_state = self.evidence.storage(birth.slot) in self._storages
        return Answer(FindingKind.OPTIMIZER, place_of_birth(self.evidence, birth)) if is_state else None

    @cached_property
    def _storages(self) -> set[int]:
        return self.evidence.storages_of(STATE_ROLE, STATE_AFTER_ROLE)


class OptimizerUpdate(Detector):
    """Did it make something else of what it was given, or was it given no gradient in one run?"""

    def ask(self, birth: Birth) -> Answer | None:
        if self.evidence.calls["kind"][birth.slot.pair] != OPTIMIZER_KIND or not birth.slot.makes:
            return None
        place, lost = place_of_birth(self.evidence, birth), self._without_gradient(birth)
        if lost is None:
            return Answer(FindingKind.OPTIMIZER, place)
        history = ParameterHistory(without_gradient=lost)
        return Answer(FindingKind.OPTIMIZER, place, Evidence(history=history), unsaid=("error_in", "expected"))

    def _without_gradient(self, birth: Birth) -> str | None:
        """Of a parameter that an optimizer wrote: the run in which the optimizer had no gradient for it."""
        evidence, slot = self.evidence, birth.slot
        if slot.role != PARAMETER_AFTER_ROLE:
            return None
        calls = evidence.moved.get(slot.row, evidence.calls["reference_id"][slot.pair]), evidence.calls["id"][slot.pair]
        have = [(call, slot.place) in shown for call, shown in zip(calls, self._gradients, strict=True)]
        if have[0] == have[1]:
            return None
        return "target" if have[0] else "reference"

    @cached_property
    def _gradients(self) -> list[set[tuple[int, str]]]:
        """Of either run: the calls that had a gradient, with the parameter's name."""
        return [self._gradients_of(trace) for trace in self.evidence.plan.traces]

    def _gradients_of(self, trace: RankTrace) -> set[tuple[int, str]]:
        uses = trace.tensors(self.evidence.plan.steps).filter(pl.col("role") == GRADIENT_ROLE)
        return set(trace.collect(uses.select("call", "place")).iter_rows())
