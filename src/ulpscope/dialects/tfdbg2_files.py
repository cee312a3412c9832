"""Files of tfdbg2, the debugger of TensorFlow 2: which belong together, and the events in them, without TensorFlow.

tfdbg_events.1795037323.host.metadata                  which run of a program it was
tfdbg_events.1795037323.host.graphs                    operators of each function, as they were traced
tfdbg_events.1795037323.host.execution                 what Python executed: operators one by one, and whole functions
tfdbg_events.1795037323.host.graph_execution_traces    what operators inside of functions made
tfdbg_events.1795037323.host.source_files, .stack_frames

Each is a file of records, a record is a DebugEvent. Several hosts of one run write sets of their own.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ulpscope.dialects.reference import names_in
from ulpscope.dialects.tfrecord import read_records
from ulpscope.dialects.wire import WireError, decode, schemas_of
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark

METADATA, GRAPHS, EXECUTION, TRACES = "metadata", "graphs", "execution", "graph_execution_traces"
_FILE = re.compile(
    r"(?P<set>tfdbg_events\.(?P<time>\d{1,18})\..+)\."
    r"(?P<kind>metadata|graphs|execution|graph_execution_traces|source_files|stack_frames)"
)
_TELLING = (METADATA, EXECUTION, TRACES)
"""Files by which a dump is known; one of graphs alone is a graph."""
_MICROSECONDS = 1_000_000
_LATEST = 2**62
"""Microseconds: a time that no clock shows is that of a damaged event."""

Microseconds: TypeAlias = int


@dataclass(frozen=True, slots=True)
class GraphOperator:
    """One operator of a function, as it was traced."""

    type: str
    name: str
    inputs: tuple[tuple[str, int], ...]
    """Operators of the same function, and which output of each."""
    device: str


@dataclass(slots=True)
class DebuggedGraph:
    """A function: what was traced of it."""

    name: str
    outer: str = ""
    """The number of the function that it was traced in."""
    operators: dict[str, GraphOperator] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Execution:
    """What Python executed: an operator, or a function as a whole."""

    time: Microseconds
    op_type: str
    graph: str
    """Of a function, the number of its graph."""
    inputs: tuple[int, ...]
    """Numbers of tensors, each given once in a run."""
    outputs: tuple[int, ...]
    devices: tuple[int, ...]
    mode: int
    tensors: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class GraphTrace:
    """What an operator of a function made, once."""

    time: Microseconds
    graph: str
    op: str
    slot: int
    mode: int
    tensor: memoryview
    device: str


@dataclass(slots=True)
class FileSet:
    """What one host wrote of one run."""

    folder: Path
    name: str
    """What the names of its files begin with."""
    started: float
    run: str
    """The run's number; the set's own name where it does not tell."""
    tensorflow: str = ""
    told: list[str] = field(default_factory=list)
    kinds: dict[str, Path] = field(default_factory=dict)
    """Files that are called otherwise."""

    def path(self, kind: str) -> Path:
        return self.kinds.get(kind, self.folder / f"{self.name}.{kind}")


def sets_of(path: Path) -> list[str]:
    """What the names of the files begin with, set by set; of one file, its own set."""
    names = names_in(path) if path.is_dir() else [path.name] if path.is_file() else []
    matches = (_FILE.fullmatch(name) for name in names)
    return sorted({match["set"] for match in matches if match is not None and match["kind"] in _TELLING})


def graphs_file(path: Path) -> FileSet:
    """A file of graphs as a set of its own, whatever it is called."""
    return FileSet(path.parent, path.stem, started=0.0, run=path.stem, kinds={GRAPHS: path})


def newest_run(path: Path) -> tuple[list[FileSet], list[str]]:
    """The sets of files of the run that began last, the first host first; and what is told of other runs."""
    folder = path if path.is_dir() else path.parent
    sets = [_file_set(folder, name) for name in sets_of(path)]
    runs: dict[str, list[FileSet]] = {}
    for one in sorted(sets, key=lambda one: (one.started, one.name)):
        runs.setdefault(one.run, []).append(one)
    *older, newest = runs.values()
    if not older:
        return newest, []
    left_out = ", ".join(f"{sets[0].name}.{METADATA}" for sets in older)
    return newest, [remark("tfdbg_older", older=left_out, newest=newest[0].name)]


def _file_set(folder: Path, name: str) -> FileSet:
    match = _FILE.fullmatch(f"{name}.{METADATA}")
    found = FileSet(folder, name, started=float(match["time"]) if match is not None else 0.0, run=name)
    try:
        for event in events_of(found, METADATA):
            metadata = event["debug_metadata"]
            if metadata is not None:
                found.started = event["time"] / _MICROSECONDS
                found.run = metadata["tfdbg_run_id"] or name
                found.tensorflow = metadata["tensorflow_version"]
    except UlpscopeError as error:
        found.told.append(remark("problem", problem=error.seen))
    return found


def events_of(files: FileSet, kind: str) -> Iterator[dict[str, Any]]:
    """The events of one file, with `time` in microseconds; `told` of the set gets what could not be read."""
    path = files.path(kind)
    try:
        records = read_records(path)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}"
        raise UlpscopeError(problem, expected="a file of tfdbg2", next_step="copy the dump again") from error
    files.told += records.told
    strange = 0
    for record in records.contents:
        try:
            event = decode(schemas_of("debug_event"), "DebugEvent", record, 0, len(record))
            event["time"] = _time(record, event["wall_time"])
        except WireError:
            strange += 1
            continue
        event["record"] = record
        yield event
    if strange:
        files.told.append(remark("events_strange", file=path.name, records=Counted(strange, "record")))


def _time(record: memoryview, place: tuple[int, int] | None) -> Microseconds:
    seconds = struct.unpack_from("<d", record, place[0])[0] if place is not None else 0.0
    if not 0 <= seconds * _MICROSECONDS < _LATEST:
        raise WireError("has a time that no clock shows")
    return int(seconds * _MICROSECONDS)


def read_graphs(sets: Sequence[FileSet]) -> tuple[dict[str, DebuggedGraph], dict[int, str]]:
    """Functions by their numbers, and devices by theirs, of all hosts of a run."""
    graphs: dict[str, DebuggedGraph] = {}
    devices: dict[int, str] = {}
    for event in (event for files in sets if files.path(GRAPHS).exists() for event in events_of(files, GRAPHS)):
        operator, graph, device = event["graph_op_creation"], event["debugged_graph"], event["debugged_device"]
        if operator is not None:
            # Operators come before the function that they belong to is whole.
            known = graphs.setdefault(operator["graph_id"], DebuggedGraph(operator["graph_name"]))
            known.operators[operator["op_name"]] = _operator(operator)
        elif graph is not None:
            known = graphs.setdefault(graph["graph_id"], DebuggedGraph(""))
            known.name, known.outer = graph["graph_name"] or known.name, graph["outer_context_id"]
        elif device is not None:
            devices[device["device_id"]] = device["device_name"]
    return graphs, devices


def _operator(found: dict[str, Any]) -> GraphOperator:
    return GraphOperator(
        found["op_type"], found["op_name"], tuple(map(_source, found["input_names"])), found["device_name"]
    )


def _source(text: str) -> tuple[str, int]:
    name, _, output = text.rpartition(":")
    return (name, int(output)) if name and output.isdecimal() and len(output) < 10 else (text, 0)


def read_executions(files: FileSet) -> list[Execution]:
    if not files.path(EXECUTION).exists():
        return []
    found = ((event, event["execution"]) for event in events_of(files, EXECUTION))
    return [_execution(event, execution) for event, execution in found if execution is not None]


def _execution(event: dict[str, Any], found: dict[str, Any]) -> Execution:
    record = event["record"]
    return Execution(
        time=event["time"],
        op_type=found["op_type"],
        graph=found["graph_id"],
        inputs=tuple(found["input_tensor_ids"]),
        outputs=tuple(found["output_tensor_ids"]),
        devices=tuple(found["output_tensor_device_ids"]),
        mode=found["tensor_debug_mode"],
        tensors=tuple([record[start:stop] for start, stop in found["tensor_protos"]]),
    )


def read_traces(files: FileSet) -> list[GraphTrace]:
    if not files.path(TRACES).exists():
        return []
    found = ((event, event["graph_execution_trace"]) for event in events_of(files, TRACES))
    return [_trace(event, trace) for event, trace in found if trace is not None]


def _trace(event: dict[str, Any], found: dict[str, Any]) -> GraphTrace:
    place = found["tensor_proto"]
    return GraphTrace(
        time=event["time"],
        graph=found["tfdbg_context_id"],
        op=found["op_name"],
        slot=found["output_slot"],
        mode=found["tensor_debug_mode"],
        tensor=memoryview(b"") if place is None else event["record"][slice(*place)],
        device=found["device_name"],
    )
