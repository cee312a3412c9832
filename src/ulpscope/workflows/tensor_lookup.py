"""Finds tensors by the names that users have for them.

lookup = DumpTensors(dumps={"debug_0": Path("npu/debug_0/dump")}, reference=Path("tf/dump"))
lookup.find("Relu.fc1_Relu.21.0.1767225600021123.output.0.npy")   of a dump, padding taken off
lookup.find("debug_1/Relu.fc1_Relu.21.0.1767225600021123.output.0")   of another dump than the first
lookup.find("fc1_Relu.0.1767225600900010.npy")                    of the reference
lookup.find("somewhere/array.npy")                                of any file of tensors; FILE::KEY names one

TraceTensors(Path("runs/ref")).find("relu.0::output.0")           of a call of a trace

The dumps of one operator of a graph: what the device dumped of it, and what the reference holds for its outputs.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ulpscope.align.network.names import fed_output
from ulpscope.dialects.ascend.executed import Executed, ExecutedTensor, read_executed
from ulpscope.dialects.ascend.tree import STATS_SUFFIX, DumpEntry, DumpName, list_dumps, newest_runs, without_parts
from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.dialects.files.stored import AnyArray, StoredTensor
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.reference import ReferenceIndex, ReferenceTensor, reference_index
from ulpscope.dialects.tables import stats_of
from ulpscope.graph.names import sanitised
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.calls import Value
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Operator
from ulpscope.report.terminal.show_graph import FoundDumps, SummarisedTensor
from ulpscope.trace.query import find_call
from ulpscope.trace.reader import RankTrace

SEPARATOR = "::"
ENDING = ".npy"
"""Tensors of a dump are called as the files that converting gives; they may be named without its ending."""
LISTED = 8
ALIKE = 0.7
"""Of 1, how alike a name must be to be offered instead of one that is not there."""

Problems = dict[Path, UlpscopeError]


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor and where it is."""

    name: str
    path: Path
    stored: StoredTensor


class DumpTensors:
    """The tensors of NPU dumps and of a reference; a directory is read when it is first asked for.

    Two dumps of one network have files of the same names. A name means the first dump that has it; LABEL/NAME is
    that of another, and DIRECTORY/NAME where one dump has a name several times.
    """

    def __init__(self, *, dumps: Mapping[str, Path] | None = None, reference: Path | None = None) -> None:
        self._dumps = dict(dumps or {})
        self._reference = reference
        self._known: dict[str, FoundTensor] = {}
        self._problems: Problems = {}
        self._state: object = None

    def names(self) -> list[str]:
        """What `find` knows, besides paths."""
        return list(self._tensors())

    def find(self, name: str) -> FoundTensor:
        """By its whole name; else as a file; else by a part of its name. UlpscopeError if it is not just one."""
        known = self._tensors()
        whole = name.removeprefix(f"{next(iter(self._dumps), '')}/").removesuffix(ENDING)
        exact = known.get(name) or known.get(whole)
        if exact is not None:
            return exact
        path, _, key = name.partition(SEPARATOR)
        if os.path.exists(path):
            return _of_file(Path(path), key)
        part = sanitised(whole)
        fitting = [known[each] for each in known if part in sanitised(each)]
        if not fitting:
            self._raise_problem(part)
        others = tuple(f"{label}/" for label in list(self._dumps)[1:])
        return _only(name, [each for each in fitting if not each.name.startswith(others)] or fitting, list(known))

    def files(self, operator: str) -> list[Path]:
        """The dump files of an operator, or the one of this name, of the first dump that has any."""
        for label, root in self._dumps.items():
            wanted = operator.removeprefix(f"{label}/")
            entries = list(_entries(root))
            named = [entry.path for entry in entries if entry.path.name == wanted]
            found = named or [entry.path for entry in entries if entry.name.operator == sanitised(wanted)]
            if found:
                return found
        return []

    def file_names(self) -> list[str]:
        """Names of dump files."""
        return [entry.path.name for root in self._dumps.values() for entry in _entries(root)]

    def _raise_problem(self, part: str) -> None:
        """A file that cannot be read is there, nevertheless."""
        for path, problem in self._problems.items():
            file = sanitised(path.name.removesuffix(ENDING).removesuffix(STATS_SUFFIX))
            if part in file or file in part:
                raise problem

    def _tensors(self) -> dict[str, FoundTensor]:
        """Read anew when files have come or gone."""
        folders = [folder for root in self._dumps.values() for folder in _folders(root)]
        places = folders if self._reference is None else [*folders, self._reference]
        state = [(path, _changed(path)) for path in places]
        if state != self._state:
            self._problems = {}
            self._known = {found.name: found for found in self._read()}
            self._state = state
        return self._known

    def _read(self) -> Iterator[FoundTensor]:
        for number, (label, root) in enumerate(self._dumps.items()):
            for found in _distinct(_dumped(root, self._problems), root):
                yield replace(found, name=f"{label}/{found.name}") if number else found
        if self._reference is not None:
            yield from _distinct(_referenced(self._reference, self._problems), self._reference)


class TraceTensors:
    """The tensors of calls of one trace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trace = open_run(path)

    def names(self) -> list[str]:
        """Of calls; `::output.0` behind one names a tensor."""
        frame = self._trace.collect(self._trace.calls().select("name").unique(maintain_order=True))
        return [str(name) for name in frame["name"]]

    def places(self, call: str) -> list[str]:
        """The tensors of a call; UlpscopeError if it is not just one."""
        return list(self._call(call)[2])

    def find(self, name: str) -> FoundTensor:
        """By the call's name or id, and the place; else as a file. UlpscopeError if it is not just one."""
        call_name, _, place = name.partition(SEPARATOR)
        if os.path.exists(call_name) and not Path(call_name).is_dir():
            return _of_file(Path(call_name), place)
        whole_name, rank, tensors = self._call(call_name)
        chosen = place or next((each for each in tensors if each.startswith("output")), "")
        if chosen not in tensors:
            raise _no_tensor(f"call {whole_name} has no tensor {chosen!r}", list(tensors))
        return FoundTensor(f"{whole_name}{SEPARATOR}{chosen}", self._path, _saved(rank, tensors[chosen], chosen))

    def _call(self, name: str) -> tuple[str, RankTrace, dict[str, Value]]:
        """A call's name, where it is, and its values by place."""
        found = find_call(self._trace, name)
        uses = found.rank_trace.uses(found.call.id)
        values = found.rank_trace.find_values(use.value for use in uses)
        places = {use.place: values[use.value] for use in uses if use.value in values}
        return found.call.name, found.rank_trace, places


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
    return [folder.path for run in newest_runs(root) for folder in run.folders]


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _entries(root: Path) -> Iterator[DumpEntry]:
    """Files that hold tensors."""
    return (entry for entry in _all_entries(root) if not entry.is_stats)


def _all_entries(root: Path) -> Iterator[DumpEntry]:
    entries = (entry for folder in _folders(root) for entry in list_dumps(folder))
    return (entry for entry in entries if not entry.name.is_overflow_record)


def _dumped(root: Path, problems: Problems) -> Iterator[FoundTensor]:
    """A run's tensors: read together, because a shape may fit several layouts, and the others tell which is meant."""
    entries = list(_all_entries(root))
    executed, bad = read_executed(entries)
    problems |= bad
    for path in (entry.path for entry in entries if entry.is_stats):
        problems[path] = UlpscopeError(
            f"{path} holds the stats of tensors, not their elements",
            expected="a dump with data",
            next_step="ni OPERATOR tells the stats; dump again without dump_data: stats for the elements",
        )
    of_file = {dump.path: one for one in executed if one.operation is not None for dump in one.operation.dumps}
    for entry in entries:
        if entry.path in of_file:
            yield from _tensors_of(entry, of_file[entry.path])


def _tensors_of(entry: DumpEntry, executed: Executed) -> Iterator[FoundTensor]:
    for tensor in executed.tensors:
        place = tensor.place
        stored = StoredTensor(tensor.dtype, tensor.shape, partial(_read, tensor, f"{entry.path.name}.{place}"))
        for name in dict.fromkeys((entry.path.name, _whole_name(entry.name))):
            yield FoundTensor(f"{name}.{place}", entry.path, stored)


def _whole_name(name: DumpName) -> str:
    """What a file is called, or would be if its name were not too long."""
    parts = (name.op_type, name.op_name, name.task, name.stream, name.timestamp)
    ffts = () if name.task_type is None else (name.task_type.value, name.context, name.thread, name.device)
    return ".".join(str(part) for part in (*parts, *ffts) if part is not None)


def _read(tensor: ExecutedTensor, name: str) -> AnyArray:
    if tensor.read is None:
        raise UlpscopeError(
            f"{name} has no data that can be read: {tensor.dtype}, shape {list(tensor.shape)}",
            expected="numbers; an input that was not connected has none, and strings are none",
            next_step="ulpscope convert FILE --to bin writes the bytes, if there are any",
        )
    return tensor.read()


def _referenced(root: Path, problems: Problems) -> Iterator[FoundTensor]:
    for tensors in reference_index(root).values():
        for tensor in tensors:
            try:
                stored = tensor.stored()
            except UlpscopeError as error:
                # One broken array is no reason not to find the others.
                problems[tensor.path] = error
                continue
            name = f"{sanitised(tensor.op)}.{tensor.index}.{tensor.timestamp}{ENDING}"
            for each in dict.fromkeys((name, tensor.path.name)):
                yield FoundTensor(each, tensor.path, stored)


def _distinct(found: Iterable[FoundTensor], root: Path) -> Iterator[FoundTensor]:
    """With its directory before each name that several files have: devices and steps may have the same ones."""
    named: dict[str, list[FoundTensor]] = defaultdict(list)
    for each in found:
        named[each.name].append(each)
    for name, several in named.items():
        if len(several) == 1:
            yield several[0]
        else:
            yield from (replace(each, name=f"{each.path.parent.relative_to(root)}/{name}") for each in several)


def _of_file(path: Path, key: str) -> FoundTensor:
    tensors = load_tensor_file(path)
    if not key and len(tensors) == 1:
        key = next(iter(tensors))
    if key not in tensors:
        raise _no_tensor(f"{path} has no tensor {key!r}" if key else f"{path} holds {len(tensors)} tensors", tensors)
    return FoundTensor(f"{path.name}{SEPARATOR}{key}" if key else path.name, path, tensors[key])


def _only(name: str, found: Sequence[FoundTensor], known: Sequence[str]) -> FoundTensor:
    if not found:
        raise _no_tensor(f"there is no file and no tensor {name!r}", _nearest(name, known) or known)
    # A file with a long name is known by that and by what it is called: two names, one tensor.
    if len({id(each.stored) for each in found}) > 1:
        raise _no_tensor(f"{name!r} stands in the names of {len(found)} tensors", [each.name for each in found])
    return found[0]


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """Names that are like this one, or have a part that is: the operator's name, in most cases."""
    parts = dict.fromkeys(part for each in known for part in (each, *each.split(".")))
    alike = get_close_matches(sanitised(name), parts, cutoff=ALIKE)
    return [each for each in known if any(part in each for part in alike)]


def _no_tensor(seen: str, names: Iterable[str]) -> UlpscopeError:
    some = list(names)
    if not some:
        return UlpscopeError(seen, expected="the path of a file of tensors", next_step="check the path")
    more = f"\n    and {len(some) - LISTED:,} more" if len(some) > LISTED else ""
    listed = "".join(f"\n    {name}" for name in some[:LISTED])
    return UlpscopeError(
        seen,
        expected=f"one of{listed}{more}",
        next_step="name one of these; of a file with several tensors, FILE::KEY",
    )


ReferenceKey: TypeAlias = tuple[str, int]
"""An operator as files call it, and one of its outputs."""


def dumps_of(operator: Operator, directory: Path) -> FoundDumps:
    """An operator's inputs and outputs in the newest dump of each dump path below a directory."""
    folders = [folder for run in newest_runs(directory) for folder in run.folders]
    if not folders:
        raise UlpscopeError(
            f"{directory} holds no dump of an NPU",
            expected="a dump path, or a directory of it: files called TYPE.OPERATOR.TASK.STREAM.TIME",
            next_step="check the path",
        )
    wanted = without_parts(sanitised(operator.name))
    found, problems = [], []
    for folder in folders:
        entries = [entry for entry in list_dumps(folder.path) if entry.name.operator == wanted]
        executed, bad = read_executed(entries)
        files = {entry.name.timestamp: str(entry.path.relative_to(directory)) for entry in reversed(entries)}
        found += [
            SummarisedTensor(files[each.timestamp], tensor.place, tensor.dtype, tensor.shape, tensor.stats())
            for each in executed
            if _may_be(each.op_name, operator.name)
            for tensor in each.tensors
        ]
        problems += [error.seen for error in bad.values()]
    return FoundDumps(tuple(found), tuple(problems))


def references_of(operator: Operator, directory: Path) -> FoundDumps:
    """What a reference holds for an operator's outputs: of the original operators that they stand for, if any."""
    index = reference_index(directory)
    found, problems = [], []
    for position, original, key in _original_outputs(operator, index):
        for tensor in (tensor for tensor in index.get(key, ()) if _may_be(tensor.op, original)):
            try:
                found.append(_reference(tensor, position, directory))
            except UlpscopeError as error:
                problems.append(error.seen)
    return FoundDumps(tuple(found), tuple(problems))


def _may_be(told: str, name: str) -> bool:
    """Whether a dump that tells this name may be of an operator: files have one name for a/b and a_b."""
    return told == sanitised(told) or without_parts(told) == without_parts(name) or fed_output(told) is not None


def _original_outputs(operator: Operator, index: ReferenceIndex) -> Iterator[tuple[int, str, ReferenceKey]]:
    """Outputs, each with its original operator and output as a reference's index has them."""
    alone = operator.originals[0] if operator.originals is not None and len(operator.originals) == 1 else operator.name
    if not operator.outputs:
        # Graphs of TensorFlow do not describe outputs.
        yield from ((key[1], alone, key) for key in sorted(index) if key[0] == sanitised(alone))
    for position, desc in enumerate(operator.outputs):
        origin = desc.origin
        if origin is None or not origin.name:
            yield position, alone, (sanitised(alone), position)
        else:
            output = position if origin.output is None else origin.output
            yield position, origin.name, (sanitised(origin.name), output)


def _reference(tensor: ReferenceTensor, position: int, directory: Path) -> SummarisedTensor:
    stored = tensor.stored()
    stats = stats_of(stored.array(), stored.dtype) if stored.dtype in DTYPES else None
    file, place = str(tensor.path.relative_to(directory)), f"output.{position}"
    return SummarisedTensor(file=file, place=place, dtype=stored.dtype, shape=stored.shape, stats=stats)
