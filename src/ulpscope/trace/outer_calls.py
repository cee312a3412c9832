"""A rank without what runs inside of its calls: at level kernel, the kernels, and what an optimizer's step calls.

The calls around them read and make the same values, so that nothing is lost but where inside of a call something
happened; calls that are `opened` show it.
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.records.enums import MAKING_ROLES, Kind
from ulpscope.records.runs import StepInfo
from ulpscope.records.values import Value
from ulpscope.trace.earlier_steps import Reach
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.trace.schema import Table


def outer_calls(trace: Trace, opened: frozenset[tuple[str, int]] = frozenset()) -> Trace:
    """The same trace without what runs inside of calls, but for these: process and id."""
    ranks = [OuterCalls(rank, {call for process, call in opened if process == rank.name}) for rank in trace.ranks]
    return Trace(trace.path, ranks, missing_ranks=trace.missing_ranks)


class OuterCalls(RankTrace):
    """A look at another rank."""

    def __init__(self, rank: RankTrace, opened: set[int]) -> None:
        super().__init__(rank.directory, name=rank.name, info=rank.info)
        self._rank = rank
        self._opened = opened

    @property
    def steps(self) -> tuple[int, ...]:
        return self._rank.steps

    @property
    def missing(self) -> tuple[str, ...]:
        return self._rank.missing

    @property
    def summary_id(self) -> str:
        return self._rank.summary_id

    def step_info(self, step: int) -> StepInfo | None:
        return self._rank.step_info(step)

    def reach(self, step: int) -> Reach | None:
        return self._rank.reach(step)

    def data(self, value: Value) -> NDArray[Any] | None:
        return self._rank.data(value)

    def broken_file(self) -> tuple[Path, str] | None:
        return self._rank.broken_file()

    def _table(self, table: Table, steps: Iterable[int]) -> pl.LazyFrame:
        frame = self._rank._table(table, steps)
        if table == "calls":
            return frame.join(self._inside.lazy(), left_on="id", right_on="call", how="anti", maintain_order="left")
        if table == "tensors":
            return frame.join(self._inside.lazy(), on="call", how="anti", maintain_order="left")
        if table == "values":
            inside = self._inside.lazy().with_columns(producer="call")
            found = frame.join(inside, on="producer", how="left", maintain_order="left")
            found = found.join(
                self._made,
                left_on=["around", "storage"],
                right_on=["call", "storage"],
                how="left",
                maintain_order="left",
            )
            shown = pl.when(pl.col("call").is_null()).then("producer").when("made").then("around")
            return found.with_columns(producer=shown).drop("call", "around", "made")
        return frame

    def _check(self, table: Table, steps: Iterable[int]) -> None:
        self._rank._check(table, steps)

    @property
    def _made(self) -> pl.LazyFrame:
        """The storages that each call gives; autograd adds gradients up inside of calls that do not give the sum."""
        made = pl.col("role").is_in(MAKING_ROLES)
        uses = self._rank.scan("tensors", self.steps).filter(made).select("call", id="value")
        values = self._rank.scan("values", self.steps).select("id", "storage")
        return uses.join(values, on="id").select("call", "storage", made=pl.lit(True)).unique()

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
