"""What became of a parameter or buffer that both runs once had alike."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from ulpscope.align.scans import uses_of
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import Gap, calls_in
from ulpscope.records.enums import (
    GRADIENT_ROLE,
    OPTIMIZER_KIND,
    PARAMETER_AFTER_ROLE,
    PARAMETER_ROLE,
    SETUP_PHASE,
)
from ulpscope.trace.reader import RankTrace

REFERENCE, TARGET = "reference", "target"


@dataclass(frozen=True, slots=True)
class Change:
    """What made a parameter differ after the runs had begun."""

    updated_in: str | None = None
    """The run whose optimizer alone changes it."""
    update: dict[str, Any] | None = None
    """That optimizer's call, a row of its trace."""
    by_calls: bool = False
    """Whether calls that only one run makes have changed it."""


class Changes:
    """Looks up who wrote parameters, in the traces themselves: what only one run does has no pair."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence

    def of(self, birth: Birth) -> Change | None:
        """What changed a parameter or buffer; nothing if the runs begin with it."""
        gap = birth.gap
        if gap is None or birth.slot.makes:
            return None
        for side, update in (self._one_sided_update(birth.slot), self._lone_update(gap)):
            if update is not None:
                return Change(side, update)
        if self._after_setup(gap):
            return Change(by_calls=True)
        return Change() if gap.written and not (gap.only_reference or gap.only_target) else None

    def tied(self, slot: Slot) -> tuple[str, str] | None:
        """Of a parameter's gradient: the run in which the parameter is that of another module, too, and its name."""
        module = self.evidence.calls["module"][slot.pair]
        if slot.role != GRADIENT_ROLE or module is None:
            return None
        name = f"{module}.{slot.place}"
        ties = [ties.get(name, set()) for ties in self._ties]
        for run, only in ((REFERENCE, ties[0] - ties[1]), (TARGET, ties[1] - ties[0])):
            if only:
                return run, min(only)
        return None

    @cached_property
    def _ties(self) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        """Of either run: names of parameters that are one tensor, by each of these names."""
        values = self.evidence.sides
        return self._ties_of(values.reference.id.tolist()), self._ties_of(values.target.id.tolist())

    def _ties_of(self, ids: list[int]) -> dict[str, set[str]]:
        # By value, not by storage: parameters that lie flat in one storage are no ties.
        owners: dict[int, set[str]] = {}
        for slot in self.evidence.slots:
            module = self.evidence.calls["module"][slot.pair]
            if slot.role == PARAMETER_ROLE and module is not None:
                owners.setdefault(ids[slot.values], set()).add(f"{module}.{slot.place}")
        return {name: names - {name} for names in owners.values() for name in names if len(names) > 1}

    def without_gradient(self, slot: Slot) -> str | None:
        """Of a parameter that an optimizer wrote: the run in which the optimizer had no gradient for it."""
        evidence = self.evidence
        if slot.role != PARAMETER_AFTER_ROLE or evidence.calls["kind"][slot.pair] != OPTIMIZER_KIND:
            return None
        reference = evidence.moved.get(slot.row, evidence.calls["reference_id"][slot.pair])
        have = (
            (reference, slot.place) in self._gradients[REFERENCE],
            (evidence.calls["id"][slot.pair], slot.place) in self._gradients[TARGET],
        )
        return {(True, False): TARGET, (False, True): REFERENCE}.get(have)

    def _after_setup(self, gap: Gap) -> bool:
        if not (gap.only_reference or gap.only_target):
            return False
        calls = calls_in(self.evidence, gap)
        return any((frame["phase"] != SETUP_PHASE).any() for frame in calls)

    def _lone_update(self, gap: Gap) -> tuple[str | None, dict[str, Any] | None]:
        """A step of an optimizer that only one run makes, among the calls without partners that changed it."""
        if not (gap.only_reference or gap.only_target):
            return None, None
        calls = calls_in(self.evidence, gap)
        updates = [frame.filter(pl.col("kind") == OPTIMIZER_KIND) for frame in calls]
        if updates[0].is_empty() == updates[1].is_empty():
            return None, None
        side, found = (TARGET, updates[1]) if updates[0].is_empty() else (REFERENCE, updates[0])
        return side, found.sort("id").row(0, named=True)

    def _one_sided_update(self, slot: Slot) -> tuple[str | None, dict[str, Any] | None]:
        """The last step of an optimizer before the tensor was met, where only one run's optimizer writes it."""
        values, calls = self.evidence.sides, self.evidence.calls
        storages = int(values.reference.storage[slot.values]), int(values.target.storage[slot.values])
        before = calls["reference_id"][slot.pair], calls["id"][slot.pair]
        found = [
            [call for call in self._updates[side].get(storage, ()) if call < end]
            for side, storage, end in zip((REFERENCE, TARGET), storages, before, strict=True)
        ]
        if bool(found[0]) == bool(found[1]) or min(storages) < 0:
            return None, None
        side = REFERENCE if found[0] else TARGET
        frame = self.evidence.plan.calls.reference if found[0] else self.evidence.plan.calls.target
        row = frame.filter(pl.col("id") == (found[0] or found[1])[-1])
        return (side, row.row(0, named=True)) if row.height else (None, None)

    @cached_property
    def _updates(self) -> dict[str, dict[int, list[int]]]:
        """By run and storage: the calls of optimizers that wrote it."""
        traces = self.evidence.plan.traces
        return {REFERENCE: self._updates_of(traces.reference), TARGET: self._updates_of(traces.target)}

    def _updates_of(self, trace: RankTrace) -> dict[int, list[int]]:
        written = uses_of(trace, self.evidence.plan.steps).filter(pl.col("role") == PARAMETER_AFTER_ROLE)
        values = trace.values().select(value="id", storage="storage")
        rows = trace.collect(written.select("call", "value").join(values, on="value").select("storage", "call"))
        found: dict[int, list[int]] = {}
        for storage, call in rows.sort("call").iter_rows():
            if storage is not None:
                found.setdefault(storage, []).append(call)
        return found

    @cached_property
    def _gradients(self) -> dict[str, set[tuple[int, str]]]:
        """By run: the calls that had a gradient, with the parameter's name."""
        traces = self.evidence.plan.traces
        return {REFERENCE: self._gradients_of(traces.reference), TARGET: self._gradients_of(traces.target)}

    def _gradients_of(self, trace: RankTrace) -> set[tuple[int, str]]:
        uses = uses_of(trace, self.evidence.plan.steps).filter(pl.col("role") == GRADIENT_ROLE)
        return set(trace.collect(uses.select("call", "place")).iter_rows())
