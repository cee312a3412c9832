"""Notes: what differs and is not wrong."""

from collections import Counter

import polars as pl

from ulpscope.diagnose.evidence import RankEvidence
from ulpscope.diagnose.places import place_of
from ulpscope.diagnose.states import Flow
from ulpscope.judge.measuring import NO_DTYPE
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.findings import Evidence, Finding, FindingKind, Place

NAMES_LISTED = 6


def notes_of(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """The notes of one rank."""
    return [
        *_scale(evidence),
        *_dtypes(evidence),
        *_structure(evidence),
        *_choices(evidence, flow),
        *_start(evidence, flow),
    ]


def _scale(evidence: RankEvidence) -> list[Finding]:
    if not evidence.scales:
        return []
    step, scale = next(iter(evidence.scales.items()))
    place = Place(rank=evidence.plan.rank, step=step, phase=Phase.BACKWARD)
    return [Finding(FindingKind.OPTIMIZER, place, Evidence(scale=scale))]


def _dtypes(evidence: RankEvidence) -> list[Finding]:
    """One note for each pair of element types, at the first tensor that has them."""
    values = evidence.values.values
    firsts: dict[tuple[str, str], Finding] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for slot in evidence.slots:
        pair = str(values.reference.dtype[slot.values]), str(values.target.dtype[slot.values])
        if pair[0] == pair[1] or NO_DTYPE in pair:
            continue
        counts[pair] += 1
        if pair not in firsts:
            firsts[pair] = Finding(FindingKind.DTYPE, place_of(evidence, slot), Evidence(dtypes=pair))
    return [Finding(note.kind, note.place, Evidence(dtypes=pair, count=counts[pair])) for pair, note in firsts.items()]


def _structure(evidence: RankEvidence) -> list[Finding]:
    """One note for all calls without a partner."""
    unmatched = evidence.plan.unmatched
    sides = [_interesting(frame) for frame in (unmatched.reference, unmatched.target)]
    if sides[0].is_empty() and sides[1].is_empty():
        return []
    first = (sides[1] if not sides[1].is_empty() else sides[0]).row(0, named=True)
    place = Place(
        rank=evidence.plan.rank,
        step=first["step"],
        phase=Phase(first["phase"]),
        call=first["name"],
        call_id=first["id"] if not sides[1].is_empty() else None,
        op=first["op"],
        module=first["module"],
    )
    names = [tuple(side["name"].head(NAMES_LISTED).to_list()) for side in sides]
    count = sides[0].height + sides[1].height
    return [Finding(FindingKind.STRUCTURE, place, Evidence(only_reference=names[0], only_target=names[1], count=count))]


def _interesting(calls: pl.DataFrame) -> pl.DataFrame:
    """Forward calls of the first step in which there are some: backwards and later steps follow from them."""
    forwards = calls.filter(~pl.col("kind").is_in([Kind.BACKWARD.value, Kind.MODULE_BACKWARD.value]))
    shown = forwards if not forwards.is_empty() else calls
    return shown.filter(pl.col("step") == pl.col("step").min()).sort("id")


def _choices(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note a call whose discrete output flipped, the first of each operation and module."""
    found: dict[tuple[object, object], Finding] = {}
    for choice in flow.choices:
        pair = choice.slot.pair
        key = evidence.calls["op"][pair], evidence.calls["module"][pair]
        if key not in found:
            note = Evidence(error_in=choice.error_in)
            found[key] = Finding(FindingKind.CHOICE, place_of(evidence, choice.slot), note)
    return list(found.values())


def _start(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    first = evidence.plan.steps[0] if evidence.plan.steps else 0
    started = [slot for slot in flow.started if evidence.calls["step"][slot.pair] == first]
    if not started:
        return []
    worst = max(started, key=lambda slot: evidence.operands[slot.values].error)
    size = evidence.operands[worst.values].error
    note = Evidence(error_out=size, count=len(started))
    return [Finding(FindingKind.PARAMETER, place_of(evidence, worst), note)]
