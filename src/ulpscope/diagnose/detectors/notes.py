"""What differs and is not wrong? Each question is answered by notes."""

from collections import Counter
from dataclasses import replace

import polars as pl

from ulpscope.diagnose.arguments import telling_differences
from ulpscope.diagnose.detectors.skipped_steps import other_accumulation
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Flow, State
from ulpscope.diagnose.limits import NAMES_LISTED
from ulpscope.diagnose.places import coarsest_dtype, place_of
from ulpscope.judge.rounding.values import NO_DTYPE
from ulpscope.operations.traits import Trait
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.evidence import Amount, ArgumentDifference, Evidence, Numbers, OneRun, Unlike
from ulpscope.records.findings import Finding, FindingKind, Place


def arguments(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note for all calls of an operation whose arguments differ alike, though rounding explains what they give."""
    calls = evidence.calls
    firsts: dict[tuple[object, ...], Finding] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for pair, (reference, target) in enumerate(zip(calls["reference_arguments"], calls["arguments"], strict=True)):
        if reference == target or calls["kind"][pair] != Kind.API.value or evidence.operations[pair].has(Trait.MOVING):
            continue
        differences = telling_differences(reference, target)
        made = [slot for slot in evidence.slots_of[pair] if slot.makes and _is_rounded(evidence, flow, slot)]
        if not differences or not made or not _may_be_theirs(evidence, pair, differences):
            continue
        key = calls["op"][pair], differences
        counts[key] += 1
        if key not in firsts:
            firsts[key] = _argument_note(evidence, flow, made[0], differences)
    return [_counted(note, counts[key]) for key, note in firsts.items()]


def _counted(note: Finding, count: int) -> Finding:
    return replace(note, evidence=replace(note.evidence, amount=Amount(count=count)))


def _is_rounded(evidence: RankEvidence, flow: Flow, slot: Slot) -> bool:
    """Whether it differs, and rounding explains that."""
    return flow.states[slot.values] is State.ROUNDING and evidence.operands[slot.values].error > 0


def _may_be_theirs(evidence: RankEvidence, pair: int, differences: tuple[ArgumentDifference, ...]) -> bool:
    """Whether the arguments may change anything: one that only one run states may be the default."""
    if all(each.reference and each.target for each in differences):
        return True
    given = [slot.values for slot in evidence.slots_of[pair] if not slot.makes]
    return bool(evidence.values.identical[given].all())


def _argument_note(
    evidence: RankEvidence, flow: Flow, slot: Slot, differences: tuple[ArgumentDifference, ...]
) -> Finding:
    numbers = Numbers(
        measured=evidence.values.measured[slot.values],
        error_in=flow.error_in.get(slot.row),
        error_out=evidence.operands[slot.values].error,
        expected=flow.expected.get(slot.row),
        dtype=coarsest_dtype(evidence, slot.pair),
    )
    told = Evidence(numbers, Unlike(arguments=differences))
    return Finding(FindingKind.COMPUTATION, place_of(evidence, slot), told)


def accumulation(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """Gradients that are always added up over another number of backwards."""
    note = other_accumulation(evidence)
    return [] if note is None else [note]


def loss_scale(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    if not evidence.scales:
        return []
    step, scale = next(iter(evidence.scales.items()))
    place = Place(rank=evidence.plan.rank, step=step, phase=Phase.BACKWARD)
    return [Finding(FindingKind.OPTIMIZER, place, Evidence(Numbers(scale=scale)))]


def dtypes(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note for each pair of element types, at the first tensor that has them."""
    values = evidence.sides
    firsts: dict[tuple[str, str], Finding] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for slot in evidence.slots:
        pair = str(values.reference.dtype[slot.values]), str(values.target.dtype[slot.values])
        if pair[0] == pair[1] or NO_DTYPE in pair:
            continue
        counts[pair] += 1
        if pair not in firsts:
            told = Evidence(unlike=Unlike(dtypes=pair))
            firsts[pair] = Finding(FindingKind.DTYPE, place_of(evidence, slot), told)
    return [_counted(note, counts[pair]) for pair, note in firsts.items()]


def unmatched_calls(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note for all calls without a partner."""
    unmatched = evidence.plan.unmatched
    sides = [_interesting(frame) for frame in unmatched]
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
    note = Finding(FindingKind.STRUCTURE, place, Evidence(one_run=OneRun(names[0], names[1])))
    return [_counted(note, sides[0].height + sides[1].height)]


def _interesting(calls: pl.DataFrame) -> pl.DataFrame:
    """Forward calls of the first step in which there are some: backwards and later steps follow from them."""
    forwards = calls.filter(~pl.col("kind").is_in([Kind.BACKWARD.value, Kind.MODULE_BACKWARD.value]))
    shown = forwards if not forwards.is_empty() else calls
    return shown.filter(pl.col("step") == pl.col("step").min()).sort("id")


def flipped_choices(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note a call whose discrete output flipped, the first of each operation and module."""
    found: dict[tuple[object, object], Finding] = {}
    for choice in flow.choices:
        pair = choice.slot.pair
        key = evidence.calls["op"][pair], evidence.calls["module"][pair]
        if key not in found:
            note = Evidence(Numbers(error_in=choice.error_in, dtype=coarsest_dtype(evidence, pair)))
            found[key] = Finding(FindingKind.CHOICE, place_of(evidence, choice.slot), note)
    return list(found.values())


def starting_parameters(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    first = evidence.plan.steps[0] if evidence.plan.steps else 0
    started = [slot for slot in flow.started if evidence.calls["step"][slot.pair] == first]
    if not started:
        return []
    worst = max(started, key=lambda slot: evidence.operands[slot.values].error)
    size = evidence.operands[worst.values].error
    note = Evidence(Numbers(error_out=size), amount=Amount(count=len(started)))
    return [Finding(FindingKind.PARAMETER, place_of(evidence, worst), note)]
