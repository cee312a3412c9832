"""Findings of all ranks, finished: in their order, each told once, without what follows from a skipped step."""

from collections.abc import Sequence
from dataclasses import dataclass

from ulpscope.diagnose.detectors.order import OF_THE_MODELS
from ulpscope.diagnose.detectors.skipped_steps import Skip, left_out_step, skipped_update
from ulpscope.diagnose.detectors.structure import other_program
from ulpscope.diagnose.findings import JudgedRank, RankedFinding
from ulpscope.records.findings import Counts, Finding, FindingKind

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
    findings = _told_once(
        [
            *_built_differently(judged, counts, some=bool(ordered or skips)),
            *(entry.finding for entry, _ in ordered),
            *skips,
        ]
    )
    notes = [note for rank in judged for note in rank.notes if not _is_told(note, findings)]
    first = ordered[0] if ordered and findings[0] is ordered[0][0].finding else None
    return Finished(findings, _told_once(notes), first)


def _built_differently(judged: Sequence[JudgedRank], counts: Counts, *, some: bool) -> list[Finding]:
    """Another program, or modules that own other parameters, where numbers differ, too: they come before all else."""
    ranks = [rank.evidence for rank in judged]
    fewer = min(counts.calls_reference, counts.calls_target)
    program = other_program(ranks, counts.matched, fewer) if some else None
    asked = OF_THE_MODELS if some or counts.after_choice > 0 else ()
    models = (finding for look in asked for evidence in ranks if (finding := look(evidence)) is not None)
    return [finding for finding in (program, next(models, None)) if finding is not None]


def _without_what_follows(judged: Sequence[JudgedRank], ordered: list[Told]) -> tuple[list[Told], list[Finding]]:
    """What differs before a step that only one run makes, and that step: it explains all the rest."""
    if not ordered:
        return ordered, []
    found = [skip for rank in judged if (skip := skipped_update(rank.evidence)) is not None]
    first, rank = ordered[0]
    if not found and first.finding.kind in (FindingKind.INPUT, FindingKind.RANDOMNESS):
        found = [skip for skip in [left_out_step(rank.evidence, first.finding.place.step)] if skip is not None]
    if not found:
        return ordered, []
    skip = min(found, key=lambda each: each.step)
    return [told for told in ordered if _is_before(told, skip)], [skip.finding]


def _is_before(told: Told, skip: Skip) -> bool:
    entry, rank = told
    call = rank.evidence.calls["id"][entry.birth.slot.pair]
    return entry.moment[0] < skip.step or (entry.moment[0] == skip.step and call <= skip.last)


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
