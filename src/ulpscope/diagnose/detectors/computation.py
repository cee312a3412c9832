"""Was it computed otherwise? Where no detector knows more, it was."""

from ulpscope.diagnose.detectors.asking import Answer, Case, is_only_shown
from ulpscope.diagnose.flow.states import Birth
from ulpscope.diagnose.flow.unpaired import has_unknown_operand
from ulpscope.diagnose.places import place_of_birth
from ulpscope.records.enums import GRADIENT_ROLE
from ulpscope.records.findings import Evidence, FindingKind, OperandOrigin


class Computation:
    def __init__(self, case: Case) -> None:
        self.case = case

    def ask(self, birth: Birth) -> Answer:
        return computed(self.case, birth)


def computed(case: Case, birth: Birth) -> Answer:
    """With what a tensor is that the call did not make."""
    place, slot = place_of_birth(case.evidence, birth), birth.slot
    if not is_only_shown(birth, place):
        own = birth.gap is None and slot.makes
        unknown = True if own and has_unknown_operand(case.evidence, slot.pair) else None
        operand = OperandOrigin(unknown_input=unknown)
    elif slot.role == GRADIENT_ROLE:
        operand = OperandOrigin(shown="summed")
    else:
        origins = case.origins.of(slot)
        given_as = None if origins else case.origins.given_as(slot)
        operand = OperandOrigin(shown="given", origins=origins, given_as=given_as)
    return Answer(FindingKind.COMPUTATION, place, Evidence(operand=operand))
