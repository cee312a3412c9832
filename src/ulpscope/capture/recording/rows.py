"""Rows as Python's recorder keeps them, turned into columns, and columns into the tables of a trace.

Tables cost more than all else of a small part: who writes elsewhere, or many parts at once, hands columns on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.datatypes import DataType, DataTypeClass

from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.saving import PendingPlace
from ulpscope.capture.recording.tensors import gather
from ulpscope.capture.recording.values import ValueRow
from ulpscope.numerics.summaries.constants import ROW_LENGTH
from ulpscope.numerics.summaries.rows import Column, rows_to_columns
from ulpscope.records.calls import Frame
from ulpscope.trace.schema import (
    CALLS,
    STACKS,
    TENSORS,
    VALUE_DATA,
    VALUE_IDENTITY,
    VALUE_SHARD,
    VALUE_SUMMARY,
    VALUES,
    Columns,
)

Tables = dict[str, pl.DataFrame]
"""Those of one part: calls, values, tensors, stacks."""
Stacks = list[tuple[int, tuple[Frame, ...]]]
Held = dict[str, Sequence[Any]]
"""Columns, by name."""


@dataclass(frozen=True)
class RowColumns:
    """All rows of a part."""

    calls: Held
    values: Held
    """What is known of each but its summary."""
    tensors: Held
    stacks: Sequence[Sequence[Any]]
    """Rows."""
    having: Sequence[bool]
    """Which values have a summary."""
    rows: NDArray[np.float64]
    """The summaries of those."""

    def tables(self) -> Tables:
        dtypes, shapes = (list(compress(self.values[name], self.having)) for name in ("dtype", "shape"))
        summary = rows_to_columns(self.rows, dtype_names=dtypes, shapes=shapes)
        values = [series(name, self.values[name], dtype) for name, dtype in VALUE_IDENTITY.items()]
        values += spread(summary, np.array(self.having, dtype=np.bool_))
        values += [series(name, self.values[name], dtype) for name, dtype in {**VALUE_DATA, **VALUE_SHARD}.items()]
        return {
            "calls": pl.DataFrame(self.calls, schema=CALLS),
            "values": pl.DataFrame(values),
            "tensors": pl.DataFrame(self.tensors, schema=TENSORS),
            "stacks": pl.DataFrame(turned(map(tuple, self.stacks), STACKS), schema=STACKS),
        }

    def described(self) -> dict[str, Any]:
        """All but the summaries, as JSON has it."""
        return {name: getattr(self, name) for name in ("calls", "values", "tensors", "stacks", "having")}


def described_columns(told: Mapping[str, Any], rows: bytes | bytearray | memoryview) -> RowColumns:
    """What described() has told, and the summaries."""
    values = told["values"] | {name: list(map(_as_tuple, told["values"][name])) for name in _LISTS}
    summaries = np.frombuffer(rows, dtype=np.float64).reshape(-1, ROW_LENGTH)
    return RowColumns(told["calls"], values, told["tensors"], told["stacks"], told["having"], summaries)


_LISTS = [name for name, dtype in VALUES.items() if isinstance(dtype, pl.List)]


def _as_tuple(entry: list[int] | None) -> tuple[int, ...] | None:
    return None if entry is None else tuple(entry)


def joined(parts: Sequence[RowColumns]) -> RowColumns:
    """The rows of several, one behind the other; at least one."""

    def held(name: str) -> Held:
        columns: list[Held] = [getattr(part, name) for part in parts]
        return {column: [each for held in columns for each in held[column]] for column in columns[0]}

    return RowColumns(
        calls=held("calls"),
        values=held("values"),
        tensors=held("tensors"),
        stacks=[row for part in parts for row in part.stacks],
        having=[has for part in parts for has in part.having],
        rows=np.concatenate([part.rows for part in parts]),
    )


def columns_of(
    calls: Sequence[OpenCall],
    values: Sequence[ValueRow],
    uses: Sequence[tuple[int, str, str, int]],
    stacks: Stacks,
) -> RowColumns:
    """Rows as they were kept; waits for summaries that are on their way from a device."""
    data = turned((_place_columns(row.place) for row in values), VALUE_DATA)
    return RowColumns(
        calls=call_columns(calls),
        values=attributes(values, VALUE_IDENTITY) | data | shard_entries([row.shard for row in values]),
        tensors=turned(uses, TENSORS),
        stacks=stack_rows(stacks),
        having=[row.summary is not None for row in values],
        rows=gather([row.summary for row in values if row.summary is not None]),
    )


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
    if len(numbers) == 1:
        return pl.Series(name, list(numbers), dtype=dtype).new_from_index(0, len(column))
    return pl.Series(name, list(numbers), dtype=dtype).gather(np.array(index, dtype=np.int64))


def shard_entries(shards: Sequence[Any]) -> Held:
    """Of each value the global shape and the mesh that it is a shard of, or None."""
    return {
        "global_shape": [None if shard is None else tuple(shard[0]) for shard in shards],
        "global_offset": [None] * len(shards),
        "mesh": [None if shard is None else shard[1] for shard in shards],
    }


def shard_columns(shards: Sequence[Any]) -> list[pl.Series]:
    columns = shard_entries(shards)
    return [series(name, columns[name], dtype) for name, dtype in VALUE_SHARD.items()]


def spread(summary: dict[str, Column], having: NDArray[np.bool_]) -> list[pl.Series]:
    """Summary columns over all values, null for those without a summary."""
    rows, count = np.flatnonzero(having), len(having)
    alike: dict[bytes, list[str]] = {}
    for name in VALUE_SUMMARY:
        alike.setdefault(summary[name].valid.tobytes(), []).append(name)
    found: dict[str, pl.Series] = {}
    for names in alike.values():
        valid = summary[names[0]].valid
        there = pl.DataFrame(
            [pl.Series(name, summary[name].values[valid], dtype=VALUE_SUMMARY[name]) for name in names]
        )
        found |= zip(names, _at(there, rows[valid], count), strict=True)
    return [found[name] for name in VALUE_SUMMARY]


def _at(frame: pl.DataFrame, rows: NDArray[np.int64], count: int) -> list[pl.Series]:
    """The columns of a frame at these rows of so many, null at all others."""
    if len(rows) == count:
        return frame.get_columns()
    if not len(rows):
        return [pl.Series(name, [None], dtype=dtype).new_from_index(0, count) for name, dtype in frame.schema.items()]
    places: list[int | None] = [None] * count
    for place, row in enumerate(rows.tolist()):
        places[row] = place
    return frame.select(pl.all().gather(pl.Series(places, dtype=pl.UInt32))).get_columns()


def digests_of(values: Sequence[ValueRow]) -> dict[int, int]:
    """By number, of the values that have a summary."""
    having = [row for row in values if row.summary is not None]
    rows = gather([row.summary for row in having if row.summary is not None])
    columns = rows_to_columns(rows, dtype_names=[row.dtype for row in having], shapes=[row.shape for row in having])
    return {row.id: digest for row, digest in zip(having, columns["digest"].values.tolist(), strict=True)}


def call_columns(calls: Sequence[OpenCall]) -> Held:
    columns = attributes(calls, CALLS)
    for name in ("kind", "phase"):
        columns[name] = [member.value for member in columns[name]]
    return columns


def _place_columns(place: PendingPlace | None) -> tuple[Any, ...]:
    if place is None:
        return (None,) * len(VALUE_DATA)
    return place.content.file, place.content.key, place.offset, place.strides


def stack_rows(stacks: Stacks) -> list[tuple[int, int, str, int, str]]:
    return [
        (number, depth, frame.file, frame.line, frame.function)
        for number, frames in stacks
        for depth, frame in enumerate(frames)
    ]
