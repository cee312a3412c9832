"""Opens a dump of tfdbg2, the debugger of TensorFlow 2, as a trace: each execution of a function is a step.

A step begins with what a function's operators made, then comes the function itself, and what Python executed after it
one by one. What came before the first function belongs to the first step.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.executed import Executed, ExecutedTensor
from ulpscope.dialects.ascend.opening import OperatorRank
from ulpscope.dialects.files.stored import AnyArray, StoredTensor, unreadable, unsupported
from ulpscope.dialects.reference import ReferenceTensor, reference_dialect, unread
from ulpscope.dialects.tables import TFDBG, CallNames, foreign_rank
from ulpscope.dialects.tfdbg2_files import (
    EXECUTION,
    METADATA,
    TRACES,
    DebuggedGraph,
    Execution,
    FileSet,
    GraphTrace,
    newest_run,
    read_executions,
    read_graphs,
    read_traces,
    sets_of,
)
from ulpscope.dialects.tfdbg2_modes import UNKNOWN, Mode, described, mode_name
from ulpscope.dialects.tfdbg_event import TensorMessage, parse_tensor
from ulpscope.dialects.wire import WireError
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.enums import ExitCode, Save
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.frames import FrameRank
from ulpscope.trace.reader import Trace

DAMAGED = (WireError, ValueError, OverflowError)
"""What comes of a tensor whose bytes are not what its type and shape say."""

Key: TypeAlias = Hashable
"""What an output and those who read it have in common."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of an operator, and what the debugger wrote of it."""

    key: Key
    mode: int
    message: memoryview
    time: int
    device: str

    def tensor(self) -> TensorMessage:
        return parse_tensor(self.message)

    def array(self) -> AnyArray:
        return self.tensor().array()


Outputs: TypeAlias = dict[Key, Output]


@dataclass(slots=True)
class Made:
    """One execution of an operator."""

    type: str
    name: str
    inputs: tuple[Key, ...] = ()
    outputs: dict[int, Output] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """What one host of a run wrote: the operators of each step, in order."""

    files: FileSet
    steps: tuple[tuple[Made, ...], ...]


def looks_like(path: Path) -> bool:
    """Whether tfdbg2 wrote this: a directory of its files, or one of them."""
    return bool(sets_of(path))


def read_run(path: Path) -> tuple[list[Host], list[str]]:
    """The hosts of the run that began last, and what is told of the others; UlpscopeError if nothing was executed."""
    sets, told = newest_run(path)
    graphs, devices = read_graphs(sets)
    hosts = [Host(files, _steps(read_traces(files), read_executions(files), graphs, devices)) for files in sets]
    if not any(host.steps for host in hosts):
        kinds = f"{EXECUTION} and {TRACES}"
        lost = "; ".join(told_of for files in sets for told_of in files.told)
        raise UlpscopeError(
            f"{path} tells of no execution{f' ({lost})' if lost else ''}",
            expected=f"{sets[0].name}.{kinds} files with what was executed",
            next_step="end the script regularly, or let it call flush of the debugger: "
            "tf.debugging.experimental.enable_dump_debug_info keeps the last 1000 events in memory, unless it is "
            "given circular_buffer_size=-1",
            code=ExitCode.NOTHING,
        )
    return hosts, told


Event: TypeAlias = "GraphTrace | Execution"


def _steps(
    traces: Sequence[GraphTrace],
    executions: Sequence[Execution],
    graphs: dict[str, DebuggedGraph],
    devices: dict[int, str],
) -> tuple[tuple[Made, ...], ...]:
    """The operators of each step. An execution is written when it is over: what its graph made lies before it."""
    events: list[Event] = sorted([*traces, *executions], key=lambda event: (event.time, isinstance(event, Execution)))
    steps: list[list[Made]] = [[]]
    open_executions: dict[Key, Made] = {}
    functions = 0
    inside = False
    for event in events:
        if isinstance(event, GraphTrace):
            if not inside and functions:
                steps.append([])
                open_executions.clear()
            inside = True
            _add_trace(event, open_executions, steps[-1], graphs)
            continue
        if event.graph:
            if not inside and functions:
                steps.append([])
            functions, inside = functions + 1, False
        steps[-1].append(_of_execution(event, graphs, devices))
    return tuple([tuple(step) for step in steps if step])


def _add_trace(trace: GraphTrace, ongoing: dict[Key, Made], step: list[Made], graphs: dict[str, DebuggedGraph]) -> None:
    """An output belongs to the execution of its operator that lacks it; else the operator was executed again."""
    operator = trace.graph, trace.op, trace.device
    made = ongoing.get(operator)
    if made is None or trace.slot in made.outputs:
        graph = graphs.get(trace.graph)
        known = None if graph is None else graph.operators.get(trace.op)
        inputs = () if known is None else tuple([(trace.graph, *source) for source in known.inputs])
        made = ongoing[operator] = Made(trace.op if known is None else known.type, trace.op, inputs)
        step.append(made)
    key = trace.graph, trace.op, trace.slot
    made.outputs[trace.slot] = Output(key, trace.mode, trace.tensor, trace.time, trace.device)


def _of_execution(found: Execution, graphs: dict[str, DebuggedGraph], devices: dict[int, str]) -> Made:
    # A function's own name ends in a number that differs from run to run; that of its graph does not.
    name = graphs[found.graph].name if found.graph in graphs else ""
    made = Made(name or found.op_type, name or found.op_type, found.inputs)
    for slot, (key, message) in enumerate(zip(found.outputs, found.tensors, strict=False)):
        device = devices.get(found.devices[slot], "unknown") if slot < len(found.devices) else "unknown"
        # Outputs that cannot be dumped (resources) are left out: which of the others is which is not known then.
        if len(found.tensors) == len(found.outputs) or found.mode != Mode.FULL_TENSOR:
            made.outputs[slot] = Output(key, found.mode, message, found.time, device)
    return made


def open_tfdbg2(path: Path) -> Trace:
    """A dump as a trace; its hosts are ranks."""
    hosts, told = read_run(path)
    ranks = [_rank(path, number, host, len(hosts)) for number, host in enumerate(hosts)]
    return Trace(path, ranks, missing_ranks=told)


def _rank(path: Path, number: int, host: Host, hosts: int) -> FrameRank:
    outputs = {out.key: out for step in host.steps for made in step for out in made.outputs.values()}
    modes = {output.mode for output in outputs.values()}
    has_data = Mode.FULL_TENSOR in modes
    info = foreign_rank(
        tool=TFDBG,
        rank=number,
        world_size=hosts,
        save=Save.TENSORS if has_data else Save.STATS,
        framework="tensorflow",
    )
    readers = {step: partial(_read, step, made, outputs) for step, made in enumerate(host.steps)}
    told = [
        *host.files.told,
        *(remark("tfdbg_mode", mode=mode_name(mode)) for mode in sorted(modes - {Mode.FULL_TENSOR})),
    ]
    source = OperatorRank(readers, missing=told, has_data=has_data)
    return FrameRank(path, name=f"rank{number}", info=info, steps=sorted(readers), source=source)


def _read(step: int, operators: Sequence[Made], all_outputs: Outputs) -> tuple[list[Executed], list[str]]:
    """The operators of a step, and what is told of the tensors that are left out."""
    executed: list[Executed] = []
    names, left_out, told = CallNames(), Counter[str](), list[str]()
    made_here: set[Key] = set()
    for made in operators:
        inputs = (_input(place, key, made_here, all_outputs) for place, key in enumerate(made.inputs))
        tensors = [tensor for tensor in inputs if tensor is not None]
        for slot, output in made.outputs.items():
            try:
                tensor = _tensor(Side.OUTPUT, slot, output)
            except DAMAGED as error:
                told.append(remark("problem", problem=f"{made.name}:{slot} {error}"))
                continue
            if output.mode == Mode.FULL_TENSOR and tensor.read is None:
                left_out[tensor.dtype] += 1
                continue
            if tensor.dtype == UNKNOWN and not tensor.numbers:
                continue
            tensors.append(tensor)
            made_here.add(output.key)
        executed.append(Executed(names.next(made.type), made.type, made.name, 0, tensors=tuple(tensors)))
    told += [
        remark("step", step=step, remark=remark("type_not_read", tensors=Counted(count, "tensor"), dtype=dtype))
        for dtype, count in left_out.items()
    ]
    return executed, told


def _input(place: int, key: Key, made_here: set[Key], all_outputs: Outputs) -> ExecutedTensor | None:
    """What an operator read: made in this step, or by Python's own executions before it."""
    if key in made_here:
        return ExecutedTensor(Side.INPUT, place, "", (), "", key=key)
    output = all_outputs.get(key) if isinstance(key, int) else None
    try:
        return None if output is None else _tensor(Side.INPUT, place, output)
    except DAMAGED:
        return None


def _tensor(side: Side, index: int, output: Output) -> ExecutedTensor:
    """An output with its data, or with what the debugger counted in it; WireError if it is damaged."""
    message = output.tensor()
    if output.mode != Mode.FULL_TENSOR:
        known = described(output.mode, message)
        return ExecutedTensor(
            side, index, known.dtype, known.shape, "strided", None, known.numbers, output.device, output.key
        )
    usable = message.dtype in DTYPES and not message.is_blank
    if usable:
        message.array()
    dtype = "uninitialized memory" if message.dtype in DTYPES and not usable else message.dtype
    return ExecutedTensor(
        side,
        index,
        dtype,
        message.shape,
        "strided",
        read=output.array if usable else None,
        device=output.device,
        key=output.key,
    )


def tensors_of(path: Path) -> list[ReferenceTensor]:
    """Every tensor of a dump; UlpscopeError if it only has numbers about them."""
    hosts, others = read_run(path)
    found = [
        tensor
        for host in hosts
        for number, step in enumerate(host.steps)
        for tensor in _step_tensors(number, step, host.files)
    ]
    if not found:
        raise UlpscopeError(
            f"{path} has numbers about tensors at most, and no tensor",
            expected="a dump with tensor_debug_mode='FULL_TENSOR'",
            next_step=f"see what it has: ulpscope show {path}",
            code=ExitCode.NOTHING,
        )
    last = {"step": max(tensor.step for tensor in found), "timestamp": max(tensor.timestamp for tensor in found)}
    lost = [(host.files.path(METADATA), problem) for host in hosts for problem in host.files.told]
    lost += [(path, problem) for problem in others]
    return [*_at_times_of_their_own(found), *(unread(where, problem, **last) for where, problem in lost)]


def _step_tensors(number: int, step: Iterable[Made], files: FileSet) -> Iterable[ReferenceTensor]:
    for made in step:
        for slot, output in made.outputs.items():
            if output.mode == Mode.FULL_TENSOR:
                path = files.path(EXECUTION if isinstance(output.key, int) else TRACES)
                load: Callable[[Path], StoredTensor] = partial(_stored, output, f"{made.name}:{slot}")
                yield ReferenceTensor(made.name, slot, output.time, path, load=load, device=output.device, step=number)


def _at_times_of_their_own(tensors: Iterable[ReferenceTensor]) -> list[ReferenceTensor]:
    """Several outputs of one name may have the same microsecond, and each needs a time of its own: the next one."""
    latest: dict[tuple[str, int], int] = {}
    found = []
    for tensor in tensors:
        time = max(tensor.timestamp, latest.get(tensor.key, -1) + 1)
        latest[tensor.key] = time
        found.append(tensor if time == tensor.timestamp else replace(tensor, timestamp=time))
    return found


def _stored(output: Output, name: str, path: Path) -> StoredTensor:
    try:
        message = output.tensor()
    except DAMAGED as error:
        raise _bad_tensor(path, name, error) from error
    if message.dtype not in DTYPES or message.is_blank:
        dtype = "uninitialized memory" if message.dtype in DTYPES else message.dtype
        return unsupported(path, name, dtype=dtype, shape=message.shape)
    return StoredTensor(message.dtype, message.shape, partial(_elements, output, name, path))


def _elements(output: Output, name: str, path: Path) -> AnyArray:
    try:
        return output.array()
    except DAMAGED as error:
        raise _bad_tensor(path, name, error) from error


def _bad_tensor(path: Path, name: str, error: Exception) -> UlpscopeError:
    return unreadable(path, f"{name} {error}", expected="a tensor as tfdbg2 dumps it")


TFDBG2_DUMP = reference_dialect(recognises=looks_like, open=open_tfdbg2, tensors=tensors_of)
