"""What surrounds a call: its tensors, who made them, who reads them, its forward, backwards and children."""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from ulpscope.records.calls import Call
from ulpscope.records.enums import MAKING_ROLES
from ulpscope.records.values import Use, Value
from ulpscope.trace.objects import call_from_row, use_from_row
from ulpscope.trace.reader import RankTrace


@dataclass(frozen=True, slots=True)
class Edge:
    """A call on the other end of a value."""

    use: Use
    """This call's own use of the value."""
    call: Call
    place: str | None
    """Where the other call has the value; None for the maker of an input."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Everything about one call that other rows of the trace say."""

    uses: tuple[Use, ...]
    values: dict[int, Value]
    makers: tuple[Edge, ...]
    """Calls that made this call's inputs."""
    readers: tuple[Edge, ...]
    """Calls that read what this call made, in execution order."""
    parent: Call | None
    forward: Call | None
    backwards: tuple[Call, ...]
    children: tuple[Call, ...]


def neighbours(rank_trace: RankTrace, call: Call) -> Neighbours:
    """Look around a call of this process."""
    uses = tuple(rank_trace.uses(call.id))
    values = rank_trace.find_values(use.value for use in uses)
    made = {use.value: use for use in reversed(uses) if _is_made(use, values, call)}
    producers = {value.id: value.producer for value in values.values() if value.producer not in (None, call.id)}
    taken = [use for use in uses if use.role.value not in MAKING_ROLES and use.value in producers]
    readings = _readings(rank_trace, call, made.keys())
    makers = {use.value: producer for use in taken if (producer := producers[use.value]) is not None}
    calls = _related(rank_trace, call, {*makers.values(), *(reading.call for reading in readings)})
    return Neighbours(
        uses=uses,
        values=values,
        makers=tuple(Edge(use, calls[makers[use.value]], None) for use in taken if makers[use.value] in calls),
        readers=tuple(
            Edge(made[reading.value], calls[reading.call], reading.place)
            for reading in readings
            if reading.call in calls
        ),
        parent=calls.get(call.parent) if call.parent is not None else None,
        forward=calls.get(call.forward) if call.forward is not None else None,
        backwards=tuple(other for other in calls.values() if other.forward == call.id),
        children=tuple(other for other in calls.values() if other.parent == call.id),
    )


def _is_made(use: Use, values: dict[int, Value], call: Call) -> bool:
    value = values.get(use.value)
    return use.role.value in MAKING_ROLES or (value is not None and value.producer == call.id)


def _readings(rank_trace: RankTrace, call: Call, value_ids: Iterable[int]) -> list[Use]:
    ids, made = list(value_ids), list(MAKING_ROLES)
    if not ids:
        return []
    query = rank_trace.scan("tensors", rank_trace.where.of_readers(ids)).filter(
        pl.col("value").is_in(ids) & ~pl.col("role").is_in(made) & (pl.col("call") != call.id)
    )
    return [use_from_row(row) for row in rank_trace.collect(query.sort("call")).iter_rows(named=True)]


def _related(rank_trace: RankTrace, call: Call, call_ids: set[int]) -> dict[int, Call]:
    """These calls, its parent, its forward, and those whose parent or forward it is, in execution order."""
    ids = call_ids | {other for other in (call.parent, call.forward) if other is not None}
    named = rank_trace.call_rows(ids)
    query = rank_trace.scan("calls", rank_trace.where.of_relatives(call)).filter(
        (pl.col("forward") == call.id) | (pl.col("parent") == call.id)
    )
    rows = pl.concat([named, rank_trace.collect(query)]).unique("id").sort("id").iter_rows(named=True)
    return {row["id"]: call_from_row(row) for row in rows}
