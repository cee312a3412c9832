"""One tensor of a network, element by element: the files that msaccucmp writes for one operator, and a short text.

fc1_Relu_output_0.npy                          the device's tensor, laid out as its partner
fc1_Relu_output_0_0.csv                        every element: index, coordinates, both values, errors
fc1_Relu_output_0_summary.txt
fc1_Relu_output_0_absolute_error_topn.csv      the largest errors
fc1_Relu_output_0_relative_error_topn.csv
"""

import csv
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ulpscope.numerics.pairs.elements import ElementErrors, element_errors, range_of
from ulpscope.records.pairs import Judgement
from ulpscope.report.files.finding_json import strict
from ulpscope.report.tables import plain, render

AnyArray = NDArray[Any]

COORDINATES = 4
"""Axes that are told at least: those of a picture."""
LINES = 1_000_000
"""Elements of one file."""
LONGEST_NAME = 254
"""Bytes of a file's name, one less than file systems take, as msaccucmp counts."""
MAPPING = "simple_op_mapping.csv"
_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class TensorDetail:
    """Two tensors of equal size in the same order."""

    operator: str
    side: str
    position: int
    names: str
    """Operators of the device that are compared together."""
    originals: str
    axes: str
    """`NCHW`"""
    target: AnyArray
    reference: AnyArray
    errors: ElementErrors
    absolute: tuple[int, ...]
    """Places of the largest absolute errors."""
    relative: tuple[int, ...]

    @classmethod
    def of(cls, target: AnyArray, reference: AnyArray, *, top: int, **place: Any) -> "TensorDetail":
        errors = element_errors(target, reference)
        absolute, relative = tuple(errors.largest_absolute(top)), tuple(errors.largest_relative(top))
        return cls(target=target, reference=reference, errors=errors, absolute=absolute, relative=relative, **place)

    @property
    def stem(self) -> str:
        return f"{self.operator.replace('/', '_')}_{self.side}_{self.position}"

    @property
    def told_shape(self) -> tuple[int, ...]:
        return (*self.target.shape, *[1] * (COORDINATES - self.target.ndim))

    @property
    def is_bool(self) -> bool:
        return bool(self.target.dtype == self.reference.dtype == np.bool_)

    def coordinates(self, places: Sequence[int] | AnyArray) -> list[str]:
        found = np.unravel_index(np.asarray(places, dtype=np.int64), self.told_shape)
        return [" ".join(map(str, each)) for each in np.stack(found, axis=-1).tolist()]


def write_detail(detail: TensorDetail, folder: Path) -> list[str]:
    """Write the files, and give their names."""
    names = _Names(folder)
    np.save(names.place(f"{detail.stem}.npy"), detail.target)
    total = detail.target.size
    for first in range(0, max(total, 1), LINES):
        lines = _element_lines(detail, first, min(first + LINES, total))
        _write_lines(names.place(f"{detail.stem}_{first}.csv"), detail, lines)
    names.place(f"{detail.stem}_summary.txt").write_text(_summary(detail), encoding="utf-8")
    for word, places in (("absolute", detail.absolute), ("relative", detail.relative)):
        _write_lines(names.place(f"{detail.stem}_{word}_error_topn.csv"), detail, _top_lines(detail, places))
    names.write_mapping()
    return names.written


class _Names:
    """Files of a folder; names that are too long are replaced, and a list says by what."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._renamed: list[tuple[str, str]] = []
        self.written: list[str] = []

    def place(self, name: str) -> Path:
        if len(os.fsencode(name)) > LONGEST_NAME:
            short = f"{uuid.uuid3(uuid.NAMESPACE_DNS, name).hex}{Path(name).suffix}"
            self._renamed.append((short, name))
            name = short
        self.written.append(name)
        return self._folder / name

    def write_mapping(self) -> None:
        if self._renamed:
            with open(self._folder / MAPPING, "w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(self._renamed)
            self.written.append(MAPPING)


def _write_lines(path: Path, detail: TensorDetail, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"Index,{' '.join(detail.axes)},NPUDump,GroundTruth,AbsoluteError,RelativeError\n")
        file.writelines(lines)


def _element_lines(detail: TensorDetail, first: int, end: int) -> Iterator[str]:
    for start in range(first, end, _AT_ONCE):
        places = np.arange(start, min(start + _AT_ONCE, end))
        for cells in _cells(detail, places):
            index, where, mine, theirs, absolute, relative = cells
            error = f"{relative:.6f}\t" if math.isfinite(relative) else "-"
            yield f"{index},{where},{mine}\t,{theirs}\t,{_error(absolute)}\t,{error}\n"


def _top_lines(detail: TensorDetail, places: Sequence[int]) -> Iterator[str]:
    for index, where, mine, theirs, absolute, relative in _cells(detail, places):
        yield f"{index},{where},{mine}\t,{theirs}\t,{_error(absolute)}\t,{_error(relative)}\t\n"


def _cells(detail: TensorDetail, places: Sequence[int] | AnyArray) -> Iterator[tuple[int, str, str, str, float, float]]:
    listed = np.asarray(places, dtype=np.int64)
    columns = (
        listed.tolist(),
        detail.coordinates(listed),
        _values(detail.target, listed),
        _values(detail.reference, listed),
        detail.errors.absolute[listed].tolist(),
        detail.errors.relative[listed].tolist(),
    )
    return zip(*columns, strict=True)


def _values(array: AnyArray, places: AnyArray) -> list[str]:
    chosen = array.reshape(-1)[places]
    if chosen.dtype == np.bool_:
        return [str(bool(value)) for value in chosen]
    return [f"{float(value):.6f}" for value in chosen.real]


def _error(error: float) -> str:
    return f"{error:.6f}" if math.isfinite(error) else "-"


def _summary(detail: TensorDetail) -> str:
    ranges = (("Absolute", detail.errors.absolute), ("Relative", detail.errors.relative))
    figures = []
    for word, errors in ranges:
        least, most = (math.nan, math.nan) if detail.is_bool else range_of(errors)
        figures += [f"Min{word}Error:{_error(least)}", f"Max{word}Error:{_error(most)}"]
    names, originals = detail.names.replace(",", " "), detail.originals.replace(",", " ")
    head = [f"TotalCount:{detail.target.size}", f"NPUDump:{names}", f"GroundTruth:{originals}"]
    return "\n".join([*head, f"Format:{' '.join(detail.axes)}", *figures]) + "\n"


def detail_text(detail: TensorDetail, judgement: Judgement | None, *, width: int = 100, color: bool = False) -> str:
    """What is to be seen at once: sizes, ranges and the largest errors."""
    shape = list(detail.target.shape)
    head = f"{detail.operator} {detail.side}:{detail.position}  {shape}  {detail.target.dtype} beside "
    head += f"{detail.reference.dtype} of {detail.originals}"
    told = "not judged" if judgement is None else f"judged: {judgement.value.replace('_', ' ')}"
    parts: list[RenderableType] = [plain(head, style="bold"), plain(told)]
    for word, places in (("absolute", detail.absolute), ("relative", detail.relative)):
        parts += [Text(), _top_table(detail, word, places)]
    return render(Group(*parts), width=width, color=color)


def _top_table(detail: TensorDetail, word: str, places: Sequence[int]) -> Table:
    drawn = Table(title=f"largest {word} errors", title_justify="left", box=None, pad_edge=False)
    for name in ("index", " ".join(detail.axes), "target", "reference", "absolute", "relative"):
        drawn.add_column(name, justify="right")
    for index, where, mine, theirs, absolute, relative in _cells(detail, places):
        drawn.add_row(str(index), where, mine, theirs, _error(absolute), _error(relative))
    return drawn


def detail_json(detail: TensorDetail) -> dict[str, Any]:
    """The same as values."""
    found: dict[str, Any] = strict(
        {
            "operator": detail.operator,
            "tensor": f"{detail.side}:{detail.position}",
            "originals": detail.originals,
            "axes": detail.axes,
            "shape": list(detail.target.shape),
            "elements": int(detail.target.size),
            "dtype_reference": str(detail.reference.dtype),
            "dtype_target": str(detail.target.dtype),
            "largest_absolute": _listed(detail, detail.absolute),
            "largest_relative": _listed(detail, detail.relative),
        }
    )
    return found


def _listed(detail: TensorDetail, places: Sequence[int]) -> list[dict[str, Any]]:
    mine, theirs = detail.target.reshape(-1), detail.reference.reshape(-1)
    return [
        {
            "index": place,
            "place": [int(each) for each in where.split()],
            "target": float(mine[place].real),
            "reference": float(theirs[place].real),
            "absolute": float(detail.errors.absolute[place]),
            "relative": float(detail.errors.relative[place]),
        }
        for place, where in zip(places, detail.coordinates(places), strict=True)
    ]
