"""Executed operators out of dump files: mostly one file each; parts of one that ran in slices are joined.

FFTS+ cuts an operator into slices that run side by side, each with a dump file of its own. What is cut, JSON in the
head's first attribute tells.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.dump_file.records import AnyArray, Content, DumpFile, DumpTensor, Shape, bad_dump
from ulpscope.dialects.ascend.tree import DumpEntry, DumpName, TaskType, without_parts
from ulpscope.numerics.dtypes import BITS
from ulpscope.records.errors import UlpscopeError

_ATTRIBUTE_LIMIT = 2**20
"""Characters of JSON; real ones have some thousand."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One execution of an operator: its dump, or the dumps of its slices in their order."""

    name: DumpName
    dumps: tuple[DumpFile, ...]
    last: int = 0
    """Which of the dumps was written last."""

    @property
    def op_name(self) -> str:
        """As in the network, if the dump says it, else as in the file's name."""
        return without_parts(self.dumps[0].op_name) or self.name.operator

    @property
    def heads(self) -> tuple[DumpTensor, ...]:
        """All tensors as the files describe them."""
        return tuple(tensor for dump in self.dumps for tensor in dump.tensors)

    @property
    def inputs(self) -> tuple[DumpTensor, ...]:
        """Of slices, what all of them read; what each read a part of has no data, because parts overlap."""
        return tuple(_shared(self.dumps, index) for index in range(len(self.dumps[0].inputs)))

    @property
    def outputs(self) -> tuple[DumpTensor, ...]:
        """Of slices, the joined outputs; what was not cut, each of them adds to: the last one has it."""
        if len(self.dumps) == 1:
            return self.dumps[0].outputs
        return tuple(_joined(self.dumps, index, self.last) for index in range(len(self.dumps[0].outputs)))


Report = Callable[[Path, UlpscopeError], None]


def read_operations(entries: Iterable[DumpEntry], failed: Report) -> list[Operation]:
    """The operators of some dump files, in the order in which they ran; files that cannot be read are reported."""
    operations = []
    for group in _grouped(entries):
        names, dumps = [], []
        for entry in group:
            try:
                dumps.append(read_dump(entry.path))
                names.append(entry.name)
            except UlpscopeError as error:
                failed(entry.path, error)
        if dumps:
            last = max(range(len(names)), key=lambda place: names[place].timestamp)
            operations.append(Operation(names[0], tuple(dumps), last))
    return operations


def _grouped(entries: Iterable[DumpEntry]) -> list[list[DumpEntry]]:
    """Files of one execution; slices of one are those of the same operator and stream, each a task of its own."""
    groups: dict[object, list[DumpEntry]] = {}
    for entry in entries:
        name = entry.name
        sliced = name.task_type is TaskType.FFTSPLUS or name.slice is not None
        key = (name.op_type, name.operator, name.stream, entry.path.parent) if sliced else entry.path
        groups.setdefault(key, []).append(entry)
    return [_in_order(group) for group in groups.values()]


def _in_order(group: list[DumpEntry]) -> list[DumpEntry]:
    """Slices in their order; of one that was dumped several times, the last."""
    latest: dict[tuple[int, int], DumpEntry] = {}
    for entry in sorted(group, key=lambda entry: entry.name.timestamp):
        latest[entry.name.slice or 0, entry.name.thread or 0] = entry
    return [latest[place] for place in sorted(latest)]


def _shared(dumps: Sequence[DumpFile], index: int) -> DumpTensor:
    """An input as the first slice read it, if the others read the same; else without data."""
    first = dumps[0].inputs[index]
    others = [dump.inputs[index] if index < len(dump.inputs) else None for dump in dumps[1:]]
    if all(other is not None and _same(first, other) for other in others):
        return first
    return replace(first, size=0, content=Content(first.content.path, 0, 0))


def _same(one: DumpTensor, other: DumpTensor) -> bool:
    return one.shape == other.shape and np.array_equal(one.content.read(), other.content.read())


def _joined(dumps: Sequence[DumpFile], index: int, last: int) -> DumpTensor:
    """An output of all slices as one tensor, in memory."""
    first = dumps[0].outputs[index]
    axis = _cut_axis(dumps[0], index)
    if axis is None:
        return dumps[last].outputs[index] if index < len(dumps[last].outputs) else first
    if first.element_type in BITS:
        raise bad_dump(dumps[0].path, f"slices of {first.name} are {first.type_name}, which cannot be joined")
    expected = _attributes(dumps[0]).get("slice_instance_num", len(dumps))
    if expected != len(dumps):
        raise bad_dump(dumps[0].path, f"is one of {expected} slices, of which {len(dumps)} are there")
    parts = [_part(dump, index, thread) for thread, dump in enumerate(dumps)]
    try:
        whole = np.concatenate(parts, axis)
    except ValueError as error:
        raise bad_dump(dumps[0].path, f"slices of {first.name} do not fit each other ({error})") from error
    memory = np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
    content = Content(first.content.path, 0, memory.nbytes, memory)
    return replace(first, shape=whole.shape, size=memory.nbytes, content=content)


def _part(dump: DumpFile, index: int, thread: int) -> AnyArray:
    """What one slice made. Of threads, the head may state the whole operator's shape; the attribute states theirs."""
    if index >= len(dump.outputs):
        raise bad_dump(dump.path, f"is a slice without output {index}, which the first one has")
    tensor = dump.outputs[index]
    shape = _slice_shape(dump, index, thread) if _attributes(dump).get("threadMode") else None
    return tensor.array() if shape is None else replace(tensor, shape=shape).array()


def _cut_axis(dump: DumpFile, index: int) -> int | None:
    cuts = _attributes(dump).get("outputCutList")
    if not isinstance(cuts, list) or not cuts:
        return None
    own = cuts[index] if isinstance(cuts[0], list) and index < len(cuts) else cuts
    if not isinstance(own, list):
        return None
    return next((axis for axis, parts in enumerate(own) if isinstance(parts, int) and parts > 1), None)


def _slice_shape(dump: DumpFile, index: int, thread: int) -> Shape | None:
    try:
        ranges = _attributes(dump)["output_tensor_slice"][thread][index]
        shape = tuple(int(part["higher"]) - int(part["lower"]) for part in ranges)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    return shape if shape and min(shape) >= 0 else None


def _attributes(dump: DumpFile) -> dict[str, Any]:
    if not dump.attrs or len(dump.attrs[0]["value"]) > _ATTRIBUTE_LIMIT:
        return {}
    try:
        found = json.loads(dump.attrs[0]["value"])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
