"""Names the cause of a difference that was made here."""

from collections.abc import Sequence
from functools import cached_property

import polars as pl

from ulpscope.align.calls import bare_name
from ulpscope.diagnose.detectors.arguments import argument_differences
from ulpscope.diagnose.detectors.changed_parameters import Change, Changes
from ulpscope.diagnose.detectors.origins import PICKING, Origins
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.model_calls import model_pairs
from ulpscope.diagnose.flow.states import Birth, Cause
from ulpscope.diagnose.flow.unpaired import Gap, GapFinder, calls_in
from ulpscope.diagnose.overflow.asked_for import Ends, asked
from ulpscope.records.enums import (
    BUFFER_ROLE,
    COLLECTIVE_KIND,
    GRADIENT_ROLE,
    INPUT_ROLE,
    LOSS_ROLE,
    MODULE_KIND,
    OPTIMIZER_KIND,
    PARAMETER_AFTER_ROLE,
    PARAMETER_ROLE,
    SETUP_PHASE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
)
from ulpscope.records.findings import FindingKind
from ulpscope.records.pairs import Pair

OWNED_ROLES = (PARAMETER_ROLE, BUFFER_ROLE)


def _lines(calls: pl.DataFrame) -> set[tuple[str, object]]:
    """Operations of calls with their stacks, where these are known."""
    known = calls.filter(pl.col("stack").is_not_null()).select("op", "stack").unique()
    return {(bare_name(op), stack) for op, stack in known.iter_rows()}


class Causes:
    """Tells of each birth what kind of finding it is."""

    def __init__(self, evidence: RankEvidence, gaps: GapFinder, births: Sequence[Birth]) -> None:
        self.evidence = evidence
        self.births = births
        self.gaps = gaps
        self.model = model_pairs(evidence, gaps.parameter_storages | set(gaps.gradient_storages))
        self.changes = Changes(evidence)
        self.origins = Origins(evidence)

    @cached_property
    def state_storages(self) -> set[int]:
        """Where states of optimizers lie."""
        storages = self.evidence.sides.target.storage
        roles = (STATE_ROLE, STATE_AFTER_ROLE)
        return {int(storages[slot.values]) for slot in self.evidence.slots if slot.role in roles} - {-1}

    def _draws_data(self, birth: Birth) -> bool:
        """Random data or its order, made before the first step, while no other random numbers differ."""
        return not self._is_parameter(birth) and self._only_data_is_random

    @cached_property
    def _only_data_is_random(self) -> bool:
        """Whether all random calls that differ make data or its order: no parameters, no noise of the training."""
        random = [birth for birth in self.births if birth.gap is None and self._random(birth)]
        return all(self._prepares(birth) and not self._is_parameter(birth) for birth in random)

    def _prepares(self, birth: Birth) -> bool:
        pair = birth.slot.pair
        is_order = self.evidence.bare_ops[pair] == "randperm"
        return not self.model[pair] and (is_order or self.evidence.calls["phase"][pair] == SETUP_PHASE)

    def kind(self, birth: Birth) -> FindingKind:
        pair = birth.slot.pair
        if birth.gap is None and self._random(birth):
            return FindingKind.INPUT if self._draws_data(birth) else FindingKind.RANDOMNESS
        if self.writer(birth) is not None:
            return FindingKind.COMPUTATION
        if self._is_parameter(birth):
            return self._parameter_kind(self.changes.of(birth))
        if self.evidence.storage(birth.slot) in self.state_storages:
            return FindingKind.OPTIMIZER
        if self._is_data(birth):
            return FindingKind.INPUT
        if birth.gap is not None and self._unmatched_random(birth.gap):
            return FindingKind.RANDOMNESS
        if self._overflows(birth.slot.values) and not self._asked_for(birth):
            return FindingKind.OVERFLOW
        if birth.cause is Cause.OUTSIDE:
            return self._outside(birth.slot)
        if birth.gap is not None and self._structural(birth.gap):
            return FindingKind.STRUCTURE
        if self.evidence.calls["kind"][pair] == OPTIMIZER_KIND and birth.slot.makes:
            return FindingKind.OPTIMIZER
        return FindingKind.COMPUTATION

    def change(self, birth: Birth) -> Change | None:
        """Of a parameter or buffer that was the same when the runs began: what has changed it since."""
        if not self._is_parameter(birth) or self.writer(birth) is not None:
            return None
        return self.changes.of(birth)

    def _parameter_kind(self, change: Change | None) -> FindingKind:
        if change is not None and change.update is not None:
            return FindingKind.OPTIMIZER
        return FindingKind.COMPUTATION if change is not None and change.by_calls else FindingKind.PARAMETER

    def _is_data(self, birth: Birth) -> bool:
        """Whether it is what the run is fed with, and not what recorded calls made of the same operands."""
        calls, pair = self.evidence.calls, birth.slot.pair
        if self._is_other_batch(birth):
            return True
        # What a backward starts from is computed, also where no call was recorded that did so.
        if birth.slot.role == LOSS_ROLE or calls["replaced"][pair] or self._computes(birth):
            return False
        if birth.cause is Cause.OUTSIDE:
            return True
        if self._is_set_up(birth):
            return self.origins.holds_data(pair, birth.gap)
        if birth.gap is not None:
            return not (birth.gap.only_reference or birth.gap.only_target)
        return self.evidence.bare_ops[pair] in PICKING

    def _is_other_batch(self, birth: Birth) -> bool:
        """Whether the model, or a call beside it, is handed another tensor of the data made before the first step."""
        calls, slot, gap = self.evidence.calls, birth.slot, birth.gap
        maker = self.evidence.pair_of_target.get(int(self.evidence.sides.target.producer[slot.values]), -1)
        if slot.role != INPUT_ROLE or gap is None or gap.only_reference or gap.only_target or maker < 0:
            return False
        inside = calls["module"][slot.pair] is not None
        if inside and (calls["kind"][slot.pair] != MODULE_KIND or calls["parent"][slot.pair] is not None):
            return False
        if calls["phase"][maker] != SETUP_PHASE or self.origins.given_as(slot) is not None:
            return False
        return self.origins.holds_data(maker, None)

    def _is_set_up(self, birth: Birth) -> bool:
        """Whether it was made before the first step, and not by what the loop does again in every step."""
        if birth.gap is None or not (birth.gap.only_reference or birth.gap.only_target):
            pair = birth.slot.pair
            line = self.evidence.bare_ops[pair], self.evidence.calls["stack"][pair]
            return bool(self.evidence.calls["phase"][pair] == SETUP_PHASE) and line not in self._repeated.target
        calls = calls_in(self.evidence, birth.gap)
        sides = (calls.reference, self._repeated.reference), (calls.target, self._repeated.target)
        return all((frame["phase"] == SETUP_PHASE).all() and not repeated & _lines(frame) for frame, repeated in sides)

    @cached_property
    def _repeated(self) -> Pair[set[tuple[str, object]]]:
        """Operations, with the lines they are called from, that run after the set-up as well."""
        calls = self.evidence.plan.calls
        later = [frame.filter(pl.col("phase") != SETUP_PHASE) for frame in calls]
        return Pair(_lines(later[0]), _lines(later[1]))

    def writer(self, birth: Birth) -> int | None:
        """Of a parameter or buffer: the earlier pair of calls that had it at hand and whose arguments differ.

        What it wrote into it, such as batch norm's running stats, is none of its outputs.
        """
        if birth.slot.makes or not self._is_parameter(birth):
            return None
        users = self.gaps.users_before(birth.slot)
        return next((pair for pair in reversed(users) if pair in self.evidence.other_numbers), None)

    def _overflows(self, row: int) -> bool:
        """inf or nan where the reference has none; another number of -inf is another mask."""
        if not self.evidence.values.pattern[row]:
            return False
        reference, target = self.evidence.sides.reference, self.evidence.sides.target
        born = int(target.nan[row] + target.pos_inf[row]) > int(reference.nan[row] + reference.pos_inf[row])
        return born or (int(reference.not_finite()[row]) == 0 < int(target.not_finite()[row]))

    def _asked_for(self, birth: Birth) -> bool:
        """Whether an argument of a call that both runs make is inf or nan itself, as a limit that limits nothing is."""
        if birth.gap is not None or not birth.slot.makes:
            return False
        sides, row = self.evidence.sides, birth.slot.values
        more = (
            getattr(sides.target, name)[row] > getattr(sides.reference, name)[row]
            for name in ("nan", "pos_inf", "neg_inf")
        )
        calls, pair = self.evidence.calls, birth.slot.pair
        return asked(calls["op"][pair], calls["arguments"][pair]).cover(Ends(*map(bool, more)))

    def _random(self, birth: Birth) -> bool:
        calls, pair = self.evidence.calls, birth.slot.pair
        if not (calls["random"][pair] or calls["reference_random"][pair]):
            return False
        same_state = calls["generator"][pair] == calls["reference_generator"][pair]
        return not (same_state and argument_differences(calls["reference_arguments"][pair], calls["arguments"][pair]))

    def _unmatched_random(self, gap: Gap) -> bool:
        calls = calls_in(self.evidence, gap)
        return bool(calls.reference["random"].any() or calls.target["random"].any())

    def _is_parameter(self, birth: Birth) -> bool:
        """A parameter or buffer that differs before any step of an optimizer has changed it."""
        slot = birth.slot
        if slot.role in (PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE, STATE_ROLE, GRADIENT_ROLE):
            return False
        if not (slot.role in OWNED_ROLES or self.gaps.is_parameter(slot)):
            return False
        setup = self.evidence.calls["phase"][slot.pair] == SETUP_PHASE
        return setup or birth.cause in (Cause.OUTSIDE, Cause.GAP)

    def _computes(self, birth: Birth) -> bool:
        """Whether the model has to do with it; an input of the model comes from outside or from calls before it."""
        if not birth.slot.makes:
            maker = int(self.evidence.sides.target.producer[birth.slot.values])
            pair = self.evidence.pair_of_target.get(maker, -1)
            if birth.cause is Cause.OUTSIDE:
                return birth.slot.role != INPUT_ROLE
            if birth.gap is not None and birth.slot.role == INPUT_ROLE and pair < 0:
                return any(self._from_model(source) for source in birth.gap.sources) or self._inside(birth.gap)
        return self.model[birth.slot.pair]

    def _inside(self, gap: Gap) -> bool:
        """Whether a call of the gap ran inside of a module."""
        calls = calls_in(self.evidence, gap)
        return any(frame["module"].is_not_null().any() for frame in calls)

    def _from_model(self, values: int) -> bool:
        maker = self.evidence.makers[values]
        return maker >= 0 and self.model[maker]

    def _outside(self, slot: Slot) -> FindingKind:
        if slot.role == STATE_ROLE:
            return FindingKind.OPTIMIZER
        return FindingKind.INPUT if slot.role == INPUT_ROLE else FindingKind.COMPUTATION

    def _structural(self, gap: Gap) -> bool:
        """A collective or a whole module that only one run has."""
        calls = calls_in(self.evidence, gap)
        if any((frame["kind"] == COLLECTIVE_KIND).any() for frame in calls):
            return True
        if self.evidence.has_compiled:
            return False
        shared = self.evidence.plan.shared_modules
        sides = (calls.reference, shared.reference), (calls.target, shared.target)
        return any(module not in known for frame, known in sides for module in frame["module"].drop_nulls())
