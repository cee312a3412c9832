"""Whom to blame where errors are carried on, or a loss is off, and no call stands out."""

import math

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.judging import Follower
from ulpscope.diagnose.flow.loss_noise import usual_distance
from ulpscope.diagnose.flow.states import AFTER_CHOICE, INHERITED, Cause
from ulpscope.diagnose.limits import LAST_BITS, LOSS_DEVIATIONS, LOSS_ROUNDOFFS
from ulpscope.judge.rounding.families import scarcity
from ulpscope.judge.rounding.limits import LIMITS
from ulpscope.operations.registry import Family
from ulpscope.records.enums import INPUT_ROLE, LOSS_ROLE


def blame_stray(follower: Follower) -> None:
    """Errors that are carried on and that nobody has made began where the runs could not be followed."""
    if not follower.flow.births and INHERITED in follower.flow.states and follower.strays:
        slot, gap = follower.strays[0]
        follower.born(slot, Cause.GAP, 0.0, 0.0, gain=math.inf, gap=gap)


def blame_loss(follower: Follower) -> None:
    """A first loss that is off by more than any noise was made wrong, though nothing before it stands out."""
    found = unsound_loss(follower)
    if found is not None:
        loss, most = found
        came_in = follower.evidence.worst_error(follower.explainer.floats(follower.sources.get(loss.values, [])))
        maker = follower.flow.first_slot.get(loss.values, loss)
        follower.born(maker, Cause.ERROR, came_in, most, gain=math.inf, gap=None)


def unsound_loss(follower: Follower) -> tuple[Slot, float] | None:
    """The first loss that is furthest off, if no rounding makes that, and what rounding makes at most."""
    evidence, flow, first = follower.evidence, follower.flow, min(follower.evidence.plan.steps, default=0)
    losses = [slot for slot in evidence.by_role.get(LOSS_ROLE, []) if evidence.calls["step"][slot.pair] == first]
    followed = [slot for slot in losses if flow.states[slot.values] is not AFTER_CHOICE]
    worst = max(followed, key=evidence.error, default=None)
    if worst is None:
        return None
    most = _most_of(follower, worst)
    is_off = most < evidence.error(worst) < math.inf and not _amplifies(evidence)
    return (worst, most) if is_off else None


def _most_of(follower: Follower, loss: Slot) -> float:
    """The largest error of a sound first loss: by what its step's gradients make of rounding, where these tell."""
    evidence = follower.evidence
    most, size = LOSS_ROUNDOFFS * evidence.precision.coarsest, evidence.operands[loss.values].norm
    usual = usual_distance(evidence, evidence.calls["step"][loss.pair], follower.gaps.parameter_storages)
    if usual is None or not size > 0:
        return most
    own = max(LAST_BITS, evidence.precision.roundoffs[loss.values])
    return min(most, LOSS_DEVIATIONS * usual / size + own)


def _amplifies(evidence: RankEvidence) -> bool:
    """Whether the run divides by deviations of few elements, or solves equations: its loss may be anything."""
    return any(
        known.family is Family.SOLUTION
        or scarcity(known, [evidence.operands[slot.values] for slot in evidence.in_role(pair, INPUT_ROLE)])
        > LIMITS.gain
        for pair, known in enumerate(evidence.operations)
    )
