"""Result CSVs of network-wide comparisons, of any generation of msaccucmp.

2021       LeftOp,RightOp,TensorIndex,CosineSimilarity,...
2022-05    Index,NPUDump,DataType,GroundTruth,DataType,TensorIndex,Shape,CosineSimilarity,...
2022-08    Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,Address,TensorIndex,Shape,CosineSimilarity,...
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
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
            header = next(rows, [])
            places = {name.strip(): place for place, name in reversed(list(enumerate(header)))}
            wanted = [_first(places, names) for names in (TARGET, REFERENCE, (TENSOR,), (COSINE,))]
            if None in wanted:
                raise _bad_table(path, f"begins with {','.join(header)[:100]!r}")
            return _operators(rows, [place or 0 for place in wanted], places.get(INDEX))
    except (OSError, csv.Error) as error:
        raise _bad_table(path, f"cannot be read ({error})") from error


def _first(places: Mapping[str, int], names: Iterable[str]) -> int | None:
    return next((places[name] for name in names if name in places), None)


def _operators(
    rows: Iterable[Sequence[str]], columns: Sequence[int], index_column: int | None
) -> tuple[ComparedOperator, ...]:
    """Columns are those of target, reference, tensor and cosine."""
    found: dict[tuple[str, str], ComparedOperator] = {}
    tensors: dict[tuple[str, str], list[ComparedTensor]] = {}
    for row in rows:
        if len(row) <= max(*columns, index_column or 0):
            continue
        target, reference, tensor, cosine = (row[column] for column in columns)
        place = _place(tensor)
        if place is None:
            continue
        name, side, number = place
        index = "" if index_column is None else row[index_column].strip()
        if (index, name) not in found:
            found[index, name] = ComparedOperator(index, name, _names(target), _names(reference))
        tensors.setdefault((index, name), []).append(ComparedTensor(side, number, _number(cosine)))
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
