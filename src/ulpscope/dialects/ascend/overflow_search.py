"""Finds overflow records below a directory, and the operator that each is about.

The record's own name has a task that is the debugger's. What overflowed is the operator whose dump, in the same
directory, has the task and stream (and of FFTS+ the context and thread) that the record states.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.overflow_records import UnitRecord, read_overflow_record
from ulpscope.dialects.ascend.tree import DumpEntry, DumpFolder, entry_of, list_dumps, newest_runs
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import remark


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """What one unit noted in one file."""

    entry: DumpEntry
    folder: DumpFolder
    unit: UnitRecord
    operator: DumpEntry | None
    """The earliest dump of the operator; none if the directory has none."""

    @property
    def task(self) -> int | None:
        return self.entry.name.task if self.unit.task is None else self.unit.task

    @property
    def stream(self) -> int | None:
        return self.entry.name.stream if self.unit.stream is None else self.unit.stream


@dataclass(frozen=True, slots=True)
class RecordSearch:
    """The records below a directory."""

    root: Path
    found: tuple[FoundRecord, ...]
    """In time order."""
    files: int
    silent: int
    """Files whose status is 0, or that say of themselves that they are not valid."""
    problems: tuple[str, ...]
    """What is told of files and older runs that are left out, one sentence each."""
    unread: tuple[str, ...]
    """Of each file that cannot be read, why."""


def find_records(path: Path) -> RecordSearch:
    """The records of a directory and those below it, of the newest run in each place, or of one file."""
    found: list[FoundRecord] = []
    folders, problems = _folders(path)
    unread: list[str] = []
    files = silent = 0
    for folder in folders:
        entries = list_dumps(folder.path)
        for entry in entries:
            if not entry.name.is_overflow_record or (path.is_file() and entry.path.name != path.name):
                continue
            files += 1
            try:
                units = read_overflow_record(read_dump(entry.path)).overflowed
            except UlpscopeError as error:
                unread.append(error.seen)
                continue
            silent += not units
            found += [FoundRecord(entry, folder, unit, _operator(entries, entry, unit)) for unit in units]
    found.sort(key=lambda each: (each.entry.name.timestamp, each.entry.path.name))
    problems += [remark("problem", problem=why) for why in unread]
    return RecordSearch(path, tuple(found), files, silent, tuple(problems), tuple(unread))


def _folders(path: Path) -> tuple[list[DumpFolder], list[str]]:
    """Directories of dumps, and what is told of those that are left out."""
    if path.is_file():
        return ([] if entry_of(path) is None else [DumpFolder(path.parent, path.parent)]), []
    runs = newest_runs(path)
    told = [remark("records_older", older=", ".join(run.older), place=run.place) for run in runs if run.older]
    return [folder for run in runs for folder in run.folders], told


def _operator(entries: Iterable[DumpEntry], record: DumpEntry, unit: UnitRecord) -> DumpEntry | None:
    """Entries come in time order: the first that fits is the earliest."""
    return next((entry for entry in entries if _fits(entry, record, unit)), None)


def _fits(entry: DumpEntry, record: DumpEntry, unit: UnitRecord) -> bool:
    name = entry.name
    if name.is_overflow_record:
        return False
    stated = {
        "task": record.name.task if unit.task is None else unit.task,
        "stream": record.name.stream if unit.stream is None else unit.stream,
        "context": unit.context,
        "thread": unit.thread,
    }
    # Names of older devices have no stream, those of tasks outside of FFTS+ neither context nor thread.
    held = {key: getattr(name, key) for key in stated}
    return all(held[key] is None or number is None or held[key] == number for key, number in stated.items())
