"""Overflow records: what the device noted when an operator overflowed, in all of its layouts.

A record is a dump file of its own (`Opdebug.Node_OpDebug.59.2.1767225600027623`) whose one output is the record. The
old layout, of 2048 bytes, has places for three units; the new one begins with a magic number and tells of one unit.
What a status means depends on the unit that set it.

The record's own name has a task that is the debugger's. What overflowed is the operator whose dump, in the same
directory, has the task and stream (and of FFTS+ the context and thread) that the record states.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.dump_file.records import DumpFile
from ulpscope.dialects.ascend.tree import DumpEntry, DumpFolder, DumpName, entry_of, list_dumps, newest_runs
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.remarks import remark


class Unit(str, Enum):
    """Which unit overflowed, in the words of the records."""

    DHA = "DHA Atomic Add"
    L2 = "L2 Atomic Add"
    AI_CORE = "AI Core"
    AIC = "AIC"
    """The cube half of an AI Core."""
    AIV = "AIV"
    """The vector half."""
    AICPU = "AICPU"
    SDMA = "SDMA"
    """Copies between memories, and adds while it copies."""


class Meaning(str, Enum):
    """One thing that a status says."""

    NEGATED_SMALLEST = "negated_smallest"
    INTEGER = "integer"
    FLOAT = "float"
    NEGATIVE_TO_UNSIGNED = "negative_to_unsigned"
    TO_FLOAT16 = "to_float16"
    CUBE = "cube"
    OVERFLOW = "overflow"
    UNDERFLOW = "underflow"
    SOURCE_NAN = "source_nan"
    TARGET_NAN = "target_nan"
    BOTH_NAN = "both_nan"
    UNKNOWN = "unknown"
    """A bit or code that no documentation explains."""


# CANN documentation, "overflow detection": bits of an AI Core's status, which may stand together.
CORE_BITS = {
    0x008: Meaning.NEGATED_SMALLEST,
    0x010: Meaning.INTEGER,
    0x020: Meaning.FLOAT,
    0x080: Meaning.NEGATIVE_TO_UNSIGNED,
    0x100: Meaning.TO_FLOAT16,
    0x400: Meaning.CUBE,
}
# The same: a number in bits 8 to 15, and one in bits 16 to 18.
_WHILE_ADDING = (Meaning.OVERFLOW, Meaning.UNDERFLOW, Meaning.SOURCE_NAN, Meaning.TARGET_NAN, Meaning.BOTH_NAN)
DHA_CODES = dict(enumerate(_WHILE_ADDING, start=0x9))
L2_CODES = dict(enumerate(_WHILE_ADDING, start=0b001))


def meanings(unit: Unit, status: Iterable[int]) -> tuple[Meaning, ...]:
    """What a status of one or several words says; nothing if it is 0."""
    found = [meaning for word in status if word for meaning in _of_word(unit, word)]
    return tuple(dict.fromkeys(found))


def _of_word(unit: Unit, word: int) -> list[Meaning]:
    if unit in (Unit.DHA, Unit.SDMA):
        return [DHA_CODES.get(word >> 8 & 0xFF, Meaning.UNKNOWN)]
    if unit is Unit.L2:
        return [L2_CODES.get(word >> 16 & 0b111, Meaning.UNKNOWN)]
    if unit is Unit.AICPU:
        return [Meaning.UNKNOWN]
    known = [meaning for bit, meaning in CORE_BITS.items() if word & bit]
    return [*known, Meaning.UNKNOWN] if word & ~sum(CORE_BITS) else known


Number: TypeAlias = int | tuple[int, ...]

MAGIC = 0x5A5A5A5A
OLD_SIZE = 2048
NO_CONTEXT = 65535
"""A context or thread that a task has not."""
MINUS_ONE = (2**16 - 1, 2**32 - 1, 2**64 - 1)
"""A task or stream that is not known: the record's own file name tells it."""

_TASK = ("model_id", "stream_id", "task_id", "task_type")
_OLD_INFO = (*_TASK, "pc_start", "para_base")
_CORE = (*_TASK, "context_id", "thread_id", "pc_start", "para_base", "core_id", "block_id", "status")
_NEW_FIELDS = {
    Unit.AIC: _CORE,
    Unit.AIV: _CORE,
    Unit.AICPU: (*_TASK, "context_id", "cpu_id", "thread_id", "status"),
    Unit.SDMA: (*_TASK, "context_id", "thread_id", "src_addr", "dst_addr", "channel_id", "status"),
}
_ACC_TYPES = (Unit.AIC, Unit.AIV, Unit.AICPU, Unit.SDMA)
_LONG_STATUS = 4
"""Words of the status of an AIC or AIV record of version 1: its length tells."""
_HEX_FIELDS = ("pc_start", "para_base", "kernel_code", "src_addr", "dst_addr")
_NEW_HEAD = struct.Struct("<6I")

# Where the old layout has what: unit, offset of its six numbers, offset and names of its status.
_OLD_PLACES = (
    (Unit.DHA, 0, 512, ("status",)),
    (Unit.L2, 128, 768, ("status",)),
    (Unit.AI_CORE, 256, 1024, ("kernel_code", "block_idx", "status")),
)


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """What one unit noted."""

    unit: Unit
    fields: tuple[tuple[str, Number], ...]
    """In the order of the record."""

    @property
    def status(self) -> tuple[int, ...]:
        status = dict(self.fields)["status"]
        return status if isinstance(status, tuple) else (status,)

    @property
    def meanings(self) -> tuple[Meaning, ...]:
        return meanings(self.unit, self.status)

    @property
    def overflowed(self) -> bool:
        return any(self.status)

    @property
    def task(self) -> int | None:
        return self._known("task_id")

    @property
    def stream(self) -> int | None:
        return self._known("stream_id")

    @property
    def context(self) -> int | None:
        return self._known("context_id")

    @property
    def thread(self) -> int | None:
        return self._known("thread_id")

    def _known(self, name: str) -> int | None:
        """None where the record has no such number, or says that it is not known."""
        number = dict(self.fields).get(name)
        if not isinstance(number, int) or number in MINUS_ONE:
            return None
        return None if number == NO_CONTEXT and name in ("context_id", "thread_id") else number


@dataclass(frozen=True, slots=True)
class NewHead:
    """How a record of the new layout begins."""

    version: int
    valid: int
    reserved: int
    data_length: int


@dataclass(frozen=True, slots=True)
class OverflowRecord:
    """One record."""

    units: tuple[UnitRecord, ...]
    head: NewHead | None = None
    """None in the old layout."""

    @property
    def overflowed(self) -> tuple[UnitRecord, ...]:
        """The units whose status says so; none if the record says of itself that it is not valid."""
        valid = self.head is None or self.head.valid
        return tuple(unit for unit in self.units if valid and unit.overflowed)


def read_overflow_record(source: DumpFile | bytes, *, path: Path = Path("record")) -> OverflowRecord:
    """The record of a dump file, or of the bytes of its output, which errors call `path`; TraceError if it is none."""
    if isinstance(source, DumpFile):
        path, data = source.path, _output_bytes(source)
    else:
        data = source
    if len(data) >= 4 and int.from_bytes(data[:4], "little") == MAGIC:
        return _parse_new(data, path)
    if len(data) != OLD_SIZE:
        raise _bad_record(path, f"its record has {len(data):,} bytes and does not begin with {MAGIC:#x}")
    return _parse_old(data)


def record_json(record: OverflowRecord) -> dict[str, Any]:
    """The record as msaccucmp writes it into `….output.0.json`."""
    if record.head is None:
        return {unit.unit.value: _fields_json(unit) for unit in record.units}
    (unit,) = record.units
    described = {
        "valid": record.head.valid,
        "acc_type": unit.unit.value,
        "rsv": record.head.reserved,
        "data_len": record.head.data_length,
        "data": _fields_json(unit),
    }
    return {"magic": hex(MAGIC), "version": record.head.version, "acc_list": described}


def _output_bytes(dump: DumpFile) -> bytes:
    if len(dump.outputs) != 1:
        raise _bad_record(dump.path, f"it has {len(dump.outputs)} outputs")
    output = dump.outputs[0]
    if output.size > 16 * OLD_SIZE:
        raise _bad_record(dump.path, f"its record has {output.size:,} bytes")
    return output.content.read().tobytes()


def _parse_old(data: bytes) -> OverflowRecord:
    units = []
    for unit, info, status, names in _OLD_PLACES:
        numbers = struct.unpack_from(f"<{len(_OLD_INFO)}Q", data, info)
        noted = struct.unpack_from(f"<{len(names)}Q", data, status)
        fields = (*zip(_OLD_INFO, numbers, strict=True), *zip(names, noted, strict=True))
        units.append(UnitRecord(unit, fields))
    return OverflowRecord(tuple(units))


def _parse_new(data: bytes, path: Path) -> OverflowRecord:
    if len(data) < _NEW_HEAD.size:
        raise _bad_record(path, f"its record of {len(data)} bytes is shorter than its head of {_NEW_HEAD.size}")
    _, version, valid, acc_type, reserved, length = _NEW_HEAD.unpack_from(data)
    if acc_type >= len(_ACC_TYPES):
        raise _bad_record(path, f"its record is of accelerator type {acc_type}")
    unit = _ACC_TYPES[acc_type]
    fields = _new_fields(data, unit, version, length, path)
    return OverflowRecord((UnitRecord(unit, fields),), NewHead(version, valid, reserved, length))


def _new_fields(data: bytes, unit: Unit, version: int, length: int, path: Path) -> tuple[tuple[str, Number], ...]:
    names = _NEW_FIELDS[unit]
    words = (1, _LONG_STATUS) if unit in (Unit.AIC, Unit.AIV) else (1,)
    several = next((each for each in words if length == 8 * (len(names) - 1 + each)), 0)
    if not several or _NEW_HEAD.size + length > len(data):
        held, needed = len(data) - _NEW_HEAD.size, " or ".join(str(8 * (len(names) - 1 + each)) for each in words)
        problem = f"its record of {unit.value}, version {version}, says {length} bytes of data; it holds {held}"
        raise _bad_record(path, f"{problem}, {needed} are needed")
    numbers = struct.unpack_from(f"<{length // 8}Q", data, _NEW_HEAD.size)
    status: Number = numbers[-several:] if several > 1 else numbers[-1]
    return (*zip(names[:-1], numbers[:-several], strict=True), ("status", status))


def _fields_json(unit: UnitRecord) -> dict[str, Any]:
    told: dict[str, Any] = {name: list(number) if isinstance(number, tuple) else number for name, number in unit.fields}
    return told | {name: hex(told[name]) for name in _HEX_FIELDS if name in told}


def _bad_record(path: Path, problem: str) -> TraceError:
    return TraceError(
        f"{path}: {problem}",
        expected=f"an overflow record: {OLD_SIZE} bytes in the old layout, {MAGIC:#x} first in the new one",
        next_step="copy the file again from the machine that wrote it",
    )


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """What one unit noted in one file."""

    entry: DumpEntry
    folder: DumpFolder
    unit: UnitRecord
    task: int | None
    stream: int | None
    operator: DumpEntry | None
    """The earliest dump of the operator; none if the directory has none."""


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
            found += [_found(entry, folder, unit, entries) for unit in units]
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


def _found(record: DumpEntry, folder: DumpFolder, unit: UnitRecord, entries: Iterable[DumpEntry]) -> FoundRecord:
    task = record.name.task if unit.task is None else unit.task
    stream = record.name.stream if unit.stream is None else unit.stream
    stated = {"task": task, "stream": stream, "context": unit.context, "thread": unit.thread}
    # Entries come in time order: the first that fits is the earliest.
    dumps = (entry for entry in entries if not entry.name.is_overflow_record and _fits(entry.name, stated))
    return FoundRecord(record, folder, unit, task, stream, next(dumps, None))


def _fits(name: DumpName, stated: Mapping[str, int | None]) -> bool:
    # Names of older devices have no stream, those of tasks outside of FFTS+ neither context nor thread.
    held = {key: getattr(name, key) for key in stated}
    return all(held[key] is None or number is None or held[key] == number for key, number in stated.items())
