"""One rank of a dump as the tables of a trace, step by step.

Tensor files beside a dump are found by plain names, and read one at a time, only when asked for.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.dialects.msprobe.entry_names import NameReader
from ulpscope.dialects.msprobe.frames import calls_frame, data_names, summary_of, uses_frame, values_frame
from ulpscope.dialects.msprobe.identity import Values
from ulpscope.dialects.msprobe.json_files import (
    Header,
    bad_field,
    bad_file,
    read_if_there,
    read_object,
)
from ulpscope.dialects.msprobe.ptdbg import data_folder, is_ptdbg, read_ptdbg
from ulpscope.dialects.msprobe.structure import MICRO_STEPS, Parents, Stack, StackTable, plan_calls, read_parents
from ulpscope.dialects.msprobe.uses import EntryReader
from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.values import Value
from ulpscope.trace.data import element_type
from ulpscope.trace.frames import StepFrames
from ulpscope.trace.objects import collector_paused


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """What one process wrote in one step."""

    directory: Path
    files: tuple[Path, ...]
    """dump.json, debug.json, or both."""


class EntryRank:
    """A source of frames out of entries as dump.json has them, whichever files they were read from."""

    def __init__(self, framework: str, *, missing: list[str]) -> None:
        self._names = NameReader(framework)
        self._values = Values()
        self._stacks = StackTable()
        self._missing = missing
        self._calls = 0

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)

    def _tables(
        self, step: int, data: Mapping[Path, dict[str, Any]], stacks: dict[str, Stack], parents: Parents
    ) -> StepFrames:
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
        frames = StepFrames(
            calls=calls_frame(step, calls, ids, reader.arguments, stacks),
            values=self._values_frame(step, next(iter(data))),
            tensors=uses_frame(reader.uses),
            stacks=self._stacks.take_new(),
        )
        self._values.end_step()
        return frames

    def _values_frame(self, step: int, path: Path) -> pl.DataFrame:
        """The values that are new in this step."""
        raise NotImplementedError

    def _names_there(self, step: int, names: Sequence[str | None], absent: set[str]) -> list[str | None]:
        """Names of tensor files without those that are not there, which is told."""
        if absent:
            told = remark("tensor_files", files=Counted(len(absent), "tensor file"), example=min(absent))
            self._missing.append(remark("step", step=step, remark=told))
        return [None if name in absent else name for name in names]


class MsprobeRank(EntryRank):
    """The folders of one rank by step."""

    def __init__(self, folders: dict[int, DumpFolder], header: Header, *, missing: list[str]) -> None:
        super().__init__(header.framework, missing=missing)
        self._folders = folders
        self._data: dict[int, DataFolder] = {}
        self._summary: str | None = None

    @property
    def summary_id(self) -> str:
        return self._summary or "msprobe-stats"

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
            return self._read_older(step, folder.directory, folder.files[0])
        dumps = {path: read_object(path) for path in folder.files}
        data = {path: _data(path, content) for path, content in dumps.items()}
        self._data[step] = DataFolder.find(folder.directory, [dump.get("dump_data_dir") for dump in dumps.values()])
        return self._frames(step, folder.directory, data, read_if_there(folder.directory / "stack.json"))

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
        try:
            return self._tables(step, data, self._stacks.read(directory / "stack.json", frames), parents)
        except UnicodeEncodeError as error:
            raise bad_file(directory, f"holds text that is not Unicode ({error.reason})") from error

    def _values_frame(self, step: int, path: Path) -> pl.DataFrame:
        new = self._values.new
        self._summary = self._summary or summary_of(new)
        names = data_names(new)
        there = self._names_there(step, names, self._data[step].absent(path, names))
        return values_frame(new, there, path=path, step=step)


def _data(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    data = content.get("data")
    if "data" not in content:
        raise bad_file(path, "has no field data")
    if data is not None and not isinstance(data, dict):
        raise bad_field(path, "data", data, "an object of entries")
    return data or {}


DATA_FOLDER = "dump_tensor_data"


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where the tensor files of one step lie."""

    path: Path | None

    @classmethod
    def find(cls, directory: Path, stated: Iterable[Any]) -> "DataFolder":
        """Beside the dump, wherever that was moved to; the place that the dump states is a last resort."""
        beside = directory / DATA_FOLDER
        elsewhere = [Path(place) for place in stated if isinstance(place, str) and "\0" not in place]
        return cls(next((folder for folder in (beside, *elsewhere) if folder.is_dir()), None))

    def absent(self, dump: Path, names: Iterable[str | None]) -> set[str]:
        """Files that the dump names and that are not there."""
        there = set(os.listdir(self.path)) if self.path is not None else set()
        absent = {name for name in names if name is not None and name not in there}
        for name in absent:
            if not is_plain(name):
                raise bad_field(dump, "data_name", name, f"the name of a file in {DATA_FOLDER}")
        return absent

    def file(self, name: str) -> Path:
        """The file of this name; a link that leads out of the folder is refused."""
        if self.path is None or not is_plain(name):
            raise bad_file(Path(name), "is not a file of this dump")
        path = self.path / name
        if path.resolve().parent != self.path.resolve():
            raise bad_file(path, f"is a link to {path.resolve()}, outside of the dump")
        return path


def is_plain(name: object) -> bool:
    """Whether this is a file name and nothing more."""
    return isinstance(name, str) and name not in ("", ".", "..") and not any(character in name for character in "/\\\0")


def read_elements(folder: DataFolder, name: str, value: Value) -> NDArray[Any]:
    """The elements of a value, in its own dtype."""
    return read_file(folder.file(name), value)


def read_file(path: Path, value: Value) -> NDArray[Any]:
    """The elements of a value that this file is said to hold."""
    stored = load_tensor_file(path).get("")
    if stored is None:
        raise _unexpected(path, "holds several tensors", value)
    if stored.shape != value.shape:
        raise _unexpected(path, f"holds a tensor of shape {list(stored.shape)}", value)
    array = stored.array()
    wanted = element_type(value.dtype)
    # MindSpore's dumps write bfloat16 as float32, in which every such number is exact.
    return array if array.dtype == wanted else np.asarray(array).astype(wanted)


def _unexpected(path: Path, seen: str, value: Value) -> TraceError:
    return TraceError(
        f"{path} {seen}",
        expected=f"one tensor of shape {list(value.shape)}, as the dump says",
        next_step="copy the dump again or dump again",
    )
