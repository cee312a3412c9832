"""Finds tensors by the names that users have for them.

lookup = DumpTensors(dumps=[Path("npu/debug_0/dump")], references=[Path("tf/dump")])
lookup.find("Relu.fc1_Relu.21.0.1767225600021123.output.0.npy")   of a dump, padding taken off
lookup.find("fc1_Relu.0.1767225600900010.npy")                    of the reference
lookup.find("somewhere/array.npy")                                of any file of tensors; FILE::KEY names one

TraceTensors(Path("runs/ref")).find("relu.0::output.0")           of a call of a trace
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from ulpscope.dialects.ascend.executed import Executed, ExecutedTensor, read_executed
from ulpscope.dialects.ascend.names import DumpName, sanitised
from ulpscope.dialects.ascend.tree import DumpEntry, find_folders, list_dumps, newest
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.reference import reference_index
from ulpscope.dialects.stored import AnyArray, StoredTensor
from ulpscope.dialects.tensor_files import load_tensor_file
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.values import Value
from ulpscope.trace.query import find_call
from ulpscope.trace.reader import RankTrace

SEPARATOR = "::"
ENDING = ".npy"
"""Tensors of a dump are called as the files that converting gives; they may be named without its ending."""
LISTED = 8


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor and where it is."""

    name: str
    path: Path
    stored: StoredTensor


class Lookup(Protocol):
    """Where tensors are looked for."""

    def names(self) -> list[str]:
        """What `find` knows, besides paths."""
        ...

    def find(self, name: str) -> FoundTensor:
        """The tensor of this name; UlpscopeError if there is none, or more than one."""
        ...


class DumpTensors:
    """The tensors of NPU dumps and of reference dumps; a folder is read when it is first asked for."""

    def __init__(self, *, dumps: Sequence[Path] = (), references: Sequence[Path] = ()) -> None:
        self._dumps = tuple(dumps)
        self._references = tuple(references)
        self._known: dict[str, FoundTensor] = {}
        self._state: object = None

    def names(self) -> list[str]:
        return list(self._tensors())

    def find(self, name: str) -> FoundTensor:
        """By its whole name; else as a file; else by a part of its name."""
        known = self._tensors()
        exact = known.get(name) or known.get(name.removesuffix(ENDING))
        if exact is not None:
            return exact
        path, _, key = name.partition(SEPARATOR)
        if os.path.exists(path):
            return _of_file(Path(path), key)
        return _only(name, [known[each] for each in known if sanitised(name) in sanitised(each)], list(known))

    def files(self, operator: str) -> list[Path]:
        """The dump files of an operator, or the one of this name."""
        wanted = sanitised(operator)
        entries = [entry for root in self._dumps for entry in _entries(root)]
        named = [entry for entry in entries if entry.path.name == operator]
        return [entry.path for entry in named or [each for each in entries if each.name.operator == wanted]]

    def file_names(self) -> list[str]:
        """Names of dump files."""
        return [entry.path.name for root in self._dumps for entry in _entries(root)]

    def _tensors(self) -> dict[str, FoundTensor]:
        """Read anew when files have come or gone."""
        folders = [folder for root in self._dumps for folder in _folders(root)]
        state = [(path, path.stat().st_mtime_ns) for path in (*folders, *self._references)]
        if state != self._state:
            self._state = state
            dumped = (each for root in self._dumps for each in _dumped(root))
            referenced = (each for root in self._references for each in _referenced(root))
            self._known = {found.name: found for several in (dumped, referenced) for found in several}
        return self._known


class TraceTensors:
    """The tensors of calls of one trace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trace = open_run(path)

    def names(self) -> list[str]:
        """Of calls; `::output.0` behind one names a tensor."""
        frame = self._trace.collect(self._trace.calls().select("name").unique(maintain_order=True))
        return [str(name) for name in frame["name"]]

    def find(self, name: str) -> FoundTensor:
        call_name, _, place = name.partition(SEPARATOR)
        if os.path.exists(call_name) and not Path(call_name).is_dir():
            return _of_file(Path(call_name), place)
        found = find_call(self._trace, call_name)
        rank, call = found.rank_trace, found.call
        uses = rank.uses(call.id)
        values = rank.find_values(use.value for use in uses)
        tensors = {use.place: values[use.value] for use in uses if use.value in values}
        chosen = place or next((each for each in tensors if each.startswith("output")), "")
        if chosen not in tensors:
            raise _no_tensor(f"call {call.name} has no tensor {chosen!r}", list(tensors))
        return FoundTensor(f"{call.name}{SEPARATOR}{chosen}", self._path, _saved(rank, tensors[chosen], chosen))


def _saved(rank: RankTrace, value: Value, place: str) -> StoredTensor:
    array = rank.data(value)
    if array is None:
        raise UlpscopeError(
            f"the data of {place} was not saved",
            expected="a trace with data",
            next_step="capture again with: ulpscope run --save tensors",
        )
    return StoredTensor(value.dtype, value.shape, lambda: array)


def _folders(root: Path) -> list[Path]:
    return [folder.path for folder in newest(list(find_folders(root)))[0]]


def _entries(root: Path) -> Iterator[DumpEntry]:
    """Files that hold tensors."""
    entries = (entry for folder in _folders(root) for entry in list_dumps(folder))
    return (entry for entry in entries if not (entry.name.is_overflow_record or entry.is_stats))


def _dumped(root: Path) -> Iterator[FoundTensor]:
    """A run's tensors: read together, because a shape may fit several layouts, and the others tell which is meant."""
    entries = list(_entries(root))
    executed, _ = read_executed(entries)
    by_name = {(one.op_type, sanitised(one.op_name), one.timestamp): one for one in executed}
    for entry in entries:
        one = by_name.get((entry.name.op_type, entry.name.operator, entry.name.timestamp))
        yield from () if one is None else _tensors_of(entry, one)


def _tensors_of(entry: DumpEntry, executed: Executed) -> Iterator[FoundTensor]:
    for tensor in executed.tensors:
        if tensor.read is None:
            continue
        stored = StoredTensor(tensor.dtype, tensor.shape, partial(_read, tensor))
        for name in dict.fromkeys((entry.path.name, _whole_name(entry.name))):
            yield FoundTensor(f"{name}.{tensor.side.value}.{tensor.index}", entry.path, stored)


def _whole_name(name: DumpName) -> str:
    """What a file is called, or would be if its name were not too long."""
    parts = (name.op_type, name.op_name, name.task, name.stream, name.timestamp)
    ffts = () if name.task_type is None else (name.task_type.value, name.context, name.thread, name.device)
    return ".".join(str(part) for part in (*parts, *ffts) if part is not None)


def _read(tensor: ExecutedTensor) -> AnyArray:
    assert tensor.read is not None
    return tensor.read()


def _referenced(root: Path) -> Iterator[FoundTensor]:
    for tensors in reference_index(root).values():
        for tensor in tensors:
            name = f"{sanitised(tensor.op)}.{tensor.index}.{tensor.timestamp}{ENDING}"
            try:
                stored = tensor.stored()
            except UlpscopeError:
                # One broken array is no reason not to find the others.
                continue
            yield FoundTensor(name, tensor.path, stored)
            if tensor.path.name != name:
                yield FoundTensor(tensor.path.name, tensor.path, stored)


def _of_file(path: Path, key: str) -> FoundTensor:
    tensors = load_tensor_file(path)
    if not key and len(tensors) == 1:
        key = next(iter(tensors))
    if key not in tensors:
        raise _no_tensor(f"{path} has no tensor {key!r}" if key else f"{path} holds {len(tensors)} tensors", tensors)
    return FoundTensor(f"{path.name}{SEPARATOR}{key}" if key else path.name, path, tensors[key])


def _only(name: str, found: Sequence[FoundTensor], known: Sequence[str]) -> FoundTensor:
    if len({(each.path, each.name.removesuffix(ENDING)) for each in found}) == 1:
        return found[0]
    if found:
        raise _no_tensor(f"{name!r} stands in the names of {len(found)} tensors", [each.name for each in found])
    raise _no_tensor(f"there is no file and no tensor {name!r}", known)


def _no_tensor(seen: str, names: Iterable[str]) -> UlpscopeError:
    some = list(names)
    more = f", and {len(some) - LISTED} more" if len(some) > LISTED else ""
    listed = "".join(f"\n    {name}" for name in some[:LISTED])
    return UlpscopeError(
        seen,
        expected=f"one of{listed}{more}" if some else "the path of a file of tensors",
        next_step="name one of these; of a file with several tensors, FILE::KEY",
    )
