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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.dialects.files.torch_files import require_torch, save_pt
from ulpscope.dialects.msprobe.writing_entries import NUMBER_NAMES, EntryForm, Json, TensorForm, four_numbers
from ulpscope.dialects.msprobe.writing_names import Entry, LeftOut, Part, StepPlan, module_gradients, plan_step
from ulpscope.records.calls import Frame
from ulpscope.records.enums import Level
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.values import Use, Value
from ulpscope.trace.objects import call_from_row, use_from_row, value_from_row
from ulpscope.trace.reader import RankTrace, Trace

DATA_FOLDER = "dump_tensor_data"
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
        folder = _rank_folder(rank, taken=written.ranks)
        written.ranks.add(folder)
        for step in rank.steps:
            _StepWriter(rank, step, out / f"step{step}" / folder, written).write()
            told()
    return written


def _rank_folder(rank: RankTrace, *, taken: set[str]) -> str:
    """A second process of the same rank is told apart as msprobe tells processes without a rank apart."""
    name = f"rank{rank.info.rank}"
    return name if name not in taken else f"proc{rank.info.process.get('pid', len(taken))}"


class StepTables:
    """One step of one rank, for who writes it in another form."""

    def __init__(self, rank: RankTrace, step: int) -> None:
        self.rank = rank
        self.calls = {call.id: call for call in map(call_from_row, self._rows(rank.calls(step)))}
        self.uses = [use_from_row(row) for row in self._rows(rank.tensors(step))]
        self.has_data = rank.info.capture.get("save") == "tensors"
        self._step = step
        self._by_call: dict[int, list[Use]] = {}
        for use in self.uses:
            self._by_call.setdefault(use.call, []).append(use)

    @cached_property
    def values(self) -> dict[int, Value]:
        # Sketches and exponents are most of a row, and nothing here needs them.
        lean = self.rank.values(self._step).with_columns(
            sketch=pl.lit(None), sketch_rest=pl.lit(None), exponents=pl.lit(None)
        )
        return {row["id"]: value_from_row(row) for row in self._rows(lean)}

    def frames(self, text: Callable[[Frame], str]) -> dict[int, list[str]]:
        """The frames of each stack."""
        frames: dict[int, list[str]] = {}
        for row in self._rows(self.rank.stacks().sort("stack", "depth")):
            frame = Frame(file=row["file"], line=row["line"], function=row["function"])
            frames.setdefault(row["stack"], []).append(text(frame))
        return frames

    def entry(self, entry: Entry, tensor: TensorForm) -> dict[str, Json]:
        """An entry of dump.json; `tensor` gives the form of each value."""
        forward = None if entry.call.forward is None else self.calls.get(entry.call.forward)
        return EntryForm(entry, self._by_call.get(entry.call.id, ()), tensor).json(forward)

    def tensor(
        self, value: Value, *, requires_grad: bool | None, numbers: Sequence[str] = NUMBER_NAMES
    ) -> dict[str, Json]:
        """The form of a value, with these of its numbers."""
        known = four_numbers(value, lambda: self.rank.data(value))
        return {
            "type": "torch.Tensor",
            "dtype": f"torch.{value.dtype}",
            "shape": list(value.shape),
            **{name: known[name] for name in numbers},
            "requires_grad": value.requires_grad if requires_grad is None else requires_grad,
        }

    def _rows(self, frame: pl.LazyFrame) -> Iterator[dict[str, Any]]:
        return self.rank.collect(frame).iter_rows(named=True)


class _StepWriter:
    """One step of one rank."""

    def __init__(self, rank: RankTrace, step: int, folder: Path, written: Written) -> None:
        self._tables = StepTables(rank, step)
        self._rank = rank
        self._step = step
        self._folder = folder.absolute()
        self._written = written
        self._has_data = self._tables.has_data

    def write(self) -> None:
        tables = self._tables
        plan = plan_step(list(tables.calls.values()), module_gradients(tables.uses))
        self._count(plan)
        if not plan.entries:
            return
        self._make_folders()
        data = {entry.name: tables.entry(entry, self._tensor) for entry in plan.entries}
        self._write_json("dump.json", self._head() | {"data": data})
        self._write_json("stack.json", _stacks(plan.entries, tables.frames(_frame_text)))
        named = [entry for entry in plan.entries if entry.part is not Part.PARAMETERS_GRAD]
        self._write_json("construct.json", {entry.name: entry.parent for entry in named})

    def _count(self, plan: StepPlan) -> None:
        for reason, calls in plan.left_out.items():
            self._written.left_out.update((reason, call.op) for call in calls)
        self._written.entries += len(plan.entries)
        if plan.entries:
            self._written.steps.add(self._step)

    def _head(self) -> dict[str, Json]:
        return {
            "task": "tensor" if self._has_data else "statistics",
            "level": "L0" if self._rank.info.capture.get("level") == Level.MODULE.value else "mix",
            "framework": "pytorch",
            "dump_data_dir": str(self._folder / DATA_FOLDER) if self._has_data else None,
        }

    def _tensor(self, value_id: int, name: str, *, requires_grad: bool | None = None) -> Json:
        value = self._tables.values.get(value_id)
        if value is None:
            return None
        form = self._tables.tensor(value, requires_grad=requires_grad)
        return form | {"data_name": f"{name}.pt"} if self._has_data and self._save(value, name) else form

    def _save(self, value: Value, name: str) -> bool:
        if not value.initialized:
            return False
        data = self._rank.data(value)
        if data is None:
            self._written.without_data += 1
            return False
        path = self._folder / DATA_FOLDER / f"{name}.pt"
        try:
            save_pt(path, data, value.dtype)
            path.chmod(path.stat().st_mode & ~OTHERS_MAY)
        except (OSError, RuntimeError) as error:
            self._written.failures.append(f"{path}: {str(error).splitlines()[0]}")
            return False
        self._written.tensor_files += 1
        return True

    def _make_folders(self) -> None:
        if self._has_data:
            require_torch()
        inner = [self._folder / DATA_FOLDER] if self._has_data else []
        try:
            for folder in (self._folder.parent, self._folder, *inner):
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
        if entry.part is Part.FORWARD and entry.call.stack in frames:
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
