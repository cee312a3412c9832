"""Operators that a device executed, by their dumps or by stats alone: what every command knows of a dump's step.

    steps, left_out = dumped_run(Path("npu/dump"))
    for dumped in steps:                                       devices and their steps, in order
        executed, problems = dumped.read()
        executed[0].name                                       'Relu.0', as in a trace of the same dump
        executed[0].tensors[0].stats()

Stats are a CSV file an operator, a row a tensor:
Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,...
"""

import csv
import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ulpscope.dialects.ascend.dump_file.records import ELEMENT_TYPES, AnyArray, DumpTensor, Shape, Side, plain_type
from ulpscope.dialects.ascend.logical import (
    Preferred,
    has_data,
    logical_array,
    logical_form,
    logical_type,
    preferred_layouts,
)
from ulpscope.dialects.ascend.operations import Operation, read_operations
from ulpscope.dialects.ascend.tree import (
    DumpEntry,
    DumpFolder,
    entry_of,
    list_dumps,
    one_run,
    told_unnamed,
)
from ulpscope.dialects.tables import (
    CallNames,
    frame_of_rows,
    stats_of,
    summary_row,
)
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.layouts import is_plain
from ulpscope.records.calls import Stats
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.remarks import remark
from ulpscope.trace.files import open_text
from ulpscope.trace.schema import VALUE_SUMMARY

_SIDE, _INDEX, _TYPE, _FORMAT, _SHAPE = "Input/Output", "Index", "Data Type", "Format", "Shape"
_NUMBERS = {"min": "Min Value", "max": "Max Value", "mean": "Avg Value", "norm": "l2norm"}
_COUNTS = {"nan": "Nan Count", "pos_inf": "Positive Inf Count", "neg_inf": "Negative Inf Count"}
_LIMIT = 64 * 2**20
_LARGEST = 2**62

Problems = dict[Path, UlpscopeError]
"""What is wrong with files that cannot be read."""


@dataclass(frozen=True, slots=True)
class ExecutedTensor:
    """An input or output; with data, or with the numbers that the device made of it."""

    side: Side
    index: int
    dtype: str
    """A name of numerics.dtypes, or the device's word for others."""
    shape: Shape
    layout: str
    """`strided`, or the device's word for an order that is not known here."""
    read: Callable[[], AnyArray] | None = None
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)
    """By columns of a trace's values: min, max, mean, norm, nan, pos_inf, neg_inf; none where it does not tell."""
    device: str = ""
    key: Hashable | None = None
    """Where a dump tells which output an input is: what both have. Elsewhere their content tells."""

    @property
    def place(self) -> str:
        """`output.0`."""
        return f"{self.side.value}.{self.index}"

    def stats(self) -> Stats | None:
        """None if there is no data, and the device tells nothing."""
        if self.read is not None:
            return stats_of(self.read(), self.dtype)
        told = self.numbers
        if all(number is None for number in told.values()):
            return None
        numbers: dict[str, Any] = {name: told.get(name) for name in _NUMBERS}
        counts = {name: int(told.get(name) or 0) for name in _COUNTS}
        set_aside = sum(counts.values())
        return Stats(**numbers, **counts, abs_sum=None, set_aside=set_aside, zero=None, subnormal=0, exponents=())


@dataclass(frozen=True, slots=True)
class Executed:
    """One execution of an operator."""

    name: str
    """`Relu.0`: its type, counted in the step."""
    op_type: str
    op_name: str
    timestamp: int
    operation: Operation | None = None
    """Its dump; none where only stats are there."""
    stats: Path | None = None
    tensors: tuple[ExecutedTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class DumpedStep:
    """What one device dumped in one step."""

    device: int
    step: int
    places: tuple[DumpFolder | DumpEntry, ...]

    @property
    def entries(self) -> list[DumpEntry]:
        listed = ([place] if isinstance(place, DumpEntry) else list_dumps(place.path) for place in self.places)
        return [entry for entries in listed for entry in entries]

    @property
    def unnamed(self) -> list[str]:
        """What is told of files that have no names."""
        found = [told for place in self.places if isinstance(place, DumpFolder) for told in told_unnamed(place.path)]
        return [remark("step", step=self.step, remark=told) for told in found]

    def read(self) -> tuple[list[Executed], Problems]:
        return read_executed(self.entries)


def dumped_run(path: Path) -> tuple[list[DumpedStep], list[str]]:
    """The steps of a dump path's newest run, of any directory of it, or of one file, by device and step; and what is
    told of older runs. None if there is nothing of a dump.
    """
    entry = None if path.is_dir() else entry_of(path)
    if entry is not None:
        return [DumpedStep(0, 0, (entry,))], []
    run = one_run(path)
    places: dict[tuple[int, int], list[DumpFolder]] = {}
    for folder in run.folders:
        places.setdefault((folder.device, folder.step), []).append(folder)
    return [DumpedStep(*key, tuple(folders)) for key, folders in sorted(places.items())], run.left_out


def read_operators(entries: Iterable[DumpEntry]) -> tuple[list[Executed], Problems]:
    """The operators of some files in the order in which they ran, by the heads of their dumps: without tensors."""
    entries = [entry for entry in entries if not entry.name.is_overflow_record]
    problems: Problems = {}
    operations = read_operations((entry for entry in entries if not entry.is_stats), problems.__setitem__)
    found = [Executed("", one.name.op_type, one.op_name, one.name.timestamp, operation=one) for one in operations]
    dumped = {entry.name for entry in entries if not entry.is_stats}
    for entry in entries:
        if entry.is_stats and entry.name not in dumped:
            name = entry.name
            found.append(Executed("", name.op_type, name.operator, name.timestamp, stats=entry.path))
    names = CallNames()
    return [
        replace(one, name=names.next(one.op_type)) for one in sorted(found, key=lambda one: one.timestamp)
    ], problems


def read_executed(entries: Iterable[DumpEntry]) -> tuple[list[Executed], Problems]:
    """The same with their tensors; without operators of which no tensor can be had, though they have some."""
    executed, problems = read_operators(entries)
    preferred = preferred_of(executed)
    told = (_with_tensors(one, preferred, problems) for one in executed)
    return [one for one in told if one is not None], problems


def preferred_of(executed: Iterable[Executed]) -> Preferred:
    """The layouts that most tensors of a step have."""
    dumps = (one.operation for one in executed if one.operation is not None)
    return preferred_layouts(tensor for operation in dumps for tensor in operation.heads)


def _with_tensors(one: Executed, preferred: Preferred, problems: Problems) -> Executed | None:
    operation, path = one.operation, one.stats
    tensors: list[ExecutedTensor] = []
    try:
        if path is not None:
            return replace(one, tensors=tuple(read_stats(path)))
        assert operation is not None
        path = operation.dumps[0].path
        found = (*operation.inputs, *operation.outputs)
    except UlpscopeError as error:
        assert path is not None
        problems[path] = error
        return None
    for tensor in found:
        try:
            tensors.append(_tensor(tensor, preferred))
        except UlpscopeError as error:
            problems.setdefault(path, error)
    return None if path in problems and not tensors else replace(one, tensors=tuple(tensors))


def _tensor(tensor: DumpTensor, preferred: Preferred) -> ExecutedTensor:
    dtype = logical_type(tensor)
    if not has_data(tensor) or dtype not in DTYPES:
        return ExecutedTensor(tensor.side, tensor.index, dtype, tensor.shape or (), tensor.format_name)
    # What the head says must be there is made sure of here, once, instead of by every command that meets the value.
    tensor.array()
    form = logical_form(tensor, preferred)
    known = is_plain(form.layout) or form.layout != tensor.format_name
    return ExecutedTensor(
        side=tensor.side,
        index=tensor.index,
        dtype=dtype,
        shape=form.shape,
        layout="strided" if known else form.layout,
        read=partial(logical_array, tensor, form),
    )


def summary_frame(tensors: Sequence[ExecutedTensor]) -> pl.DataFrame:
    """Stats, sketch and digest of each tensor, a row each; what a device's own stats do not tell is null."""
    # Mapped files and compiled sums let threads work at once.
    read = [(tensor, tensor.read) for tensor in tensors if tensor.read is not None]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        rows = list(threads.map(lambda each: summary_row(each[1](), each[0].dtype), read))
    own = frame_of_rows(rows, dtypes=[one.dtype for one, _ in read], shapes=[one.shape for one, _ in read])
    told = pl.DataFrame([dict(tensor.numbers) for tensor in tensors if tensor.read is None], schema=dict(VALUE_SUMMARY))
    order = np.argsort([tensor.read is None for tensor in tensors], kind="stable")
    return pl.concat([own, told]).select(pl.all().gather(np.argsort(order)))


def read_stats(path: Path) -> list[ExecutedTensor]:
    """The rows of a stats file."""
    try:
        with open_text(path, limit=_LIMIT, newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            missing = [name for name in (_SIDE, _INDEX, _TYPE, _SHAPE) if name not in (reader.fieldnames or ())]
            if missing:
                raise _bad_stats(path, f"has no column {missing[0]}")
            return [_of_row(path, row, number) for number, row in enumerate(reader, start=2)]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise _bad_stats(path, f"cannot be read ({error})") from error


def _of_row(path: Path, row: dict[str, str | None], line: int) -> ExecutedTensor:
    try:
        shape = tuple(int(size) for size in (row[_SHAPE] or "").split("x") if size.strip())
        index = int(row[_INDEX] or "")
        side = Side((row[_SIDE] or "").strip().lower())
        if not 0 <= index < _LARGEST or min(shape, default=0) < 0 or math.prod(shape) >= _LARGEST:
            raise ValueError(f"index {index}, shape {list(shape)}")
        numbers: dict[str, float | int | None] = {name: _number(row.get(column)) for name, column in _NUMBERS.items()}
        numbers |= {name: _count(row.get(column)) for name, column in _COUNTS.items()}
    except ValueError as error:
        raise _bad_stats(path, f"line {line} cannot be read ({error})") from error
    type_name, layout = (row[_TYPE] or "").strip().removeprefix("DT_"), (row.get(_FORMAT) or "").strip()
    kind = ELEMENT_TYPES.get(type_name)
    return ExecutedTensor(
        side=side,
        index=index,
        dtype=type_name.lower() if kind is None else plain_type(kind),
        shape=shape,
        layout="strided" if is_plain(layout) or not layout else layout,
        numbers=_with_signs(numbers),
    )


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and text.strip() else None


def _count(text: str | None) -> int | None:
    count = _number(text)
    return None if count is None or not math.isfinite(count) else int(count)


def _with_signs(numbers: dict[str, float | int | None]) -> dict[str, float | int | None]:
    """Without counts, a range that is not finite tells of one element at least; without a range, nothing does."""
    ends = [end for end in (numbers["min"], numbers["max"]) if end is not None]
    if not ends:
        return numbers
    signs = {
        "nan": any(map(math.isnan, ends)),
        "pos_inf": math.inf in ends,
        "neg_inf": -math.inf in ends,
    }
    told = {name: int(seen) if numbers[name] is None else numbers[name] for name, seen in signs.items()}
    finite = {name: number if number is None or math.isfinite(number) else None for name, number in numbers.items()}
    return finite | told


def _bad_stats(path: Path, problem: str) -> TraceError:
    return TraceError(
        f"{path}: {problem}",
        expected=f"a CSV file with the columns {_SIDE}, {_INDEX}, {_TYPE}, {_SHAPE} and values",
        next_step="copy the file again, or dump again",
    )
