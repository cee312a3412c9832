"""The files of the first API accuracy checker, opened as a trace, and written from one.

DIR/forward_info_4711.json    with backward_info_4711.json and stack_info_4711.json; 4711 is a process or a rank
DIR/forward_real_data/        and backward_real_data/: one file a tensor, if there is data
DIR/step1/...                 the same, where a version wrote a directory an iteration
my_forward.json               a copy under another name, beside my_backward.json; only if the file itself is named

They have no outputs, only inputs. Entries are checked, and brought into the form of a dump's, which says the same in
other words:

    forward_info    {"Functional*silu*0": {"args": [...], "kwargs": {...}}}   ->  Functional.silu.0.forward
    backward_info   {"Functional*silu*0": [gradients of outputs]}             ->  Functional.silu.0.backward
    stack_info      {"Functional*silu*0": [frames]}                           ->  Functional.silu.0.forward

Later versions have dots for stars, and `.forward` or `.backward` behind the name. Tensors may have a `datapath`, the
file of their data.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias

import polars as pl

from ulpscope.dialects.files.torch_files import save_pt
from ulpscope.dialects.msprobe.forms import Json, tensors_in
from ulpscope.dialects.msprobe.json_files import bad_field, read_if_there, read_object, shortened, step_number
from ulpscope.dialects.msprobe.names import Direction
from ulpscope.dialects.msprobe.reading import EntryRank
from ulpscope.dialects.msprobe.structure import Parents
from ulpscope.dialects.msprobe.values import wrong_field
from ulpscope.dialects.msprobe.writing import StepForms
from ulpscope.dialects.registry import Dialect, is_trace
from ulpscope.dialects.tables import foreign_rank, with_summaries
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.records.calls import Value
from ulpscope.records.enums import Kind, Save
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.trace.files import open_file
from ulpscope.trace.frames import FrameRank, StepFrames
from ulpscope.trace.objects import collector_paused
from ulpscope.trace.reader import RankTrace, Trace, open_trace

TRACE_FOLDER = "trace"
"""Beside the files that our own capture wrote."""
RANGE_ID = "api-checker-range"

_FORWARD = re.compile(r"forward_info(?:_(?:rank)?(\d{1,19}))?\.json")
_ENTRY = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"[A-Za-z]+[.*][^"]+"\s*:\s*\{\s*"(?:args|kwargs)"\s*:')
"""How such a file begins: a call with its arguments."""
_KEY = re.compile(r"([^.*]+[.*].*[.*]\d{1,9})(?:[.*](?:forward|backward))?")
_HEAD = 1 << 12
_FORWARD_DATA, _BACKWARD_DATA = "forward_real_data", "backward_real_data"
_DEEPEST_DATA = 4
"""Names at the end of a stated path by which its file is looked for: step1/rank0/forward_real_data/FILE."""
_MODULES = frozenset({Kind.MODULE, Kind.MODULE_BACKWARD})

Entries: TypeAlias = dict[str, Any]


class _Place(NamedTuple):
    """A forward_info file: of which step, of which process."""

    step: int
    number: int
    file: Path


def is_api_checker(path: Path) -> bool:
    """Whether this is a forward_info file, or a directory that holds some."""
    return bool(_places(path))


def open_api_checker(path: Path) -> Trace:
    """The files as a trace; they are read when they are first asked for."""
    places = _places(path)
    numbers = sorted({place.number for place in places})
    are_ranks = numbers == list(range(len(numbers)))
    ranks = []
    for order, number in enumerate(numbers):
        steps = {place.step: place.file for place in places if place.number == number}
        beside = [name for folder in {file.parent for file in steps.values()} for name in _names(folder)]
        has_data = any(name.startswith((_FORWARD_DATA, _BACKWARD_DATA)) for name in beside)
        info = foreign_rank(
            tool="api_accuracy_checker",
            framework="torch",
            rank=order,
            world_size=len(numbers),
            save=Save.TENSORS if has_data else Save.STATS,
            pid=None if are_ranks else number,
        )
        name = f"{'rank' if are_ranks else 'proc'}{number}"
        ranks.append(FrameRank(path, name=name, info=info, steps=sorted(steps), source=_Rank(steps)))
    return Trace(path, ranks, missing_ranks=[])


def _open(path: Path) -> Trace:
    """A capture that wrote these files left a trace beside them, which says more."""
    return open_trace(path / TRACE_FOLDER) if is_trace(path / TRACE_FOLDER) else open_api_checker(path)


API_CHECKER = Dialect(
    what="what the API accuracy checker recorded",
    next_step="ulpscope check {path}",
    recognises=is_api_checker,
    open=_open,
)


def _places(path: Path) -> list[_Place]:
    if path.is_file():
        match = _FORWARD.fullmatch(path.name)
        if match is None and not _is_copy(path):
            return []
        return [_Place(step_number(path.resolve().parent) or 0, int(match[1] or 0) if match else 0, path)]
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return []
    inner = [path / name for name in _names(path)]
    folders = [path, *(folder for folder in inner if step_number(folder) is not None and folder.is_dir())]
    return [
        _Place(step_number(folder.resolve()) or 0, int(match[1] or 0), folder / name)
        for folder in folders
        for name in _names(folder)
        if (match := _FORWARD.fullmatch(name))
    ]


def _is_copy(path: Path) -> bool:
    """Whether a file of another name holds calls and their arguments: run_ut took any name."""
    if "forward" not in path.name or path.suffix != ".json":
        return False
    try:
        with open_file(path) as file:
            return _ENTRY.match(file.read(_HEAD)) is not None
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise _bad(f"{folder} cannot be listed: {error.strerror}") from error


def sibling(forward: Path, kind: str) -> Path:
    """The file of gradients (backward) or stacks (stack) that belongs to a forward_info file."""
    before, _, behind = forward.name.rpartition("forward")
    return forward.with_name(f"{before}{kind}{behind}")


class _Rank(EntryRank):
    """The forward_info files of one process by step; those beside them need not be there."""

    def __init__(self, files: Mapping[int, Path]) -> None:
        super().__init__("pytorch", missing=[])
        self._files = files
        self._has_data = False

    @property
    def summary_id(self) -> str:
        return SUMMARY_ID if self._has_data else RANGE_ID

    def load(self, step: int) -> StepFrames:
        forward = self._files[step]
        backward, stack = sibling(forward, "backward"), sibling(forward, "stack")
        try:
            with collector_paused():
                data = {
                    forward: _forward_entries(forward, read_object(forward)),
                    backward: _backward_entries(backward, read_if_there(backward)),
                }
                stacks = self._stacks.read(stack, _stack_entries(stack, read_if_there(stack)))
                return self._tables(step, data, stacks, Parents({}, {}))
        except TraceError as error:
            # What reads msprobe's files as well gives advice about those.
            raise _bad(error.seen) from error
        except UnicodeEncodeError as error:
            raise _bad(f"{forward} holds text that is not Unicode ({error.reason})") from error

    def _values_frame(self, step: int, path: Path) -> pl.DataFrame:
        frame = super()._values_frame(step, path)
        has_data = frame["data_file"].is_not_null().any()
        self._has_data = self._has_data or has_data
        return with_summaries(frame, self.data) if has_data else frame

    def _absent(self, step: int, dump: Path, names: set[str]) -> set[str]:
        return {name for name in names if self._data_file(step, name) is None}

    def _data_file(self, step: int, name: str) -> Path | None:
        """Beside the files, wherever they were moved to, or else where it is said to be."""
        folder = self._files[step].parent
        parts = PurePosixPath(name.replace("\\", "/")).parts
        home = folder.resolve()
        for depth in range(min(len(parts), _DEEPEST_DATA), 0, -1):
            path = folder.joinpath(*parts[-depth:])
            if path.is_file() and path.resolve().is_relative_to(home):
                return path
        path = Path(name)
        return path if path.is_absolute() and path.is_file() else None


def _forward_entries(path: Path, content: Mapping[str, Any]) -> Entries:
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


def _backward_entries(path: Path, content: Mapping[str, Any]) -> Entries:
    """Backwards with the gradients that they received."""
    entries: Entries = {}
    for key, gradients in content.items():
        received = [gradients] if isinstance(gradients, dict) else gradients
        if not isinstance(received, list):
            raise bad_field(path, shortened(key), gradients, "a list of gradients")
        _check_tensors(path, key, {"grad_outputs": received})
        entries[f"{_dotted(path, key)}.backward"] = {"input": received, "output": []}
    return entries


def _stack_entries(path: Path, content: Mapping[str, Any]) -> Entries:
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
    for place, tensor in tensors_in(places.items()):
        wrong = wrong_field(tensor)
        if wrong is not None:
            raise bad_field(path, f"{place}.{wrong[0]} of {shortened(key)}", wrong[1], wrong[2])
        data = tensor.pop("datapath", None)
        if data is not None and (not isinstance(data, str) or "\0" in data or not data):
            raise bad_field(path, f"{place}.datapath of {shortened(key)}", data, "the path of a file")
        if data is not None:
            tensor["data_name"] = data


def _bad(seen: str) -> TraceError:
    return TraceError(
        seen,
        expected="the file as the API accuracy checker wrote it",
        next_step="copy the files again, or capture again: see docs/api-accuracy-checker.md",
    )


def write_info_files(rank: RankTrace, out: Path, *, number: int) -> None:
    """Write what a process of a trace captured, for what reads such files; several steps get a directory each."""
    for step in rank.steps:
        folder = out if len(rank.steps) == 1 else out / f"step{step}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in _StepInfo(rank, step, folder).contents().items():
                (folder / f"{name}_info_{number}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        except OSError as error:
            raise UlpscopeError(
                f"cannot write into {folder}: {error.strerror or error}",
                expected="a directory that can be written and has space left",
                next_step="choose another dump_path",
            ) from error


class _StepInfo(StepForms):
    """One step of one process."""

    numbers = ("Max", "Min")

    def __init__(self, rank: RankTrace, step: int, folder: Path) -> None:
        super().__init__(rank, step)
        self._folder = folder

    def contents(self) -> dict[str, dict[str, Json]]:
        """What the three files hold."""
        frames = self.frames(lambda frame: f"File {frame.file}, line {frame.line}, in {frame.function}")
        found: dict[str, dict[str, Json]] = {"forward": {}, "backward": {}, "stack": {}}
        for entry in self.plan(gradients=False).entries:
            if entry.call.kind in _MODULES:
                continue
            key = entry.name.removesuffix(f".{entry.direction.value}").replace(".", "*")
            form = self.form(entry)
            if entry.direction is Direction.BACKWARD:
                found["backward"][key] = form["input"]
                continue
            found["forward"][key] = {"args": form["input_args"], "kwargs": form["input_kwargs"]}
            if entry.call.stack in frames:
                found["stack"][key] = frames[entry.call.stack]
        return found

    def _saved(self, value: Value, name: str) -> dict[str, str]:
        data = None if ".output." in name else self.rank.data(value)
        if data is None:
            return {}
        folder = self._folder / (_BACKWARD_DATA if ".backward." in name else _FORWARD_DATA)
        folder.mkdir(exist_ok=True)
        path = (folder / f"{name}.pt").absolute()
        save_pt(path, data, value.dtype)
        return {"datapath": str(path)}
