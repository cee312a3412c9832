"""overflow.csv: a tensor a row, of each operation that overflowed."""

from collections.abc import Iterator
from pathlib import Path

from ulpscope.records.overflows import OverflowFinding, OverflowSurvey, SeenTensor
from ulpscope.report.files.check_tables import Cell, write_table

COLUMNS = (
    "rank", "step", "phase", "call", "op", "module", "verdict", "unit", "status", "meanings", "task", "stream",
    "timestamp", "side", "tensor", "dtype", "shape", "min", "max", "mean", "nan", "pos_inf", "neg_inf", "sign",
)  # fmt: skip


def write_overflow_table(survey: OverflowSurvey, path: Path) -> None:
    write_table(path, COLUMNS, (row for finding in survey.findings for row in _rows(finding)))


def _rows(finding: OverflowFinding) -> Iterator[list[Cell]]:
    head = [*_place(finding), *_record(finding)]
    if not finding.tensors:
        yield [*head, *[None] * (len(COLUMNS) - len(head))]
    yield from ([*head, *_tensor(tensor)] for tensor in finding.tensors)


def _place(finding: OverflowFinding) -> list[Cell]:
    place = finding.place
    return [place.rank, place.step, place.phase.value, place.call, place.op, place.module, finding.verdict.value]


def _record(finding: OverflowFinding) -> list[Cell]:
    record = finding.record
    if record is None:
        return [None] * 6
    status = " ".join(f"{word:#x}" for word in record.status)
    return [record.unit, status, " ".join(record.meanings), record.task, record.stream, record.timestamp]


def _tensor(tensor: SeenTensor) -> list[Cell]:
    stats, counts = tensor.stats, tensor.not_finite
    numbers: list[Cell] = [None] * 3 if stats is None else [stats.min, stats.max, stats.mean]
    sign = None if tensor.sign is None else tensor.sign.value
    head: list[Cell] = [tensor.side.value, tensor.place, tensor.dtype, str(list(tensor.shape))]
    return [*head, *numbers, counts.nan, counts.pos_inf, counts.neg_inf, sign]
