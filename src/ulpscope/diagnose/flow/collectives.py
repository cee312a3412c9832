"""What ranks send each other: a collective's result depends on the operands of all of them."""

from collections import defaultdict
from collections.abc import Sequence

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.records.enums import COLLECTIVE_KIND, GRAD_INPUT_ROLE, GRADIENT_ROLE, OPTIMIZER_KIND


def errors_across_ranks(ranks: Sequence[RankEvidence]) -> list[dict[tuple[int, str], float]]:
    """For each rank: by pair of calls and place, the largest error among the same operands of all ranks."""
    if len(ranks) == 1:
        return [{}]
    worst: dict[tuple[object, ...], float] = defaultdict(float)
    places: list[dict[tuple[int, str], tuple[object, ...]]] = []
    for evidence in ranks:
        known = {}
        for pair, key in _shared(evidence).items():
            known[pair] = key
            worst[key] = max(worst[key], _error(evidence, pair))
        places.append(known)
    return [{pair: worst[key] for pair, key in known.items()} for known in places]


def _shared(evidence: RankEvidence) -> dict[tuple[int, str], tuple[object, ...]]:
    """Collectives, and gradients that a data-parallel wrapper has reduced out of sight."""
    calls = evidence.calls
    found: dict[tuple[int, str], tuple[object, ...]] = {}
    for pair, kind in enumerate(calls["kind"]):
        if kind == COLLECTIVE_KIND:
            found[pair, ""] = (calls["step"][pair], calls["name"][pair])
        elif kind == OPTIMIZER_KIND:
            gradients = [slot for slot in evidence.slots_of[pair] if slot.role == GRADIENT_ROLE]
            found |= {(pair, slot.place): (calls["step"][pair], slot.place) for slot in gradients}
    return found


def _error(evidence: RankEvidence, shared: tuple[int, str]) -> float:
    pair, place = shared
    slots = evidence.slots_of[pair]
    if place:
        return _gradient_error(evidence, place, evidence.calls["step"][pair])
    return max((evidence.operands[slot.values].error for slot in slots if not slot.makes), default=0.0)


def _gradient_error(evidence: RankEvidence, place: str, step: int) -> float:
    """Of what this rank's own backwards gave to a parameter, before it was reduced."""
    module = place.rpartition(".")[0]
    errors = [
        evidence.operands[slot.values].error
        for pair in evidence.backwards_of.get((step, module), ())
        for slot in evidence.slots_of[pair]
        if slot.role == GRAD_INPUT_ROLE
    ]
    return max(errors, default=0.0)
