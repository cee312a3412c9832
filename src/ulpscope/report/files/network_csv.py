"""The result and mapping tables of msaccucmp, which users of Ascend tools read and other tools parse.

Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,TensorIndex,Shape,OverFlow,CosineSimilarity,...
15,Relu,fc1/Relu,float16,NaN,fc1/Relu,float32,fc1/Relu:output:0,"[2,40]",NO,0.567533,...
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ulpscope.align.network.pairs import DumpedTensor, Listing, NetworkRow
from ulpscope.judge.rounding.network_outcomes import Measurement, RowOutcome
from ulpscope.numerics.pairs.msaccucmp.metrics import ALGORITHMS, FAILED, Generation

_FORMULA = ("=", "+", "-", "@", "%")
"""What a spreadsheet takes for the beginning of a formula; msaccucmp refuses to write such a name."""


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """Which columns a result table has."""

    generation: Generation = Generation.OF_2025
    overflow: bool = False
    sequence: bool = False
    """Ids of the operators, as where some of them were chosen."""
    reference_address: bool = False
    """The reference was dumped by a device."""


def result_table(
    rows: Sequence[NetworkRow],
    outcomes: Mapping[int, RowOutcome],
    columns: ResultColumns,
    *,
    others: Sequence[NetworkRow] = (),
) -> Iterator[list[str]]:
    """A line a tensor, the header first; `outcomes` by row, those of others, which are not told, after these."""
    yield _header(columns)
    measured = (*rows, *others)
    for number, row in enumerate(rows):
        if row.listing in (Listing.BOTH, Listing.RESULT):
            yield _line(row, *_settled(number, measured, outcomes), columns)


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


def _header(columns: ResultColumns) -> list[str]:
    old = columns.generation is Generation.OF_2022
    return [
        "Index",
        *["OpSequence"] * columns.sequence,
        *([] if old else ["OpType"]),
        *("NPUDump", "DataType"),
        *([] if old else ["Address"]),
        *("GroundTruth", "DataType"),
        *(["Address"] if columns.reference_address and not old else []),
        *("TensorIndex", "Shape"),
        *["OverFlow"] * columns.overflow,
        *ALGORITHMS,
        "CompareFailReason",
    ]


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


def _line(row: NetworkRow, outcome: RowOutcome, paths: Mapping[str, str], columns: ResultColumns) -> list[str]:
    old, found = columns.generation is Generation.OF_2022, outcome.measurement
    return [
        str(row.index),
        *[str(row.operator.id)] * columns.sequence,
        *([] if old else [row.operator.type]),
        row.names,
        FAILED if found is None else found.dtypes.target,
        *([] if old else [_address(row.tensor)]),
        row.originals,
        FAILED if found is None else found.dtypes.reference,
        *([_address(row.reference)] if columns.reference_address and not old else []),
        row.tensor_id or FAILED,
        _shape(row, found),
        *[outcome.overflow] * columns.overflow,
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
