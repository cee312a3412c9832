"""overflow.csv and perturb.csv: an output a row. The first columns of the latter are those of free_benchmark.csv."""

from collections.abc import Iterator
from pathlib import Path

from ulpscope.records.check_modes import OverflowRun, PerturbRun
from ulpscope.records.check_runs import CheckedCall, CheckRun
from ulpscope.records.checks import OutputResult
from ulpscope.report.check_tables import Cell, write_table

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
