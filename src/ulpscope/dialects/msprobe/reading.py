"""One rank of a dump as the tables of a trace, step by step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.msprobe.call_frames import calls_frame, uses_frame
from ulpscope.dialects.msprobe.entry_names import NameReader
from ulpscope.dialects.msprobe.identity import Values
from ulpscope.dialects.msprobe.json_files import (
    Header,
    bad_field,
    bad_file,
    read_if_there,
    read_object,
)
from ulpscope.dialects.msprobe.ptdbg import data_folder, is_ptdbg, read_ptdbg
from ulpscope.dialects.msprobe.stacks import StackTable
from ulpscope.dialects.msprobe.structure import MICRO_STEPS, plan_calls, read_parents
from ulpscope.dialects.msprobe.tensor_data import DataFolder, read_elements
from ulpscope.dialects.msprobe.uses import EntryReader
from ulpscope.dialects.msprobe.value_frames import data_names, summary_of, values_frame
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.values import Value
from ulpscope.trace.frames import StepFrames
from ulpscope.trace.objects import collector_paused


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """What one process wrote in one step."""

    directory: Path
    files: tuple[Path, ...]
    """dump.json, debug.json, or both."""


class MsprobeRank:
    """A source of frames: the folders of one rank by step."""

    def __init__(self, folders: dict[int, DumpFolder], header: Header, *, missing: list[str]) -> None:
        self._folders = folders
        self._header = header
        self._names = NameReader(header.framework)
        self._values = Values()
        self._stacks = StackTable()
        self._data: dict[int, DataFolder] = {}
        self._missing = missing
        self._calls = 0
        self._summary: str | None = None

    @property
    def summary_id(self) -> str:
        return self._summary or "msprobe-stats"

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)

    def load(self, step: int) -> StepFrames:
        # What was parsed must be gone when the collector may look around again.
        with collector_paused():
            return self._read(step, self._folders[step])

    def data(self, value: Value) -> NDArray[Any] | None:
        if value.data is None:
            return None
        step, _, name = value.data.file.partition("/")
        return read_elements(self._data[int(step.removeprefix("step"))], name, value)

    def _read(self, step: int, folder: DumpFolder) -> StepFrames:
        if is_ptdbg(folder.files[0]):
            frames = self._read_older(step, folder.directory, folder.files[0])
        else:
            dumps = {path: read_object(path) for path in folder.files}
            data = {path: _data(path, content) for path, content in dumps.items()}
            self._data[step] = DataFolder.find(folder.directory, [dump.get("dump_data_dir") for dump in dumps.values()])
            frames = self._frames(step, folder.directory, data, read_if_there(folder.directory / "stack.json"))
        self._values.end_step()
        return frames

    def _read_older(self, step: int, directory: Path, path: Path) -> StepFrames:
        dump = read_ptdbg(path)
        if dump.repeated:
            told = remark("lines_again", lines=Counted(dump.repeated, "line"), file=path.name)
            self._missing.append(remark("step", step=step, remark=told))
        folder = data_folder(path)
        self._data[step] = DataFolder(folder if folder.is_dir() else None)
        return self._frames(step, directory, {path: dump.data}, dump.stacks)

    def _frames(
        self, step: int, directory: Path, data: dict[Path, dict[str, Any]], frames: dict[str, Any]
    ) -> StepFrames:
        construct = directory / "construct.json"
        parents = read_parents(construct, read_if_there(construct))
        stacks = self._stacks.read(directory / "stack.json", frames)
        entries = [entry for content in data.values() for entry in content]
        # A dump of the task structure has no data: construct.json alone tells its calls.
        entries = entries or [entry for entry in parents.around if entry != MICRO_STEPS]
        calls = plan_calls(entries, names=self._names, parents=parents, stacks=stacks)
        ids = {entry: self._calls + index for index, entry in enumerate(calls)}
        self._calls += len(calls)
        self._values.begin_step({ids[call.entry]: ids[call.parent] for call in calls.values() if call.parent})
        reader = EntryReader(calls, ids, self._values)
        for path, content in data.items():
            reader.read(path, content)
        try:
            return StepFrames(
                calls=calls_frame(step, calls, ids, reader.arguments, stacks),
                values=self._values_frame(step, next(iter(data))),
                tensors=uses_frame(reader.uses),
                stacks=self._stacks.take_new(),
            )
        except UnicodeEncodeError as error:
            raise bad_file(directory, f"holds text that is not Unicode ({error.reason})") from error

    def _values_frame(self, step: int, path: Path) -> pl.DataFrame:
        new = self._values.new
        self._summary = self._summary or summary_of(new)
        names = data_names(new)
        absent = self._data[step].absent(path, names)
        if absent:
            self._missing.append(_absent_sentence(step, absent))
        return values_frame(new, [None if name in absent else name for name in names], path=path, step=step)


def _absent_sentence(step: int, absent: set[str]) -> str:
    told = remark("tensor_files", files=Counted(len(absent), "tensor file"), example=min(absent))
    return remark("step", step=step, remark=told)


def _data(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    data = content.get("data")
    if "data" not in content:
        raise bad_file(path, "has no field data")
    if data is not None and not isinstance(data, dict):
        raise bad_field(path, "data", data, "an object of entries")
    return data or {}
