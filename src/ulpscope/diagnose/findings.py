"""Findings: differences of each rank named by detectors (find), and those of all ranks finished (finish).

Finished are they in the order in which they happened, each told once, without what follows from another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from ulpscope.align.tensors import GRADIENT_ROLES
from ulpscope.diagnose.arguments import argument_differences, differing_arguments
from ulpscope.diagnose.detectors.asking import Answer, Case
from ulpscope.diagnose.detectors.order import (
    OF_A_DIFFERENCE,
    OF_THE_LAYERS,
    OF_THE_MODELS,
    OF_THE_PROGRAMS,
    OF_THE_STEPS,
    OF_THE_TRAINING,
)
from ulpscope.diagnose.detectors.parameters import LEFTOVER
from ulpscope.diagnose.flow.evidence import RankEvidence, grouped
from ulpscope.diagnose.flow.mathematics import factor_of
from ulpscope.diagnose.flow.moves import one_run_of
from ulpscope.diagnose.flow.states import Birth, Cause, Flow, PeerGains, State, finite
from ulpscope.diagnose.flow.summands import summands_of_one_run
from ulpscope.diagnose.flow.unpaired import calls_of
from ulpscope.diagnose.limits import CLEAN_INPUT, NAMES_LISTED, STANDS_OUT
from ulpscope.diagnose.places import coarsest_dtype, parameter_names
from ulpscope.records.enums import GRADIENT_ROLE, Kind, Phase
from ulpscope.records.evidence import Amount, ArgumentDifference, Evidence, Numbers, OneRun, Overflow, Unlike
from ulpscope.records.findings import Counts, Finding, FindingKind
from ulpscope.records.pairs import Pair

# Told once a step, whatever the number of tensors.
COLLECTED = (FindingKind.INPUT, FindingKind.PARAMETER, FindingKind.RANDOMNESS, FindingKind.OPTIMIZER)
BEFORE_BACKWARD = (Phase.SETUP, Phase.FORWARD)
NAMED = (FindingKind.PARAMETER, FindingKind.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class RankedFinding:
    """A finding with its place in time."""

    finding: Finding
    birth: Birth
    moment: tuple[int, int]
    """Step, and position in the order of the target's calls."""


@dataclass(frozen=True, slots=True)
class JudgedRank:
    evidence: RankEvidence
    flow: Flow
    found: list[RankedFinding]
    notes: list[Finding]
    table: pl.DataFrame
    named: Sequence["Named"] = ()
    """Everything that was made, also what is not told because it may follow from what is."""


Named = tuple[Birth, Answer]


def name_births(case: Case) -> list[Named]:
    """All differences that were made, in the order in which the target made them, with what detectors know of each."""
    detectors = [detector(case) for detector in OF_A_DIFFERENCE]
    ordered = sorted(case.births, key=lambda birth: case.evidence.positions[birth.slot.pair])
    answers = [next(filter(None, (detector.ask(birth) for detector in detectors))) for birth in ordered]
    return list(zip(ordered, answers, strict=True))


def find(case: Case, flow: Flow, peers: PeerGains, named: Sequence[Named]) -> list[RankedFinding]:
    """The findings of one rank, the first first; what merely follows is left out."""
    evidence, steps = case.evidence, case.evidence.calls["step"]
    # Told alike, of the same step.
    alike = grouped(named, lambda each: (each[1].kind, each[1].story, steps[each[0].slot.pair]))
    found: list[RankedFinding] = []
    told: set[tuple[object, ...]] = set()
    for birth, answer in named:
        follows = (LEFTOVER,) in told and birth.slot.role == GRADIENT_ROLE
        if _key(answer) in told or follows or (found and not _stands_out(evidence, birth, answer.kind)):
            continue
        told.add(_key(answer))
        others = [other for other, _ in alike[answer.kind, answer.story, steps[birth.slot.pair]]]
        known = _with_answer(_evidence(case, flow, birth, peers), evidence, answer, others)
        moment = answer.place.step, evidence.positions[birth.slot.pair]
        found.append(RankedFinding(Finding(answer.kind, answer.place, known), birth, moment))
    return found


def with_left(finding: Finding, left: float | None) -> Finding:
    """The finding with how little of it leaves the steps; none: it is gone before."""
    known = finding.evidence
    numbers = replace(known.numbers, left=left, agrees_again=True if left is None else None)
    return replace(finding, evidence=replace(known, numbers=numbers))


def _key(answer: Answer) -> tuple[object, ...]:
    """What counts as the same finding; a fault shows again in every step."""
    if answer.story:
        return (answer.story,)
    collected = answer.kind in COLLECTED
    return (answer.kind,) if collected else (answer.kind, answer.place.module, answer.place.op)


def _stands_out(evidence: RankEvidence, birth: Birth, kind: FindingKind) -> bool:
    """Whether a later finding is not explained by the first one."""
    if kind is FindingKind.PARAMETER:
        return bool(evidence.plan.steps[0] == evidence.calls["step"][birth.slot.pair])
    if kind is FindingKind.OPTIMIZER:
        return bool(_arguments(evidence, birth))
    if kind in COLLECTED:
        return True
    return birth.score >= STANDS_OUT and birth.error_in <= CLEAN_INPUT


def _with_answer(base: Evidence, evidence: RankEvidence, answer: Answer, alike: Sequence[Birth]) -> Evidence:
    """What is known of every difference, with what its detector knows, and of how many tensors."""
    own, known = answer.evidence.history.parameters, answer.evidence
    leftover = answer.story == LEFTOVER
    if answer.kind in NAMED or leftover:
        names = dict.fromkeys((*own, *parameter_names(evidence, alike[: NAMES_LISTED - len(own)])))
        known = replace(known, history=replace(known.history, parameters=tuple(names)))
    if answer.kind in COLLECTED or leftover:
        known = replace(known, amount=Amount(count=len(alike)))
    numbers = replace(base.numbers, **dict.fromkeys(answer.unsaid))
    return replace(base, numbers=numbers).with_known(known)


def _evidence(case: Case, flow: Flow, birth: Birth, peers: PeerGains) -> Evidence:
    """What is told of every difference."""
    evidence = case.evidence
    slot, pair, row = birth.slot, birth.slot.pair, birth.slot.values
    reference, target = evidence.sides
    dtypes = str(reference.dtype[row]), str(target.dtype[row])
    shapes = reference.shape(row), target.shape(row)
    not_finite = int(reference.not_finite()[row]), int(target.not_finite()[row])
    metrics, calls = evidence.values.metrics.get(row), evidence.calls
    worst = None if metrics is None or not shapes[1] else metrics.worst
    numbers = Numbers(
        measured=evidence.values.measured[row],
        error_in=None if birth.cause is Cause.OUTSIDE else birth.error_in,
        error_out=finite(birth.error_out) if shapes[0] == shapes[1] else None,
        expected=birth.expected or None,
        dtype=coarsest_dtype(evidence, pair),
        peers=peers.usual(pair, slot.place) if birth.gap is None else None,
        gain=finite(birth.gain),
        factor=factor_of(evidence, row) if not evidence.values.discrete[row] else None,
        worst=None if worst is None else tuple(map(int, np.unravel_index(worst, shapes[1]))),
    )
    unlike = Unlike(
        dtypes=dtypes if dtypes[0] != dtypes[1] else None,
        shapes=shapes if shapes[0] != shapes[1] else None,
        arguments=_arguments(evidence, birth),
        # Of a call that replaces another one: the two operations.
        classes=(str(calls["reference_op"][pair]), str(calls["op"][pair])) if calls["replaced"][pair] else None,
    )
    lone = OneRun()
    if birth.gap is not None:
        ids = Pair(list(birth.gap.only_reference), list(birth.gap.only_target))
        if not birth.gap.calls and slot.role in GRADIENT_ROLES:
            # A summand that one run lacks, or has beside the other's.
            ids = summands_of_one_run(case.gaps, slot)
        computing = calls_of(evidence, ids).map(lambda frame: frame.filter(pl.col("kind") != Kind.MODULE.value))
        lone = one_run_of(computing, evidence)
    # Pairs of calls that made something wrong after the first.
    wrong = {slot.pair for slot in evidence.slots if slot.makes and flow.states[slot.values] is State.INHERITED}
    return Evidence(
        numbers,
        unlike,
        lone,
        overflow=Overflow(not_finite=not_finite if not_finite != (0, 0) else None),
        amount=Amount(followers=len(wrong)),
    )


def _arguments(evidence: RankEvidence, birth: Birth) -> tuple[ArgumentDifference, ...]:
    if birth.gap is not None and birth.gap.calls:
        return ()
    pair = birth.slot.pair
    if birth.slot.row in evidence.regrouped:
        return argument_differences(*evidence.regrouped[birth.slot.row])
    own, forward = differing_arguments(evidence, pair), evidence.forwards[pair]
    return own if own or forward < 0 else differing_arguments(evidence, forward)


Told = tuple[RankedFinding, JudgedRank]


@dataclass(frozen=True, slots=True)
class Finished:
    findings: list[Finding]
    """The answer first."""
    notes: list[Finding]
    answer: Told | None
    """The answer with its rank, where that is a difference of a call's numbers."""


def finish(judged: Sequence[JudgedRank], counts: Counts) -> Finished:
    """Put together what was found in all ranks, after replay has confirmed, cleared and added."""
    everything: list[Told] = [(entry, rank) for rank in judged for entry in rank.found]
    ordered = sorted(everything, key=lambda told: (told[0].moment, told[0].finding.place.rank))
    ordered, skips = _without_what_follows(judged, ordered)
    built = _built_differently(judged, counts, some=bool(ordered or skips))
    found = _with_training(judged, [entry.finding for entry, _ in ordered])
    findings = _told_once([*built, *found, *skips]) or _among_layers(judged)
    notes = [note for rank in judged for note in rank.notes if not _is_told(note, findings)]
    first = ordered[0] if ordered and findings[0] is ordered[0][0].finding else None
    return Finished(findings, _told_once(notes), first)


def _built_differently(judged: Sequence[JudgedRank], counts: Counts, *, some: bool) -> list[Finding]:
    """Another program, or modules that own other parameters, where numbers differ, too: they come before all else."""
    ranks = [rank.evidence for rank in judged]
    programs = (look(ranks, counts) for look in OF_THE_PROGRAMS if some)
    models = (look(rank) for look in OF_THE_MODELS for rank in ranks if some or counts.after_choice > 0)
    firsts = (next(filter(None, answers), None) for answers in (programs, models))
    return [finding for finding in firsts if finding is not None]


def _among_layers(judged: Sequence[JudgedRank]) -> list[Finding]:
    """A layer that one run alone computes otherwise than its siblings."""
    answers = (look(rank.evidence, rank.flow) for look in OF_THE_LAYERS for rank in judged)
    return [answer for answer in answers if answer is not None][:1]


def _with_training(judged: Sequence[JudgedRank], found: list[Finding]) -> list[Finding]:
    """The findings, and before what they do not explain what is told of the training whatever the numbers say."""
    for look in OF_THE_TRAINING:
        answers = (look(rank.evidence, rank.flow) for rank in judged)
        answer = next(filter(None, answers), None)
        if answer is not None and not _trains_otherwise(answer, found):
            others = [each for each in found if not _is_same_change(answer, each)]
            causes = [each for each in others if _comes_before(each, answer)]
            found = [*causes, answer, *(each for each in others if each not in causes)]
    return found


def _trains_otherwise(answer: Finding, found: Sequence[Finding]) -> bool:
    """Whether a finding says already that one run does not train what the other trains, or trains it as another."""
    if answer.evidence.history.changed_unseen:
        return False
    histories = [each.evidence.history for each in found]
    return any(each.without_gradient or each.updated_in or each.tied for each in histories)


def _is_same_change(answer: Finding, told: Finding) -> bool:
    """Whether numbers have shown the same change that nobody recorded."""
    alike = (told.kind, told.place.step) == (answer.kind, answer.place.step)
    return bool(answer.evidence.history.changed_unseen) and alike


def _comes_before(each: Finding, answer: Finding) -> bool:
    """Whether a finding is of what led to this answer: before a step's backward, or before a change was seen."""
    if not answer.evidence.history.changed_unseen:
        return each.place.step <= answer.place.step and each.place.phase in BEFORE_BACKWARD
    moments = [(place.step, -1 if place.call_id is None else place.call_id) for place in (each.place, answer.place)]
    return moments[0] < moments[1]


def _without_what_follows(judged: Sequence[JudgedRank], ordered: list[Told]) -> tuple[list[Told], list[Finding]]:
    """What differs before a step that only one run makes, and that step: it explains all the rest."""
    if not ordered:
        return ordered, []
    first = ordered[0][0].finding
    for look in OF_THE_STEPS:
        found = [skip for rank in judged if (skip := look(rank.evidence, first)) is not None]
        if found:
            skip = min(found, key=lambda each: each.step)
            return [told for told in ordered if _moment(told) <= (skip.step, skip.last)], [skip.finding]
    return ordered, []


def _moment(told: Told) -> tuple[int, int]:
    """Step, and the target's call."""
    entry, rank = told
    return entry.moment[0], rank.evidence.calls["id"][entry.birth.slot.pair]


def _told_once(findings: Sequence[Finding]) -> list[Finding]:
    """What several ranks show alike is told of the first."""
    firsts: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        place = finding.place
        firsts.setdefault((finding.kind, place.module, place.op, place.step, finding.evidence.unlike.dtypes), finding)
    return list(firsts.values())


def _is_told(note: Finding, findings: Sequence[Finding]) -> bool:
    """Whether a finding blames the same arguments of the same operation."""
    told = note.evidence.unlike.arguments, note.place.op
    return bool(told[0]) and any(told == (each.evidence.unlike.arguments, each.place.op) for each in findings)
