"""One process of the first API accuracy checker as the tables of a trace. Its files have no outputs, only inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.api_checker.entries import (
    backward_entries,
    bad_file,
    forward_entries,
    reworded,
    stack_entries,
)
from ulpscope.dialects.msprobe.call_frames import calls_frame, uses_frame
from ulpscope.dialects.msprobe.entry_names import NameReader
from ulpscope.dialects.msprobe.identity import Values
from ulpscope.dialects.msprobe.json_files import read_if_there, read_object
from ulpscope.dialects.msprobe.stacks import StackTable
from ulpscope.dialects.msprobe.structure import Parents, plan_calls
from ulpscope.dialects.msprobe.tensor_data import read_file
from ulpscope.dialects.msprobe.uses import EntryReader
from ulpscope.dialects.msprobe.value_frames import data_names, values_frame
from ulpscope.dialects.summaries import with_summaries
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.values import Value
from ulpscope.trace.frames import StepFrames
from ulpscope.trace.objects import collector_paused

RANGE_ID = "api-checker-range"
_DEEPEST_DATA = 4
"""Names at the end of a stated path by which its file is looked for: step1/rank0/forward_real_data/FILE."""


@dataclass(frozen=True, slots=True)
class InfoFiles:
    """The three files of one process; the last two need not be there."""

    forward: Path
    backward: Path
    stack: Path


class ApiCheckerRank:
    """A source of frames: the files of one process by step."""

    def __init__(self, files: Mapping[int, InfoFiles]) -> None:
        self._files = files
        self._names = NameReader("pytorch")
        self._values = Values()
        self._stacks = StackTable()
        self._missing: list[str] = []
        self._calls = 0
        self._has_data = False

    @property
    def summary_id(self) -> str:
        return SUMMARY_ID if self._has_data else RANGE_ID

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)

    def load(self, step: int) -> StepFrames:
        files = self._files[step]
        try:
            with collector_paused():
                return self._read(step, files)
        except TraceError as error:
            raise reworded(error) from error
        except UnicodeEncodeError as error:
            raise bad_file(files.forward, f"holds text that is not Unicode ({error.reason})") from error

    def data(self, value: Value) -> NDArray[Any] | None:
        if value.data is None:
            return None
        step, _, stated = value.data.file.partition("/")
        path = find_data(self._files[int(step.removeprefix("step"))].forward.parent, stated)
        return None if path is None else read_file(path, value)

    def _read(self, step: int, files: InfoFiles) -> StepFrames:
        forward = forward_entries(files.forward, read_object(files.forward))
        backward = backward_entries(files.backward, read_if_there(files.backward))
        stacks = self._stacks.read(files.stack, stack_entries(files.stack, read_if_there(files.stack)))
        calls = plan_calls([*forward, *backward], names=self._names, parents=Parents({}, {}), stacks=stacks)
        ids = {entry: self._calls + index for index, entry in enumerate(calls)}
        self._calls += len(calls)
        self._values.begin_step({})
        reader = EntryReader(calls, ids, self._values)
        reader.read(files.forward, forward)
        reader.read(files.backward, backward)
        frames = StepFrames(
            calls=calls_frame(step, calls, ids, reader.arguments, stacks),
            values=self._values_frame(step, files),
            tensors=uses_frame(reader.uses),
            stacks=self._stacks.take_new(),
        )
        self._values.end_step()
        return frames

    def _values_frame(self, step: int, files: InfoFiles) -> pl.DataFrame:
        names = self._data_names(step, files)
        frame = values_frame(self._values.new, names, path=files.forward, step=step)
        self._has_data = self._has_data or any(names)
        return with_summaries(frame, self.data) if any(names) else frame

    def _data_names(self, step: int, files: InfoFiles) -> list[str | None]:
        names = data_names(self._values.new)
        absent = {name for name in names if name is not None and find_data(files.forward.parent, name) is None}
        if absent:
            told = remark("tensor_files", files=Counted(len(absent), "tensor file"), example=min(absent))
            self._missing.append(remark("step", step=step, remark=told))
        return [None if name in absent else name for name in names]


def find_data(folder: Path, stated: str) -> Path | None:
    """The file of a datapath: beside the files, wherever they were moved to, or else where it is said to be."""
    parts = PurePosixPath(stated.replace("\\", "/")).parts
    home = folder.resolve()
    for depth in range(min(len(parts), _DEEPEST_DATA), 0, -1):
        path = folder.joinpath(*parts[-depth:])
        if path.is_file() and path.resolve().is_relative_to(home):
            return path
    path = Path(stated)
    return path if path.is_absolute() and path.is_file() else None
