"""What differs and is not wrong? Each question is answered by notes."""

from dataclasses import replace

import polars as pl

from ulpscope.capture.recording.calls import CallPatterns
from ulpscope.diagnose.arguments import telling_differences
from ulpscope.diagnose.detectors.structure import other_accumulation
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.moves import one_run_of
from ulpscope.diagnose.flow.states import Flow, State
from ulpscope.diagnose.places import coarsest_dtype, place_of, place_of_row
from ulpscope.judge.rounding.values import NO_DTYPE
from ulpscope.operations.registry import Trait
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.evidence import Amount, ArgumentDifference, Evidence, Numbers, Unlike
from ulpscope.records.findings import Finding, FindingKind, Place
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace


def arguments(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note for all calls of an operation whose arguments differ alike, though rounding explains what they give."""
    calls = evidence.calls
    found: list[tuple[Slot, tuple[ArgumentDifference, ...]]] = []
    for pair in evidence.reworded:
        if calls["kind"][pair] != Kind.API.value or evidence.operations[pair].has(Trait.MOVING):
            continue
        differences = telling_differences(calls["reference_arguments"][pair], calls["arguments"][pair])
        rounded = (slot for slot in evidence.made(pair) if flow.states[slot.values] is State.ROUNDING)
        made = [slot for slot in rounded if evidence.error(slot) > 0]
        if not differences or not made or not _may_be_theirs(evidence, pair, differences):
            continue
        found.append((made[0], differences))
    alike = grouped(found, lambda each: (calls["op"][each[0].pair], each[1]))
    return [_argument_note(evidence, flow, *same[0], count=len(same)) for same in alike.values()]


def _may_be_theirs(evidence: RankEvidence, pair: int, differences: tuple[ArgumentDifference, ...]) -> bool:
    """Whether the arguments may change anything: one that only one run states may be the default."""
    if all(each.reference and each.target for each in differences):
        return True
    return bool(evidence.values.identical[evidence.given(pair)].all())


def _argument_note(
    evidence: RankEvidence, flow: Flow, slot: Slot, differences: tuple[ArgumentDifference, ...], *, count: int
) -> Finding:
    numbers = Numbers(
        measured=evidence.values.measured[slot.values],
        error_in=flow.error_in.get(slot.row),
        error_out=evidence.error(slot),
        expected=flow.expected.get(slot.row),
        dtype=coarsest_dtype(evidence, slot.pair),
    )
    told = Evidence(numbers, Unlike(arguments=differences), amount=Amount(count=count))
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
    reference, target = (side.dtype.tolist() for side in evidence.sides)
    by_types = grouped(evidence.slots, lambda slot: (str(reference[slot.values]), str(target[slot.values])))
    notes = []
    for types, slots in by_types.items():
        if types[0] != types[1] and NO_DTYPE not in types:
            told = Evidence(unlike=Unlike(dtypes=types), amount=Amount(count=len(slots)))
            notes.append(Finding(FindingKind.DTYPE, place_of(evidence, slots[0]), told))
    return notes


def unmatched_calls(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note for all calls without a partner; not for what the other run's filters have left out."""
    traces, unmatched = evidence.plan.traces, evidence.plan.unmatched
    sides = Pair(
        _interesting(_wanted(unmatched.reference, traces.target)),
        _interesting(_wanted(unmatched.target, traces.reference)),
    )
    in_target = not sides.target.is_empty()
    if sides.reference.is_empty() and not in_target:
        return []
    first = (sides.target if in_target else sides.reference).row(0, named=True)
    place = replace(place_of_row(evidence, first, in_target=in_target), source=None)
    amount = Amount(count=sides.reference.height + sides.target.height)
    return [Finding(FindingKind.STRUCTURE, place, Evidence(one_run=one_run_of(sides, evidence), amount=amount))]


def _wanted(calls: pl.DataFrame, other: RankTrace) -> pl.DataFrame:
    """Those that a capture with the other trace's filters would have recorded."""
    only, skip = (tuple(other.info.capture.get(option) or ()) for option in ("only", "skip"))
    if not only and not skip:
        return calls
    patterns = CallPatterns(only=only, skip=skip)
    wants = [patterns.wants(*call) for call in calls.select("op", "module", "name").iter_rows()]
    return calls.filter(pl.Series(wants, dtype=pl.Boolean))


def _interesting(calls: pl.DataFrame) -> pl.DataFrame:
    """Forward calls of the first step in which there are some: backwards and later steps follow from them."""
    forwards = calls.filter(~pl.col("kind").is_in([Kind.BACKWARD.value, Kind.MODULE_BACKWARD.value]))
    shown = forwards if not forwards.is_empty() else calls
    return shown.filter(pl.col("step") == pl.col("step").min()).sort("id")


def flipped_choices(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    """One note a call whose discrete output flipped, the first of each operation and module."""
    ops, modules = evidence.calls["op"], evidence.calls["module"]
    notes = []
    for first, *_ in grouped(flow.choices, lambda choice: (ops[choice.slot.pair], modules[choice.slot.pair])).values():
        note = Evidence(Numbers(error_in=first.error_in, dtype=coarsest_dtype(evidence, first.slot.pair)))
        if first.drawn:
            types = [str(side.dtype[first.slot.values]) for side in evidence.sides]
            note = Evidence(unlike=Unlike(dtypes=(types[0], types[1])))
        notes.append(Finding(FindingKind.CHOICE, place_of(evidence, first.slot), note))
    return notes


def starting_parameters(evidence: RankEvidence, flow: Flow) -> list[Finding]:
    first = evidence.plan.steps[0] if evidence.plan.steps else 0
    started = [slot for slot in flow.started if evidence.calls["step"][slot.pair] == first]
    if not started:
        return []
    worst = max(started, key=evidence.error)
    note = Evidence(Numbers(error_out=evidence.error(worst)), amount=Amount(count=len(started)))
    return [Finding(FindingKind.PARAMETER, place_of(evidence, worst), note)]
