"""Chooses pairs of calls that are worth executing again."""

import math

from ulpscope.diagnose.findings import RankedFinding
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import Flow
from ulpscope.diagnose.limits import NEAREST_REPLAYED
from ulpscope.records.enums import Kind
from ulpscope.records.ledger import Replay
from ulpscope.replay.operations import STARTS_BACKWARD


def pairs_to_replay(evidence: RankEvidence, flow: Flow, found: list[RankedFinding], replay: Replay) -> list[int]:
    """Rows of pairs of forward calls that differ, in the order of the target's calls."""
    able = [pair for pair in range(len(evidence.calls["id"])) if _is_api(evidence, pair)]
    if replay is Replay.ON:
        return [pair for pair in able if _differs(evidence, pair)]
    chosen = _accused(evidence, found) | _nearest(evidence, flow)
    return [pair for pair in able if pair in chosen]


def _is_api(evidence: RankEvidence, pair: int) -> bool:
    calls = evidence.calls
    return (
        calls["kind"][pair] == Kind.API.value
        and not calls["recompute"][pair]
        and calls["op"][pair] not in STARTS_BACKWARD
    )


def _differs(evidence: RankEvidence, pair: int) -> bool:
    """Whether anything about the calls is not the same bits: else both runs made the same error, if any."""
    backward = evidence.backward_of.get(pair)
    slots = [*evidence.slots_of[pair], *(evidence.slots_of[backward] if backward is not None else ())]
    return any(not evidence.values.identical[slot.values] for slot in slots)


def _accused(evidence: RankEvidence, found: list[RankedFinding]) -> set[int]:
    """The calls of findings, those that made their operands, and those that read what they made."""
    accused = {_forward(evidence, entry.birth.slot.pair) for entry in found}
    slots = [slot for pair in accused for slot in evidence.slots_of[pair]]
    made = {slot.values for slot in slots if slot.makes}
    makers = {evidence.makers[slot.values] for slot in slots if not slot.makes}
    readers = {slot.pair for slot in evidence.slots if not slot.makes and slot.values in made}
    return {_forward(evidence, pair) for pair in accused | makers | readers if pair >= 0}


def _nearest(evidence: RankEvidence, flow: Flow) -> set[int]:
    scores: dict[int, float] = {}
    for slot in evidence.slots:
        expected, error = flow.expected.get(slot.row), evidence.operands[slot.values].error
        if slot.makes and expected and math.isfinite(error):
            pair = _forward(evidence, slot.pair)
            scores[pair] = max(scores.get(pair, 0.0), error / expected)
    ordered = sorted((pair for pair in scores if _is_api(evidence, pair)), key=lambda pair: -scores[pair])
    return set(ordered[:NEAREST_REPLAYED])


def _forward(evidence: RankEvidence, pair: int) -> int:
    return evidence.forwards[pair] if evidence.forwards[pair] >= 0 else pair
