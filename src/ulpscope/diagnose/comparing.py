"""Judges all ranks of a plan and puts what was found together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ulpscope.align.plan import Plan
from ulpscope.diagnose.advice import advise
from ulpscope.diagnose.architecture import missing_module, unshared_parameters
from ulpscope.diagnose.causes import Causes
from ulpscope.diagnose.evidence import RankEvidence
from ulpscope.diagnose.findings import RankedFinding, find
from ulpscope.diagnose.flow import Follower
from ulpscope.diagnose.notes import notes_of
from ulpscope.diagnose.peers import PeerGains
from ulpscope.diagnose.ranks import errors_across_ranks
from ulpscope.diagnose.states import Flow
from ulpscope.diagnose.surroundings import anchor_of, neighbours_of
from ulpscope.diagnose.table import pair_table
from ulpscope.records.findings import AnchorPart, Comparison, Counts, Finding, Outcome, Scope
from ulpscope.records.ledger import Ledger
from ulpscope.records.pairs import Judgement, Measured, Pair


@dataclass(frozen=True, slots=True)
class JudgedRank:
    evidence: RankEvidence
    flow: Flow
    found: list[RankedFinding]
    notes: list[Finding]
    table: pl.DataFrame


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
    levels: tuple[str, str],
    missing: Sequence[str],
    ledger: Ledger | None = None,
) -> tuple[Comparison, pl.DataFrame]:
    """The comparison as one value, and its table."""
    table = pl.concat([rank.table for rank in judged])
    everything = [(entry, rank) for rank in judged for entry in rank.found]
    ordered = sorted(everything, key=lambda pair: (pair[0].moment, pair[0].finding.place.rank))
    counts = _counts(judged, table)
    findings = _told_once(
        [
            *_built_differently(judged, bool(ordered) or counts.after_choice > 0),
            *(entry.finding for entry, _ in ordered),
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
        notes=tuple(_told_once([note for rank in judged for note in rank.notes])),
        counts=counts,
        scope=_scope(plan, table, levels),
        anchor=_anchor(judged),
        neighbours=tuple(neighbours),
        advice=tuple(advise(findings, table)) if counts.tensors_compared else (),
        missing=tuple(missing),
        ledger=ledger,
    )
    return comparison, table


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
        key = finding.kind, finding.place.module, finding.place.op, finding.place.step, finding.evidence.dtypes
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return kept


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


def _scope(plan: Plan, table: pl.DataFrame, levels: tuple[str, str]) -> Scope:
    compared = table.filter(pl.col("judgement").is_not_null())
    measured = Counter(dict(compared["measured"].drop_nulls().value_counts().iter_rows()))
    reasons = dict(
        table.filter(pl.col("judgement").is_null())["reason"].drop_nulls().value_counts(sort=True).iter_rows()
    )
    return Scope(
        ranks=tuple(rank.rank for rank in plan.ranks),
        steps=plan.steps,
        ranks_reference_only=plan.ranks_only.reference,
        ranks_target_only=plan.ranks_only.target,
        steps_reference_only=plan.steps_only.reference,
        steps_target_only=plan.steps_only.target,
        levels=levels,
        measured=tuple((word, measured[word.value]) for word in Measured if measured[word.value]),
        not_compared=tuple(reasons.items()),
    )


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
