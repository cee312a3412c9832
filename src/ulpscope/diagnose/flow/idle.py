"""Errors that lie where nothing is learned: rows of padding, which one run fills otherwise than the other.

The gradient of a weight is the sum, over all rows that it was multiplied with, of the row times the gradient that comes
back to it. Rows to which none comes back are not in it: there gradients are exact zeros. So where operands are wrong,
some rows of the gradient are zero, and the gradients of what they were multiplied with are far less wrong, the error
lies in such rows.
"""

from collections.abc import Iterator, Mapping, Sequence

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.mathematics import is_asked_otherwise
from ulpscope.diagnose.flow.states import WRONG, Birth, Cause, Flow
from ulpscope.diagnose.limits import IDLE_SHARE, LOSS_ROUNDOFFS
from ulpscope.operations.registry import Family
from ulpscope.records.enums import FORWARD_PHASE, GRAD_INPUT_ROLE, GRAD_OUTPUT_ROLE, INPUT_ROLE, LOSS_ROLE

MULTIPLYING = (Family.CONTRACTION, Family.CONVOLUTION)


def idle(evidence: RankEvidence, flow: Flow, sources: Mapping[int, Sequence[int]]) -> list[Birth]:
    """Differences that began in the forward, and of which nothing comes back to any weight, nor reaches a loss."""
    found = [birth for birth in flow.births if _may_be_idle(evidence, birth)]
    if not found:
        return []
    backwards = grouped(range(len(evidence.forwards)), lambda pair: evidence.forwards[pair])
    return [birth for birth in found if _is_idle(evidence, flow, sources, backwards, birth)]


def _may_be_idle(evidence: RankEvidence, birth: Birth) -> bool:
    pair = birth.slot.pair
    is_number = birth.cause in (Cause.ERROR, Cause.GAP) and not evidence.values.discrete[birth.slot.values]
    is_forward = evidence.calls["phase"][pair] == FORWARD_PHASE
    return is_forward and is_number and not is_asked_otherwise(evidence, pair)


def _is_idle(
    evidence: RankEvidence,
    flow: Flow,
    sources: Mapping[int, Sequence[int]],
    backwards: Mapping[int, list[int]],
    birth: Birth,
) -> bool:
    if birth.slot.values in flow.other_functions:
        return False
    carried = {birth.slot.values}
    for row, given in sources.items():
        if flow.states[row] in WRONG and not carried.isdisjoint(given):
            carried.add(row)
    step = evidence.calls["step"][birth.slot.pair]
    losses = [slot for slot in evidence.by_role.get(LOSS_ROLE, []) if evidence.calls["step"][slot.pair] == step]
    most = min(LOSS_ROUNDOFFS * evidence.precision.coarsest, IDLE_SHARE * birth.error_out)
    learned = [
        has_idle_rows and evidence.error(gradient) <= IDLE_SHARE * evidence.error(operand)
        for operand in evidence.by_role.get(INPUT_ROLE, [])
        if operand.values in carried and evidence.operations[operand.pair].family in MULTIPLYING
        for backward in backwards.get(operand.pair, ())
        for has_idle_rows in [_has_idle_rows(evidence, backward)]
        for gradient in _gradients_of_others(evidence, backward, operand)
    ]
    return bool(learned) and all(learned) and bool(losses) and all(evidence.error(loss) <= most for loss in losses)


def _has_idle_rows(evidence: RankEvidence, backward: int) -> bool:
    """Whether as many elements of what comes back are exact zeros as a row has, in both runs."""
    shown = evidence.in_role(backward, GRAD_OUTPUT_ROLE)
    return bool(shown) and all(
        int(side.zero[slot.values]) >= max((evidence.operands[slot.values].shape or [1])[-1], 1)
        for slot in shown
        for side in evidence.sides
    )


def _gradients_of_others(evidence: RankEvidence, backward: int, operand: Slot) -> Iterator[Slot]:
    """The gradients of what an operand was multiplied with; not of what is only added."""
    added = evidence.operations[operand.pair].added
    for slot in evidence.in_role(backward, GRAD_INPUT_ROLE):
        if slot.place not in (operand.place, *added) and evidence.values.compared[slot.values]:
            yield slot
