"""Tables of a check: result.csv, an API a row, and details.csv, an output a row with all its figures.

Names come from traces: none of them may become a formula or steer a terminal.

overflow.csv and perturb.csv: an output a row. The first columns of the latter are those of free_benchmark.csv.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ulpscope.records.check_runs import CheckedCall, CheckedCase, CheckRun, OverflowRun, PerturbRun
from ulpscope.records.checks import OutputResult, Verdict
from ulpscope.report.words.check import marked_message
from ulpscope.report.words.language import shown_name

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


PERTURB_COLUMNS = (
    "rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index", "output", "verdict",
    "message",
)  # fmt: skip
_WHO, _KINDS = ("recorded", "cpu", "device", "exact"), ("nan", "pos_inf", "neg_inf")
_COUNTS = tuple(f"{who}_{kind}" for who in _WHO for kind in _KINDS)
OVERFLOW_COLUMNS = (
    "rank", "step", "call", "api_name", "stage", "output", "dtype", "shape", "data", *_COUNTS, "exact_largest",
    "dtype_largest", "verdict", "message",
)  # fmt: skip

Row = tuple[CheckedCall, OutputResult | None]


def write_overflows(found: OverflowRun, path: Path) -> None:
    write_table(path, OVERFLOW_COLUMNS, (_overflow_row(*row) for row in rows_of(found.run)))


def write_perturbations(found: PerturbRun, path: Path) -> None:
    mode = found.mode.value
    write_table(path, PERTURB_COLUMNS, (_perturb_row(mode, *row) for row in rows_of(found.run)))


def rows_of(run: CheckRun) -> Iterator[Row]:
    """A call with each of its outputs; with none where it was not executed."""
    for call in run.calls:
        outputs = [output for case in call.cases for output in case.result.outputs]
        if not outputs:
            yield call, None
        yield from ((call, output) for output in outputs)


def _overflow_row(call: CheckedCall, output: OutputResult | None) -> list[Cell]:
    place = call.place
    first: list[Cell] = [place.rank, place.step, place.call_id, place.call]
    if output is None:
        blank: list[Cell] = [None] * (len(OVERFLOW_COLUMNS) - len(first) - 2)
        return [*first, *blank, call.verdict.value, call.message]
    figures = dict(output.metrics)
    source = call.cases[0].result.case.source.value
    return [
        *first,
        output.direction.value,
        output.place,
        output.dtype,
        str(list(output.shape)),
        source,
        *(None if name not in figures else int(figures[name]) for name in _COUNTS),
        figures["exact_largest"],
        figures["dtype_largest"],
        output.statistic,
        output.message,
    ]


def _perturb_row(mode: str, call: CheckedCall, output: OutputResult | None) -> list[Cell]:
    place = call.place
    if output is None:
        return [place.rank, mode, None, place.step, place.call, *[None] * 5, call.verdict.value, call.message]
    return [
        place.rank,
        mode,
        output.direction.value,
        place.step,
        place.call,
        dict(output.metrics).get("max_rel"),
        output.dtype,
        str(list(output.shape)),
        _index(call, output),
        output.place,
        output.verdict.value,
        output.message,
    ]


def _index(call: CheckedCall, output: OutputResult) -> int:
    """The how-many-th output, or the how-many-th gradient."""
    outputs = [each for case in call.cases for each in case.result.outputs if each.direction is output.direction]
    return outputs.index(output)
