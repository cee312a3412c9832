"""How far apart rounding leaves the losses of two sound runs, told from the runs' own gradients.

A loss moves with a value v by the product of v's error and its gradient. Rounding makes an error of its own at every
value, each element to either side: of n elements with gradient g their sum is usually |error| |g| / sqrt(n).
What the roundings of all values make is the root of the sum of their squares. So a loss that is off by many times as
much was not made by rounding, although no call stands out of it.
"""

import math
from collections.abc import Container, Iterator

import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.limits import UNSEEN_CALLS
from ulpscope.judge.rounding.limits import LIMITS
from ulpscope.operations.registry import Family, Trait
from ulpscope.records.enums import BACKWARD_KIND, FORWARD_PHASE, GRAD_INPUT_ROLE, GRAD_OUTPUT_ROLE, Kind

CASTING = (Family.CONTRACTION, Family.CONVOLUTION, Family.ATTENTION)
"""Whose operands autocast casts before they are multiplied, unseen."""


def usual_distance(evidence: RankEvidence, step: int, parameters: Container[int]) -> float | None:
    """How far apart rounding usually leaves a loss of a step; none where much of what rounds is not seen.

    `parameters`: where they lie in the target.
    """
    backwards = [
        pair
        for pair, forward in enumerate(evidence.forwards)
        if forward >= 0 and evidence.calls["kind"][pair] == BACKWARD_KIND and evidence.calls["step"][pair] == step
    ]
    rounds_unseen = any(
        evidence.calls["id"][evidence.forwards[pair]] in evidence.rounding_inside.target for pair in backwards
    )
    if (
        not backwards
        or not evidence.complete
        or evidence.has_compiled
        or rounds_unseen
        or _is_rewritten(evidence, step)
    ):
        return None
    effects = (effect for pair in backwards for effect in _effects(evidence, pair, parameters))
    return math.sqrt(math.fsum(effect**2 for effect in effects))


def _is_rewritten(evidence: RankEvidence, step: int) -> bool:
    """Whether many of a step's forward calls have no partner: what these round is not seen."""
    of_forward = (pl.col("step") == step) & (pl.col("phase") == FORWARD_PHASE) & (pl.col("kind") == Kind.API.value)
    counts = [
        (lone.filter(of_forward).height, calls.filter(of_forward).height)
        for lone, calls in zip(evidence.plan.unmatched, evidence.plan.calls, strict=True)
    ]
    return any(lone > UNSEEN_CALLS * every for lone, every in counts)


def _effects(evidence: RankEvidence, backward: int, parameters: Container[int]) -> Iterator[float]:
    """What the roundings of a call's results make of a loss, and those of its operands where it rounds them itself."""
    forward, precision = evidence.forwards[backward], evidence.precision
    known = evidence.operations[forward]
    if not known.has(Trait.MOVING, Trait.VIEW):
        made = {slot.place: slot.values for slot in evidence.made(forward)}
        for slot in evidence.in_role(backward, GRAD_OUTPUT_ROLE):
            if slot.place in made:
                row = made[slot.place]
                yield _effect(evidence, row, slot.values, precision.roundoffs[row])
    inner = precision.inner_roundoff(forward) if known.family in CASTING else 0.0
    given = {slot.place: slot for slot in evidence.slots_of[forward] if not slot.makes}
    for slot in evidence.in_role(backward, GRAD_INPUT_ROLE):
        if slot.place in given:
            row = given[slot.place].values
            own = precision.roundoffs[row] if evidence.storage(given[slot.place]) in parameters else 0.0
            yield _effect(evidence, row, slot.values, max(inner, own))


def _effect(evidence: RankEvidence, row: int, gradient: int, roundoff: float) -> float:
    value, sent = evidence.operands[row], evidence.operands[gradient]
    return LIMITS.rounding * roundoff * value.norm * sent.norm / math.sqrt(max(value.elements, 1.0))
