"""Is it a parameter or buffer, and since when, and by whom, is it another?"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import polars as pl

from ulpscope.diagnose.arguments import differing_arguments
from ulpscope.diagnose.detectors.asking import Answer, Detector
from ulpscope.diagnose.flow.evidence import Slot
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import Gap, calls_in
from ulpscope.diagnose.places import (
    full_name,
    parameter_names,
    place_of,
    place_of_birth,
    place_of_parameter,
    place_of_row,
)
from ulpscope.records.enums import OPTIMIZER_KIND, PARAMETER_AFTER_ROLE, SETUP_PHASE
from ulpscope.records.evidence import Evidence, ParameterHistory, Unlike
from ulpscope.records.findings import FindingKind
from ulpscope.trace.reader import RankTrace

REFERENCE, TARGET = "reference", "target"
Update = tuple[str, dict[str, Any]]
"""The run whose optimizer alone changes a parameter, and that optimizer's call, a row of its trace."""


class WrittenParameter(Detector):
    """By an earlier call that had it at hand, and whose arguments differ.

    What such a call wrote into it, such as batch norm's running stats, is none of its outputs.
    """

    def ask(self, birth: Birth) -> Answer | None:
        evidence = self.case.evidence
        if birth.slot.makes or not self.case.is_parameter(birth):
            return None
        users = reversed(self.case.gaps.users_before(birth.slot))
        writer = next((pair for pair in users if pair in evidence.other_numbers), None)
        if writer is None:
            return None
        tensor = place_of_parameter(evidence, birth.slot).tensor
        place = replace(place_of(evidence, evidence.slots_of[writer][0]), tensor=tensor)
        known = Evidence(unlike=Unlike(arguments=differing_arguments(evidence, writer)))
        return Answer(FindingKind.COMPUTATION, place, known, unsaid=("error_in",))


class Parameter(Detector):
    """From the beginning, or by what only one run does: who wrote it is looked up in the traces themselves."""

    def ask(self, birth: Birth) -> Answer | None:
        if not self.case.is_parameter(birth):
            return None
        gap, shown = birth.gap, place_of_parameter(self.evidence, birth.slot)
        if gap is None or birth.slot.makes:
            return Answer(FindingKind.PARAMETER, shown)
        own = parameter_names(self.evidence, [birth])
        update = self._one_sided_update(birth.slot) or self._lone_update(gap)
        if update is not None:
            run, row = update
            place = place_of_row(self.evidence, row, in_target=run == TARGET)
            place = replace(place, module=shown.module, tensor=full_name(shown))
            history = ParameterHistory(updated_in=run, parameters=own)
            return Answer(FindingKind.OPTIMIZER, place, Evidence(history=history), unsaid=("error_in", "expected"))
        if self._after_setup(gap):
            place = replace(place_of_birth(self.evidence, birth), tensor=shown.tensor)
            return Answer(FindingKind.COMPUTATION, place, Evidence(history=ParameterHistory(parameters=own)))
        unseen = True if gap.written and not gap.calls else None
        return Answer(FindingKind.PARAMETER, shown, Evidence(history=ParameterHistory(changed_unseen=unseen)))

    def _after_setup(self, gap: Gap) -> bool:
        """Whether calls that only one run makes have changed it."""
        return any((frame["phase"] != SETUP_PHASE).any() for frame in calls_in(self.evidence, gap))

    def _lone_update(self, gap: Gap) -> Update | None:
        """A step of an optimizer that only one run makes, among the calls without partners that changed it."""
        updates = calls_in(self.evidence, gap).map(lambda calls: calls.filter(pl.col("kind") == OPTIMIZER_KIND))
        if updates.reference.is_empty() == updates.target.is_empty():
            return None
        run, found = (TARGET, updates.target) if updates.reference.is_empty() else (REFERENCE, updates.reference)
        return run, found.sort("id").row(0, named=True)

    def _one_sided_update(self, slot: Slot) -> Update | None:
        """The last step of an optimizer before the tensor was met, where only one run's optimizer writes it."""
        calls = self.evidence.calls
        storages = [int(side.storage[slot.values]) for side in self.evidence.sides]
        before = calls["reference_id"][slot.pair], calls["id"][slot.pair]
        found = [
            [call for call in updates.get(storage, ()) if call < end]
            for updates, storage, end in zip(self._updates, storages, before, strict=True)
        ]
        if bool(found[0]) == bool(found[1]) or min(storages) < 0:
            return None
        run, frame = (REFERENCE if found[0] else TARGET), self.evidence.plan.calls
        rows = (frame.reference if found[0] else frame.target).filter(pl.col("id") == (found[0] or found[1])[-1])
        return (run, rows.row(0, named=True)) if rows.height else None

    @cached_property
    def _updates(self) -> list[dict[int, list[int]]]:
        """Of either run, by storage: the calls of optimizers that wrote it."""
        return [self._updates_of(trace) for trace in self.evidence.plan.traces]

    def _updates_of(self, trace: RankTrace) -> dict[int, list[int]]:
        written = trace.tensors(self.evidence.plan.steps).filter(pl.col("role") == PARAMETER_AFTER_ROLE)
        values = trace.values().select(value="id", storage="storage")
        rows = trace.collect(written.select("call", "value").join(values, on="value").select("storage", "call"))
        found: dict[int, list[int]] = {}
        for storage, call in rows.drop_nulls("storage").sort("call").iter_rows():
            found.setdefault(storage, []).append(call)
        return found
