"""One process of the first API accuracy checker as the tables of a trace. Its files have no outputs, only inputs.

Their entries are checked, and brought into the form of a dump's, which says the same in other words.

    forward_info    {"Functional*silu*0": {"args": [...], "kwargs": {...}}}   ->  Functional.silu.0.forward
    backward_info   {"Functional*silu*0": [gradients of outputs]}             ->  Functional.silu.0.backward
    stack_info      {"Functional*silu*0": [frames]}                           ->  Functional.silu.0.forward

Later versions have dots for stars, and `.forward` or `.backward` behind the name. Tensors may have a `datapath`, the
file of their data.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.msprobe.arguments import Found, encode
from ulpscope.dialects.msprobe.frames import data_names, values_frame
from ulpscope.dialects.msprobe.identity import wrong_field
from ulpscope.dialects.msprobe.json_files import read_if_there, read_object, shortened
from ulpscope.dialects.msprobe.reading import EntryRank, read_file
from ulpscope.dialects.msprobe.structure import Parents
from ulpscope.dialects.tables import with_summaries
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.records.errors import TraceError
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


class ApiCheckerRank(EntryRank):
    """The files of one process by step."""

    def __init__(self, files: Mapping[int, InfoFiles]) -> None:
        super().__init__("pytorch", missing=[])
        self._files = files
        self._has_data = False

    @property
    def summary_id(self) -> str:
        return SUMMARY_ID if self._has_data else RANGE_ID

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
        data = {
            files.forward: forward_entries(files.forward, read_object(files.forward)),
            files.backward: backward_entries(files.backward, read_if_there(files.backward)),
        }
        stacks = self._stacks.read(files.stack, stack_entries(files.stack, read_if_there(files.stack)))
        return self._tables(step, data, stacks, Parents({}, {}))

    def _values_frame(self, step: int, path: Path) -> pl.DataFrame:
        named, new = data_names(self._values.new), self._values.new
        absent = {name for name in named if name is not None and find_data(path.parent, name) is None}
        names = self._names_there(step, named, absent)
        frame = values_frame(new, names, path=path, step=step)
        self._has_data = self._has_data or any(names)
        return with_summaries(frame, self.data) if any(names) else frame


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


Entries: TypeAlias = dict[str, Any]

_KEY = re.compile(r"([^.*]+[.*].*[.*]\d{1,9})(?:[.*](?:forward|backward))?")


def forward_entries(path: Path, content: Mapping[str, Any]) -> Entries:
    """Calls with their arguments."""
    entries: Entries = {}
    for key, call in content.items():
        if not isinstance(call, dict):
            raise bad_field(path, shortened(key), call, 'an object with "args" and "kwargs"')
        args, kwargs = call.get("args") or [], call.get("kwargs") or {}
        if not isinstance(args, list):
            raise bad_field(path, f"args of {shortened(key)}", args, "a list")
        if not isinstance(kwargs, dict):
            raise bad_field(path, f"kwargs of {shortened(key)}", kwargs, "an object")
        _check_tensors(path, key, {"args": args, "kwargs": kwargs})
        entries[f"{_dotted(path, key)}.forward"] = {"input_args": args, "input_kwargs": kwargs}
    return entries


def backward_entries(path: Path, content: Mapping[str, Any]) -> Entries:
    """Backwards with the gradients that they received."""
    entries: Entries = {}
    for key, gradients in content.items():
        received = [gradients] if isinstance(gradients, dict) else gradients
        if not isinstance(received, list):
            raise bad_field(path, shortened(key), gradients, "a list of gradients")
        _check_tensors(path, key, {"grad_outputs": received})
        entries[f"{_dotted(path, key)}.backward"] = {"input": received, "output": []}
    return entries


def stack_entries(path: Path, content: Mapping[str, Any]) -> Entries:
    """Frames of calls."""
    for key, frames in content.items():
        if not isinstance(frames, list) or not all(isinstance(frame, str) for frame in frames):
            raise bad_field(path, shortened(key), frames, "a list of frames")
    return {f"{_dotted(path, key)}.forward": frames for key, frames in content.items()}


def _dotted(path: Path, key: str) -> str:
    name = _KEY.fullmatch(key)
    if name is None:
        raise bad_field(path, "of a call", key, "a name such as Functional*silu*0")
    return name[1].replace("*", ".")


def _check_tensors(path: Path, key: str, places: dict[str, Any]) -> None:
    found: Found = []
    for place, item in places.items():
        encode(item, place, found)
    for place, tensor in found:
        wrong = wrong_field(tensor)
        if wrong is not None:
            raise bad_field(path, f"{place}.{wrong[0]} of {shortened(key)}", wrong[1], wrong[2])
        data = tensor.pop("datapath", None)
        if data is not None and (not isinstance(data, str) or "\0" in data or not data):
            raise bad_field(path, f"{place}.datapath of {shortened(key)}", data, "the path of a file")
        if data is not None:
            tensor["data_name"] = data


def bad_field(path: Path, field: str, found: object, wanted: str) -> TraceError:
    return bad_file(path, f"field {field} holds {shortened(found)}, not {wanted}")


def bad_file(path: Path, problem: str) -> TraceError:
    return _error(f"{path} {problem}")


def reworded(error: TraceError) -> TraceError:
    """What went wrong in code that reads msprobe's files as well, with advice about these."""
    return _error(error.seen)


def _error(seen: str) -> TraceError:
    return TraceError(
        seen,
        expected="the file as the API accuracy checker wrote it",
        next_step="copy the files again, or capture again: see docs/api-accuracy-checker.md",
    )
