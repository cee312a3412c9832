"""What differs and is not wrong? Each question is answered by notes."""

from collections import Counter
from dataclasses import replace

import polars as pl

from ulpscope.diagnose.arguments import telling_differences
from ulpscope.diagnose.detectors.skipped_steps import other_accumulation
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Flow, State
from ulpscope.diagnose.limits import NAMES_LISTED
from ulpscope.diagnose.places import coarsest_dtype, place_of, place_of_row
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
        rounded = (slot for slot in evidence.made(pair) if flow.states[slot.values] is State.ROUNDING)
        made = [slot for slot in rounded if evidence.error(slot) > 0]
        if not differences or not made or not _may_be_theirs(evidence, pair, differences):
            continue
        key = calls["op"][pair], differences
        counts[key] += 1
        if key not in firsts:
            firsts[key] = _argument_note(evidence, flow, made[0], differences)
    return [_counted(note, counts[key]) for key, note in firsts.items()]


def _counted(note: Finding, count: int) -> Finding:
    return replace(note, evidence=replace(note.evidence, amount=Amount(count=count)))


def _may_be_theirs(evidence: RankEvidence, pair: int, differences: tuple[ArgumentDifference, ...]) -> bool:
    """Whether the arguments may change anything: one that only one run states may be the default."""
    if all(each.reference and each.target for each in differences):
        return True
    return bool(evidence.values.identical[evidence.given(pair)].all())


def _argument_note(
    evidence: RankEvidence, flow: Flow, slot: Slot, differences: tuple[ArgumentDifference, ...]
) -> Finding:
    numbers = Numbers(
        measured=evidence.values.measured[slot.values],
        error_in=flow.error_in.get(slot.row),
        error_out=evidence.error(slot),
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
    sides = evidence.plan.unmatched.map(_interesting)
    in_target = not sides.target.is_empty()
    if sides.reference.is_empty() and not in_target:
        return []
    first = (sides.target if in_target else sides.reference).row(0, named=True)
    place = replace(place_of_row(evidence, first, in_target=in_target), source=None)
    names = sides.map(lambda calls: tuple(calls["name"].head(NAMES_LISTED).to_list()))
    note = Finding(FindingKind.STRUCTURE, place, Evidence(one_run=OneRun(*names)))
    return [_counted(note, sides.reference.height + sides.target.height)]


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
    worst = max(started, key=evidence.error)
    note = Evidence(Numbers(error_out=evidence.error(worst)), amount=Amount(count=len(started)))
    return [Finding(FindingKind.PARAMETER, place_of(evidence, worst), note)]
