"""Finds calls: by patterns on what they are, or one by its name or id; and what surrounds a call.

A pattern with `*` or `?` must fit the whole text, any other may stand anywhere in it; upper and lower case are alike.
"""

import difflib
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import polars as pl

from ulpscope.records.calls import Call, Use, Value
from ulpscope.records.enums import MAKING_ROLES, Kind, Phase
from ulpscope.records.errors import TraceError
from ulpscope.records.runs import IntRanges
from ulpscope.trace.objects import call_from_row, use_from_row
from ulpscope.trace.reader import RankTrace, Trace

TEXT_COLUMNS = ("name", "op", "module", "module_class", "arguments", "error")
PLACES_LISTED = 12
NEAR = 3
# Above this many different names, comparing each with a misspelt one takes seconds.
NAMES_COMPARED = 20_000


Usage = Callable[[str, str], str]
"""The command that does what was wanted, of a trace and a call as they are written in a shell."""


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls are wanted; what is None does not matter."""

    op: str | None = None
    module: str | None = None
    phase: Phase | None = None
    step: IntRanges | None = None
    rank: IntRanges | None = None
    kind: Kind | None = None
    text: str | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def __str__(self) -> str:
        """The options that a user would write."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return " ".join(f"--{name} {_word(wanted)}" for name, wanted in given if wanted is not None)


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call and the process that made it."""

    rank_trace: RankTrace
    call: Call


def match_calls(trace: Trace, wanted: CallFilter, *, most_steps: int | None = None) -> pl.LazyFrame:
    """The calls that a filter wants, in execution order of each process."""
    ranks = _ranks(trace, wanted)
    first = 0 if wanted.step is None else min(low for low, _ in wanted.step.ranges)
    # In later steps, too: a call may end, and be written, after the step in which it began.
    scans = [rank.scan("calls", rank.where.since(first)[:most_steps]) for rank in ranks]
    return (pl.concat(scans) if scans else trace.calls().clear()).filter(*_conditions(wanted))


def with_outputs(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Add dtype, shape and the count of nan and inf of each call's first output; null where there is none."""
    outputs = pl.concat(_first_outputs(rank, calls.filter(pl.col("process") == rank.name)) for rank in trace.ranks)
    keys = ["process", "id"]
    return calls.join(outputs, left_on=keys, right_on=["process", "call"], how="left", maintain_order="left")


def find_call(
    trace: Trace,
    name_or_id: str | int,
    *,
    step: int | None = None,
    rank: int | None = None,
    phase: Phase | None = None,
    usage: Usage = "ulpscope show {} {}".format,
) -> FoundCall:
    """The one call of this name (or end of a name) or id; step, rank and phase choose among several.

    A call and its own backward bear one name: without a phase, the call is meant, which tells its backward.
    `usage` is the command that an error tells.
    """
    narrowing = CallFilter(step=_exactly(step), rank=_exactly(rank), phase=phase)
    found = _named(trace, str(name_or_id), narrowing)
    if found.height > 1:
        forwards = found.select("process", forward="id")
        found = found.join(forwards, on=["process", "forward"], how="anti", maintain_order="left")
    if found.is_empty():
        raise _no_such_call(trace, str(name_or_id), narrowing, usage)
    if found.height > 1:
        raise _ambiguous(trace, str(name_or_id), found, usage)
    row = found.row(0, named=True)
    return FoundCall(trace.process(row["process"]), call_from_row(row))


def nearest_names(trace: Trace, name: str, *, column: str = "name") -> list[str]:
    """Names in the trace that look like this one, or end in something like it."""
    names = trace.collect(trace.calls().select(pl.col(column).drop_nulls().unique().sort().head(NAMES_COMPARED)))
    known = names[column].to_list()
    whole = difflib.get_close_matches(name, known, n=NEAR, cutoff=0.5)
    ends: dict[str, str] = {}
    for each in known:
        ends.setdefault(_end(each), each)
    ending = [ends[end] for end in difflib.get_close_matches(_end(name), ends, n=NEAR, cutoff=0.7)]
    # Who wrote a dot meant a whole name.
    told = [*whole, *ending] if "." in name else [*ending, *whole]
    return list(dict.fromkeys(told))[:NEAR]


def _end(name: str) -> str:
    """`layernorm` of torch.nn.functional.layer_norm.3: what people remember of a name."""
    parts = [part for part in name.strip("*?").split(".") if not part.isdigit()]
    return parts[-1].replace("_", "").lower() if parts else ""


def _ranks(trace: Trace, wanted: CallFilter) -> list[RankTrace]:
    return [rank for rank in trace.ranks if wanted.rank is None or rank.info.rank in wanted.rank]


def _first_outputs(rank: RankTrace, calls: pl.DataFrame) -> pl.DataFrame:
    """The first thing that each call made, in the columns of with_outputs()."""
    ids = calls["id"]
    steps = [] if calls.is_empty() else rank.where.since(min(calls["step"].drop_nulls(), default=0))
    made = rank.scan("tensors", steps).filter(
        # That it lies between the ends lets files be left out by their statistics.
        pl.col("call").is_between(ids.min(), ids.max()),
        pl.col("call").is_in(ids.to_list()),
        pl.col("role").is_in(["output", "grad_input"]),
    )
    found = rank.collect(made).drop_nulls("value")
    first = found.unique("call", keep="first", maintain_order=True).select("process", "call", "value")
    columns = ["id", "dtype", "shape", "nan", "pos_inf", "neg_inf"]
    values = rank.value_rows(first["value"], columns=columns).select(
        value="id",
        output_dtype="dtype",
        output_shape="shape",
        output_not_finite=pl.col("nan") + pl.col("pos_inf") + pl.col("neg_inf"),
    )
    return first.join(values, on="value").drop("value")


def _conditions(wanted: CallFilter) -> list[pl.Expr]:
    conditions = [pl.lit(True)]
    for column, pattern in (("op", wanted.op), ("module", wanted.module)):
        if pattern is not None:
            conditions.append(_fits(column, pattern))
    for column, word in (("phase", wanted.phase), ("kind", wanted.kind)):
        if word is not None:
            conditions.append(pl.col(column) == word.value)
    if wanted.text is not None:
        conditions.append(pl.any_horizontal(_fits(column, wanted.text) for column in TEXT_COLUMNS))
    if wanted.step is not None:
        conditions.append(pl.any_horizontal(pl.col("step").is_between(low, high) for low, high in wanted.step.ranges))
    return conditions


def _fits(column: str, pattern: str) -> pl.Expr:
    regex = pl.escape_regex(pattern)
    if set("*?") & set(pattern):
        whole = regex.replace(r"\*", ".*").replace(r"\?", ".")
        regex = f"^{whole}$"
    return pl.col(column).str.contains(f"(?is){regex}").fill_null(False)


def _named(trace: Trace, name: str, narrowing: CallFilter) -> pl.DataFrame:
    """Calls with this id or exactly this name; else calls whose name ends in it; else the one call of this module."""
    if name.isascii() and name.isdigit():
        rows = [rank.call_rows([min(int(name), 2**63 - 1)]) for rank in _ranks(trace, narrowing)]
        return pl.concat(rows).filter(*_conditions(narrowing)) if rows else trace.collect(trace.calls().clear())
    fits = (pl.col("name") == name) | pl.col("name").str.ends_with(f".{name}")
    # Nearly all calls of a step are written in it or the next.
    for most_steps in (None,) if narrowing.step is None else (2, None):
        found = trace.collect(match_calls(trace, narrowing, most_steps=most_steps).filter(fits))
        if not found.is_empty():
            exact = found.filter(pl.col("name") == name)
            return found if exact.is_empty() else exact
    # A module that makes one call only, such as an operator of a dump; in each step that has it.
    found = trace.collect(match_calls(trace, narrowing).filter(pl.col("module") == name))
    return found if found["name"].n_unique() == 1 else found.clear()


def _no_such_call(trace: Trace, name: str, narrowing: CallFilter, usage: Usage) -> TraceError:
    among = f" among those of {narrowing}" if narrowing else ""
    path = shlex.quote(str(trace.path))
    if ops := _ops_named(trace, name):
        expected = f"one call of this operation, such as {ops[0]}.0"
        following = f"ulpscope show {path} --op {shlex.quote(name)}"
    elif not name.rpartition(".")[2].isdigit() and (ops := nearest_names(trace, name, column="op")):
        expected = f"the name of a call; did you mean a call of {' or '.join(ops)}"
        following = f"ulpscope show {path} --op {shlex.quote(ops[0])}"
    elif near := nearest_names(trace, name):
        expected = f"the name of a call; did you mean {' or '.join(near)}"
        following = usage(path, shlex.quote(near[0]))
    else:
        expected, following = "the id or name of a call", f"ulpscope show {path} --op '*'"
    return TraceError(f"{trace.path} has no call {name!r}{among}", expected=expected, next_step=following)


def _ops_named(trace: Trace, name: str) -> list[str]:
    """Operations of this name, or whose name ends in it."""
    fits = (pl.col("op") == name) | pl.col("op").str.ends_with(f".{name}")
    return trace.collect(trace.calls().filter(fits).select(pl.col("op").unique().sort()))["op"].to_list()


def _ambiguous(trace: Trace, name: str, found: pl.DataFrame, usage: Usage) -> TraceError:
    rows = found.head(PLACES_LISTED).iter_rows(named=True)
    places = [f"{row['name']} (id {row['id']}, {row['process']}, step {row['step']}, {row['phase']})" for row in rows]
    more = found.height - len(places)
    listed = "".join(f"\n    {place}" for place in places) + (f"\n    and {more} more" if more else "")
    # An id is unique within a process, whose directory is a trace of its own.
    first = trace.path / found["process"][0] if found["process"].n_unique() > 1 else trace.path
    return TraceError(
        f"{found.height} calls are named {name!r}:{listed}",
        expected="one call; --step, --phase and --rank choose among them, or an id within one process",
        next_step=usage(shlex.quote(str(first)), str(found["id"][0])),
    )


def _exactly(number: int | None) -> IntRanges | None:
    return None if number is None else IntRanges(((number, number),))


def _word(wanted: Phase | Kind | IntRanges | str) -> str:
    return shlex.quote(str(wanted.value) if isinstance(wanted, Phase | Kind) else str(wanted))


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
    own = {value.id for value in values.values() if value.producer == call.id}
    made = {use.value: use for use in reversed(uses) if use.role.value in MAKING_ROLES or use.value in own}
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
