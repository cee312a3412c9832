"""A rank whose tables live in memory: what a dialect makes of another tool's dump.

A dialect gives a source; a FrameRank asks it for steps when they are first needed, each once and in order, because ids
go on over the steps and a later step uses values of an earlier one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import polars as pl
from numpy.typing import NDArray

from ulpscope.records.runs import Coverage, RankInfo, StepInfo
from ulpscope.records.values import Value
from ulpscope.trace.reader import RankTrace
from ulpscope.trace.schema import TABLES, Table


@dataclass(frozen=True, slots=True)
class StepFrames:
    """The tables of one step, and the stacks first seen in it; columns of the schema that are left out are null."""

    calls: pl.DataFrame
    values: pl.DataFrame
    tensors: pl.DataFrame
    stacks: pl.DataFrame

    def table(self, name: Table) -> pl.DataFrame:
        frames = {"calls": self.calls, "values": self.values, "tensors": self.tensors, "stacks": self.stacks}
        return frames[name]


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
        frames = [_with_nulls(self._loaded[step][0].table(table), table) for step in wanted]
        return pl.concat(frames) if frames else pl.LazyFrame(schema=dict(TABLES[table]))

    def _check(self, table: Table, steps: Iterable[int]) -> None:
        """Nothing to refuse: the source made these frames."""

    def _load_until(self, last: int | None) -> None:
        for step in self.steps:
            if step not in self._loaded and (last is None or step <= last):
                self._load(step)

    def _load(self, step: int) -> None:
        frames = self._source.load(step)
        self._loaded[step] = frames, _step_info(step, frames)
        infos = [info for _, info in self._loaded.values()]
        calls = sum(info.calls for info in infos)
        coverage = Coverage(calls_seen=calls, calls_recorded=calls, values=sum(info.values for info in infos))
        self.info = replace(self.info, coverage=coverage)


def _step_info(step: int, frames: StepFrames) -> StepInfo:
    return StepInfo(
        step=step,
        calls=frames.calls.height,
        values=frames.values.height,
        tensors=frames.tensors.height,
        parts=1,
        first_value=frames.values["id"][0] if frames.values.height else 0,
        seconds=0.0,
    )


def _with_nulls(frame: pl.DataFrame, table: Table) -> pl.LazyFrame:
    """Null columns are added to the query, not kept: 93 numbers a value would be most of the memory."""
    nulls = [pl.lit(None, dtype=kind).alias(name) for name, kind in TABLES[table].items() if name not in frame.columns]
    return frame.lazy().with_columns(nulls).select(*TABLES[table])
