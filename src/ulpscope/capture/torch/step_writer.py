"""Writes the parts of steps, and marks a step as whole with what it holds."""

from dataclasses import dataclass

import polars as pl

from ulpscope.records.runs import StepInfo
from ulpscope.trace.writer import RankWriter


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one part."""

    calls: pl.DataFrame
    values: pl.DataFrame
    tensors: pl.DataFrame
    stacks: pl.DataFrame

    @property
    def are_empty(self) -> bool:
        """A step that is written up to its last call has nothing to add at its end."""
        return all(table.is_empty() for table in (self.calls, self.values, self.tensors, self.stacks))


class StepWriter:
    """Adds up what the parts of the running step hold."""

    def __init__(self, writer: RankWriter) -> None:
        self._writer = writer
        self._totals: dict[str, int] = {}

    def write(self, step: int, tables: Tables, *, finished_after: float | None) -> int:
        """Write a part; `finished_after` so many seconds its step was whole. Gives the bytes written."""
        size = 0 if tables.are_empty and self._totals else self._write_part(step, tables)
        if finished_after is not None:
            self._totals.setdefault("first_value", 0)
            self._writer.finish_step(StepInfo(step=step, seconds=finished_after, **self._totals))
            self._totals = {}
        return size

    def _write_part(self, step: int, tables: Tables) -> int:
        size = self._writer.write_part(
            step,
            calls=tables.calls.sort("id"),
            values=tables.values,
            tensors=tables.tensors,
            stacks=tables.stacks,
        )
        self._add(tables)
        return size

    def _add(self, tables: Tables) -> None:
        heights = {"calls": tables.calls.height, "values": tables.values.height, "tensors": tables.tensors.height}
        for name, height in (heights | {"parts": 1}).items():
            self._totals[name] = self._totals.get(name, 0) + height
        if tables.values.height:
            self._totals.setdefault("first_value", tables.values["id"][0])
