"""Writes what a process of a trace captured as the first API accuracy checker did, for what reads its files.

out/forward_info_4711.json, backward_info_4711.json, stack_info_4711.json       of process 4711
out/forward_real_data/, backward_real_data/                                     one .pt file a tensor, if there is data
"""

import json
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.dialects.files.torch_files import save_pt
from ulpscope.dialects.msprobe.writing_entries import EntryForm, Json, four_numbers
from ulpscope.dialects.msprobe.writing_names import Entry, Part, plan_step
from ulpscope.records.calls import Call
from ulpscope.records.enums import Kind
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.values import Use, Value
from ulpscope.trace.objects import call_from_row, use_from_row, value_from_row
from ulpscope.trace.reader import RankTrace

_MODULES = frozenset({Kind.MODULE, Kind.MODULE_BACKWARD})
_DIRECTIONS = {Part.FORWARD: "forward", Part.BACKWARD: "backward"}


def write_info_files(rank: RankTrace, out: Path, *, number: int) -> None:
    """Write the steps of one process; several steps get a directory each."""
    for step in rank.steps:
        folder = out if len(rank.steps) == 1 else out / f"step{step}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in _Step(rank, step, folder).contents().items():
                (folder / f"{name}_info_{number}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        except OSError as error:
            raise UlpscopeError(
                f"cannot write into {folder}: {error.strerror or error}",
                expected="a directory that can be written and has space left",
                next_step="choose another dump_path",
            ) from error


class _Step:
    """One step of one process."""

    def __init__(self, rank: RankTrace, step: int, folder: Path) -> None:
        self._rank = rank
        self._step = step
        self._folder = folder
        self._has_data = rank.info.capture.get("save") == "tensors"
        self._values = {row["id"]: value_from_row(row) for row in self._rows(rank.values(step))}

    def contents(self) -> dict[str, dict[str, Json]]:
        """What the three files hold."""
        calls = {call.id: call for call in map(call_from_row, self._rows(self._rank.calls(self._step)))}
        uses: dict[int, list[Use]] = {}
        for use in map(use_from_row, self._rows(self._rank.tensors(self._step))):
            uses.setdefault(use.call, []).append(use)
        frames = self._frames()
        found: dict[str, dict[str, Json]] = {"forward": {}, "backward": {}, "stack": {}}
        for entry in plan_step(list(calls.values()), frozenset()).entries:
            if entry.call.kind not in _MODULES:
                self._add(entry, uses.get(entry.call.id, []), calls, frames, found)
        return found

    def _add(
        self,
        entry: Entry,
        uses: list[Use],
        calls: dict[int, Call],
        frames: dict[int, list[str]],
        found: dict[str, dict[str, Json]],
    ) -> None:
        direction = _DIRECTIONS[entry.part]
        key = entry.name.removesuffix(f".{direction}").replace(".", "*")
        forward = None if entry.call.forward is None else calls.get(entry.call.forward)
        form = EntryForm(entry, uses, self._tensor).json(forward)
        if entry.part is Part.BACKWARD:
            found["backward"][key] = form["input"]
            return
        found["forward"][key] = {"args": form["input_args"], "kwargs": form["input_kwargs"]}
        if entry.call.stack in frames:
            found["stack"][key] = frames[entry.call.stack]

    def _tensor(self, value_id: int, name: str, *, requires_grad: bool | None = None) -> Json:
        value = self._values.get(value_id)
        if value is None:
            return None
        numbers = four_numbers(value, lambda: self._rank.data(value))
        form: dict[str, Json] = {
            "type": "torch.Tensor",
            "dtype": f"torch.{value.dtype}",
            "shape": list(value.shape),
            "Max": numbers["Max"],
            "Min": numbers["Min"],
            "requires_grad": value.requires_grad if requires_grad is None else requires_grad,
        }
        data = self._save(value, name) if self._has_data and ".output." not in name else None
        return form if data is None else form | {"datapath": str(data)}

    def _save(self, value: Value, name: str) -> Path | None:
        data = self._rank.data(value) if value.initialized else None
        if data is None:
            return None
        folder = self._folder / ("backward_real_data" if ".backward." in name else "forward_real_data")
        folder.mkdir(exist_ok=True)
        path = (folder / f"{name}.pt").absolute()
        save_pt(path, data, value.dtype)
        return path

    def _rows(self, frame: pl.LazyFrame) -> Any:
        return self._rank.collect(frame).iter_rows(named=True)

    def _frames(self) -> dict[int, list[str]]:
        frames: dict[int, list[str]] = {}
        for row in self._rows(self._rank.stacks().sort("stack", "depth")):
            text = f"File {row['file']}, line {row['line']}, in {row['function']}"
            frames.setdefault(row["stack"], []).append(text)
        return frames
