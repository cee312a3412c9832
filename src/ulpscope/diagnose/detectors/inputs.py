"""Is it what the run is fed with: data, or random numbers, and not what recorded calls made of the same operands?"""

from functools import cached_property

import polars as pl

from ulpscope.diagnose.arguments import argument_differences
from ulpscope.diagnose.detectors.asking import Answer, Case, Detector, computed, is_only_shown
from ulpscope.diagnose.flow.states import Birth, Cause
from ulpscope.diagnose.flow.unpaired import calls_in
from ulpscope.diagnose.places import place_of_birth
from ulpscope.operations.registry import Trait, operation_name
from ulpscope.records.enums import INPUT_ROLE, LOSS_ROLE, MODULE_KIND, SETUP_PHASE, STATE_ROLE
from ulpscope.records.evidence import Evidence, OperandOrigin, Unlike
from ulpscope.records.findings import FindingKind
from ulpscope.records.pairs import Pair

Lines = set[tuple[str, object]]
"""Operations of calls with their stacks, where these are known."""

SEEDS = frozenset(("seed", "seed2"))
"""Arguments that only say what is drawn: TensorFlow's ops have their generators' seeds among their attributes."""


class Data(Detector):
    """By where it comes from."""

    def ask(self, birth: Birth) -> Answer | None:
        return _input(self.case, birth) if self._is_data(birth) else None

    def _is_data(self, birth: Birth) -> bool:
        calls, pair, gap = self.evidence.calls, birth.slot.pair, birth.gap
        if self._is_other_batch(birth):
            return True
        # What a backward starts from is computed, also where no call was recorded that did so.
        if birth.slot.role == LOSS_ROLE or calls["replaced"][pair] or self._computes(birth):
            return False
        if birth.cause is Cause.OUTSIDE:
            return True
        if self._is_set_up(birth):
            return self.case.origins.holds_data(pair, gap)
        if gap is not None:
            return not gap.calls
        return self.evidence.operations[pair].has(Trait.PICKING)

    def _is_other_batch(self, birth: Birth) -> bool:
        """Whether the model, or a call beside it, is handed another tensor of the data made before the first step."""
        calls, slot, gap = self.evidence.calls, birth.slot, birth.gap
        maker = self._maker(birth)
        if slot.role != INPUT_ROLE or gap is None or gap.calls or maker < 0:
            return False
        inside = calls["module"][slot.pair] is not None
        if inside and (calls["kind"][slot.pair] != MODULE_KIND or calls["parent"][slot.pair] is not None):
            return False
        if calls["phase"][maker] != SETUP_PHASE or self.case.origins.given_as(slot) is not None:
            return False
        return self.case.origins.holds_data(maker, None)

    def _maker(self, birth: Birth) -> int:
        """The pair to which the target's call belongs that made it; -1 if none does."""
        return self.evidence.pair_of_target.get(int(self.evidence.sides.target.producer[birth.slot.values]), -1)

    def _is_set_up(self, birth: Birth) -> bool:
        """Whether it was made before the first step, and not by what the loop does again in every step."""
        if birth.gap is None or not birth.gap.calls:
            pair = birth.slot.pair
            line = self.evidence.operations[pair].name, self.evidence.calls["stack"][pair]
            return bool(self.evidence.calls["phase"][pair] == SETUP_PHASE) and line not in self._repeated.target
        sides = zip(calls_in(self.evidence, birth.gap), self._repeated, strict=True)
        return all((calls["phase"] == SETUP_PHASE).all() and not repeated & _lines(calls) for calls, repeated in sides)

    @cached_property
    def _repeated(self) -> Pair[Lines]:
        """What runs after the set-up as well."""
        return self.evidence.plan.calls.map(lambda calls: _lines(calls.filter(pl.col("phase") != SETUP_PHASE)))

    def _computes(self, birth: Birth) -> bool:
        """Whether the model has to do with it; an input of the model comes from outside or from calls before it."""
        if not birth.slot.makes:
            is_input = birth.slot.role == INPUT_ROLE
            if birth.cause is Cause.OUTSIDE:
                return not is_input
            if birth.gap is not None and is_input and self._maker(birth) < 0:
                makers = [self.evidence.makers[source] for source in birth.gap.sources]
                from_model = any(maker >= 0 and self.case.model[maker] for maker in makers)
                calls = calls_in(self.evidence, birth.gap)
                return from_model or any(frame["module"].is_not_null().any() for frame in calls)
        return self.case.model[birth.slot.pair]


class Outside(Detector):
    """What no recorded call made, and what the run is not known to be fed with."""

    def ask(self, birth: Birth) -> Answer | None:
        if birth.cause is not Cause.OUTSIDE:
            return None
        if birth.slot.role == STATE_ROLE:
            return Answer(FindingKind.OPTIMIZER, place_of_birth(self.evidence, birth))
        return _input(self.case, birth) if birth.slot.role == INPUT_ROLE else computed(self.case, birth)


def _input(case: Case, birth: Birth) -> Answer:
    place = place_of_birth(case.evidence, birth)
    origins = case.origins.of(birth.slot) if is_only_shown(birth, place) else None
    return Answer(FindingKind.INPUT, place, Evidence(operand=OperandOrigin(origins=origins)))


def _lines(calls: pl.DataFrame) -> Lines:
    known = calls.filter(pl.col("stack").is_not_null()).select("op", "stack").unique()
    return {(operation_name(op), stack) for op, stack in known.iter_rows()}


class Randomness(Detector):
    """By a call that both runs make. Data, or its order, that is drawn before the first step is input."""

    def ask(self, birth: Birth) -> Answer | None:
        if birth.gap is not None or not self._draws_otherwise(birth):
            return None
        if not self.case.is_parameter(birth) and self._only_data_is_random:
            return Answer(FindingKind.INPUT, place_of_birth(self.evidence, birth))
        return _randomness(self.case, birth)

    @cached_property
    def _only_data_is_random(self) -> bool:
        """Whether all random calls that differ make data or its order: no parameters, no noise of the training."""
        random = [birth for birth in self.case.births if birth.gap is None and self._draws_otherwise(birth)]
        return all(self._prepares(birth) and not self.case.is_parameter(birth) for birth in random)

    def _prepares(self, birth: Birth) -> bool:
        evidence, pair = self.evidence, birth.slot.pair
        is_order = evidence.operations[pair].name == "randperm"
        return not self.case.model[pair] and (is_order or evidence.calls["phase"][pair] == SETUP_PHASE)

    def _draws_otherwise(self, birth: Birth) -> bool:
        calls, pair = self.evidence.calls, birth.slot.pair
        if not (calls["random"][pair] or calls["reference_random"][pair]):
            return False
        same_state = calls["generator"][pair] == calls["reference_generator"][pair]
        differing = argument_differences(calls["reference_arguments"][pair], calls["arguments"][pair])
        return not (same_state and any(each.place.rpartition(".")[2] not in SEEDS for each in differing))


class LoneRandomness(Detector):
    """By a call that only one run makes."""

    def ask(self, birth: Birth) -> Answer | None:
        calls = None if birth.gap is None else calls_in(self.evidence, birth.gap)
        is_random = calls is not None and any(frame["random"].any() for frame in calls)
        return _randomness(self.case, birth) if is_random else None


def _randomness(case: Case, birth: Birth) -> Answer:
    calls, pair = case.evidence.calls, birth.slot.pair
    states = calls["reference_generator"][pair], calls["generator"][pair]
    known = Unlike(generators=None if None in states else states)
    return Answer(FindingKind.RANDOMNESS, place_of_birth(case.evidence, birth), Evidence(unlike=known))
