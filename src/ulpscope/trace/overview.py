"""What a trace holds, in counts."""

from dataclasses import dataclass

import polars as pl

from ulpscope.records.runs import RankInfo
from ulpscope.trace.reader import RankTrace, Trace


@dataclass(frozen=True, slots=True)
class KindCount:
    """How many calls of one kind a phase has."""

    kind: str
    phase: str
    calls: int


@dataclass(frozen=True, slots=True)
class RankOverview:
    """One process of the run at a glance."""

    name: str
    info: RankInfo
    steps: tuple[int, ...]
    counts: tuple[KindCount, ...]
    calls: int
    values: int
    saved_values: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """A trace at a glance."""

    path: str
    ranks: tuple[RankOverview, ...]
    missing: tuple[str, ...]
    """What is missing of the trace as a whole; each rank says its own."""


def overview_of(trace: Trace) -> Overview:
    """Count what a trace holds."""
    return Overview(
        path=str(trace.path),
        ranks=tuple(_rank_overview(rank) for rank in trace.ranks),
        missing=trace.missing_ranks,
    )


def _rank_overview(rank: RankTrace) -> RankOverview:
    calls, values = rank.scan("calls", rank.steps), rank.scan("values", rank.steps)
    by_kind = calls.group_by("kind", "phase").agg(calls=pl.len()).sort("calls", descending=True)
    counts = tuple(KindCount(**row) for row in rank.collect(by_kind).iter_rows(named=True))
    written, saved = rank.collect(values.select(pl.len(), saved=pl.col("data_file").count())).row(0)
    return RankOverview(
        name=rank.name,
        info=rank.info,
        steps=rank.steps,
        counts=counts,
        calls=sum(count.calls for count in counts),
        values=written,
        saved_values=saved,
        missing=rank.missing,
    )
