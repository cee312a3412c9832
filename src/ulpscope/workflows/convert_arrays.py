"""What `ulpscope convert` writes of files of tensors, of reference dumps and of traces: every array, under which name.

fc1_Relu.0.1767225600900010.npy      operator or call, which output of it, and when: names of reference data

Of a dump or trace with several steps (runs of a session, executions of a function), the last, unless steps are wanted.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import polars as pl

from ulpscope.dialects.files.opening import load_tensor_file
from ulpscope.dialects.files.stored import AnyArray, StoredTensor, unsupported
from ulpscope.dialects.reference import ReferenceTensor, reference_tensors
from ulpscope.dialects.registry import is_trace
from ulpscope.graph.names import sanitised
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import TENSORFLOW_OP
from ulpscope.records.calls import Value
from ulpscope.records.enums import MAKING_ROLES, ExitCode, Kind, Role
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.remarks import remark
from ulpscope.records.runs import IntRanges
from ulpscope.report.words.language import ranges_text
from ulpscope.trace.reader import RankTrace, Trace, open_trace


@dataclass(frozen=True, slots=True)
class NamedArray:
    """One array, and where it goes."""

    name: str
    """Of its file, without the ending."""
    load: Callable[[], StoredTensor]
    folder: str = ""
    """Below the directory that is written to."""
    of_dump: bool = False
    """Dumps hold resources and strings among their tensors, which have no numbers: these are only told."""


@dataclass(frozen=True, slots=True)
class ArraySource:
    """A file, dump or trace that holds arrays."""

    path: Path
    size: int
    arrays: tuple[NamedArray, ...]
    told: tuple[str, ...] = ()


def array_source(path: Path, steps: IntRanges | None) -> ArraySource:
    """The arrays of a source that are wanted; UlpscopeError if there are none."""
    found: Iterable[NamedArray]
    if is_trace(path):
        found, told = _of_trace(open_trace(path), steps)
    else:
        tensors = reference_tensors(path)
        found, told = _of_file(path, steps) if tensors is None else _of_dump(path, tensors, steps)
    files = [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return ArraySource(path, sum(file.stat().st_size for file in files), tuple(found), tuple(told))


def _of_file(path: Path, steps: IntRanges | None) -> tuple[Iterator[NamedArray], list[str]]:
    if steps is not None:
        raise UlpscopeError(
            f"--steps with {path}, which has none",
            expected="a trace, or a dump of tfdbg",
            next_step="leave --steps out",
        )
    stem = "" if path.is_dir() else path.stem
    tensors = load_tensor_file(path)
    named = (
        NamedArray(".".join(part for part in (stem, key) if part), partial(tensors.__getitem__, key)) for key in tensors
    )
    return named, []


def _of_dump(
    path: Path, tensors: Sequence[ReferenceTensor], steps: IntRanges | None
) -> tuple[Iterator[NamedArray], list[str]]:
    there = sorted({tensor.step for tensor in tensors})
    wanted = _wanted(path, there, steps)
    named = (
        NamedArray(f"{sanitised(tensor.op)}.{tensor.index}.{tensor.timestamp}", tensor.stored, of_dump=True)
        for tensor in tensors
        if tensor.step in wanted
    )
    return named, _told(there, wanted)


def _of_trace(trace: Trace, steps: IntRanges | None) -> tuple[list[NamedArray], list[str]]:
    there = list(trace.steps)
    found: list[NamedArray] = []
    wanted = [] if not there and steps is None else _wanted(trace.path, there, steps)
    # A last step that was not saved any more (--max-disk, a run that was killed) is no answer.
    tried = wanted if steps is not None else reversed(there)
    for step in tried:
        of_step = [array for rank in trace.ranks for array in _of_step(rank, step, alone=len(trace.ranks) == 1)]
        found += of_step
        if of_step and steps is None:
            wanted = [step]
            break
    if not found:
        raise TraceError(
            f"{trace.path} has no saved tensors{'' if steps is None else f' in step {steps}'}",
            expected="a trace with the data of what calls made",
            next_step="capture again with: ulpscope run --save tensors",
            code=ExitCode.NOTHING,
        )
    return found, [*trace.missing, *_told(there, wanted)]


def _wanted(path: Path, there: Sequence[int], steps: IntRanges | None) -> list[int]:
    if steps is None:
        return list(there[-1:])
    wanted = [step for step in there if step in steps]
    if not wanted:
        raise UlpscopeError(
            f"{path} has no step {steps}",
            expected=f"step {ranges_text(there)}",
            next_step=f"see what is there: ulpscope show {shlex.quote(str(path))}",
            code=ExitCode.NOTHING,
        )
    return wanted


def _told(there: Sequence[int], wanted: Sequence[int]) -> list[str]:
    others = [step for step in there if step not in wanted]
    if not others:
        return []
    return [remark("steps_not_written", written=ranges_text(wanted), others=ranges_text(others))]


def _of_step(rank: RankTrace, step: int, *, alone: bool) -> Iterator[NamedArray]:
    """What the calls of a step made and was saved, in their order."""
    calls = rank.collect(rank.calls(step).select("id", "name", "kind", "op"))
    names = {number: _called(name, kind, op) for number, name, kind, op in calls.iter_rows()}
    made = pl.col("role").is_in(MAKING_ROLES)
    uses = rank.collect(rank.tensors(step).filter(made).select("call", "role", "place", "value"))
    values = rank.find_values(uses["value"].drop_nulls())
    slots: dict[int, int] = {}
    started = _microseconds(rank.info.started)
    for call, role, place, number in uses.sort("call", maintain_order=True).iter_rows():
        slots[call] = slots.get(call, -1) + 1
        told = re.fullmatch(r"output\.(\d+)", place) if role == Role.OUTPUT.value else None
        slot = int(told[1]) if told else slots[call]
        value = values.get(number)
        if value is not None and value.data is not None and call in names:
            # No clock is read at a call; its number keeps the order.
            name = f"{sanitised(names[call])}.{slot}.{started + call}"
            yield NamedArray(name, partial(_stored, rank, value), "" if alone else rank.name)


def _called(name: str, kind: str, op: str) -> str:
    """The operator of a file's name. A node of TensorFlow's graph has its own, as in tfdbg's dumps: fc1/Relu."""
    node, _, _ = name.rpartition(".")
    if kind == Kind.API.value and op.startswith(TENSORFLOW_OP) and node != op:
        return node
    return f"{name}_backward" if kind == Kind.BACKWARD.value else name


def _microseconds(started: str) -> int:
    try:
        return int(datetime.fromisoformat(started).timestamp() * 1_000_000)
    except ValueError:
        return 0


def _stored(rank: RankTrace, value: Value) -> StoredTensor:
    if value.dtype not in DTYPES:
        return unsupported(rank.directory, f"value {value.id}", dtype=value.dtype, shape=value.shape)
    return StoredTensor(value.dtype, value.shape, partial(_elements, rank, value))


def _elements(rank: RankTrace, value: Value) -> AnyArray:
    array = rank.data(value)
    if array is None:
        raise TraceError(
            f"the data of value {value.id} of {rank.directory} is not there",
            expected="the data that the table of values names",
            next_step="copy the trace again",
        )
    return array


def folders_of(sources: Iterable[ArraySource]) -> set[str]:
    """Below the directory that is written to."""
    return {array.folder for source in sources for array in source.arrays if array.folder}
