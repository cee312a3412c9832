"""One rank of a dump as the tables of a trace, step by step.

The entries of a step are walked in the order in which they ended, to note which call used which value as what. Which
argument a gradient of a backward entry belongs to, its shape tells: msprobe writes gradients without a name. Tensor
files beside a dump are found by plain names, and read one at a time, only when asked for.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.dialects.msprobe.forms import Found, encode_arguments, places, returned_value, tensors_in
from ulpscope.dialects.msprobe.json_files import Header, bad_field, bad_file, read_if_there, read_object, shortened
from ulpscope.dialects.msprobe.names import Direction, NameReader, backward_name
from ulpscope.dialects.msprobe.ptdbg import data_folder, is_ptdbg, read_ptdbg
from ulpscope.dialects.msprobe.structure import (
    MICRO_STEPS,
    Parents,
    PlannedCall,
    Stack,
    StackTable,
    calls_frame,
    plan_calls,
    read_parents,
)
from ulpscope.dialects.msprobe.values import STATS_ID, Values, without_checksum, wrong_field
from ulpscope.records.calls import Value
from ulpscope.records.enums import Role
from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.data import element_type
from ulpscope.trace.frames import StepFrames
from ulpscope.trace.objects import collector_paused
from ulpscope.trace.schema import TENSORS

DATA_FOLDER = "dump_tensor_data"

LISTS = ("input_args", "input", "output")
OBJECTS = ("input_kwargs", "parameters")

INPUT, OUTPUT, PARAMETER = Role.INPUT.value, Role.OUTPUT.value, Role.PARAMETER.value
GRAD_OUTPUT, GRAD_INPUT, GRADIENT = Role.GRAD_OUTPUT.value, Role.GRAD_INPUT.value, Role.GRADIENT.value


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
        calls = plan_calls(entries, first=self._calls, names=self._names, parents=parents, stacks=stacks)
        self._calls += len(calls)
        self._values.begin_step({call.id: call.parent.id for call in calls.values() if call.parent is not None})
        reader = EntryReader(calls, self._values)
        for path, content in data.items():
            reader.read(path, content)
        frames = StepFrames(
            calls=calls_frame(step, list(calls.values())),
            values=self._values_frame(step, next(iter(data))),
            tensors=reader.uses_frame(),
            stacks=self._stacks.take_new(),
        )
        self._values.begin_step({})
        return frames

    def data(self, value: Value) -> NDArray[Any] | None:
        if value.data is None:
            return None
        step, _, name = value.data.file.partition("/")
        path = self._data_file(int(step.removeprefix("step")), name)
        return None if path is None else read_file(path, value)

    def _values_frame(self, step: int, path: Path) -> pl.DataFrame:
        """The values that are new in this step; files of their data that are not there are told."""
        names = self._values.data_names()
        absent = self._absent(step, path, {name for name in names if name is not None})
        if absent:
            told = remark("tensor_files", files=Counted(len(absent), "tensor file"), example=min(absent))
            self._missing.append(remark("step", step=step, remark=told))
        return self._values.frame([None if name in absent else name for name in names], path=path, step=step)

    def _data_file(self, step: int, name: str) -> Path | None:
        """The file of a value's data by its stated name."""
        raise NotImplementedError

    def _absent(self, step: int, dump: Path, names: set[str]) -> set[str]:
        """Files that the dump names and that are not there."""
        raise NotImplementedError


class MsprobeRank(EntryRank):
    """The files of one rank by step: dump.json, debug.json, or both."""

    def __init__(self, files: Mapping[int, tuple[Path, ...]], header: Header, *, missing: list[str]) -> None:
        super().__init__(header.framework, missing=missing)
        self._files = files
        self._data: dict[int, Path | None] = {}
        """Where the tensor files of each step lie."""
        self._summary: str | None = None

    @property
    def summary_id(self) -> str:
        return self._summary or STATS_ID

    def load(self, step: int) -> StepFrames:
        # What was parsed must be gone when the collector may look around again.
        with collector_paused():
            return self._read(step, self._files[step])

    def _read(self, step: int, files: tuple[Path, ...]) -> StepFrames:
        directory = files[0].parent
        if is_ptdbg(files[0]):
            return self._read_older(step, files[0])
        dumps = {path: read_object(path) for path in files}
        data = {path: _data(path, content) for path, content in dumps.items()}
        # Beside the dump, wherever that was moved to; the place that the dump states is a last resort.
        stated = [place for dump in dumps.values() if isinstance(place := dump.get("dump_data_dir"), str)]
        candidates = [directory / DATA_FOLDER, *(Path(place) for place in stated if "\0" not in place)]
        self._data[step] = next((folder for folder in candidates if folder.is_dir()), None)
        return self._frames(step, data, read_if_there(directory / "stack.json"))

    def _read_older(self, step: int, path: Path) -> StepFrames:
        dump = read_ptdbg(path)
        if dump.repeated:
            told = remark("lines_again", lines=Counted(dump.repeated, "line"), file=path.name)
            self._missing.append(remark("step", step=step, remark=told))
        folder = data_folder(path)
        self._data[step] = folder if folder.is_dir() else None
        return self._frames(step, {path: dump.data}, dump.stacks)

    def _frames(self, step: int, data: dict[Path, dict[str, Any]], frames: dict[str, Any]) -> StepFrames:
        directory = next(iter(data)).parent
        construct = directory / "construct.json"
        parents = read_parents(construct, read_if_there(construct))
        try:
            return self._tables(step, data, self._stacks.read(directory / "stack.json", frames), parents)
        except UnicodeEncodeError as error:
            raise bad_file(directory, f"holds text that is not Unicode ({error.reason})") from error

    def _values_frame(self, step: int, path: Path) -> pl.DataFrame:
        self._summary = self._summary or self._values.summary_id
        return super()._values_frame(step, path)

    def _absent(self, step: int, dump: Path, names: set[str]) -> set[str]:
        folder = self._data[step]
        absent = names - (set() if folder is None else set(os.listdir(folder)))
        for name in absent:
            if not _is_plain(name):
                raise bad_field(dump, "data_name", name, f"the name of a file in {DATA_FOLDER}")
        return absent

    def _data_file(self, step: int, name: str) -> Path:
        """A link that leads out of the folder is refused."""
        folder = self._data[step]
        if folder is None or not _is_plain(name):
            raise bad_file(Path(name), "is not a file of this dump")
        path = folder / name
        if path.resolve().parent != folder.resolve():
            raise bad_file(path, f"is a link to {path.resolve()}, outside of the dump")
        return path


def _data(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    data = content.get("data")
    if "data" not in content:
        raise bad_file(path, "has no field data")
    if data is not None and not isinstance(data, dict):
        raise bad_field(path, "data", data, "an object of entries")
    return data or {}


def _is_plain(name: object) -> bool:
    """Whether this is a file name and nothing more."""
    return isinstance(name, str) and name not in ("", ".", "..") and not any(character in name for character in "/\\\0")


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


class EntryReader:
    """Reads the entries of one step."""

    def __init__(self, calls: Mapping[str, PlannedCall], values: Values) -> None:
        self._uses: list[tuple[int, str, str, int]] = []
        self._calls = calls
        self._values = values

    def read(self, path: Path, data: Mapping[str, Any]) -> None:
        for entry, content in data.items():
            try:
                self._read_entry(entry, content)
            except (TypeError, AttributeError, KeyError, ValueError) as error:
                raise _diagnosed(path, entry, content, error) from error

    def uses_frame(self) -> pl.DataFrame:
        """One row a use."""
        call, role, place, value = zip(*self._uses, strict=True) if self._uses else ((), (), (), ())
        columns = {"call": np.array(call, np.int64), "role": role, "place": place, "value": np.array(value, np.int64)}
        return pl.DataFrame(columns, schema=dict(TENSORS))

    def _read_entry(self, entry: str, content: dict[str, Any]) -> None:
        call = self._calls.get(entry)
        if call is None:
            call = self._calls[backward_name(entry)]
            for name, item in content.items():
                self._add_made(call, GRADIENT, tensors_in((name, part) for part in item))
        elif call.is_backward:
            self._read_backward(call, content)
        elif call.parsed.direction is Direction.DEBUG:
            is_tensor = not isinstance(content, dict) or ("dtype" in content and "shape" in content)
            named = {"output.0": content} if is_tensor else {f"output.{name}": item for name, item in content.items()}
            self._add_given(call, OUTPUT, tensors_in(named.items()))
        else:
            self._read_forward(call, content)

    def _read_forward(self, call: PlannedCall, content: dict[str, Any]) -> None:
        args, output = content.get("input_args", []), content.get("output", [])
        if type(args) is not list or type(output) is not list:
            raise TypeError("arguments or output")
        extra = {"is_nan": content["is_nan"]} if "is_nan" in content else {}
        if len(output) == 1 and (returned := returned_value(output[0])) is not None:
            extra["returned"] = returned
        call.arguments, given = encode_arguments(args, content.get("input_kwargs"), extra)
        call.given = given
        if writes := call.parsed.writes:
            given = [(place, without_checksum(tensor) if place in writes else tensor) for place, tensor in given]
        self._add_given(call, INPUT, given)
        if "parameters" in content:
            self._add_given(call, PARAMETER, tensors_in(content["parameters"].items()))
        self._add_made(call, OUTPUT, tensors_in(zip(places("output", len(output)), output, strict=True)))

    def _read_backward(self, call: PlannedCall, content: dict[str, Any]) -> None:
        received, gradients = content.get("input", []), content.get("output", [])
        self._add_given(call, GRAD_OUTPUT, tensors_in(zip(places("output", len(received)), received, strict=True)))
        given = [] if call.forward is None else call.forward.given
        self._add_made(call, GRAD_INPUT, tensors_in(zip(_gradient_places(gradients, given), gradients, strict=True)))

    def _add_given(self, call: PlannedCall, role: str, found: Found) -> None:
        number, entry, read = call.id, call.entry, self._values.read
        self._uses += [(number, role, place, read(tensor, entry)) for place, tensor in found]

    def _add_made(self, call: PlannedCall, role: str, found: Found) -> None:
        number, entry = call.id, call.entry
        made = self._values.handed_on if call.parsed.is_module else self._values.made
        self._uses += [(number, role, place, made(tensor, entry, number)) for place, tensor in found]


def _diagnosed(path: Path, entry: str, content: Any, error: Exception) -> TraceError:
    """Reading does not check what it takes; when it fails, this finds the field that was wrong."""
    if not isinstance(content, dict):
        return bad_field(path, shortened(entry), content, "an object")
    for name, wanted in [*((name, list) for name in LISTS), *((name, dict) for name in OBJECTS)]:
        if not isinstance(content.get(name, wanted()), wanted):
            return bad_field(path, f"{name} of {shortened(entry)}", content[name], f"a {wanted.__name__}")
    for place, tensor in tensors_in(content.items()):
        wrong = wrong_field(tensor)
        if wrong is not None:
            return bad_field(path, f"{place}.{wrong[0]} of {shortened(entry)}", wrong[1], wrong[2])
    return bad_file(path, f"entry {shortened(entry)} cannot be read: {error}")


def _gradient_places(gradients: Sequence[Any], given: Found) -> list[str]:
    """Places for the gradients that a backward returned, from the tensors that its forward was given.

    Gradients have the shape of their argument, and stand in the order of the tensor arguments or of those that require
    a gradient. Of a call that is several autograd nodes msprobe sees the last one only: what fits no argument is a
    gradient inside the call, and its place is `node.i`.
    """
    if not given:
        return [f"args.{index}" for index in range(len(gradients))]
    shapes = [item.get("shape") if isinstance(item, dict) else None for item in gradients]
    requiring = [(place, tensor) for place, tensor in given if tensor.get("requires_grad") is True]
    for candidates in (given, requiring):
        if len(candidates) == len(shapes) and _fit(shapes, candidates):
            return [place for place, _ in candidates]
    return _by_shape(shapes, given)


def _fit(shapes: Sequence[Any], candidates: Found) -> bool:
    return all(shape is None or shape == tensor["shape"] for shape, (_, tensor) in zip(shapes, candidates, strict=True))


def _by_shape(shapes: Sequence[Any], given: Found) -> list[str]:
    """The argument of the same shape, where there is one such gradient and one such argument."""
    places = []
    for index, shape in enumerate(shapes):
        alike = [place for place, tensor in given if tensor["shape"] == shape]
        alone = shape is not None and len(alike) == 1 and shapes.count(shape) == 1
        places.append(alike[0] if alone else f"node.{index}")
    return places
