"""Steps of a long run, written several at a time, in the process that writes: each alone would cost more than it holds.

What the run has sent is safe there: this process writes it when the run ends, however it does.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl

from ulpscope.capture.recording import writing_process
from ulpscope.capture.recording.limits import BLOCK_VALUES, HOLD_SECONDS
from ulpscope.capture.recording.rows import RowColumns, Tables, described_columns, joined
from ulpscope.capture.recording.writing_process import Buffer, Taking
from ulpscope.records.runs import StepInfo
from ulpscope.trace.blocks import marked
from ulpscope.trace.earlier_steps import ReachCollector
from ulpscope.trace.schema import STACKS
from ulpscope.trace.writer import RankWriter

FIRST_ROW_BYTES = 600
"""Of a value, on disk, until that is known: its sketch alone has 244."""


@dataclass(slots=True)
class _Step:
    """A step, as far as it has come."""

    number: int
    parts: list[RowColumns] = field(default_factory=list)
    written: int = 0
    """Parts that lie in a directory of its own."""
    size: int = 0
    """Bytes of these."""

    def height(self, table: str, *, first: int = 0) -> int:
        """How many rows its parts have, from the first on."""
        return sum(_height(part, table) for part in self.parts[first:])


@dataclass(slots=True)
class _Block:
    """Whole steps that share files."""

    number: int
    tables: Tables = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What step.json would say of each."""
    size: int = 0

    @property
    def values(self) -> int:
        return self.tables["values"].height if self.tables else 0

    def add(self, whole: Sequence[tuple[_Step, float]], tables: Tables) -> None:
        """Take in these steps, whose rows stand in the tables one behind the other."""
        start = dict.fromkeys(tables, 0)
        for step, seconds in whole:
            own = {name: table[start[name] : start[name] + step.height(name)] for name, table in tables.items()}
            start = {name: start[name] + table.height for name, table in own.items()}
            self.steps.append(_described(step.number, seconds, own))
        for name, table in tables.items():
            fresh = marked(table, [(step.number, step.height(name)) for step, _ in whole])
            self.tables[name] = pl.concat([self.tables[name], fresh]) if name in self.tables else fresh


class StepGatherer:
    """Holds parts until writing them is worth it."""

    def __init__(self, writer: RankWriter) -> None:
        self._writer = writer
        self._running: _Step | None = None
        self._whole: list[tuple[_Step, float]] = []
        """Steps that wait, and how many seconds each took."""
        self._block = _Block(0)
        self._since: float | None = None
        """When the oldest came of what waits."""
        self._written = self._told = 0
        """Bytes on disk, and those that the run has been told of."""
        self._row_bytes = float(FIRST_ROW_BYTES)

    @property
    def seconds_left(self) -> float | None:
        return None if self._since is None else max(0.0, self._since + HOLD_SECONDS - time.monotonic())

    def receive(self, told: dict[str, Any], buffers: list[Buffer]) -> Taking:
        self._take(told["step"], described_columns(told, buffers[0]))
        if told["end"] is not None and self._running is not None:
            self._whole.append((self._running, told["end"]["seconds"]))
            self._running = None
        if self._waiting >= BLOCK_VALUES or self.seconds_left == 0.0:
            self._write()
        return self._account(), []

    def settle(self) -> Taking:
        self._write()
        return self._account(), []

    def _take(self, step: int, part: RowColumns) -> None:
        if self._running is not None and self._running.number != step:  # its end was never told
            self._write_running()
            self._running = None
        self._running = self._running or _Step(step)
        self._running.parts.append(part)
        self._since = self._since if self._since is not None else time.monotonic()

    @property
    def _waiting(self) -> int:
        """Values that are not on disk, of whole steps, and those that are written anew with them."""
        return self._block.values + sum(step.height("values") for step, _ in self._whole)

    def _account(self) -> int:
        """How many bytes more there are than were told; those of steps that wait are estimated."""
        running = [] if self._running is None else [self._running]
        waiting = [*running, *(step for step, _ in self._whole)]
        held = sum(step.height("values", first=step.written) for step in waiting)
        known, self._told = self._told, self._written + int(held * self._row_bytes)
        return self._told - known

    def _write(self) -> None:
        self._since = None
        if self._whole:
            self._write_block()
        self._write_running()

    def _write_block(self) -> None:
        block, whole, self._whole = self._block, self._whole, []
        tables = joined([part for step, _ in whole for part in step.parts]).tables()
        self._written += self._writer.write_stacks(tables.pop("stacks"))
        block.add(whole, tables)
        before, block.size = block.size, self._writer.write_block(block.number, block.tables, block.steps)
        self._written += block.size - before
        self._row_bytes = block.size / max(1, block.values)
        for step, _ in whole:
            if step.written:
                self._writer.drop_step(step.number)
                self._written -= step.size
        if block.values >= BLOCK_VALUES:
            self._block = _Block(block.number + 1)

    def _write_running(self) -> None:
        """What there is of the step that runs: in a directory of its own, until it is whole."""
        step = self._running
        if step is None or not step.height("calls", first=step.written):
            return
        tables = joined(step.parts[step.written :]).tables()
        self._written += self._writer.write_stacks(tables.pop("stacks"))
        size = self._writer.write_part(step.number, **tables, stacks=pl.DataFrame(schema=dict(STACKS)))
        step.size, step.written = step.size + size, len(step.parts)
        self._written += size


def _height(part: RowColumns, table: str) -> int:
    columns: Mapping[str, Sequence[Any]] = getattr(part, table)
    return len(next(iter(columns.values())))


def _described(step: int, seconds: float, tables: Tables) -> dict[str, Any]:
    rows, ids = {name: table.height for name, table in tables.items()}, tables["values"]["id"]
    reach = ReachCollector(step)
    reach.add(**tables)
    info = StepInfo(step=step, **rows, parts=1, first_value=ids[0] if len(ids) else 0, seconds=seconds)
    return asdict(info) | reach.reach().to_json()


def serve() -> None:
    """As of any trace, but for steps that wait for others."""
    writing_process.serve(StepGatherer)
