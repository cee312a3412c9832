"""Parts of a trace on their way to disk, in a thread of its own, so that the run does not wait for files."""

import queue
import threading
from _thread import start_new_thread
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.limits import DiskLimit, Lag, wait_until
from ulpscope.capture.recording.rows import Stacks, call_columns, columns_of, digests_of, stack_rows
from ulpscope.capture.recording.saving import Content, Saver
from ulpscope.capture.recording.tensors import gather
from ulpscope.capture.recording.values import Recheck, ValueRow
from ulpscope.capture.recording.writing_process import StepEnd, StepWriter, Taken, WritingProcess
from ulpscope.numerics.summaries.constants import DIGEST, MIN, NAN, ROW_LENGTH, SKETCH, SUM
from ulpscope.records.runs import RankInfo
from ulpscope.trace.data import DataPacker
from ulpscope.trace.writer import RankWriter

# Parts with data may be large; those without are small, and a process that writes them takes a second to start.
WAITING_PARTS = 4
WAITING_PARTS_WITHOUT_DATA = 16

# Of a row; sums depend on how many programs have shared in reading a value.
_EXACT = (slice(MIN, SUM), slice(NAN, SKETCH), slice(DIGEST, ROW_LENGTH))


@dataclass(slots=True, kw_only=True)
class Part:
    """Rows that go to disk together."""

    step: int
    calls: list[OpenCall]
    values: list[ValueRow]
    uses: list[tuple[int, str, str, int]]
    stacks: Stacks
    contents: list[Content]
    rechecks: list[Recheck]
    ends_work: bool
    """A step or an update has just ended: what it did should be on disk."""
    end: StepEnd | None = None
    """Where its step is whole with it."""

    @property
    def is_empty(self) -> bool:
        return not (self.recorded or self.contents)

    @property
    def recorded(self) -> int:
        """How many calls it holds."""
        return len(self.calls)

    @property
    def rows(self) -> int:
        """Calls and values; of what a compiled recorder has kept, calls."""
        return self.recorded + len(self.values)

    @property
    def waits_for_device(self) -> bool:
        """Whether its summaries may still be on their way from a device."""
        return any(row.summary is not None and row.summary[0].on_device for row in self.values)


@dataclass(slots=True, kw_only=True)
class TakenPart(Part):
    """A part with calls and values that a compiled recorder has kept."""

    taken: Taken

    @property
    def recorded(self) -> int:
        return len(self.calls) + self.taken.recorded

    @property
    def waits_for_device(self) -> bool:
        return any(batch.on_device for batch in self.taken.batches)


class Holder(Protocol):
    """Keeps contents while nobody knows whether they are written."""

    def hold(self, values: Sequence[ValueRow], contents: Sequence[Content]) -> None: ...


def write_all_steps(writer: RankWriter, holder: Holder | None) -> StepWriter:
    return StepWriter(writer)


class Output:
    """The writer's side of a capture. Parts are written in the order in which they come."""

    def __init__(
        self,
        directory: Path,
        info: RankInfo,
        *,
        saver: Saver | None,
        failed: Callable[[BaseException], None],
        changed_unseen: Callable[[int], None],
        disk: DiskLimit | None,
        make_steps: Callable[[RankWriter, Holder | None], StepWriter] = write_all_steps,
        make_holder: Callable[[Saver, DataPacker], Holder] | None = None,
        found: Callable[[Mapping[str, Any]], object] = dict,
    ):
        """`make_steps` makes what writes tables; `found` hears what it finds in them.

        `make_holder` makes what holds contents until it is known whether their step is written.
        """
        self.writer = RankWriter(directory, info)
        self._packer = DataPacker(directory)
        self._saver = saver
        self._failed = failed
        self._changed_unseen = changed_unseen
        self._queue: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._most_waiting = WAITING_PARTS if saver is not None else WAITING_PARTS_WITHOUT_DATA
        self._put = 0
        self._done = 0
        self._holder = None if make_holder is None or saver is None else make_holder(saver, self._packer)
        self._steps = make_steps(self.writer, self._holder)
        self._found = found
        self._disk = disk
        self._broken = False
        self.lag = Lag()
        self.table_bytes = 0
        self.verified = 0
        self.wrong = 0
        self.waits = 0
        self._ended = threading.Lock()
        self._ended.acquire()
        # At once or not at all: an interruption inside of Thread.start() ends the thread that was started.
        start_new_thread(self._work, ())

    @property
    def bytes_written(self) -> int:
        return self.table_bytes + self._packer.bytes_written

    def put(self, part: Part) -> None:
        """Take a part over; waits while too many are waiting."""
        if self._disk is not None:
            self._disk.handed_over(part.rows)
        if self._put - self._done >= self._most_waiting:
            self.waits += 1
            wait_until(lambda: self._put - self._done < self._most_waiting)
        self._queue.put(part)
        # Counted afterwards: what is interrupted in between waits for less, and never for what does not come.
        self._put += 1
        if part.ends_work:
            self.lag.add(on_device=part.waits_for_device)
            self.lag.keep_up()

    def move(self, directory: Path) -> None:
        """Go on in another rank directory; call it while no part is being written."""
        self.settle()
        self.writer.move(directory)
        self._packer.move(directory)

    def settle(self) -> None:
        """Wait until what was put is on disk; more may come."""
        wait_until(lambda: self._done >= self._put)

    def drain(self) -> None:
        """Wait until everything that was put is on disk."""
        self._queue.put(None)
        with self._ended:
            pass
        if self._saver is not None:
            self._saver.close()

    def close(self, info: RankInfo) -> None:
        if not self._broken:
            self.writer.close(info)

    def _work(self) -> None:
        while (part := self._queue.get()) is not None:
            try:
                self._unless_broken(self._write, part)
            finally:
                if self._holder is None or self._broken:
                    self._release(part.contents)
                if part.ends_work:
                    self.lag.wrote()
                self._done += 1
        self._unless_broken(self._end)
        self._ended.release()

    def _unless_broken(self, work: Callable[..., None], *part: Part) -> None:
        try:
            if not self._broken:
                work(*part)
        except BaseException as error:  # polars' panics are no Exceptions, and the run would wait for ever
            self._broken = True
            self._failed(error)

    def _write(self, part: Part) -> None:
        size = self._write_tables(part)
        self.table_bytes += size
        if self._disk is not None:
            self._disk.wrote(part.rows, size)

    def _end(self) -> None:
        """No more parts will come."""

    def _write_tables(self, part: Part) -> int:
        """Gives the bytes written."""
        self._take_contents(part)
        tables = columns_of(part.calls, part.values, part.uses, part.stacks).tables()
        size = self._steps.write(part.step, tables, part.end)
        self._tell(self._steps.take_found())
        self._recheck(part.rechecks)
        return size

    def _take_contents(self, part: Part) -> None:
        """Save them, or have them held; then it is known where values lie."""
        before = self._packer.bytes_written
        if self._holder is not None:
            self._holder.hold(part.values, part.contents)
        elif part.contents:
            self._save_contents(part, digests_of(part.values))
        if self._disk is not None:
            booked = sum(content.nbytes for content in part.contents)
            self._disk.saved(booked, self._packer.bytes_written - before)

    def _tell(self, found: Sequence[Mapping[str, Any]]) -> None:
        for each in found:
            self._found(each)

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
            if any(one[part].tobytes() != other[part].tobytes() for part in _EXACT):
                self.wrong += 1
                self._changed_unseen(recheck.value)


class OutputElsewhere(Output):
    """Another process makes the tables: of what a compiled recorder has kept, or of rows that wait there for others."""

    def __init__(self, directory: Path, info: RankInfo, process: WritingProcess, **options: Any) -> None:
        self._process = process
        super().__init__(directory, info, **options)

    def move(self, directory: Path) -> None:
        self.settle()
        self._settle_there()
        super().move(directory)

    def _write_tables(self, part: Part) -> int:
        told: dict[str, Any] = {"step": part.step, "end": None if part.end is None else asdict(part.end)}
        directory = self.writer.directory
        if isinstance(part, TakenPart):
            told |= {"calls": call_columns(part.calls), "stacks": stack_rows(part.stacks)}
            size, found = self._process.write(directory, part.taken, told)
        else:
            self._take_contents(part)
            rows = columns_of(part.calls, part.values, part.uses, part.stacks)
            size, found = self._process.ask(directory, told | rows.described(), [rows.rows.reshape(-1).data])
            self._recheck(part.rechecks)
        self._tell(found)
        return size

    def _end(self) -> None:
        self._settle_there()

    def _settle_there(self) -> None:
        size, _ = self._process.settle(self.writer.directory)
        self.table_bytes += size
