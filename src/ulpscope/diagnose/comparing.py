"""Judges all ranks of a plan and puts what was found together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ulpscope.align.plan import Plan
from ulpscope.diagnose.detectors.causes import Causes
from ulpscope.diagnose.detectors.one_sided_parameters import missing_module, unshared_parameters
from ulpscope.diagnose.detectors.skipped_steps import Skip, left_out_step, skipped_update
from ulpscope.diagnose.findings import RankedFinding, find
from ulpscope.diagnose.flow.collectives import errors_across_ranks
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.judging import Follower
from ulpscope.diagnose.flow.peers import PeerGains
from ulpscope.diagnose.flow.states import Flow
from ulpscope.diagnose.networks.advice import advise
from ulpscope.diagnose.notes import notes_of
from ulpscope.diagnose.surroundings import anchor_of, neighbours_of
from ulpscope.diagnose.table import pair_table
from ulpscope.records.enums import Phase
from ulpscope.records.findings import (
    AnchorPart,
    Comparison,
    Counts,
    Evidence,
    Finding,
    FindingKind,
    OneRun,
    Outcome,
    Place,
    Scope,
)
from ulpscope.records.ledger import Ledger
from ulpscope.records.pairs import Judgement, Measured, Pair

# Share of the calls, in the run that makes fewer, below which two runs are not of one model: two runs of one model pair
# nine tenths and more, two of different models a quarter at most.
FEW_PAIRED = 1 / 3


@dataclass(frozen=True, slots=True)
class JudgedRank:
    evidence: RankEvidence
    flow: Flow
    found: list[RankedFinding]
    notes: list[Finding]
    table: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Captured:
    """How two runs were captured, beside each other."""

    levels: tuple[str, str]
    filters: tuple[str, str] | None = None
    """Where they differ."""
    same_run: bool = False


Told = tuple[RankedFinding, JudgedRank]


def judge_ranks(ranks: Sequence[RankEvidence]) -> list[JudgedRank]:
    """Judge each rank, with what the others sent it."""
    others = errors_across_ranks(ranks)
    judged = []
    for evidence, errors in zip(ranks, others, strict=True):
        follower = Follower(evidence, foreign_errors=errors)
        flow = follower.follow()
        peers = PeerGains(evidence, flow)
        if peers.would_change(flow):
            flow = follower.follow(peers.allowed)
        causes = Causes(evidence, follower.gaps, flow.births)
        found = find(evidence, flow, causes, peers)
        judged.append(JudgedRank(evidence, flow, found, notes_of(evidence, flow), pair_table(evidence, flow)))
    return judged


def summarise(
    plan: Plan,
    judged: Sequence[JudgedRank],
    *,
    names: Pair[str],
    captured: Captured,
    missing: Sequence[str],
    ledger: Ledger | None = None,
) -> tuple[Comparison, pl.DataFrame]:
    """The comparison as one value, and its table."""
    table = pl.concat([cleared(rank, ledger) for rank in judged])
    everything: list[Told] = [(entry, rank) for rank in judged for entry in rank.found]
    ordered = sorted(everything, key=lambda pair: (pair[0].moment, pair[0].finding.place.rank))
    counts = _counts(judged, table)
    ordered, skips = _without_what_follows(judged, ordered)
    findings = _told_once(
        [
            *(_other_program(plan, judged, counts) if ordered or skips else ()),
            *_built_differently(judged, bool(ordered or skips) or counts.after_choice > 0),
            *(entry.finding for entry, _ in ordered),
            *skips,
        ]
    )
    neighbours = []
    if ordered and findings[0] is ordered[0][0].finding:
        entry, rank = ordered[0]
        neighbours = neighbours_of(rank.evidence, rank.flow, entry.birth, entry.finding.place)
    comparison = Comparison(
        reference=names.reference,
        target=names.target,
        outcome=_outcome(counts, findings),
        findings=tuple(findings),
        notes=tuple(_told_once([note for rank in judged for note in rank.notes if not _is_told(note, findings)])),
        counts=counts,
        scope=_scope(plan, table, captured),
        anchor=_anchor(judged),
        neighbours=tuple(neighbours),
        advice=tuple(advise(findings, table, on_device=_on_device(plan))) if counts.tensors_compared else (),
        missing=tuple(missing),
        ledger=ledger,
    )
    return comparison, table


def cleared(rank: JudgedRank, ledger: Ledger | None) -> pl.DataFrame:
    """The table of a rank; where execution has cleared all that was found, it has cleared its other calls, too."""
    if ledger is None or rank.found:
        return rank.table
    evidence, number = rank.evidence, rank.evidence.plan.rank
    executed = {entry.call_id for entry in ledger.entries if entry.rank == number}
    slots = [birth.slot for birth in rank.flow.births]
    rows = [s.row for s in slots if {evidence.calls["id"][s.pair], evidence.calls["forward"][s.pair]} & executed]
    if not rows:
        return rank.table
    judgement = rank.table["judgement"].scatter(rows, Judgement.INHERITED.value)
    return rank.table.with_columns(judgement=judgement)


def _other_program(plan: Plan, judged: Sequence[JudgedRank], counts: Counts) -> list[Finding]:
    """Where hardly any call has a partner: what differs between two models is no fault of any call.

    Of what other tools have dumped, networks with fused operators for one, many may have none.
    """
    fewer = min(counts.calls_reference, counts.calls_target)
    if counts.matched >= FEW_PAIRED * fewer or not all(rank.evidence.complete for rank in judged):
        return []
    place = Place(rank=plan.ranks[0].rank, step=plan.steps[0], phase=Phase.FORWARD)
    return [Finding(FindingKind.STRUCTURE, place, Evidence(one_run=OneRun(paired=(counts.matched, fewer))))]


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


def _built_differently(judged: Sequence[JudgedRank], found: bool) -> list[Finding]:
    """Modules that own other parameters in the other run, where the numbers differ, too: they come before all else."""
    if not found:
        return []
    differences = (look(rank.evidence) for look in (missing_module, unshared_parameters) for rank in judged)
    return [finding for finding in differences if finding is not None][:1]


def _told_once(findings: Sequence[Finding]) -> list[Finding]:
    """What several ranks show alike is told of the first."""
    seen: set[tuple[object, ...]] = set()
    kept = []
    for finding in findings:
        key = finding.kind, finding.place.module, finding.place.op, finding.place.step, finding.evidence.unlike.dtypes
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return kept


def _on_device(plan: Plan) -> bool:
    """Whether a run computed on something else than the CPU, or none says on what."""
    devices = [name for rank in plan.ranks for trace in rank.traces for name in trace.info.devices]
    return not devices or any(not name.startswith("cpu") for name in devices)


def _is_told(note: Finding, findings: Sequence[Finding]) -> bool:
    """Whether a finding blames the same arguments of the same operation."""
    arguments = note.evidence.unlike.arguments
    return any(
        arguments and (arguments, note.place.op) == (each.evidence.unlike.arguments, each.place.op) for each in findings
    )


def _outcome(counts: Counts, findings: Sequence[Finding]) -> Outcome:
    if findings:
        return Outcome.DIVERGED
    return Outcome.AGREE if counts.tensors_compared else Outcome.NOTHING_COMPARED


def _counts(judged: Sequence[JudgedRank], table: pl.DataFrame) -> Counts:
    by_judgement = dict(table["judgement"].drop_nulls().value_counts().iter_rows())
    plans = [rank.evidence.plan for rank in judged]
    matched = sum(plan.pairs.height for plan in plans)
    reference = sum(plan.calls.reference.height for plan in plans)
    target = sum(plan.calls.target.height for plan in plans)
    return Counts(
        calls_reference=reference,
        calls_target=target,
        matched=matched,
        unmatched_reference=reference - matched,
        unmatched_target=target - matched,
        tensors_compared=sum(by_judgement.values()),
        **{word.value: by_judgement.get(word.value, 0) for word in Judgement},
    )


def _scope(plan: Plan, table: pl.DataFrame, captured: Captured) -> Scope:
    compared = table.filter(pl.col("judgement").is_not_null())
    measured = Counter(dict(compared["measured"].drop_nulls().value_counts().iter_rows()))
    unresolved = pl.col("judgement") == Judgement.UNRESOLVED.value
    return Scope(
        ranks=tuple(rank.rank for rank in plan.ranks),
        steps=plan.steps,
        ranks_reference_only=plan.ranks_only.reference,
        ranks_target_only=plan.ranks_only.target,
        steps_reference_only=plan.steps_only.reference,
        steps_target_only=plan.steps_only.target,
        levels=captured.levels,
        filters=captured.filters,
        same_run=captured.same_run,
        measured=tuple((word, measured[word.value]) for word in Measured if measured[word.value]),
        not_compared=_reasons(table.filter(pl.col("judgement").is_null())),
        unresolved=_reasons(table.filter(unresolved)),
    )


def _reasons(table: pl.DataFrame) -> tuple[tuple[str, int], ...]:
    return tuple(table["reason"].drop_nulls().value_counts(sort=True).iter_rows())


def _anchor(judged: Sequence[JudgedRank]) -> tuple[AnchorPart, ...]:
    """Of all ranks together."""
    by_name: dict[str, list[AnchorPart]] = {}
    for rank in judged:
        for part in anchor_of(rank.evidence):
            by_name.setdefault(part.what, []).append(part)
    return tuple(_together(parts) for parts in by_name.values())


def _together(parts: Sequence[AnchorPart]) -> AnchorPart:
    errors = [part.worst for part in parts if part.worst is not None]
    return AnchorPart(
        parts[0].what, sum(p.compared for p in parts), sum(p.identical for p in parts), max(errors, default=None)
    )
