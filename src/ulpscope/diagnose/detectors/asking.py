"""How detectors are asked: each difference that began somewhere is shown to one after the other, until one knows it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ulpscope.align.tensors import OWNED_ROLES
from ulpscope.diagnose.detectors.origins import Origins
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import Birth, Cause
from ulpscope.diagnose.flow.unpaired import GapFinder, has_unknown_operand
from ulpscope.diagnose.places import place_of_birth
from ulpscope.records.enums import (
    BACKWARD_KIND,
    COLLECTIVE_KIND,
    COMPILED_KIND,
    GRADIENT_ROLE,
    MODULE_BACKWARD_KIND,
    MODULE_KIND,
    OPTIMIZER_KIND,
    PARAMETER_AFTER_ROLE,
    SETUP_PHASE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
)
from ulpscope.records.evidence import Evidence, OperandOrigin
from ulpscope.records.findings import FindingKind, Place

ALWAYS_MODEL = (
    BACKWARD_KIND,
    MODULE_KIND,
    MODULE_BACKWARD_KIND,
    OPTIMIZER_KIND,
    COLLECTIVE_KIND,
    COMPILED_KIND,
)


@dataclass(frozen=True)
class Case:
    """One rank of two runs, and all differences that began in it."""

    evidence: RankEvidence
    gaps: GapFinder
    births: Sequence[Birth]

    @cached_property
    def model(self) -> list[bool]:
        """For each pair of calls whether it computes with the model; all of them in a run without modules."""
        evidence, calls = self.evidence, self.evidence.calls
        if not any(module is not None for module in calls["module"]):
            return [phase != SETUP_PHASE for phase in calls["phase"]]
        storages, model_storages = evidence.sides.target.storage.tolist(), self._model_storages
        from_model = [False] * len(storages)
        # One more, for what no pair of calls made (-1).
        reading = [False] * (len(calls["id"]) + 1)
        found = [False] * len(calls["id"])
        for pair in evidence.order:
            slots = evidence.slots_of[pair]
            inside = calls["kind"][pair] in ALWAYS_MODEL or calls["module"][pair] is not None
            reads = any(
                from_model[s.values] or storages[s.values] in model_storages or reading[evidence.makers[s.values]]
                for s in slots
                if not s.makes
            )
            reading[pair] = inside or reads
            found[pair] = inside or (reads and calls["phase"][pair] != SETUP_PHASE)
            if inside or reads:
                for slot in slots:
                    if slot.makes:
                        from_model[slot.values] = True
        return found

    @property
    def _model_storages(self) -> set[int]:
        """Where parameters and their gradients lie."""
        return self.gaps.parameter_storages | set(self.gaps.gradient_storages)

    @cached_property
    def origins(self) -> Origins:
        return Origins(self.evidence)

    def is_parameter(self, birth: Birth) -> bool:
        """A parameter or buffer that differs before any step of an optimizer has changed it."""
        slot = birth.slot
        if slot.role in (PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE, STATE_ROLE, GRADIENT_ROLE):
            return False
        if not (slot.role in OWNED_ROLES or self.gaps.is_parameter(slot)):
            return False
        setup = self.evidence.calls["phase"][slot.pair] == SETUP_PHASE
        return setup or birth.cause in (Cause.OUTSIDE, Cause.GAP)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a difference is."""

    kind: FindingKind
    place: Place
    evidence: Evidence = field(default_factory=Evidence)
    """What the detector knows beyond what is told of every difference."""
    unsaid: tuple[str, ...] = ()
    """Numbers that are told of other differences, and say nothing of this one."""
    story: str = ""
    """What several findings would tell alike: of one story the first is told."""


class Detector(ABC):
    """One question to a difference."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.evidence = case.evidence

    @abstractmethod
    def ask(self, birth: Birth) -> Answer | None:
        """What the difference is; none if it is nothing that this detector knows."""


class Computation(Detector):
    """Was it computed otherwise? Where no other detector knows more, it was."""

    def ask(self, birth: Birth) -> Answer:
        return computed(self.case, birth)


def is_only_shown(birth: Birth, place: Place) -> bool:
    """Whether the call of this place did not make the tensor, nor did calls that only one run makes."""
    return not (birth.slot.makes or place.tensor != birth.slot.place or (birth.gap and birth.gap.calls))


def computed(case: Case, birth: Birth) -> Answer:
    """Something that was computed otherwise, with what it is if the call did not make it."""
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
