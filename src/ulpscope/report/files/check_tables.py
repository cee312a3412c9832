"""Tables of checks and of searches for overflows.

result.csv         an API a row, with the worst over its cases
details.csv        an output a row with all its figures; a case without outputs has one row, which says why
overflow.csv       an output a row (`check --overflow`), or a tensor of each operation that overflowed (`overflow`)
perturb.csv        an output a row; its first columns are those of free_benchmark.csv
accuracy_checking_result_*.csv, accuracy_checking_details_*.csv      for what reads those of msprobe's API pre-check
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ulpscope.dialects.msprobe.names import api_stem
from ulpscope.dialects.msprobe.result_tables import METRICS as METRIC_COLUMNS
from ulpscope.judge.standards.limits import CONSTANTS
from ulpscope.records.check_runs import CheckedCall, CheckRun, OverflowRun, PerturbRun
from ulpscope.records.checks import GRADIENT, Direction, OutputResult, Variant, Verdict
from ulpscope.records.overflows import OverflowFinding, OverflowSurvey
from ulpscope.report.record_json import fields_of
from ulpscope.report.tables import write_table
from ulpscope.report.terminal.check import marked_message, outputs_of

RESULT_COLUMNS = ("name", "forward", "backward", "message", "process", "step", "call", "module")
CASE_COLUMNS = ("process", "step", "phase", "call", "name", "op", "variant", "data", "device")
OUTPUT_COLUMNS = (
    "place", "direction", "dtype", "shape", "verdict", "statistic", "worst", "worst_computed", "worst_exact", "message",
)  # fmt: skip
PERTURB_COLUMNS = (
    "rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index", "output", "verdict",
    "message",
)  # fmt: skip
_COUNTS = tuple(
    f"{who}_{kind}" for who in ("recorded", "cpu", "device", "exact") for kind in ("nan", "pos_inf", "neg_inf")
)
OVERFLOW_COLUMNS = (
    "rank", "step", "call", "api_name", "stage", "output", "dtype", "shape", "data", *_COUNTS, "exact_largest",
    "dtype_largest", "verdict", "message",
)  # fmt: skip
SURVEY_COLUMNS = (
    "rank", "step", "phase", "call", "op", "module", "verdict", "unit", "status", "meanings", "task", "stream",
    "timestamp", "side", "tensor", "dtype", "shape", "min", "max", "mean", "nan", "pos_inf", "neg_inf", "sign",
)  # fmt: skip

Row = tuple[CheckedCall, OutputResult | None]
Cells = dict[str, Any]
"""A row by column; what it lacks is blank."""


def write_results(run: CheckRun, path: Path) -> None:
    write_table(path, RESULT_COLUMNS, (_result_row(call) for call in run.calls))


def write_details(run: CheckRun, path: Path) -> None:
    figures = dict.fromkeys(name for output in outputs_of(run) for name, _ in output.metrics)
    write_table(path, (*CASE_COLUMNS, *OUTPUT_COLUMNS, *figures), _detail_rows(run))


def write_overflows(found: OverflowRun, path: Path) -> None:
    write_table(path, OVERFLOW_COLUMNS, (_output_row(*row, _overflow_cells) for row in rows_of(found.run)))


def write_perturbations(found: PerturbRun, path: Path) -> None:
    rows = ({"pert_mode": found.mode, **_output_row(*row, _perturb_cells)} for row in rows_of(found.run))
    write_table(path, PERTURB_COLUMNS, rows)


def write_overflow_table(survey: OverflowSurvey, path: Path) -> None:
    write_table(path, SURVEY_COLUMNS, (row for finding in survey.findings for row in _survey_rows(finding)))


def rows_of(run: CheckRun) -> Iterator[Row]:
    """A call with each of its outputs; with none where it was not executed."""
    for call in run.calls:
        outputs: list[OutputResult | None] = [output for case in call.cases for output in case.result.outputs]
        yield from ((call, output) for output in outputs or [None])


def _result_row(call: CheckedCall) -> Cells:
    place = call.place
    where = {"name": place.call, "process": call.process, "call": place.call_id}
    verdicts = fields_of(call, "forward", "backward")
    return {**where, **fields_of(place, "step", "module"), **verdicts, "message": marked_message(call)}


def _detail_rows(run: CheckRun) -> Iterator[Cells]:
    for call in run.calls:
        for case in call.cases:
            told, result = case.result.case, case.result
            first = {
                **fields_of(call.place, "step", "phase"),
                **fields_of(told, "process", "call", "name", "op", "variant"),
                "data": told.source,
                "device": case.device,
            }
            for output in result.outputs:
                yield {**dict(output.metrics), **first, **fields_of(output, *OUTPUT_COLUMNS)}
            if not result.outputs:
                yield {**first, **fields_of(result, "verdict", "message")}


def _output_row(
    call: CheckedCall, output: OutputResult | None, more: Callable[[CheckedCall, OutputResult], Cells]
) -> Cells:
    """What all modes tell of an output, and what one of them adds."""
    first = {**fields_of(call.place, "rank", "step"), "call": call.place.call_id, "api_name": call.place.call}
    if output is None:
        return {**first, **fields_of(call, "verdict", "message")}
    told = fields_of(output, "dtype", "shape", "verdict", "message")
    return {**first, **told, "stage": output.direction, "output": output.place, **more(call, output)}


def _overflow_cells(call: CheckedCall, output: OutputResult) -> Cells:
    figures = dict(output.metrics)
    return {
        **{name: int(figures[name]) for name in _COUNTS if name in figures},
        "data": call.cases[0].result.case.source,
        "exact_largest": figures["exact_largest"],
        "dtype_largest": figures["dtype_largest"],
        "verdict": output.statistic,
    }


def _perturb_cells(call: CheckedCall, output: OutputResult) -> Cells:
    # The how-many-th output, or the how-many-th gradient.
    alike = [each for case in call.cases for each in case.result.outputs if each.direction is output.direction]
    return {"max_rel": dict(output.metrics).get("max_rel"), "output_index": alike.index(output)}


def _survey_rows(finding: OverflowFinding) -> Iterator[Cells]:
    first = fields_of(finding.place, "rank", "step", "phase", "call", "op", "module") | {"verdict": finding.verdict}
    if (record := finding.record) is not None:
        status = " ".join(f"{word:#x}" for word in record.status)
        first |= fields_of(record, "unit", "task", "stream", "timestamp")
        first |= {"status": status, "meanings": " ".join(record.meanings)}
    for tensor in finding.tensors:
        numbers = {} if tensor.stats is None else fields_of(tensor.stats, "min", "max", "mean")
        seen = fields_of(tensor, "side", "dtype", "shape", "sign") | fields_of(tensor.not_finite)
        yield {**first, **seen, **numbers, "tensor": tensor.place}
    if not finding.tensors:
        yield first


RESULT_HEADERS = ("API name", "Forward Test Success", "Backward Test Success", "Message")
DETAIL_HEADERS = ("API Name", "Bench Dtype", "DEVICE Dtype", "Shape", *METRIC_COLUMNS, "Status", "Message")
STATUS = {
    Verdict.PASS: "pass",
    Verdict.WARN: "warning",
    Verdict.FAIL: "error",
    Verdict.CRASH: "error",
    Verdict.TIMEOUT: "error",
    Verdict.SKIP: "SKIP",
    Verdict.UNTESTED: "SKIP",
}
BLANK = " "
"""In a cell without a value."""


def write_msprobe_tables(run: CheckRun, out: Path, *, stamp: str) -> None:
    """Both tables; `stamp` is a time as 14 digits, which msprobe expects in their names."""
    # msprobe's readers, and spreadsheets, tell UTF-8 by its mark.
    results = (_msprobe_result(call) for call in run.calls)
    write_table(out / f"accuracy_checking_result_{stamp}.csv", RESULT_HEADERS, results, encoding="utf-8-sig")
    details = (row for call in run.calls for row in _msprobe_details(call))
    write_table(out / f"accuracy_checking_details_{stamp}.csv", DETAIL_HEADERS, details, encoding="utf-8-sig")


def api_name(call: CheckedCall) -> str:
    """Functional.linear.0 for torch.nn.functional.linear.0; its own name where msprobe has none."""
    name, op = call.place.call or "", call.place.op or ""
    stem = api_stem(op)
    return name if stem is None else f"{stem}.{name.rpartition('.')[2]}"


def _msprobe_result(call: CheckedCall) -> list[str]:
    forward, backward = (BLANK if each is None else STATUS[each] for each in (call.forward, call.backward))
    return [api_name(call), forward, backward, marked_message(call)]


def _msprobe_details(call: CheckedCall) -> Iterator[list[str]]:
    """Of recorded data: data that provokes faults is no part of msprobe's tables."""
    recorded = [case.result for case in call.cases if case.result.case.variant is Variant.RECORDED]
    for result in recorded:
        yield from (_msprobe_detail(call, output) for output in result.outputs)
        if not result.outputs:
            blanks = [BLANK] * (len(DETAIL_HEADERS) - 3)
            yield [f"{api_name(call)}.forward.output.0", *blanks, STATUS[result.verdict], result.message]


def _msprobe_detail(call: CheckedCall, output: OutputResult) -> list[str]:
    place = output.place.removeprefix(GRADIENT).partition(".")[2]
    direction = "backward" if output.direction is Direction.BACKWARD else "forward"
    dtype = output.dtype or ""
    bench = CONSTANTS[dtype].bench if dtype in CONSTANTS else dtype
    figures = dict(output.metrics)
    return [
        f"{api_name(call)}.{direction}.output.{place}",
        f"torch.{bench}",
        f"torch.{dtype}",
        str(tuple(output.shape)),
        *(f"{figures[name]:.14f}" if name in figures else BLANK for name in METRIC_COLUMNS.values()),
        STATUS[output.verdict],
        output.message,
    ]
