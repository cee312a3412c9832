"""`ulpscope compare` on two results of `ulpscope check`: the errors of two devices, statistic by statistic.

Tables of details that msprobe's own checker wrote are such results, too.
"""

from collections.abc import Mapping
from pathlib import Path

from ulpscope.dialects.msprobe.result_tables import checked_outputs, details_of
from ulpscope.judge.standards.check_metrics import METRICS
from ulpscope.judge.standards.check_ratios import compare_devices
from ulpscope.records.check_runs import CheckComparison, CheckedSide, ComparedOutput
from ulpscope.records.checks import CaseId, OutputResult
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.report.terminal.check_modes import compared_json, compared_text, write_ratios
from ulpscope.trace.files import LARGEST_DUMP, read_json
from ulpscope.workflows.answers import SpokenAnswer
from ulpscope.workflows.check.journal import CASES, read_results
from ulpscope.workflows.results import SUMMARY

Key = tuple[str, str]
"""A case and the place of an output of it."""


def is_check_result(path: Path) -> bool:
    """Whether a directory was written by `ulpscope check --out`, or a table by msprobe's checker."""
    if path.is_file():
        return details_of(path) is not None
    try:
        summary = read_json(path / SUMMARY, limit=LARGEST_DUMP)
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("command") == "check"


def compare_checks(reference: Path, target: Path) -> SpokenAnswer:
    """Set the errors of the target's device against those of the reference's."""
    results = Pair(_outputs(reference), _outputs(target))
    both = [key for key in results.target if key in results.reference]
    sides = Pair(
        _side(reference, alone=len(results.reference) - len(both)),
        _side(target, alone=len(results.target) - len(both)),
    )
    compared = tuple(_compared(results.reference[key], results.target[key]) for key in both)
    found = CheckComparison(sides, compared)
    tables = {"ratios.csv": write_ratios}
    return SpokenAnswer(found, found.code, compared_text, compared_json, tables, has_page=False)


def _outputs(path: Path) -> dict[Key, tuple[CaseId, OutputResult]]:
    """In the order of the trace, whichever worker was first; of msprobe's checker in that of its table."""
    if path.is_file():
        return checked_outputs(details_of(path) or path)
    cases = sorted(
        (checked.result for checked in read_results(path / CASES).values()),
        key=lambda result: (result.case.process, result.case.call, result.case.text),
    )
    return {(each.case.text, output.place): (each.case, output) for each in cases for output in each.outputs}


def _side(path: Path, *, alone: int) -> CheckedSide:
    if path.is_file():
        return CheckedSide(str(path), "", (path.name,), alone)
    try:
        summary = read_json(path / SUMMARY, limit=LARGEST_DUMP)
        return CheckedSide(str(path), str(summary["trace"]), tuple(map(str, summary["scope"]["devices"])), alone)
    except (KeyError, TypeError, ValueError) as error:
        raise UlpscopeError(
            f"{path / SUMMARY} has no {error}",
            expected="the summary that `ulpscope check --out` wrote",
            next_step="check again: ulpscope check TRACE --out DIR",
        ) from error


def _compared(reference: tuple[CaseId, OutputResult], target: tuple[CaseId, OutputResult]) -> ComparedOutput:
    case, outputs = target[0], Pair(reference[1], target[1])
    found = compare_devices(
        _metrics(outputs.target),
        _metrics(outputs.reference),
        api=case.op.rpartition(".")[2],
        dtype=outputs.target.dtype or "",
    )
    rule = "" if found.api_class is None else found.api_class.value
    return ComparedOutput(case, outputs, found.verdict, rule, found.figures, found.failing)


def _metrics(output: OutputResult) -> Mapping[str, float | None]:
    figures = dict(output.metrics)
    return {name: figures.get(name) for name in METRICS}
