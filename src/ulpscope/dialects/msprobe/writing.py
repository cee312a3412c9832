"""Writes a trace in msprobe's layout, for msprobe's own commands.

out/step0/rank0/
  dump.json            {"task", "level", "framework", "dump_data_dir", "data": {entry: {...}, ...}}
  stack.json           {"0": [[entries], [frames, innermost first]], ...}
  construct.json       {entry: the module around it, ...}
  dump_tensor_data/    one .pt file a tensor, if the trace has data
"""

import json
import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.dialects.files.torch_files import require_torch, save_pt
from ulpscope.dialects.msprobe.forms import STATS, Json, decode, four_numbers
from ulpscope.dialects.msprobe.names import Direction, Entry, LeftOut, StepPlan, plan_step
from ulpscope.dialects.msprobe.reading import DATA_FOLDER
from ulpscope.records.calls import Frame, Use, Value
from ulpscope.records.enums import Kind, Level, Role
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.objects import call_from_row, use_from_row, value_from_row
from ulpscope.trace.reader import RankTrace, Trace

# msprobe warns of files that others may write and refuses some of them.
OTHERS_MAY = 0o027


@dataclass(slots=True)
class Written:
    """What came of one trace."""

    steps: set[int] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)
    entries: int = 0
    tensor_files: int = 0
    left_out: Counter[tuple[LeftOut, str]] = field(default_factory=Counter)
    """Calls that have no entry, by reason and operation."""
    without_data: int = 0
    """Tensors of a trace with data whose own data was not saved."""
    failures: list[str] = field(default_factory=list)
    """Files that could not be written, each with the reason."""


def write_msprobe(trace: Trace, out: Path, *, told: Callable[[], None] = lambda: None) -> Written:
    """Write all steps and ranks of a trace into `out`; `told` is called after each step of a rank."""
    written = Written()
    for rank in trace.ranks:
        folder = f"rank{rank.info.rank}"
        if folder in written.ranks:
            # A second process of the same rank is told apart as msprobe tells processes without a rank apart.
            folder = f"proc{rank.info.process.get('pid', len(written.ranks))}"
        written.ranks.add(folder)
        for step in rank.steps:
            _StepWriter(rank, step, out / f"step{step}" / folder, written).write()
            told()
    return written


class StepForms:
    """One step of one rank as entries of dump.json, for who writes them into files."""

    numbers: tuple[str, ...] = STATS
    """Those that are told of a tensor."""

    def __init__(self, rank: RankTrace, step: int) -> None:
        self.rank = rank
        self.step = step
        self.calls = {call.id: call for call in map(call_from_row, self._rows(rank.calls(step)))}
        self.has_data = rank.info.capture.get("save") == "tensors"
        self._uses: dict[int, list[Use]] = {}
        for use in map(use_from_row, self._rows(rank.tensors(step))):
            self._uses.setdefault(use.call, []).append(use)

    def plan(self, *, gradients: bool) -> StepPlan:
        """All entries in order; `gradients`: those of parameters are entries, too."""
        holding = {call for call, uses in self._uses.items() if any(use.role is Role.GRADIENT for use in uses)}
        return plan_step(list(self.calls.values()), frozenset(holding if gradients else ()))

    def frames(self, text: Callable[[Frame], str]) -> dict[int, list[str]]:
        """The frames of each stack."""
        frames: dict[int, list[str]] = {}
        for row in self._rows(self.rank.stacks().sort("stack", "depth")):
            frame = Frame(file=row["file"], line=row["line"], function=row["function"])
            frames.setdefault(row["stack"], []).append(text(frame))
        return frames

    def form(self, entry: Entry) -> dict[str, Json]:
        """The content of an entry."""
        if entry.direction is Direction.PARAMETERS_GRAD:
            gradients = self._places(entry, Role.GRADIENT)
            return {name: [self._gradient(entry, value, name)] for name, value in gradients.items()}
        return self._backward(entry) if entry.direction is Direction.BACKWARD else self._forward(entry)

    def _saved(self, value: Value, name: str) -> dict[str, str]:
        """Save the data of a value under this name, and tell where it is."""
        raise NotImplementedError

    def _rows(self, frame: pl.LazyFrame) -> Iterator[dict[str, Any]]:
        return self.rank.collect(frame).iter_rows(named=True)

    @cached_property
    def _values(self) -> dict[int, Value]:
        # Sketches and exponents are most of a row, and nothing here needs them.
        lean = self.rank.values(self.step).with_columns(
            sketch=pl.lit(None), sketch_rest=pl.lit(None), exponents=pl.lit(None)
        )
        return {row["id"]: value_from_row(row) for row in self._rows(lean)}

    def _places(self, entry: Entry, role: Role) -> dict[str, int]:
        return {use.place: use.value for use in self._uses.get(entry.call.id, ()) if use.role is role}

    def _forward(self, entry: Entry) -> dict[str, Json]:
        call, inputs = entry.call, self._places(entry, Role.INPUT)

        def tensor(place: str, name: str) -> Json:
            return self._tensor(inputs.get(place), f"{entry.name}.{name}")

        args, kwargs = call.arguments.get("args", []), call.arguments.get("kwargs", {})
        form: dict[str, Json] = {
            "input_args": [decode(item, f"input.{i}", tensor) for i, item in enumerate(args)],
            "input_kwargs": {key: decode(item, f"input.{key}", tensor) for key, item in kwargs.items()},
            "output": self._outputs(entry),
        }
        if call.kind in (Kind.MODULE, Kind.COMPILED):
            named = self._places(entry, Role.PARAMETER).items()
            form["parameters"] = {name: self._tensor(value, f"{entry.name}.parameters.{name}") for name, value in named}
        return form

    def _outputs(self, entry: Entry) -> list[Json]:
        outputs, arguments = self._places(entry, Role.OUTPUT), entry.call.arguments
        if not outputs and "returned" in arguments:
            return [decode(arguments["returned"], "output.0", lambda place, name: None)]
        # `output.0.x` without its first word; a place of one word, which no capture writes, is itself.
        paths = {place: place.split(".")[1:] or [place] for place in outputs}
        if not all(path[0].isdigit() for path in paths.values()):
            # A dictionary is the first and only output.
            paths = {place: ["0", *path] for place, path in paths.items()}
        tree: dict[str, Any] = {}
        for place, (*above, last) in paths.items():
            branch = tree
            for part in above:
                branch = branch.setdefault(part, {})
            branch[last] = self._tensor(outputs[place], ".".join([entry.name, "output", *above, last]))
        form: list[Json] = _lists(tree)
        return form

    def _backward(self, entry: Entry) -> dict[str, Json]:
        """Gradients have the order of the forward call's arguments."""
        forward = None if entry.call.forward is None else self.calls.get(entry.call.forward)
        inputs = self._places(entry, Role.GRAD_INPUT)
        leaving = [] if forward is None else [inputs.get(place) for place in _tensor_places(forward.arguments)]
        arriving = _arriving(self._places(entry, Role.GRAD_OUTPUT))
        return {
            "input": [self._gradient(entry, value, f"input.{i}") for i, value in enumerate(arriving)],
            "output": [self._gradient(entry, value, f"output.{i}") for i, value in enumerate(leaving)],
        }

    def _gradient(self, entry: Entry, value: int | None, name: str) -> Json:
        form = self._tensor(value, f"{entry.name}.{name}")
        return form if form is None else form | {"requires_grad": False}

    def _tensor(self, number: int | None, name: str) -> Json:
        value = None if number is None else self._values.get(number)
        if value is None:
            return None
        known = four_numbers(value, lambda: self.rank.data(value))
        return {
            "type": "torch.Tensor",
            "dtype": f"torch.{value.dtype}",
            "shape": list(value.shape),
            **{stat: known[stat] for stat in self.numbers},
            "requires_grad": value.requires_grad,
            **(self._saved(value, name) if self.has_data and value.initialized else {}),
        }


def _arriving(gradients: Mapping[str, int]) -> list[int | None]:
    """Gradients by the number of the output they belong to; those of nested outputs just in their order."""
    numbers = [place.removeprefix("output.") for place in gradients]
    if not all(number.isdigit() for number in numbers):
        return list(gradients.values())
    return [gradients.get(f"output.{i}") for i in range(max(map(int, numbers), default=-1) + 1)]


def _lists(tree: Json) -> Json:
    """Numbered branches as lists, with null for what is no tensor; `type` marks a leaf."""
    if not isinstance(tree, dict) or "type" in tree:
        return tree
    if tree and not all(key.isdigit() for key in tree):
        return {key: _lists(part) for key, part in tree.items()}
    numbers = {int(key): _lists(part) for key, part in tree.items()}
    return [numbers.get(i) for i in range(max(numbers, default=-1) + 1)]


def _tensor_places(arguments: Json) -> list[str]:
    """Places of all tensors among a call's arguments, in their order."""
    if isinstance(arguments, list):
        return [place for item in arguments for place in _tensor_places(item)]
    if not isinstance(arguments, dict):
        return []
    if "$tensor" in arguments:
        return [arguments["$tensor"]]
    return [place for item in arguments.values() for place in _tensor_places(item)]


class _StepWriter(StepForms):
    """Into the files of msprobe."""

    def __init__(self, rank: RankTrace, step: int, folder: Path, written: Written) -> None:
        super().__init__(rank, step)
        self._folder = folder.absolute()
        self._data_folder = self._folder / DATA_FOLDER if self.has_data else None
        self._written = written

    def write(self) -> None:
        plan, written = self.plan(gradients=True), self._written
        written.left_out.update((reason, call.op) for reason, calls in plan.left_out.items() for call in calls)
        if not plan.entries:
            return
        written.entries += len(plan.entries)
        written.steps.add(self.step)
        self._make_folders()
        head = {
            "task": "tensor" if self.has_data else "statistics",
            "level": "L0" if self.rank.info.capture.get("level") == Level.MODULE.value else "mix",
            "framework": "pytorch",
            "dump_data_dir": None if self._data_folder is None else str(self._data_folder),
        }
        self._write_json("dump.json", head | {"data": {entry.name: self.form(entry) for entry in plan.entries}})
        self._write_json("stack.json", _stacks(plan.entries, self.frames(_frame_text)))
        named = [entry for entry in plan.entries if entry.direction is not Direction.PARAMETERS_GRAD]
        self._write_json("construct.json", {entry.name: entry.parent for entry in named})

    def _saved(self, value: Value, name: str) -> dict[str, str]:
        data = self.rank.data(value)
        if data is None:
            self._written.without_data += 1
            return {}
        path = self._folder / DATA_FOLDER / f"{name}.pt"
        try:
            save_pt(path, data, value.dtype)
            path.chmod(path.stat().st_mode & ~OTHERS_MAY)
        except (OSError, RuntimeError) as error:
            self._written.failures.append(f"{path}: {str(error).splitlines()[0]}")
            return {}
        self._written.tensor_files += 1
        return {"data_name": path.name}

    def _make_folders(self) -> None:
        folders = [self._folder.parent, self._folder]
        if self._data_folder is not None:
            require_torch()
            folders.append(self._data_folder)
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(folder.stat().st_mode & ~OTHERS_MAY)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def _write_json(self, name: str, content: Json) -> None:
        path = self._folder / name
        try:
            # msprobe writes and expects bare NaN and Infinity.
            path.write_text(json.dumps(content, indent=1), encoding="utf-8")
            path.chmod(path.stat().st_mode & ~OTHERS_MAY)
        except OSError as error:
            raise _unwritable(path, error) from error


def _stacks(entries: Iterable[Entry], frames: dict[int, list[str]]) -> dict[str, Json]:
    """Forward entries by their call stack, each stack once."""
    names: dict[int, list[str]] = {}
    for entry in entries:
        if entry.direction is Direction.FORWARD and entry.call.stack in frames:
            names.setdefault(entry.call.stack, []).append(entry.name)
    return {str(number): [named, frames[stack]] for number, (stack, named) in enumerate(names.items())}


def _frame_text(frame: Frame) -> str:
    source = linecache.getline(frame.file, frame.line).strip()
    return f"File {frame.file}, line {frame.line}, in {frame.function}, \n {source}"


def _unwritable(path: Path, error: OSError) -> UlpscopeError:
    return UlpscopeError(
        f"cannot write {path}: {error.strerror or error}",
        expected="a directory that can be written and has space left",
        next_step="free some space, or choose another directory with -o",
    )
