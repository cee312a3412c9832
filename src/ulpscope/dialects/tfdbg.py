"""Finds the files of a dump of tfdbg, and opens it as a trace: a run of the session is a step.

run_1794723388421334_0/
  _tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0/
    _tfdbg_graph_hash15740254456525809019_1794723388459904
    fc1/MatMul_0_DebugIdentity_1794723388533175

The graph beside a dump tells which type each operator has and what it reads, and so the order in which they ran.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.graphs.messages import GraphFileError
from ulpscope.dialects.graphs.tf_graph import read_graph_def
from ulpscope.dialects.reference import (
    ReferenceCall,
    ReferenceTensor,
    executions,
    names_in,
    open_reference,
    reference_dialect,
    unread,
)
from ulpscope.dialects.tables import TFDBG
from ulpscope.dialects.tfdbg_event import bad_event, load_tensor, read_event, read_graph_bytes
from ulpscope.graph.names import sanitised
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import remark
from ulpscope.trace.reader import Trace

COPIES = ("Copy", "CopyHost")
"""What the debugger puts between an operator and its readers."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph."""

    type: str
    inputs: tuple[tuple[str, int], ...]
    """Operators and their outputs, without control edges."""


def read_nodes(path: Path) -> dict[str, Node]:
    """Operators by name, without what the debugger added; UlpscopeError if the file is no graph."""
    try:
        model = read_graph_def(read_graph_bytes(path))
    except GraphFileError as problem:
        raise bad_event(path, str(problem)) from problem
    nodes = {}
    for operator in model.graphs[0].operators:
        sources = (each.source for each in operator.inputs)
        inputs = tuple((source.operator, source.output) for source in sources if source is not None)
        nodes[operator.name] = Node(operator.type, inputs)
    return {
        name: Node(node.type, tuple(_behind_copies(source, nodes) for source in node.inputs))
        for name, node in nodes.items()
    }


def _behind_copies(source: tuple[str, int], nodes: dict[str, Node]) -> tuple[str, int]:
    for _ in range(len(COPIES)):
        node = nodes.get(source[0])
        if node is None or node.type not in COPIES or not node.inputs:
            break
        source = node.inputs[0]
    return source


def in_order(calls: Sequence[ReferenceCall]) -> list[ReferenceCall]:
    """By time, but never before what an operator reads: the debugger dumps an output a little after it was made."""
    waiting = _waiting(calls)
    times = [min(tensor.timestamp for tensor in call.outputs) for call in calls]
    readers: dict[int, list[int]] = {}
    for reader, sources in waiting.items():
        for source in sources:
            readers.setdefault(source, []).append(reader)
    ready = [(times[number], number) for number, sources in waiting.items() if not sources]
    heapq.heapify(ready)
    # A loop's operators wait for each other: then the earliest goes first.
    rest = sorted(((times[number], number) for number in waiting), reverse=True)
    ordered: dict[int, ReferenceCall] = {}
    while len(ordered) < len(calls):
        _, number = heapq.heappop(ready) if ready else rest.pop()
        if number in ordered:
            continue
        ordered[number] = calls[number]
        for reader in readers.get(number, ()):
            waiting[reader].discard(number)
            if not waiting[reader]:
                heapq.heappush(ready, (times[reader], reader))
    return list(ordered.values())


def _waiting(calls: Sequence[ReferenceCall]) -> dict[int, set[int]]:
    """What each call waits for; an operator that ran several times is in a loop, where only time tells."""
    numbers: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        numbers.setdefault(call.name, []).append(number)
    single = {name: found[0] for name, found in numbers.items() if len(found) == 1}
    return {
        number: {single[name] for name, _ in call.inputs if name in single and single[name] != number}
        for number, call in enumerate(calls)
    }


DEVICE = "_tfdbg_device_"
GRAPH = "_tfdbg_graph_"
_RUN = re.compile(r"run_\d+.*")
_NUMBERED_RUN = re.compile(r"run_\d+_(?P<number>\d{1,9})")
# Other watches (DebugNanCount, DebugNumericSummary) dump numbers about a tensor, not the tensor.
_TENSOR = re.compile(r"(?P<base>.+)_(?P<slot>\d{1,9})_DebugIdentity(?:V\d+)?_(?P<time>\d{1,18})")
_NODE_NAME = re.compile(r"(?P<op>.+):(?P<slot>\d{1,9}):DebugIdentity(?:V\d+)?")
_DEVICE_PARTS = re.compile(r"^(job|replica|task|device)_")
_DEEPEST = 100
"""Scopes within scopes; a link that leads back up must not be followed for ever."""


def looks_like(path: Path) -> bool:
    """Whether tfdbg wrote this: its dump root, one run of it, or one device of a run."""
    return bool(_runs(path))


def tensors_of(path: Path) -> list[ReferenceTensor]:
    """Every tensor of a dump, of all runs."""
    runs = _runs(path)
    found = [tensor for step, run in enumerate(runs) for device in run for tensor in _device_tensors(device, step)]
    latest = max((tensor.timestamp for tensor in found), default=0)
    lost = (unread(path, problem, step=max(0, len(runs) - 1), timestamp=latest) for problem in _older_runs(path))
    return [*found, *lost]


def open_tfdbg(path: Path) -> Trace:
    """A dump as a trace."""
    missing = _older_runs(path)
    runs = _runs(path)
    steps = {step: _calls(run, missing) for step, run in enumerate(runs)}
    return open_reference(path, steps, tool=TFDBG, framework="tensorflow", missing=missing)


def _calls(run: Sequence[Path], missing: list[str]) -> list[ReferenceCall]:
    nodes: dict[str, Node] = {}
    for graph in (device / name for device in run for name in names_in(device) if name.startswith(GRAPH)):
        try:
            nodes |= read_nodes(graph)
        except UlpscopeError as error:
            missing.append(remark("tfdbg_graph", problem=error.seen))
    calls = []
    for outputs in executions(tensor for device in run for tensor in _device_tensors(device, 0)):
        name = outputs[0].op
        node = nodes.get(name, Node("", ()))
        # Without a type as folders of .npy files have it, so that a dump compares with what was taken out of it.
        inputs = node.inputs if node.type else ()
        calls.append(ReferenceCall(op=node.type or sanitised(name), name=name, outputs=outputs, inputs=inputs))
    return in_order(calls)


def device_name(folder: str) -> str:
    """`/job:localhost/replica:0/task:0/device:CPU:0` of a device's directory."""
    parts = [_DEVICE_PARTS.sub(r"\1:", part) for part in folder.removeprefix(DEVICE).split(",")]
    return "/".join(re.sub(r"^(device:[A-Za-z]+)_(\d+)$", r"\1:\2", part) for part in parts)


def _runs(path: Path) -> list[list[Path]]:
    """The devices' directories of each run, in time order."""
    if path.name.startswith(DEVICE) and path.is_dir():
        return [[path]]
    names = names_in(path)
    devices = [path / name for name in names if name.startswith(DEVICE)]
    if devices:
        return [devices]
    found = [
        [path / run / name for name in names_in(path / run) if name.startswith(DEVICE)] for run in _programs(names)[-1]
    ]
    return [devices for devices in found if devices]


def _programs(names: Iterable[str]) -> list[list[str]]:
    """The runs of each program in time order: one that counts from the beginning again is another program's."""
    programs: list[list[str]] = [[]]
    latest = -1
    for name in sorted((name for name in names if _RUN.fullmatch(name)), key=lambda name: (_numbers_in(name), name)):
        numbered = _NUMBERED_RUN.fullmatch(name)
        number = latest + 1 if numbered is None else int(numbered["number"])
        if number <= latest:
            programs.append([])
        programs[-1].append(name)
        latest = number
    return programs


def _older_runs(path: Path) -> list[str]:
    """What is told of the runs of other programs in the same directory."""
    names = names_in(path)
    if path.name.startswith(DEVICE) or any(name.startswith(DEVICE) for name in names):
        return []
    *older, newest = _programs(names)
    if not older:
        return []
    left_out = [name for program in older for name in program]
    words = left_out[0] if len(left_out) == 1 else f"{left_out[0]} to {left_out[-1]}"
    return [remark("tfdbg_programs", older=words, newest=newest[0])]


def _numbers_in(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,18}", name))


def _device_tensors(device: Path, step: int) -> Iterator[ReferenceTensor]:
    where = device_name(device.name)
    for directory in _directories(device):
        scope = directory.relative_to(device).as_posix()
        for name in names_in(directory):
            match = _TENSOR.fullmatch(name)
            if match is not None and (directory / name).is_file():
                op, slot = _operator(directory / name, scope, match)
                time = int(match["time"])
                yield ReferenceTensor(op, slot, time, directory / name, load=load_tensor, device=where, step=step)


def _directories(root: Path) -> Iterator[Path]:
    pending = [(root, 0)]
    while pending:
        directory, depth = pending.pop()
        yield directory
        if depth < _DEEPEST:
            below = [directory / name for name in names_in(directory)]
            pending += [(entry, depth + 1) for entry in below if entry.is_dir() and not entry.is_symlink()]


def _operator(path: Path, scope: str, match: re.Match[str]) -> tuple[str, int]:
    """The file says it itself; its name has the same words, but '_' for more than one thing."""
    try:
        stated = _NODE_NAME.fullmatch(read_event(path).node_name)
    except UlpscopeError:
        stated = None
    if stated is not None:
        return stated["op"], int(stated["slot"])
    base = match["base"]
    return (base if scope == "." else f"{scope}/{base}"), int(match["slot"])


TFDBG_DUMP = reference_dialect(recognises=looks_like, open=open_tfdbg, tensors=tensors_of)
