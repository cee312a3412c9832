"""Tables of a trace out of rows and summaries; the parts of steps on disk, and a step that is whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.datatypes import DataType, DataTypeClass

from ulpscope.numerics.summaries.rows import Column
from ulpscope.records.runs import StepInfo
from ulpscope.trace.schema import VALUE_SHARD, VALUE_SUMMARY, Columns
from ulpscope.trace.writer import RankWriter


def attributes(rows: Sequence[Any], names: Columns) -> dict[str, Sequence[Any]]:
    """The attributes of these names, one column each."""
    return turned(map(attrgetter(*names), rows), names)


def turned(rows: Iterable[tuple[Any, ...]], names: Columns) -> dict[str, Sequence[Any]]:
    columns = tuple(zip(*rows, strict=True)) or ((),) * len(names)
    return dict(zip(names, columns, strict=True))


def series(name: str, column: Sequence[Any], dtype: DataType | DataTypeClass) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, column, dtype=dtype)
    # Of lists there are few that differ, and polars takes each by itself.
    numbers: dict[Any, int] = {}
    index = [numbers.setdefault(item, len(numbers)) for item in column]
    return pl.Series(name, list(numbers), dtype=dtype).gather(np.array(index, dtype=np.int64))


def shard_columns(shards: Sequence[Any]) -> list[pl.Series]:
    """Of each value the global shape and the mesh that it is a shard of, or None."""
    columns: dict[str, Sequence[Any]] = {
        "global_shape": [None if shard is None else tuple(shard[0]) for shard in shards],
        "global_offset": [None] * len(shards),
        "mesh": [None if shard is None else shard[1] for shard in shards],
    }
    return [series(name, columns[name], dtype) for name, dtype in VALUE_SHARD.items()]


def spread(summary: dict[str, Column], having: NDArray[np.bool_]) -> list[pl.Series]:
    """Summary columns over all values, null for those without a summary."""
    rows = np.flatnonzero(having)
    plain: list[pl.Series] = []
    nulls: list[pl.Expr] = []
    for name, dtype in VALUE_SUMMARY.items():
        column = summary[name]
        if not column.valid.any():
            plain.append(pl.Series(name, [None], dtype=dtype).new_from_index(0, len(having)))
            continue
        entries = np.zeros((len(having), *column.values.shape[1:]), dtype=column.values.dtype)
        entries[rows] = column.values
        plain.append(pl.Series(name, entries, dtype=dtype))
        valid = np.zeros(len(having), dtype=np.bool_)
        valid[rows] = column.valid
        if not valid.all():
            plain.append(pl.Series(f"{name} is there", valid))
            nulls.append(pl.when(f"{name} is there").then(name).alias(name))
    spread_out = pl.DataFrame(plain).with_columns(nulls)
    return [spread_out.get_column(name) for name in VALUE_SUMMARY]


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
