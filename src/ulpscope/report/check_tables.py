"""Tables of a check: result.csv, an API a row, and details.csv, an output a row with all its figures.

Names come from traces: none of them may become a formula or steer a terminal.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ulpscope.records.check_runs import CheckedCall, CheckedCase, CheckRun
from ulpscope.records.checks import OutputResult, Verdict
from ulpscope.report.check_words import marked_message
from ulpscope.report.language import shown_name

LONGEST_CELL = 1_000
# What a spreadsheet takes for the beginning of a formula, also in its full-width form.
_FORMULA = re.compile(r"[=+\-@＝＋－＠]")

RESULT_COLUMNS = ("name", "forward", "backward", "message", "process", "step", "call", "module")
CASE_COLUMNS = ("process", "step", "phase", "call", "name", "op", "variant", "data", "device")
OUTPUT_COLUMNS = (
    "place", "direction", "dtype", "shape", "verdict", "statistic", "worst", "worst_computed", "worst_exact", "message",
)  # fmt: skip

Cell = str | int | float | None


def write_results(run: CheckRun, path: Path) -> None:
    """An API call a row, with the worst over its cases."""
    write_table(path, RESULT_COLUMNS, (_result_row(call) for call in run.calls))


def write_details(run: CheckRun, path: Path) -> None:
    """An output a row; a case without outputs has one row, which says why."""
    names = metric_names(run)
    write_table(path, (*CASE_COLUMNS, *OUTPUT_COLUMNS, *names), _detail_rows(run, names))


def metric_names(run: CheckRun) -> list[str]:
    """Every figure that some output has."""
    outputs = (output for call in run.calls for case in call.cases for output in case.result.outputs)
    return list(dict.fromkeys(name for output in outputs for name, _ in output.metrics))


def _result_row(call: CheckedCall) -> list[Cell]:
    place = call.place
    verdicts = _word(call.forward), _word(call.backward)
    return [place.call, *verdicts, marked_message(call), call.process, place.step, place.call_id, place.module]


def _detail_rows(run: CheckRun, names: Sequence[str]) -> Iterator[list[Cell]]:
    for call in run.calls:
        for case in call.cases:
            first = _case_cells(call, case)
            for output in case.result.outputs:
                yield [*first, *_output_cells(output), *(dict(output.metrics).get(name) for name in names)]
            if not case.result.outputs:
                yield [*first, *_case_end(case), *(None for _ in names)]


def _case_cells(call: CheckedCall, case: CheckedCase) -> list[Cell]:
    told, place = case.result.case, call.place
    return [
        told.process,
        place.step,
        place.phase.value,
        told.call,
        told.name,
        told.op,
        told.variant.value,
        told.source.value,
        case.device,
    ]


def _output_cells(output: OutputResult) -> list[Cell]:
    return [
        output.place,
        output.direction.value,
        output.dtype,
        str(list(output.shape)),
        output.verdict.value,
        output.statistic,
        None if output.worst is None else str(list(output.worst)),
        output.worst_computed,
        output.worst_exact,
        output.message,
    ]


def _case_end(case: CheckedCase) -> list[Cell]:
    cells: dict[str, Cell] = dict.fromkeys(OUTPUT_COLUMNS)
    return list((cells | {"verdict": case.result.verdict.value, "message": case.result.message}).values())


def _word(verdict: Verdict | None) -> str | None:
    return None if verdict is None else verdict.value


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, encoding: str = "utf-8") -> None:
    with open(path, "w", encoding=encoding, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([csv_cell(cell) for cell in row])


def csv_cell(cell: Cell) -> Cell:
    """Text that neither steers a terminal nor becomes a formula; numbers as they are."""
    if not isinstance(cell, str):
        return cell
    visible = shown_name(cell, longest=LONGEST_CELL)
    return f"'{visible}" if _FORMULA.match(visible) else visible
