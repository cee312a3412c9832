"""Is it a parameter, its gradient or an optimizer's state, and since when, and by whom, is it another?"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ulpscope.diagnose.arguments import differing_arguments
from ulpscope.diagnose.detectors.asking import Answer, Detector, computed, is_only_shown
from ulpscope.diagnose.flow.evidence import Slot, grouped
from ulpscope.diagnose.flow.exits import given_gradients
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import Gap, calls_in
from ulpscope.diagnose.limits import LEFTOVER_FEW, LEFTOVER_NEAR, LEFTOVER_NEAR_OF_FEW, LEFTOVERS_TRIED
from ulpscope.diagnose.places import (
    full_name,
    parameter_names,
    place_of,
    place_of_birth,
    place_of_parameter,
    place_of_row,
)
from ulpscope.judge.rounding.values import Values
from ulpscope.numerics.dtypes import Floats
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import (
    GRADIENT_ROLE,
    OPTIMIZER_KIND,
    OTHER_PHASE,
    PARAMETER_AFTER_ROLE,
    PARAMETER_ROLE,
    SETUP_PHASE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
    Kind,
)
from ulpscope.records.evidence import Evidence, ParameterHistory, Unlike
from ulpscope.records.findings import FindingKind
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace

REFERENCE, TARGET = "reference", "target"
Update = tuple[str, dict[str, Any]]
"""The run whose optimizer alone changes a parameter, and that optimizer's call, a row of its trace."""


class WrittenParameter(Detector):
    """By an earlier call that had it at hand, and whose arguments differ.

    What such a call wrote into it, such as batch norm's running stats, is none of its outputs.
    """

    def ask(self, birth: Birth) -> Answer | None:
        evidence = self.evidence
        if birth.slot.makes or not self.case.is_parameter(birth):
            return None
        users = reversed(self.case.gaps.users_before(birth.slot))
        writer = next((pair for pair in users if pair in evidence.other_numbers), None)
        if writer is None:
            return None
        tensor = place_of_parameter(evidence, birth.slot).tensor
        place = replace(place_of(evidence, evidence.slots_of[writer][0]), tensor=tensor)
        known = Evidence(unlike=Unlike(arguments=differing_arguments(evidence, writer)))
        updates = evidence.calls["kind"][writer] == OPTIMIZER_KIND
        kind = FindingKind.OPTIMIZER if updates else FindingKind.COMPUTATION
        return Answer(kind, place, known, unsaid=("error_in",))


class Parameter(Detector):
    """From the beginning, or by what only one run does: who wrote it is looked up in the traces themselves."""

    def ask(self, birth: Birth) -> Answer | None:
        if not self.case.is_parameter(birth):
            return None
        gap, shown = birth.gap, place_of_parameter(self.evidence, birth.slot)
        if gap is None or birth.slot.makes:
            return Answer(FindingKind.PARAMETER, shown)
        own = parameter_names(self.evidence, [birth])
        # Where calls have put another tensor in its place, an optimizer of either run knows it by another memory.
        replaced = not gap.outside and self._is_computed_alone(gap)
        update = (None if replaced else self._one_sided_update(birth.slot)) or self._lone_update(gap)
        if update is not None:
            run, row = update
            place = place_of_row(self.evidence, row, in_target=run == TARGET)
            place = replace(place, module=shown.module, tensor=full_name(shown))
            history = ParameterHistory(updated_in=run, parameters=own)
            return Answer(FindingKind.OPTIMIZER, place, Evidence(history=history), unsaid=("error_in", "expected"))
        if any((frame["phase"] != SETUP_PHASE).any() for frame in calls_in(self.evidence, gap)):
            # Calls that only one run makes have changed it.
            place = replace(place_of_birth(self.evidence, birth), tensor=shown.tensor)
            known = Evidence(history=ParameterHistory(parameters=own))
            return Answer(FindingKind.COMPUTATION, place, known, unsaid=("error_in",))
        unseen = True if gap.written and not gap.calls else None
        return Answer(FindingKind.PARAMETER, shown, Evidence(history=ParameterHistory(changed_unseen=unseen)))

    def _is_computed_alone(self, gap: Gap) -> bool:
        """Whether calls between the steps, which only one run makes, have computed it."""
        calls = calls_in(self.evidence, gap)
        found = (frame.filter(pl.col("phase") == OTHER_PHASE, pl.col("kind") == Kind.API.value) for frame in calls)
        ops = [op for frame in found for op in frame["op"]]
        return any(not operation(op).has(Trait.MOVING, Trait.VIEW) for op in ops)

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
    def _updates(self) -> Pair[dict[int, list[int]]]:
        """Of either run, by storage: the calls of optimizers that wrote it."""

        def updates(trace: RankTrace) -> dict[int, list[int]]:
            written = trace.tensors(self.evidence.plan.steps).filter(pl.col("role") == PARAMETER_AFTER_ROLE)
            values = trace.values().select("storage", value="id").drop_nulls("storage")
            rows = trace.collect(written.join(values, on="value").select("storage", "call")).sort("call")
            return dict(rows.group_by("storage").agg("call").iter_rows())

        return self.evidence.plan.traces.map(updates)


LEFTOVER = "leftover"


class StaleGradient(Detector):
    """Does it still hold that of an earlier step, because nobody has set it to zero?

    What a gradient has too much is compared with its own earlier contents. A sketch is linear: sketch(target) -
    sketch(reference) is the sketch of what is left over.
    """

    def ask(self, birth: Birth) -> Answer | None:
        leftover = self.leftover(birth.slot)
        if leftover is None:
            return None
        found = replace(computed(self.case, birth), story=LEFTOVER)
        if found.evidence.operand.shown != "summed":
            return found
        return replace(found, evidence=replace(found.evidence, history=ParameterHistory(leftover=leftover)))

    def leftover(self, slot: Slot) -> tuple[str, int] | None:
        """The run whose gradient holds an earlier one, and the step of that; none if that is not it."""
        sides, name = self.evidence.sides, self._name(slot)
        reference, target = sides.reference.summaries.sketch, sides.target.summaries.sketch
        if name is None or slot.makes or reference is None or target is None:
            return None
        surplus: Floats = target[slot.values].astype(np.float64) - reference[slot.values]
        near = LEFTOVER_NEAR if self.evidence.operands[slot.values].elements >= LEFTOVER_FEW else LEFTOVER_NEAR_OF_FEW
        steps = self.evidence.calls["step"]
        earlier = [each for each in self._shown.get(name, []) if steps[each.pair] < steps[slot.pair]]
        # A content that is not the same in both runs tells nothing: both may hold theirs.
        same = [each for each in earlier if self.evidence.operands[each.values].error <= LEFTOVER_NEAR]
        for other in same[: -LEFTOVERS_TRIED - 1 : -1]:
            found = int(steps[other.pair])
            if _is_like(surplus, target[other.values], near):
                return TARGET, found
            if _is_like(-surplus, reference[other.values], near):
                return REFERENCE, found
        return None

    @cached_property
    def _shown(self) -> dict[str | None, list[Slot]]:
        """By parameter: where its gradient was shown, in order."""
        return grouped(self.evidence.by_role.get(GRADIENT_ROLE, []), self._name)

    def _name(self, slot: Slot) -> str | None:
        """Of the parameter: a module names its own, an optimizer with their modules' paths. Clipping shows none."""
        if slot.role != GRADIENT_ROLE:
            shown = self.case.gaps.gradient_storages.get(self.evidence.storage(slot))
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
        for run, only in ((REFERENCE, reference - target), (TARGET, target - reference)):
            if only:
                return run, min(only)
        return None

    @cached_property
    def _ties(self) -> Pair[dict[str, set[str]]]:
        """Of either run: names of parameters that are one tensor, by each of these names."""
        modules = self.evidence.calls["module"]
        owned = [slot for slot in self.evidence.by_role.get(PARAMETER_ROLE, []) if modules[slot.pair] is not None]

        def ties(side: Values) -> dict[str, set[str]]:
            # By value, not by storage: parameters that lie flat in one storage are no ties.
            shown = grouped(owned, lambda slot: int(side.id[slot.values])).values()
            owners = [{f"{modules[slot.pair]}.{slot.place}" for slot in slots} for slots in shown]
            return {name: names - {name} for names in owners for name in names if len(names) > 1}

        return self.evidence.sides.map(ties)


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
        return TARGET if have[0] else REFERENCE

    @cached_property
    def _gradients(self) -> Pair[set[tuple[int, str]]]:
        """Of either run: the calls that had a gradient, with the parameter's name."""
        given = given_gradients(self.evidence.plan)
        return given.map(lambda frame: set(frame.select("call", "place").iter_rows()))
