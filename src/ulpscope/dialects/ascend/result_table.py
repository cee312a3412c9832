"""Result CSVs of network-wide comparisons, of any generation of msaccucmp.

2021       LeftOp,RightOp,TensorIndex,CosineSimilarity,...
2022-05    Index,NPUDump,DataType,GroundTruth,DataType,TensorIndex,Shape,CosineSimilarity,...
2022-08    Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,Address,TensorIndex,Shape,CosineSimilarity,...
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import open_text

TARGET = ("NPUDump", "LeftOp")
REFERENCE = ("GroundTruth", "RightOp")
TENSOR, COSINE, INDEX = "TensorIndex", "CosineSimilarity", "Index"

_LIMIT = 2**30
"""Bytes; a network of 10,000 operators has some megabytes."""
_LINE_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class ComparedTensor:
    """One row."""

    side: Side
    index: int
    cosine: float
    """nan where it was not computed."""


@dataclass(frozen=True, slots=True)
class ComparedOperator:
    """The rows of one operator."""

    index: str
    """As the file numbers it; empty in files of 2021."""
    name: str
    target: tuple[str, ...]
    """Operators of the NPU that were compared together."""
    reference: tuple[str, ...]
    tensors: tuple[ComparedTensor, ...] = ()

    def of(self, side: Side) -> tuple[ComparedTensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.side is side)


def is_result_table(path: Path) -> bool:
    """Whether a file is such a result, as far as its first line tells."""
    try:
        with open_text(path, limit=_LIMIT, errors="replace", newline="") as file:
            header = [name.strip() for name in file.readline(_LINE_LIMIT).split(",")]
    except OSError:
        return False
    return TENSOR in header and COSINE in header


def read_result_table(path: Path) -> tuple[ComparedOperator, ...]:
    """The operators of a result in the order of the file; those without a compared tensor are left out."""
    try:
        with open_text(path, limit=_LIMIT, errors="replace", newline="") as file:
            rows = csv.reader(file)
            columns = _columns(path, next(rows, []))
            return _operators(rows, columns)
    except (OSError, csv.Error) as error:
        raise _bad_table(path, f"cannot be read ({error})") from error


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the file has what is wanted."""

    target: int
    reference: int
    tensor: int
    cosine: int
    index: int | None

    @property
    def last(self) -> int:
        return max(self.target, self.reference, self.tensor, self.cosine, self.index or 0)


def _columns(path: Path, header: Sequence[str]) -> _Columns:
    places = {name.strip(): place for place, name in reversed(list(enumerate(header)))}
    target = next((places[name] for name in TARGET if name in places), None)
    reference = next((places[name] for name in REFERENCE if name in places), None)
    if target is None or reference is None or TENSOR not in places or COSINE not in places:
        raise _bad_table(path, f"begins with {','.join(header)[:100]!r}")
    return _Columns(target, reference, places[TENSOR], places[COSINE], places.get(INDEX))


def _operators(rows: Iterable[Sequence[str]], columns: _Columns) -> tuple[ComparedOperator, ...]:
    found: dict[tuple[str, str], ComparedOperator] = {}
    tensors: dict[tuple[str, str], list[ComparedTensor]] = {}
    for row in rows:
        place = _place(row[columns.tensor]) if len(row) > columns.last else None
        if place is None:
            continue
        name, side, number = place
        index = "" if columns.index is None else row[columns.index].strip()
        if (index, name) not in found:
            target, reference = _names(row[columns.target]), _names(row[columns.reference])
            found[index, name] = ComparedOperator(index, name, target, reference)
        tensor = ComparedTensor(side, number, _number(row[columns.cosine]))
        tensors.setdefault((index, name), []).append(tensor)
    return tuple(replace(operator, tensors=tuple(tensors[key])) for key, operator in found.items())


def _place(text: str) -> tuple[str, Side, int] | None:
    """`fc1/Relu:output:0`; `NaN` and `*` stand where nothing was compared."""
    name, _, rest = text.strip().partition(":")
    side, _, number = rest.partition(":")
    if side not in (Side.INPUT.value, Side.OUTPUT.value) or not (number.isascii() and number.isdigit()):
        return None
    return name, Side(side), int(number[:9])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _bad_table(path: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"{path} {problem}",
        expected=f"a result CSV of a comparison, with the columns {TARGET[0]}, {REFERENCE[0]}, {TENSOR} and {COSINE}",
        next_step="check the path, or compare again: ulpscope compare REFERENCE DUMPS --graph GRAPH",
    )
