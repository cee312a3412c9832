"""Whom executing calls again acquits: a call whose results each run computed within rounding from its own inputs, and
as the same function. What differs there came in, whichever detector has named it.
"""

from collections.abc import Iterable, Sequence

from ulpscope.diagnose.arguments import differing_arguments
from ulpscope.diagnose.findings import JudgedRank
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Birth, Cause
from ulpscope.diagnose.flow.unpaired import has_unknown_operand
from ulpscope.diagnose.limits import LAST_BITS, TELLING_ARGUMENT
from ulpscope.judge.rounding.limits import unit_roundoff
from ulpscope.records.checks import GRADIENT, Direction
from ulpscope.records.enums import Role
from ulpscope.records.evidence import LedgerEntry, Maker
from ulpscope.records.findings import FindingKind

BY_NUMBERS = (Cause.ERROR, Cause.DISCRETE)
"""Causes of a difference that are nothing but what a call computed."""


def acquitted_births(rank: JudgedRank, entries: Iterable[LedgerEntry]) -> dict[Birth, LedgerEntry]:
    """All differences, told or not, that are no call's error, with what executing it has shown."""
    by_slot = {slot: entry for entry in entries if (slot := slot_of(rank.evidence, entry)) is not None}
    return {
        birth: by_slot[birth.slot]
        for birth, answer in rank.named
        if answer.kind is FindingKind.COMPUTATION
        and birth.slot in by_slot
        and is_acquitted(rank.evidence, birth, by_slot[birth.slot])
    }


def is_acquitted(evidence: RankEvidence, birth: Birth, entry: LedgerEntry) -> bool:
    """Whether the call did nothing wrong, and what it was given is accounted for."""
    if birth.gap is not None or birth.cause not in BY_NUMBERS or entry.maker is not Maker.NEITHER:
        return False
    if not is_same_function(evidence, birth.slot.pair, entry) or has_unknown_operand(evidence, birth.slot.pair):
        return False
    return not shows_loss_scale(evidence, birth.slot)


def is_same_function(evidence: RankEvidence, pair: int, entry: LedgerEntry) -> bool:
    """Whether both calls make the same of the same inputs: asked alike, or tried with the other's arguments."""
    calls = [each for each in (pair, evidence.forwards[pair]) if each >= 0]
    if any(each in evidence.asked_for_more for each in calls):
        return False
    if entry.by_arguments is None:
        return not any(differing_arguments(evidence, each) or evidence.calls["replaced"][each] for each in calls)
    return not is_told_by_arguments(entry)


def is_told_by_arguments(entry: LedgerEntry) -> bool:
    """Whether arguments that differ change the result by more than their own last bits could."""
    if entry.by_arguments is None:
        return False
    coarsest = max(unit_roundoff(dtype) for dtype in entry.dtypes)
    return entry.by_arguments.norm > max(coarsest * TELLING_ARGUMENT, LAST_BITS)


def shows_loss_scale(evidence: RankEvidence, slot: Slot) -> bool:
    """Whether a call was given something that a loss scale was taken out of, and gave something that shows it."""
    taken_out = any(row in evidence.unscaled for row in evidence.given(slot.pair))
    return taken_out and slot.values not in evidence.unscaled


def slot_of(evidence: RankEvidence, entry: LedgerEntry) -> Slot | None:
    """The tensor of the comparison that an entry is about."""
    pair = evidence.pair_of_target.get(entry.call_id)
    if pair is None:
        return None
    if entry.direction is Direction.FORWARD:
        return next((slot for slot in evidence.made(pair) if slot.place == entry.place), None)
    backward, place = evidence.backward_of.get(pair, -1), entry.place.removeprefix(GRADIENT)
    found: Sequence[Slot] = evidence.at_place.get((backward, Role.GRAD_INPUT.value, place), [])
    return next(iter(found), None)
