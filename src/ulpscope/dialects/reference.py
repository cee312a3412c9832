"""Reference dumps: what a framework computed where the numbers are trusted, one file an operator's output.

    index = reference_index(Path("tf/dump"))
    for tensor in index["fc1_Relu", 0]:           all arrays of fc1/Relu's first output, in time order
        tensor.stored().array()

Operators' names are written otherwise in each tool's files, so the index has them as file names do: sanitised.
As a trace, a dump has a call an operator and a value an output.

The simplest are folders of arrays, as the makers of reference data for Ascend networks name them:

fc1_Relu.0.1767225600900010.npy       operator, output, time: names of TensorFlow, ONNX or Caffe, '/' and '.' as '_'
2841738291.npy, mapping.csv           a name that is too long for a file: its row in mapping.csv has the whole one
conv1.0.1767225600900010.quant, .pb   the same in an old form of a dump file, of quantised networks too
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.executed import Executed, ExecutedTensor
from ulpscope.dialects.ascend.logical import logical_array, logical_form, logical_type
from ulpscope.dialects.ascend.opening import OperatorRank
from ulpscope.dialects.ascend.tree import MAPPING_FILE, read_mapping
from ulpscope.dialects.files.stored import StoredTensor, TensorFile, read_npy, unreadable
from ulpscope.dialects.registry import Dialect, known_dialects
from ulpscope.dialects.tables import (
    NPY,
    CallNames,
    foreign_rank,
)
from ulpscope.graph.names import sanitised
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.frames import FrameRank
from ulpscope.trace.reader import Trace

_DIGITS = re.compile(r"(\D*)(\d{0,18})")


@dataclass(frozen=True, slots=True)
class ReferenceTensor:
    """One output of an operator, in a file of its own."""

    op: str
    """The operator's name as its dump tells it: with '/' where the dump keeps it."""
    index: int
    """Which output."""
    timestamp: int
    """Microseconds."""
    path: Path
    load: Callable[[Path], StoredTensor] = field(compare=False, repr=False)
    device: str = "unknown"
    step: int = 0
    """Which run of a session, or execution of a function, where the dump has several."""

    @property
    def key(self) -> tuple[str, int]:
        """What reference_index has it under."""
        return sanitised(self.op), self.index

    def stored(self) -> StoredTensor:
        """What the file holds; UlpscopeError if it cannot be read."""
        return self.load(self.path)


def unread(path: Path, problem: str, *, step: int, timestamp: int) -> ReferenceTensor:
    """What stands for a part of a dump that is not read, so that nobody who takes its tensors misses it silently."""

    def refuse(path: Path) -> StoredTensor:
        raise UlpscopeError(problem, expected="a whole dump of one run", next_step=f"ulpscope show {path}")

    return ReferenceTensor(path.name, 0, timestamp, path, load=refuse, step=step)


ReferenceIndex: TypeAlias = Mapping[tuple[str, int], tuple[ReferenceTensor, ...]]


def reference_index(path: Path) -> ReferenceIndex:
    """All arrays of each operator's outputs, in time order; UlpscopeError if this is no reference dump."""
    tensors = reference_tensors(path)
    if tensors is not None:
        return index_of(tensors)
    from ulpscope.dialects.recognising import wrong_kind

    raise wrong_kind(path, "a reference dump") or UlpscopeError(
        f"{path} is no reference dump",
        expected="a directory with OPERATOR.OUTPUT.TIMESTAMP.npy files, or a dump of tfdbg (run_*/_tfdbg_device_*)",
        next_step="check the path",
    )


def reference_tensors(path: Path) -> list[ReferenceTensor] | None:
    """Every array of a reference dump; none if this is none."""
    read = next((each.reference for each in known_dialects() if each.reference and each.recognises(path)), None)
    return None if read is None else read(path)


def reference_dialect(
    *,
    recognises: Callable[[Path], bool],
    open: Callable[[Path], Trace],
    tensors: Callable[[Path], list[ReferenceTensor]],
) -> Dialect:
    """A dialect whose dumps have a file an operator's output."""
    return Dialect(
        what="a reference dump, of operators of a network",
        next_step="ulpscope show {path}, or set it beside the dumps of an NPU: "
        "ulpscope compare {path} DUMPS --graph GRAPH",
        recognises=recognises,
        open=open,
        tensors=lambda path: _by_operator(tensors(path)),
        reference=tensors,
    )


def _by_operator(tensors: Iterable[ReferenceTensor]) -> TensorFile:
    """`fc1_Relu.0`, whenever it was dumped; of an operator that ran several times `fc1_Relu.0#1` is the second."""
    return {
        f"{operator}.{output}{f'#{number}' if number else ''}": tensor.stored()
        for (operator, output), several in index_of(tensors).items()
        for number, tensor in enumerate(several)
    }


def index_of(tensors: Iterable[ReferenceTensor]) -> ReferenceIndex:
    """Tensors by operator and output."""
    found: dict[tuple[str, int], list[ReferenceTensor]] = {}
    for tensor in in_time_order(tensors):
        found.setdefault(tensor.key, []).append(tensor)
    return {key: tuple(several) for key, several in found.items()}


def in_time_order(tensors: Iterable[ReferenceTensor]) -> list[ReferenceTensor]:
    """The earliest first; of the same time by name, numbers in it as numbers."""
    return sorted(tensors, key=lambda each: (each.timestamp, _natural(each.op), each.index, each.path.name))


def _natural(name: str) -> list[tuple[str, int]]:
    """`layer2` before `layer10`."""
    return [(text, int(digits or 0)) for text, digits in _DIGITS.findall(name)]


def executions(tensors: Iterable[ReferenceTensor]) -> list[tuple[ReferenceTensor, ...]]:
    """The outputs of each execution of an operator: the n-th dump of each of them belongs to its n-th execution."""
    seen: dict[tuple[str, int, str], int] = {}
    found: dict[tuple[str, int, str], list[ReferenceTensor]] = {}
    for tensor in in_time_order(tensors):
        output = tensor.op, tensor.index, tensor.device
        number = seen[output] = seen.get(output, -1) + 1
        found.setdefault((tensor.op, number, tensor.device), []).append(tensor)
    return [tuple(sorted(outputs, key=lambda each: each.index)) for outputs in found.values()]


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """One execution of an operator."""

    op: str
    """Its type, or its name where the dump does not tell types."""
    name: str
    outputs: tuple[ReferenceTensor, ...]
    inputs: tuple[tuple[str, int], ...] = ()
    """The operator and output that each input is; where the dump tells."""


def open_reference(
    path: Path, steps: Mapping[int, Sequence[ReferenceCall]], *, tool: str, framework: str, missing: Sequence[str]
) -> Trace:
    """A reference dump as a trace; a step is read when it is first asked for."""
    info = foreign_rank(tool=tool, framework=framework)
    readers = {step: partial(_read, step, calls) for step, calls in steps.items()}
    source = OperatorRank(readers, missing=missing, has_data=True)
    return Trace(path, [FrameRank(path, name="rank0", info=info, steps=sorted(steps), source=source)])


def _read(step: int, calls: Sequence[ReferenceCall]) -> tuple[list[Executed], list[str]]:
    """The operators of a step, and what is told of the tensors that are left out."""
    executed: list[Executed] = []
    names, skipped, told = CallNames(), Counter[str](), list[str]()
    known: set[tuple[str, int]] = set()
    for call in calls:
        sources = [(place, source) for place, source in enumerate(call.inputs) if source in known]
        tensors = [ExecutedTensor(Side.INPUT, place, "", (), "", key=source) for place, source in sources]
        for each in call.outputs:
            try:
                stored = each.stored()
                if stored.dtype not in DTYPES:
                    skipped[stored.dtype] += 1
                    continue
                # A file that is cut off is told here, once, instead of by every command that meets its value.
                stored.array()
            except UlpscopeError as error:
                told.append(remark("problem", problem=error.seen))
                continue
            known.add((each.op, each.index))
            tensors.append(
                ExecutedTensor(
                    side=Side.OUTPUT,
                    index=each.index,
                    dtype=stored.dtype,
                    shape=stored.shape,
                    layout="strided",
                    read=stored.array,
                    device=each.device,
                    key=(each.op, each.index),
                )
            )
        executed.append(Executed(names.next(call.op), call.op, call.name, 0, tensors=tuple(tensors)))
    told += [
        remark("step", step=step, remark=remark("type_not_read", tensors=Counted(count, "tensor"), dtype=dtype))
        for dtype, count in skipped.items()
    ]
    return executed, told


_NAME = re.compile(r"(?P<op>[.A-Za-z0-9_-]+)\.(?P<index>[0-9]{1,9})\.(?P<time>[0-9]{1,255})\.(?P<kind>npy|pb|quant)")
_NUMBERED = re.compile(r"[0-9]+\.npy")


def is_npy_folder(path: Path) -> bool:
    """Whether this is a folder of reference arrays, as far as names tell."""
    names = names_in(path)
    return any(map(_NAME.fullmatch, names)) or (MAPPING_FILE in names and any(map(_NUMBERED.fullmatch, names)))


def npy_tensors(path: Path) -> list[ReferenceTensor]:
    """Every array of a folder; files of other names are left out."""
    names = names_in(path)
    real_names = read_mapping(path / MAPPING_FILE) if MAPPING_FILE in names else {}
    found = (_tensor(path / name, real_names.get(name, name)) for name in names)
    return [tensor for tensor in found if tensor is not None]


def open_npy_folder(path: Path) -> Trace:
    """A folder as a trace: a call an operator, in time order."""
    tensors = npy_tensors(path)
    ran = executions(tensors)
    calls = [ReferenceCall(op=outputs[0].op, name=outputs[0].op, outputs=outputs) for outputs in ran]
    read = {tensor.path.name for tensor in tensors}
    others = [name for name in names_in(path) if name.endswith(".npy") and name not in read]
    left_out = [remark("npy_names", files=Counted(len(others), "file"), example=others[0])] if others else []
    told = [*left_out, *_same_times(ran), *_other_counts(tensors)]
    return open_reference(path, {0: calls}, tool=NPY, framework="", missing=told)


def names_in(path: Path) -> list[str]:
    """Of all that lies in a directory; none if it is no directory that can be read."""
    try:
        return sorted(os.listdir(path)) if path.is_dir() else []
    except OSError:
        return []


def _tensor(path: Path, real_name: str) -> ReferenceTensor | None:
    match = _NAME.fullmatch(real_name)
    if match is None or not path.is_file():
        return None
    load = _load_npy if match["kind"] == "npy" else _load_dumped
    return ReferenceTensor(match["op"], int(match["index"]), int(match["time"]), path, load=load)


def _same_times(ran: Iterable[tuple[ReferenceTensor, ...]]) -> list[str]:
    """What is told of executions between which no time tells the order."""
    by_time: dict[int, list[str]] = {}
    for outputs in ran:
        by_time.setdefault(min(tensor.timestamp for tensor in outputs), []).append(outputs[0].op)
    together = [names for names in by_time.values() if len(names) > 1]
    if not together:
        return []
    count = Counted(sum(map(len, together)), "operator")
    return [remark("npy_order", operators=count, first=together[0][0], second=together[0][1])]


def _other_counts(tensors: Iterable[ReferenceTensor]) -> list[str]:
    """What is told of operators whose outputs were not dumped equally often."""
    files: dict[str, Counter[int]] = {}
    for tensor in tensors:
        files.setdefault(tensor.op, Counter())[tensor.index] += 1
    return [
        remark("npy_executions", operator=op, counts=", ".join(str(counts[index]) for index in sorted(counts)))
        for op, counts in sorted(files.items())
        if len(set(counts.values())) > 1
    ]


def _load_npy(path: Path) -> StoredTensor:
    try:
        return read_npy(path)[""]
    except OSError as error:
        raise unreadable(path, error.strerror or str(error), expected="an array that numpy.save wrote") from error


def _load_dumped(path: Path) -> StoredTensor:
    outputs = read_dump(path).outputs
    if len(outputs) != 1:
        raise UlpscopeError(
            f"{path} holds {len(outputs)} outputs",
            expected="one, as its name says",
            next_step="write the reference data again",
        )
    output = outputs[0]
    form = logical_form(output)
    return StoredTensor(logical_type(output), form.shape, lambda: logical_array(output, form))


NPY_FOLDER = reference_dialect(recognises=is_npy_folder, open=open_npy_folder, tensors=npy_tensors)
