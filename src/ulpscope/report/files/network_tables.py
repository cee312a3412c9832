"""The result and mapping tables of msaccucmp, which users of Ascend tools read and other tools parse.

Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,TensorIndex,Shape,OverFlow,CosineSimilarity,...
15,Relu,fc1/Relu,float16,NaN,fc1/Relu,float32,fc1/Relu:output:0,"[2,40]",NO,0.567533,...

One tensor of a network, element by element: the files that msaccucmp writes for one operator, and a short text.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ulpscope.align.network.pairs import DumpedTensor, Listing, NetworkRow
from ulpscope.judge.rounding.measuring import Measurement, RowOutcome
from ulpscope.numerics.pairs.elements import ElementErrors, element_errors, range_of
from ulpscope.numerics.pairs.msaccucmp.metrics import ALGORITHMS, FAILED, Generation
from ulpscope.records.pairs import Judgement
from ulpscope.report.record_json import to_json
from ulpscope.report.tables import plain, render

_FORMULA = ("=", "+", "-", "@", "%")
"""What a spreadsheet takes for the beginning of a formula; msaccucmp refuses to write such a name."""

_TITLES = (
    "Index", "OpSequence", "OpType", "NPUDump", "DataType", "Address", "GroundTruth", "DataType", "Address",
    "TensorIndex", "Shape", "OverFlow", *ALGORITHMS, "CompareFailReason",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """Which columns a result table has."""

    generation: Generation = Generation.OF_2025
    overflow: bool = False
    sequence: bool = False
    """Ids of the operators, as where some of them were chosen."""
    reference_address: bool = False
    """The reference was dumped by a device."""

    def shown(self) -> list[bool]:
        """Of all columns, whether they are there."""
        new = self.generation is not Generation.OF_2022
        first = [True, self.sequence, new, True, True, new, True, True, new and self.reference_address]
        return [*first, True, True, self.overflow, *[True] * (len(ALGORITHMS) + 1)]


def result_table(
    rows: Sequence[NetworkRow],
    outcomes: Mapping[int, RowOutcome],
    columns: ResultColumns,
    *,
    others: Sequence[NetworkRow] = (),
) -> Iterator[list[str]]:
    """A line a tensor, the header first; `outcomes` by row, those of others, which are not told, after these."""
    shown, measured = columns.shown(), (*rows, *others)
    yield [*compress(_TITLES, shown)]
    for number, row in enumerate(rows):
        if row.listing in (Listing.BOTH, Listing.RESULT):
            yield [*compress(_line(row, *_settled(number, measured, outcomes)), shown)]


def mapping_table(rows: Iterable[NetworkRow], *, sequence: bool = False) -> Iterator[list[str]]:
    """Which tensor belongs to which file, the header first."""
    yield [
        "Index",
        *["OpSequence"] * sequence,
        *("OpType", "NPUDump", "GroundTruth", "TensorIndex", "NPUDumpPath", "GroundTruthPath"),
    ]
    for row in rows:
        if row.listing is Listing.RESULT:
            continue
        yield [
            str(row.index),
            *[str(row.operator.id)] * sequence,
            row.operator.type,
            row.names,
            row.originals,
            row.tensor_id or FAILED,
            FAILED if row.tensor is None else str(row.tensor.path),
            FAILED if row.reference is None else str(row.reference.path),
        ]


def write_table(lines: Iterable[Sequence[str]], path: Path) -> None:
    """As CSV; a name that a spreadsheet would compute begins with an apostrophe."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_neutral(cell) for cell in line] for line in lines)


def _neutral(cell: str) -> str:
    if not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _settled(
    number: int, rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome]
) -> tuple[RowOutcome, dict[str, str]]:
    """What is known of a row, and the paths that its messages name if another row's tensor is the same."""
    own = outcomes.get(number, RowOutcome(number))
    if own.twin is None:
        return own, {}
    mine, other = rows[number].tensor, rows[own.twin].tensor
    assert mine is not None
    assert other is not None
    return outcomes[own.twin], {str(other.path): str(mine.path)}


def _line(row: NetworkRow, outcome: RowOutcome, paths: Mapping[str, str]) -> list[str]:
    found = outcome.measurement
    return [
        str(row.index),
        str(row.operator.id),
        row.operator.type,
        row.names,
        FAILED if found is None else found.dtypes.target,
        _address(row.tensor),
        row.originals,
        FAILED if found is None else found.dtypes.reference,
        _address(row.reference),
        row.tensor_id or FAILED,
        _shape(row, found),
        outcome.overflow,
        *_metrics(found),
        _reason(row, outcome, paths),
    ]


def _address(tensor: object) -> str:
    address = tensor.head.address if isinstance(tensor, DumpedTensor) else 0
    return str(address) if address else FAILED


def _shape(row: NetworkRow, found: Measurement | None) -> str:
    if row.tensor is None:
        return FAILED
    shape = (row.tensor.head.shape or ()) if found is None else found.told_shape
    return f"[{','.join(map(str, shape))}]"


def _metrics(found: Measurement | None) -> list[str]:
    if found is None or found.figures is None:
        return [FAILED] * len(ALGORITHMS)
    return [found.figures[name].text for name in ALGORITHMS]


def _reason(row: NetworkRow, outcome: RowOutcome, paths: Mapping[str, str]) -> str:
    found = outcome.measurement
    if found is None or found.figures is None:
        return row.reason or outcome.reason
    told = ",".join(found.figures[name].message for name in ALGORITHMS if found.figures[name].message)
    for other, own in paths.items():
        told = told.replace(other, own)
    return told


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
    told: dict[str, Any] = to_json(
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
    return told


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
