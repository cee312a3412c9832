"""Brings parts to disk in a thread of its own, so that the run does not wait for files."""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.datatypes import DataType, DataTypeClass

from ulpscope.capture.torch.recorder import OpenCall, Part
from ulpscope.capture.torch.rows import gather
from ulpscope.capture.torch.saving import Content, Saver
from ulpscope.capture.torch.values import Recheck, ValueRow
from ulpscope.numerics.rows import Column, rows_to_columns
from ulpscope.records.calls import Frame
from ulpscope.records.runs import RankInfo, StepInfo
from ulpscope.trace.data import DataPacker
from ulpscope.trace.schema import (
    CALLS,
    STACKS,
    TENSORS,
    VALUE_DATA,
    VALUE_IDENTITY,
    VALUE_SHARD,
    VALUE_SUMMARY,
    Columns,
)
from ulpscope.trace.writer import RankWriter

WAITING_PARTS = 4


class Output:
    """The writer's side of a capture. Parts are written in the order in which they come."""

    def __init__(
        self,
        directory: Path,
        info: RankInfo,
        *,
        saver: Saver | None,
        failed: Callable[[Exception], None],
        changed_unseen: Callable[[int], None],
    ):
        self._writer = RankWriter(directory, info)
        self._packer = DataPacker(directory)
        self._saver = saver
        self._failed = failed
        self._changed_unseen = changed_unseen
        self._queue: queue.Queue[Part | None] = queue.Queue(WAITING_PARTS)
        self._open_step: dict[str, int] = {}
        self._broken = False
        self.table_bytes = 0
        self.verified = 0
        self.wrong = 0
        self.waits = 0
        self._thread = threading.Thread(target=self._work, name="ulpscope-writer", daemon=True)
        self._thread.start()

    @property
    def bytes_written(self) -> int:
        return self.table_bytes + self._packer.bytes_written

    def put(self, part: Part) -> None:
        """Take a part over; waits while too many are waiting."""
        if self._queue.full():
            self.waits += 1
        self._queue.put(part)

    def move(self, directory: Path) -> None:
        """Go on in another rank directory; call it while no part is being written."""
        self._queue.join()
        self._writer.move(directory)
        self._packer.move(directory)

    def drain(self) -> None:
        """Wait until everything that was put is on disk."""
        self._queue.put(None)
        self._thread.join()
        if self._saver is not None:
            self._saver.close()

    def close(self, info: RankInfo) -> None:
        if not self._broken:
            self._writer.close(info)

    def _work(self) -> None:
        while (part := self._queue.get()) is not None:
            try:
                if not self._broken:
                    self._write(part)
            except Exception as error:
                self._broken = True
                self._failed(error)
            finally:
                self._release(part.contents)
                self._queue.task_done()
        self._queue.task_done()

    def _write(self, part: Part) -> None:
        summaries, columns = _summaries(part.values)
        self._save_contents(part, summaries)
        self.table_bytes += self._writer.write_part(
            part.step,
            calls=_calls_frame(part.calls),
            values=_values_frame(part.values, columns),
            tensors=pl.DataFrame(_turned(part.uses, TENSORS), schema=TENSORS),
            stacks=_stacks_frame(part.stacks),
        )
        self._recheck(part.rechecks)
        self._count(part)

    def _save_contents(self, part: Part, digests: dict[int, int]) -> None:
        whole: dict[Content, int | None] = {}
        for row in part.values:
            if row.place is not None:  # the first value that points to a content is the one that brought it
                whole.setdefault(row.place.content, digests.get(row.id))
        packed: list[Content] = []
        for content in part.contents:
            digest = whole.get(content) if content.whole_value else None
            content.file, content.key = self._packer.add(
                part.step, raw=content.raw(), dtype=content.dtype, shape=content.shape, digest=digest
            )
            packed.append(content)
            if not self._packer.has_pending:
                self._release(packed)
                packed.clear()
        if packed:
            self._packer.flush(part.step)

    def _release(self, contents: list[Content]) -> None:
        if self._saver is not None:
            for content in contents:
                self._saver.release(content)

    def _recheck(self, rechecks: list[Recheck]) -> None:
        if not rechecks:
            return
        reused = gather([recheck.reused for recheck in rechecks])
        fresh = gather([recheck.fresh for recheck in rechecks])
        for recheck, one, other in zip(rechecks, reused, fresh, strict=True):
            self.verified += 1
            if one.tobytes() != other.tobytes():
                self.wrong += 1
                self._changed_unseen(recheck.value)

    def _count(self, part: Part) -> None:
        totals = self._open_step
        totals["calls"] = totals.get("calls", 0) + len(part.calls)
        totals["values"] = totals.get("values", 0) + len(part.values)
        totals["tensors"] = totals.get("tensors", 0) + len(part.uses)
        totals["parts"] = totals.get("parts", 0) + 1
        if part.values:
            totals.setdefault("first_value", part.values[0].id)
        if part.finishes_step:
            totals.setdefault("first_value", 0)
            self._writer.finish_step(StepInfo(step=part.step, seconds=part.seconds, **totals))
            self._open_step = {}


def _summaries(values: list[ValueRow]) -> tuple[dict[int, int], dict[str, Column]]:
    """Digests by value id, and the summary columns of the values that have a summary."""
    having = [row for row in values if row.summary is not None]
    rows = gather([row.summary for row in having if row.summary is not None])
    columns = rows_to_columns(rows, dtype_names=[row.dtype for row in having], shapes=[row.shape for row in having])
    digests = columns["digest"].values
    return {row.id: int(digest) for row, digest in zip(having, digests.tolist(), strict=True)}, columns


def _calls_frame(calls: list[OpenCall]) -> pl.DataFrame:
    ordered = sorted(calls, key=attrgetter("id"))
    columns = _columns(ordered, CALLS)
    for name in ("kind", "phase"):
        columns[name] = [member.value for member in columns[name]]
    return pl.DataFrame(columns, schema=CALLS)


def _values_frame(values: list[ValueRow], summary: dict[str, Column]) -> pl.DataFrame:
    identity = _columns(values, VALUE_IDENTITY)
    places = [row.place for row in values]
    data: dict[str, Sequence[Any]] = {
        "data_file": [None if place is None else place.content.file for place in places],
        "data_key": [None if place is None else place.content.key for place in places],
        "data_offset": [None if place is None else place.offset for place in places],
        "data_strides": [None if place is None else place.strides for place in places],
    }
    shard: dict[str, Sequence[Any]] = {
        "global_shape": [None if row.shard is None else row.shard[0] for row in values],
        "global_offset": [None] * len(values),
        "mesh": [None if row.shard is None else row.shard[1] for row in values],
    }
    having = np.fromiter((row.summary is not None for row in values), dtype=np.bool_, count=len(values))
    return pl.DataFrame(
        [
            *(_series(name, identity[name], dtype) for name, dtype in VALUE_IDENTITY.items()),
            *_spread(summary, having),
            *(_series(name, data[name], dtype) for name, dtype in VALUE_DATA.items()),
            *(_series(name, shard[name], dtype) for name, dtype in VALUE_SHARD.items()),
        ]
    )


def _columns(rows: Sequence[Any], names: Columns) -> dict[str, Sequence[Any]]:
    """The attributes of these names, one column each."""
    return _turned(map(attrgetter(*names), rows), names)


def _turned(rows: Iterable[tuple[Any, ...]], names: Columns) -> dict[str, Sequence[Any]]:
    columns = tuple(zip(*rows, strict=True)) or ((),) * len(names)
    return dict(zip(names, columns, strict=True))


def _series(name: str, column: Sequence[Any], dtype: DataType | DataTypeClass) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, column, dtype=dtype)
    # Of lists there are few that differ, and polars takes each by itself.
    numbers: dict[Any, int] = {}
    index = [numbers.setdefault(item, len(numbers)) for item in column]
    return pl.Series(name, list(numbers), dtype=dtype).gather(np.array(index, dtype=np.int64))


def _spread(summary: dict[str, Column], having: NDArray[np.bool_]) -> list[pl.Series]:
    """Summary columns over all values, null for those without a summary."""
    rows = np.flatnonzero(having)
    plain: list[pl.Series] = []
    nulls: list[pl.Expr] = []
    for name, dtype in VALUE_SUMMARY.items():
        column = summary[name]
        spread = np.zeros((len(having), *column.values.shape[1:]), dtype=column.values.dtype)
        spread[rows] = column.values
        plain.append(pl.Series(name, spread, dtype=dtype))
        valid = np.zeros(len(having), dtype=np.bool_)
        valid[rows] = column.valid
        if not valid.all():
            plain.append(pl.Series(f"{name} is there", valid))
            nulls.append(pl.when(f"{name} is there").then(name).alias(name))
    spread_out = pl.DataFrame(plain).with_columns(nulls)
    return [spread_out.get_column(name) for name in VALUE_SUMMARY]


def _stacks_frame(stacks: list[tuple[int, tuple[Frame, ...]]]) -> pl.DataFrame:
    rows = (
        (number, depth, frame.file, frame.line, frame.function)
        for number, frames in stacks
        for depth, frame in enumerate(frames)
    )
    return pl.DataFrame(_turned(rows, STACKS), schema=STACKS)
