"""Where two runs write the same thing otherwise: what differs between, and is gone in all that is made of it.

One run adds before it multiplies, the other after. Then values stand beside each other that are not meant to be the
same. They are followed: what is made of them and differs by no more than what went in before them agrees again. If all
does, and no loss, gradient or result is left that does not, it is a note.
"""

import math
from collections.abc import Container, Mapping, Sequence

import polars as pl

from ulpscope.align.tensors import KEPT_ROLES
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.explaining import last_bits
from ulpscope.diagnose.flow.mathematics import is_asked_otherwise
from ulpscope.diagnose.flow.moves import moved_calls
from ulpscope.diagnose.flow.states import WRONG, Birth, Cause, Flow
from ulpscope.diagnose.flow.unpaired import Gap, GapFinder
from ulpscope.diagnose.limits import HEALED_GAIN
from ulpscope.judge.rounding.limits import LIMITS
from ulpscope.judge.rounding.measuring import SHAPE_DIFFERS
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import (
    FORWARD_PHASE,
    GRAD_INPUT_ROLE,
    GRADIENT_ROLE,
    LOSS_ROLE,
    OTHER_PHASE,
    PARAMETER_AFTER_ROLE,
    PARAMETER_ROLE,
    STATE_AFTER_ROLE,
    Kind,
)
from ulpscope.records.pairs import Pair

Sources = Mapping[int, Sequence[int]]
"""By row of a pair of values: rows that it was judged against, in the order in which they were judged."""
LEAVING = (*KEPT_ROLES, LOSS_ROLE, GRADIENT_ROLE, PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE)


def healed(evidence: RankEvidence, flow: Flow, sources: Sources, gaps: GapFinder) -> list[Birth]:
    """Differences that began where the runs are written otherwise, if nothing of them is left."""
    moved = moved_calls(evidence) if flow.births else Pair(frozenset[int](), frozenset[int]())
    tried = flow.other_functions
    births = [b for b in flow.births if b.slot.values not in tried and _is_written_otherwise(evidence, b, moved)]
    if not births:
        return []
    came_in = {birth.slot.values: _worst(evidence, sources.get(birth.slot.values, ())) for birth in births}
    elsewhere = {birth.slot.values for birth in flow.births} - set(came_in)
    noise = 0.0  # the largest error so far that none of these differences has part in
    for row, given in sources.items():
        if row in came_in or row in elsewhere:
            continue
        of_nothing = flow.states[row] in WRONG and not any(flow.states[source] in WRONG for source in given)
        if given and not of_nothing and not any(source in came_in for source in given):
            noise = max(noise, _worst(evidence, [row]))
            continue
        before = max((came_in.get(source, evidence.operands[source].error) for source in given), default=noise)
        least = LIMITS.rounding * max(evidence.precision.roundoffs[row], evidence.precision.resolutions[row])
        gain = HEALED_GAIN if given else LIMITS.gap_gain
        if not evidence.operands[row].error <= max(
            gain * math.hypot(before, least), last_bits(evidence.precision.roundoffs[row])
        ):
            came_in[row] = before
    used = gaps.read | {source for given in sources.values() for source in given}
    folded = {birth.slot.values for birth in births if birth.slot.role == PARAMETER_ROLE}
    left = any(
        slot.values in came_in and _leaves(evidence, slot, used)
        for slot in evidence.slots
        if slot.role != PARAMETER_ROLE or slot.values not in folded
    )
    # Operands that changed places make no difference to the call itself, or they are no other way to write it.
    crossed = (birth.slot.pair for birth in births if birth.gap is not None and not birth.gap.calls)
    return [] if left or any(slot.values in came_in for pair in crossed for slot in evidence.made(pair)) else births


def _leaves(evidence: RankEvidence, slot: Slot, used: Container[int]) -> bool:
    """Whether it is what a step is for, the result of a whole model, or nothing is made of it; a gradient goes on in
    the engine, to parameters."""
    if slot.role in LEAVING or (slot.makes and evidence.is_outermost_module(slot.pair)):
        return True
    return slot.values not in used and slot.role != GRAD_INPUT_ROLE


def _is_written_otherwise(evidence: RankEvidence, birth: Birth, moved: Pair[frozenset[int]]) -> bool:
    """Whether both runs have calls of their own before it, or the same one elsewhere, or give it what other calls have
    made; whether it is of another shape; whether one run has folded into a parameter what the other computes with it;
    or whether it is computed beside forward, backward and update, where only what becomes of it counts."""
    gap = birth.gap
    if birth.cause is Cause.ERROR and evidence.calls["phase"][birth.slot.pair] == OTHER_PHASE:
        made_of_tensors = gap is None and bool(evidence.given(birth.slot.pair))
        return made_of_tensors and not is_asked_otherwise(evidence, birth.slot.pair)
    if birth.cause is not Cause.GAP or gap is None or gap.outside or birth.slot.makes:
        return False
    makers = [int(side.producer[birth.slot.values]) for side in evidence.sides]
    of_other_shape = evidence.values.reason[birth.slot.values] == SHAPE_DIFFERS
    folded = birth.slot.role == PARAMETER_ROLE and bool(gap.calls) and _is_computed_with(evidence, gap)
    # Calls of one run alone have ids of that run.
    alone = moved.target if gap.only_target else moved.reference
    return (
        not gap.one_sided
        or of_other_shape
        or folded
        or not alone.isdisjoint(gap.calls)
        or (not gap.calls and min(makers) >= 0)
    )


def _is_computed_with(evidence: RankEvidence, gap: Gap) -> bool:
    """Whether the run that leaves a parameter as it is has calls of its own: they may compute what is folded in."""
    alone = evidence.plan.unmatched
    forwards = [frame.filter(pl.col("phase") == FORWARD_PHASE, pl.col("kind") == Kind.API.value) for frame in alone]
    leaving = forwards if not gap.one_sided else forwards[:1] if gap.only_target else forwards[1:]
    names = {op for frame in leaving for op in frame["op"].unique()}
    return any(not operation(op).has(Trait.MOVING, Trait.VIEW) for op in names)


def _worst(evidence: RankEvidence, rows: Sequence[int]) -> float:
    errors = [evidence.operands[row].error for row in rows if not evidence.values.discrete[row]]
    return max((error for error in errors if math.isfinite(error)), default=0.0)
