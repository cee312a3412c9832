"""Stats that a device made instead of a dump: a CSV file an operator, a row a tensor.

Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,...
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.content import Shape
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.elements import ELEMENT_TYPES, plain_type
from ulpscope.records.errors import TraceError
from ulpscope.trace.files import open_text

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
            return [_tensor(path, row, number) for number, row in enumerate(reader, start=2)]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise _bad_stats(path, f"cannot be read ({error})") from error


def _tensor(path: Path, row: dict[str, str | None], line: int) -> StatsTensor:
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
    type_name = (row[_TYPE] or "").strip().removeprefix("DT_")
    return StatsTensor(side, index, type_name, (row.get(_FORMAT) or "").strip(), shape, _with_signs(numbers))


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
