"""A rank whose tables live in memory: what a dialect makes of another tool's dump.

A dialect gives a source; a FrameRank asks it for steps when they are first needed, each once and in order, because ids
go on over the steps and a later step uses values of an earlier one.

Or a rank without what runs inside of its calls: at level kernel, the kernels, and what an optimizer's step calls. The
calls around them read and make the same values, so that nothing is lost but where inside of a call something happened;
calls that are `opened` show it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import polars as pl
from numpy.typing import NDArray

from ulpscope.records.calls import Value
from ulpscope.records.enums import MAKING_ROLES, Kind
from ulpscope.records.runs import Coverage, RankInfo, StepInfo
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.trace.schema import TABLES, Table


@dataclass(frozen=True, slots=True)
class StepFrames:
    """The tables of one step, and the stacks first seen in it; columns of the schema that are left out are null."""

    calls: pl.DataFrame
    values: pl.DataFrame
    tensors: pl.DataFrame
    stacks: pl.DataFrame


class FrameSource(Protocol):
    """Where the tables of one rank come from."""

    @property
    def summary_id(self) -> str:
        """What made the stats and digests; those of different ids cannot be compared. Asked for after a step."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What is not there, as far as the steps that were loaded tell."""

    def load(self, step: int) -> StepFrames:
        """Called once for each step, in order."""

    def data(self, value: Value) -> NDArray[Any] | None:
        """The elements of a value, if they can be read."""


class FrameRank(RankTrace):
    """One process of a run, out of a source."""

    def __init__(self, path: Path, *, name: str, info: RankInfo, steps: Sequence[int], source: FrameSource) -> None:
        super().__init__(path, name=name, info=info)
        self._steps_there = tuple(sorted(steps))
        self._source = source
        self._loaded: dict[int, tuple[StepFrames, StepInfo]] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        return self._steps_there

    @property
    def missing(self) -> tuple[str, ...]:
        self._load_until(None)
        return self._source.missing

    @property
    def summary_id(self) -> str:
        self._load_until(self.steps[0] if self.steps else None)
        return self._source.summary_id

    def step_info(self, step: int) -> StepInfo | None:
        self._load_until(step)
        return self._loaded[step][1] if step in self._loaded else None

    def data(self, value: Value) -> NDArray[Any] | None:
        return None if value.data is None else self._source.data(value)

    def broken_file(self) -> tuple[Path, str] | None:
        return None

    def _table(self, table: Table, steps: Iterable[int]) -> pl.LazyFrame:
        wanted = self.steps if table == "stacks" else tuple(steps)
        self._load_until(max(wanted, default=None))
        frames = [_with_nulls(getattr(self._loaded[step][0], table), table) for step in wanted]
        return pl.concat(frames) if frames else pl.LazyFrame(schema=dict(TABLES[table]))

    def _check(self, table: Table, steps: Iterable[int]) -> None:
        """Nothing to refuse: the source made these frames."""

    def _load_until(self, last: int | None) -> None:
        for step in self.steps:
            if step not in self._loaded and (last is None or step <= last):
                self._load(step)

    def _load(self, step: int) -> None:
        frames = self._source.load(step)
        info = StepInfo(
            step=step,
            calls=frames.calls.height,
            values=frames.values.height,
            tensors=frames.tensors.height,
            parts=1,
            first_value=frames.values["id"][0] if frames.values.height else 0,
            seconds=0.0,
        )
        self._loaded[step] = frames, info
        infos = [info for _, info in self._loaded.values()]
        calls = sum(info.calls for info in infos)
        coverage = Coverage(calls_seen=calls, calls_recorded=calls, values=sum(info.values for info in infos))
        self.info = replace(self.info, coverage=coverage)


def _with_nulls(frame: pl.DataFrame, table: Table) -> pl.LazyFrame:
    """Null columns are added to the query, not kept: 93 numbers a value would be most of the memory."""
    nulls = [pl.lit(None, dtype=kind).alias(name) for name, kind in TABLES[table].items() if name not in frame.columns]
    return frame.lazy().with_columns(nulls).select(*TABLES[table])


def outer_calls(trace: Trace, opened: frozenset[tuple[str, int]] = frozenset()) -> Trace:
    """The same trace without what runs inside of calls, but for these: process and id."""
    hidden = [_Hidden(rank, {call for process, call in opened if process == rank.name}) for rank in trace.ranks]
    ranks = [rank.seen_through(each.leave_out) for rank, each in zip(trace.ranks, hidden, strict=True)]
    return Trace(trace.path, ranks, missing_ranks=trace.missing_ranks)


class _Hidden:
    """What runs inside of a rank's calls."""

    def __init__(self, rank: RankTrace, opened: set[int]) -> None:
        self._rank = rank
        self._opened = opened

    def leave_out(self, table: Table, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of a table without it; what it made was made by the call around it, where that gives it."""
        if table == "calls":
            return frame.join(self._inside.lazy(), left_on="id", right_on="call", how="anti", maintain_order="left")
        if table == "tensors":
            return frame.join(self._inside.lazy(), on="call", how="anti", maintain_order="left")
        if table == "values":
            inside = self._inside.lazy().with_columns(producer="call")
            found = frame.join(inside, on="producer", how="left", maintain_order="left")
            found = found.join(self._made, on=["around", "storage"], how="left", maintain_order="left")
            shown = pl.when(pl.col("call").is_null()).then("producer").when("made").then("around")
            return found.with_columns(producer=shown).drop("call", "around", "made")
        return frame

    @property
    def _made(self) -> pl.LazyFrame:
        """The storages that each call gives; autograd adds gradients up inside of calls that do not give the sum."""
        made = pl.col("role").is_in(MAKING_ROLES)
        uses = self._rank.scan("tensors", self._rank.steps).filter(made).select("call", id="value")
        values = self._rank.scan("values", self._rank.steps).select("id", "storage")
        return uses.join(values, on="id").select("storage", around="call", made=pl.lit(True)).unique()

    @cached_property
    def _inside(self) -> pl.DataFrame:
        """Calls that are not shown, each with the innermost one around it that is; autograd's own have none.

        A kernel whose call was not captured is shown.
        """
        shown_around: dict[int, int | None] = {}
        of_optimizers: set[int] = set()
        opened = set(self._opened)
        calls = self._rank.collect(self._rank.calls().select("id", "kind", "parent").sort("id"))
        captured: set[int | None] = set(calls["id"])
        if (calls["kind"] != Kind.KERNEL.value).any():
            captured.add(None)
        for call, kind, parent in calls.iter_rows():
            if kind == Kind.OPTIMIZER.value or parent in of_optimizers:
                of_optimizers.add(call)
            if parent in opened:
                opened.add(call)
            elif (kind == Kind.KERNEL.value and parent in captured) or parent in of_optimizers:
                shown_around[call] = shown_around.get(parent, parent)
        schema = {"call": pl.Int64, "around": pl.Int64}
        return pl.DataFrame([*shown_around.items()], schema=schema, orient="row")
