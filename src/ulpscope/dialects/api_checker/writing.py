"""Writes what a process of a trace captured as the first API accuracy checker did, for what reads its files.

out/forward_info_4711.json, backward_info_4711.json, stack_info_4711.json       of process 4711
out/forward_real_data/, backward_real_data/                                     one .pt file a tensor, if there is data
"""

import json
from pathlib import Path

from ulpscope.dialects.files.torch_files import save_pt
from ulpscope.dialects.msprobe.writing import StepTables
from ulpscope.dialects.msprobe.writing_entries import Json
from ulpscope.dialects.msprobe.writing_names import Entry, Part, plan_step
from ulpscope.records.enums import Kind
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.values import Value
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
        self._tables = StepTables(rank, step)
        self._folder = folder

    def contents(self) -> dict[str, dict[str, Json]]:
        """What the three files hold."""
        frames = self._tables.frames(lambda frame: f"File {frame.file}, line {frame.line}, in {frame.function}")
        found: dict[str, dict[str, Json]] = {"forward": {}, "backward": {}, "stack": {}}
        for entry in plan_step(list(self._tables.calls.values()), frozenset()).entries:
            if entry.call.kind not in _MODULES:
                self._add(entry, frames, found)
        return found

    def _add(self, entry: Entry, frames: dict[int, list[str]], found: dict[str, dict[str, Json]]) -> None:
        key = entry.name.removesuffix(f".{_DIRECTIONS[entry.part]}").replace(".", "*")
        form = self._tables.entry(entry, self._tensor)
        if entry.part is Part.BACKWARD:
            found["backward"][key] = form["input"]
            return
        found["forward"][key] = {"args": form["input_args"], "kwargs": form["input_kwargs"]}
        if entry.call.stack in frames:
            found["stack"][key] = frames[entry.call.stack]

    def _tensor(self, value_id: int, name: str, *, requires_grad: bool | None = None) -> Json:
        value = self._tables.values.get(value_id)
        if value is None:
            return None
        form = self._tables.tensor(value, requires_grad=requires_grad, numbers=("Max", "Min"))
        data = self._save(value, name) if self._tables.has_data and ".output." not in name else None
        return form if data is None else form | {"datapath": str(data)}

    def _save(self, value: Value, name: str) -> Path | None:
        data = self._tables.rank.data(value) if value.initialized else None
        if data is None:
            return None
        folder = self._folder / ("backward_real_data" if ".backward." in name else "forward_real_data")
        folder.mkdir(exist_ok=True)
        path = (folder / f"{name}.pt").absolute()
        save_pt(path, data, value.dtype)
        return path
