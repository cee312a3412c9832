"""Were other random numbers drawn?"""

from functools import cached_property

from ulpscope.diagnose.arguments import argument_differences
from ulpscope.diagnose.detectors.asking import Answer, Case, Detector
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import calls_in
from ulpscope.diagnose.places import place_of_birth
from ulpscope.records.enums import SETUP_PHASE
from ulpscope.records.evidence import Evidence, Unlike
from ulpscope.records.findings import FindingKind


class Randomness(Detector):
    """By a call that both runs make. Data, or its order, that is drawn before the first step is input."""

    def ask(self, birth: Birth) -> Answer | None:
        if birth.gap is not None or not self._draws_otherwise(birth):
            return None
        if not self.case.is_parameter(birth) and self._only_data_is_random:
            return Answer(FindingKind.INPUT, place_of_birth(self.case.evidence, birth))
        return _randomness(self.case, birth)

    @cached_property
    def _only_data_is_random(self) -> bool:
        """Whether all random calls that differ make data or its order: no parameters, no noise of the training."""
        random = [birth for birth in self.case.births if birth.gap is None and self._draws_otherwise(birth)]
        return all(self._prepares(birth) and not self.case.is_parameter(birth) for birth in random)

    def _prepares(self, birth: Birth) -> bool:
        evidence, pair = self.case.evidence, birth.slot.pair
        is_order = evidence.operations[pair].name == "randperm"
        return not self.case.model[pair] and (is_order or evidence.calls["phase"][pair] == SETUP_PHASE)

    def _draws_otherwise(self, birth: Birth) -> bool:
        calls, pair = self.case.evidence.calls, birth.slot.pair
        if not (calls["random"][pair] or calls["reference_random"][pair]):
            return False
        same_state = calls["generator"][pair] == calls["reference_generator"][pair]
        return not (same_state and argument_differences(calls["reference_arguments"][pair], calls["arguments"][pair]))


class LoneRandomness(Detector):
    """By a call that only one run makes."""

    def ask(self, birth: Birth) -> Answer | None:
        calls = None if birth.gap is None else calls_in(self.case.evidence, birth.gap)
        is_random = calls is not None and any(frame["random"].any() for frame in calls)
        return _randomness(self.case, birth) if is_random else None


def _randomness(case: Case, birth: Birth) -> Answer:
    calls, pair = case.evidence.calls, birth.slot.pair
    states = calls["reference_generator"][pair], calls["generator"][pair]
    known = Unlike(generators=None if None in states else states)
    return Answer(FindingKind.RANDOMNESS, place_of_birth(case.evidence, birth), Evidence(unlike=known))
