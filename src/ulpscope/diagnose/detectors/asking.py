"""How detectors are asked: each difference that began somewhere is shown to one after the other, until one knows it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from ulpscope.diagnose.detectors.origins import Origins
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.model_calls import model_pairs
from ulpscope.diagnose.flow.states import Birth, Cause
from ulpscope.diagnose.flow.unpaired import GapFinder
from ulpscope.records.enums import (
    BUFFER_ROLE,
    GRADIENT_ROLE,
    PARAMETER_AFTER_ROLE,
    PARAMETER_ROLE,
    SETUP_PHASE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
)
from ulpscope.records.findings import Evidence, FindingKind, Place


@dataclass(frozen=True)
class Case:
    """One rank of two runs, and all differences that began in it."""

    evidence: RankEvidence
    gaps: GapFinder
    births: Sequence[Birth]

    @cached_property
    def model(self) -> list[bool]:
        """For each pair of calls whether it computes with the model."""
        return model_pairs(self.evidence, self.gaps.parameter_storages | set(self.gaps.gradient_storages))

    @cached_property
    def origins(self) -> Origins:
        return Origins(self.evidence)

    def is_parameter(self, birth: Birth) -> bool:
        """A parameter or buffer that differs before any step of an optimizer has changed it."""
        slot = birth.slot
        if slot.role in (PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE, STATE_ROLE, GRADIENT_ROLE):
            return False
        if not (slot.role in (PARAMETER_ROLE, BUFFER_ROLE) or self.gaps.is_parameter(slot)):
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


class Detector(Protocol):
    """One question to a difference."""

    def __init__(self, case: Case) -> None: ...

    def ask(self, birth: Birth) -> Answer | None:
        """What the difference is; none if it is nothing that this detector knows."""


def is_only_shown(birth: Birth, place: Place) -> bool:
    """Whether the call of this place did not make the tensor, nor did calls that only one run makes."""
    return not (birth.slot.makes or place.tensor != birth.slot.place or (birth.gap and birth.gap.calls))
