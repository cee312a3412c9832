"""What a reader wants to see around the answer: the anchor, the calls before it, and what follows."""

import numpy as np

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import JUDGEMENTS, Birth, Flow, State, finite
from ulpscope.diagnose.limits import BEFORE_SHOWN
from ulpscope.operations.traits import Trait
from ulpscope.records.enums import FORWARD_PHASE, INPUT_ROLE, MODULE_KIND, OUTPUT_ROLE, PARAMETER_ROLE
from ulpscope.records.findings import AnchorPart, Nearness, Neighbour, Place


def anchor_of(evidence: RankEvidence) -> list[AnchorPart]:
    """What both runs started from in the first compared step."""
    first = evidence.plan.steps[0] if evidence.plan.steps else 0
    slots = [slot for slot in evidence.slots if evidence.calls["step"][slot.pair] == first]
    parts = [
        ("inputs", _first_inputs(evidence, slots)),
        ("parameters", _parameters(evidence, slots)),
        ("embedding", _embedding(evidence, slots)),
    ]
    return [part for what, chosen in parts if (part := _part(evidence, what, chosen)) is not None]


def _first_inputs(evidence: RankEvidence, slots: list[Slot]) -> list[int]:
    """What goes into the outermost modules."""
    calls = evidence.calls
    outer = {s.pair for s in slots if calls["kind"][s.pair] == MODULE_KIND and calls["parent"][s.pair] is None}
    if not outer:
        makers = evidence.makers
        return [s.values for s in slots if s.role == INPUT_ROLE and makers[s.values] < 0]
    first = min(outer, key=lambda pair: calls["id"][pair])
    return [slot.values for slot in evidence.slots_of[first] if slot.role == INPUT_ROLE]


def _parameters(evidence: RankEvidence, slots: list[Slot]) -> list[int]:
    forward = FORWARD_PHASE
    return list(
        dict.fromkeys(
            s.values for s in slots if s.role == PARAMETER_ROLE and evidence.calls["phase"][s.pair] == forward
        )
    )


def _embedding(evidence: RankEvidence, slots: list[Slot]) -> list[int]:
    found = [
        s for s in slots if evidence.operations[s.pair].name in ("embedding", "embedding_bag") and s.role == OUTPUT_ROLE
    ]
    return [found[0].values] if found else []


def _part(evidence: RankEvidence, what: str, chosen: list[int]) -> AnchorPart | None:
    rows = [row for row in chosen if evidence.values.compared[row]]
    if not rows:
        return None
    equal = [bool(evidence.values.identical[row]) or float(evidence.values.error[row]) == 0.0 for row in rows]
    identical = sum(equal)
    errors = [float(evidence.values.error[row]) for row, same in zip(rows, equal, strict=True) if not same]
    finite = [error for error in errors if np.isfinite(error)]
    return AnchorPart(what, len(rows), identical, max(finite, default=None))


def neighbours_of(evidence: RankEvidence, flow: Flow, birth: Birth, place: Place) -> list[Neighbour]:
    """The calls that led to the answer, the worst operand's way back, and the answer itself."""
    before: list[Neighbour] = []
    seen = {birth.slot.pair}
    sources = list(birth.gap.sources) if birth.gap is not None else _operands(evidence, birth.slot.pair)
    while len(before) < BEFORE_SHOWN:
        maker = _worst_maker(evidence, sources, seen)
        if maker is None:
            break
        seen.add(maker)
        sources = _operands(evidence, maker)
        if not evidence.operations[maker].has(Trait.VIEW):
            before.append(_neighbour(evidence, flow, Nearness.BEFORE, maker))
    return [*reversed(before), _here(birth, place)]


def _operands(evidence: RankEvidence, pair: int) -> list[int]:
    return [slot.values for slot in evidence.slots_of[pair] if not slot.makes]


def _worst_maker(evidence: RankEvidence, sources: list[int], seen: set[int]) -> int | None:
    made = [row for row in sources if evidence.makers[row] >= 0 and evidence.makers[row] not in seen]
    if not made:
        return None
    return evidence.makers[max(made, key=lambda row: evidence.operands[row].error)]


def _neighbour(evidence: RankEvidence, flow: Flow, nearness: Nearness, pair: int) -> Neighbour:
    made = [slot for slot in evidence.slots_of[pair] if slot.makes and evidence.values.compared[slot.values]]
    worst = max(made, key=lambda slot: evidence.operands[slot.values].error, default=None)
    incoming = [evidence.operands[row].error for row in _operands(evidence, pair)]
    state = State.UNKNOWN if worst is None else flow.states[worst.values]
    return Neighbour(
        nearness=nearness,
        call=str(evidence.calls["name"][pair]),
        op=str(evidence.calls["op"][pair]),
        module=evidence.calls["module"][pair],
        error_in=finite(max(incoming, default=0.0)),
        error_out=None if worst is None else finite(evidence.operands[worst.values].error),
        judgement=JUDGEMENTS[state].value if state is not State.UNKNOWN else "",
    )


def _here(birth: Birth, place: Place) -> Neighbour:
    return Neighbour(
        nearness=Nearness.HERE,
        call=place.call or "",
        op=place.op or "",
        module=place.module,
        error_in=finite(birth.error_in),
        error_out=finite(birth.error_out),
        judgement=JUDGEMENTS[State.MADE].value,
    )
