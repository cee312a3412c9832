"""Executed operators in the form in which a trace tells them, whether a device dumped their tensors or only stats.

What is known of dumped tensors in numbers: made of their data, or told by the device.

Stats that a device made instead of a dump: a CSV file an operator, a row a tensor.

Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,...
"""

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.ascend.dump_file.content import AnyArray, Shape
from ulpscope.dialects.ascend.dump_file.records import DumpTensor, Side
from ulpscope.dialects.ascend.elements import ELEMENT_TYPES, plain_type
from ulpscope.dialects.ascend.logical import (
    Preferred,
    has_data,
    logical_array,
    logical_form,
    logical_type,
    preferred_layouts,
)
from ulpscope.dialects.ascend.operations import Operation, read_operations
from ulpscope.dialects.ascend.tree import DumpEntry
from ulpscope.dialects.tables import frame_of_rows, stats_of, summary_row
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.layouts.orders import is_plain
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.values import Stats
from ulpscope.trace.files import open_text
from ulpscope.trace.schema import VALUE_SUMMARY

_SIDE, _INDEX, _TYPE, _FORMAT, _SHAPE = "Input/Output", "Index", "Data Type", "Format", "Shape"
_NUMBERS = {"min": "Min Value", "max": "Max Value", "mean": "Avg Value", "norm": "l2norm"}
_COUNTS = {"nan": "Nan Count", "pos_inf": "Positive Inf Count", "neg_inf": "Negative Inf Count"}
_LIMIT = 64 * 2**20
_LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class StatsTensor:
    """What the device tells of one tensor."""

    side: Side
    index: int
    type_name: str
    format_name: str
    shape: Shape
    numbers: dict[str, float | int | None]
    """By columns of a trace's values: min, max, mean, norm, nan, pos_inf, neg_inf; none where it does not tell."""

    @property
    def dtype(self) -> str:
        """A name of numerics.dtypes, or the device's word for others."""
        kind = ELEMENT_TYPES.get(self.type_name)
        return self.type_name.lower() if kind is None else plain_type(kind)


def read_stats(path: Path) -> list[StatsTensor]:
    """The rows of a stats file."""
    try:
        with open_text(path, limit=_LIMIT, newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            missing = [name for name in (_SIDE, _INDEX, _TYPE, _SHAPE) if name not in (reader.fieldnames or ())]
            if missing:
                raise _bad_stats(path, f"has no column {missing[0]}")
            return [_stats_tensor(path, row, number) for number, row in enumerate(reader, start=2)]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise _bad_stats(path, f"cannot be read ({error})") from error


def _stats_tensor(path: Path, row: dict[str, str | None], line: int) -> StatsTensor:
    try:
        shape = tuple(int(size) for size in (row[_SHAPE] or "").split("x") if size.strip())
        index = int(row[_INDEX] or "")
        side = Side((row[_SIDE] or "").strip().lower())
        if not 0 <= index < _LARGEST or min(shape, default=0) < 0 or math.prod(shape) >= _LARGEST:
            raise ValueError(f"index {index}, shape {list(shape)}")
        numbers: dict[str, float | int | None] = {
            name: _stats_number(row.get(column)) for name, column in _NUMBERS.items()
        }
        numbers |= {name: _stats_count(row.get(column)) for name, column in _COUNTS.items()}
    except ValueError as error:
        raise _bad_stats(path, f"line {line} cannot be read ({error})") from error
    type_name = (row[_TYPE] or "").strip().removeprefix("DT_")
    return StatsTensor(side, index, type_name, (row.get(_FORMAT) or "").strip(), shape, _with_signs(numbers))


def _stats_number(text: str | None) -> float | None:
    return float(text) if text is not None and text.strip() else None


def _stats_count(text: str | None) -> int | None:
    count = _stats_number(text)
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


@dataclass(frozen=True, slots=True)
class ExecutedTensor:
    """An input or output; with data, or with the numbers that the device made of it."""

    side: Side
    index: int
    dtype: str
    shape: Shape
    layout: str
    """`strided`, or the device's word for an order that is not known here."""
    read: Callable[[], AnyArray] | None = None
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Executed:
    """One execution of an operator."""

    op_type: str
    op_name: str
    timestamp: int
    tensors: tuple[ExecutedTensor, ...]
    operation: Operation | None = None
    """Its dump; none where only stats are there."""


def read_executed(entries: Iterable[DumpEntry]) -> tuple[list[Executed], dict[Path, UlpscopeError]]:
    """The operators of some files in the order in which they ran, and what is wrong with files that cannot be read."""
    entries = [entry for entry in entries if not entry.name.is_overflow_record]
    problems: dict[Path, UlpscopeError] = {}
    operations = read_operations((entry for entry in entries if not entry.is_stats), problems.__setitem__)
    preferred = preferred_layouts(tensor for operation in operations for tensor in operation.heads)
    executed = [_of_dump(operation, preferred, problems) for operation in operations]
    dumped = {entry.name for entry in entries if not entry.is_stats}
    for entry in entries:
        if entry.is_stats and entry.name not in dumped:
            executed.append(_of_stats(entry, problems))
    found = [one for one in executed if one is not None]
    return sorted(found, key=lambda one: one.timestamp), problems


def _of_dump(operation: Operation, preferred: Preferred, problems: dict[Path, UlpscopeError]) -> Executed | None:
    """An operator with the tensors that can be had; none if there are some and none of them can."""
    tensors: list[ExecutedTensor] = []
    path = operation.dumps[0].path
    try:
        found = (*operation.inputs, *operation.outputs)
    except UlpscopeError as error:
        problems[path] = error
        return None
    for tensor in found:
        try:
            tensors.append(_tensor(tensor, preferred))
        except UlpscopeError as error:
            problems.setdefault(path, error)
    if path in problems and not tensors:
        return None
    return Executed(operation.name.op_type, operation.op_name, operation.name.timestamp, tuple(tensors), operation)


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


def _of_stats(entry: DumpEntry, problems: dict[Path, UlpscopeError]) -> Executed | None:
    try:
        tensors = read_stats(entry.path)
    except UlpscopeError as error:
        problems[entry.path] = error
        return None
    told = tuple(_of_row(row) for row in tensors)
    return Executed(entry.name.op_type, entry.name.operator, entry.name.timestamp, told)


def _of_row(row: StatsTensor) -> ExecutedTensor:
    layout = "strided" if is_plain(row.format_name) or not row.format_name else row.format_name
    return ExecutedTensor(row.side, row.index, row.dtype, row.shape, layout, numbers=row.numbers)


def summary_frame(tensors: Sequence[ExecutedTensor]) -> pl.DataFrame:
    """Stats, sketch and digest of each tensor, a row each; what a device's own stats do not tell is null."""
    # Mapped files and compiled sums let threads work at once.
    read = [tensor for tensor in tensors if tensor.read is not None]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        rows = list(threads.map(_row, read))
    own = frame_of_rows(rows, dtypes=[one.dtype for one in read], shapes=[one.shape for one in read])
    told = pl.DataFrame([dict(tensor.numbers) for tensor in tensors if tensor.read is None], schema=dict(VALUE_SUMMARY))
    order = np.argsort([tensor.read is None for tensor in tensors], kind="stable")
    return pl.concat([own, told]).select(pl.all().gather(np.argsort(order)))


def executed_stats(tensor: ExecutedTensor) -> Stats | None:
    """A tensor's stats; none if there is no data, and the device tells nothing."""
    if tensor.read is not None:
        return stats_of(tensor.read(), tensor.dtype)
    told = tensor.numbers
    if all(number is None for number in told.values()):
        return None
    counts = {name: int(told.get(name) or 0) for name in ("nan", "pos_inf", "neg_inf")}
    return Stats(
        min=told.get("min"),
        max=told.get("max"),
        mean=told.get("mean"),
        norm=told.get("norm"),
        abs_sum=None,
        set_aside=sum(counts.values()),
        zero=None,
        subnormal=0,
        exponents=(),
        **counts,
    )


def _row(tensor: ExecutedTensor) -> NDArray[np.float64]:
    assert tensor.read is not None
    return summary_row(tensor.read(), tensor.dtype)
