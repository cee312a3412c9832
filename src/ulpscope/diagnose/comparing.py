"""Judges all ranks of a plan and puts what was found together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ulpscope.align.plan import Plan
from ulpscope.diagnose.detectors.asking import Case
from ulpscope.diagnose.detectors.order import OF_WHAT_IS_NOT_WRONG
from ulpscope.diagnose.findings import JudgedRank, find, finish
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.explaining import errors_across_ranks
from ulpscope.diagnose.flow.judging import Follower
from ulpscope.diagnose.flow.peers import PeerGains
from ulpscope.diagnose.networks.advice import advise
from ulpscope.diagnose.surroundings import anchor_of, neighbours_of
from ulpscope.diagnose.table import pair_table
from ulpscope.records.findings import AnchorPart, Comparison, Counts, Finding, Neighbour, Outcome, Scope
from ulpscope.records.ledger import Ledger
from ulpscope.records.pairs import Judgement, Measured, Pair


@dataclass(frozen=True, slots=True)
class Captured:
    """How two runs were captured, beside each other."""

    levels: tuple[str, str]
    filters: tuple[str, str] | None = None
    """Where they differ."""
    same_run: bool = False


def judge_ranks(ranks: Sequence[RankEvidence], twins: Sequence[Sequence[RankEvidence]] = ()) -> list[JudgedRank]:
    """Judge each rank, with what the others sent it, and its reference's twins where there are any."""
    others = errors_across_ranks(ranks)
    judged = []
    for number, (evidence, errors) in enumerate(zip(ranks, others, strict=True)):
        follower = Follower(evidence, foreign_errors=errors, twins=twins[number] if twins else ())
        flow = follower.follow()
        peers = PeerGains(evidence, flow)
        if peers.would_change(flow):
            flow = follower.follow(peers.allowed)
        found = find(Case(evidence, follower.gaps, flow.births), flow, peers)
        notes = [note for look in OF_WHAT_IS_NOT_WRONG for note in look(evidence, flow)]
        judged.append(JudgedRank(evidence, flow, found, notes, pair_table(evidence, flow)))
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
    table = pl.concat([rank.table for rank in judged])
    counts = _counts(judged, table)
    finished = finish(judged, counts)
    neighbours: list[Neighbour] = []
    if finished.answer is not None:
        entry, rank = finished.answer
        neighbours = neighbours_of(rank.evidence, rank.flow, entry.birth, entry.finding.place)
    comparison = Comparison(
        reference=names.reference,
        target=names.target,
        outcome=_outcome(counts, finished.findings),
        findings=tuple(finished.findings),
        notes=tuple(finished.notes),
        counts=counts,
        scope=_scope(plan, table, captured),
        anchor=_anchor(judged),
        neighbours=tuple(neighbours),
        advice=tuple(advise(finished.findings, table, on_device=_on_device(plan))) if counts.tensors_compared else (),
        missing=tuple(missing),
        ledger=ledger,
    )
    return comparison, table


def _on_device(plan: Plan) -> bool:
    """Whether a run computed on something else than the CPU, or none says on what."""
    devices = [name for rank in plan.ranks for trace in rank.traces for name in trace.info.devices]
    return not devices or any(not name.startswith("cpu") for name in devices)


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
