"""The two tables of msprobe's API pre-check, for what reads those: accuracy_checking_result and _details.

Functional.linear.0                      one row of the first: pass, warning, error or SKIP, forward and backward
Functional.linear.0.forward.output.0     one row of the second: an output or gradient with msprobe's metrics
"""

from collections.abc import Iterator
from pathlib import Path

from ulpscope.dialects.msprobe.writing_names import api_stem
from ulpscope.judge.standards.check_metrics import METRICS
from ulpscope.judge.standards.limits import CONSTANTS
from ulpscope.records.check_runs import CheckedCall, CheckRun
from ulpscope.records.checks import GRADIENT, Direction, OutputResult, Variant, Verdict
from ulpscope.report.files.check_tables import Cell, write_table
from ulpscope.report.words.check import marked_message

RESULT_HEADERS = ("API name", "Forward Test Success", "Backward Test Success", "Message")
METRIC_HEADERS = (
    "余弦相似度", "最大绝对误差", "双百指标", "双千指标", "双万指标", "二进制一致错误率", "误差均衡性", "均方根误差",
    "小值域错误占比", "相对误差最大值", "相对误差平均值", "inf/nan错误率", "相对误差错误率", "绝对误差错误率",
    "ULP误差最大值", "ULP误差平均值", "ULP误差大于阈值占比",
)  # fmt: skip
DETAIL_HEADERS = ("API Name", "Bench Dtype", "DEVICE Dtype", "Shape", *METRIC_HEADERS, "Status", "Message")
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
    results = (_result_row(call) for call in run.calls)
    write_table(out / f"accuracy_checking_result_{stamp}.csv", RESULT_HEADERS, results, encoding="utf-8-sig")
    details = (row for call in run.calls for row in _detail_rows(call))
    write_table(out / f"accuracy_checking_details_{stamp}.csv", DETAIL_HEADERS, details, encoding="utf-8-sig")


def api_name(call: CheckedCall) -> str:
    """Functional.linear.0 for torch.nn.functional.linear.0; its own name where msprobe has none."""
    name, op = call.place.call or "", call.place.op or ""
    stem = api_stem(op)
    return name if stem is None else f"{stem}.{name.rpartition('.')[2]}"


def _result_row(call: CheckedCall) -> list[Cell]:
    forward, backward = (BLANK if each is None else STATUS[each] for each in (call.forward, call.backward))
    return [api_name(call), forward, backward, marked_message(call)]


def _detail_rows(call: CheckedCall) -> Iterator[list[Cell]]:
    """Of recorded data: data that provokes faults is no part of msprobe's tables."""
    recorded = [case.result for case in call.cases if case.result.case.variant is Variant.RECORDED]
    for result in recorded:
        yield from (_detail_row(call, output) for output in result.outputs)
        if not result.outputs:
            blanks = [BLANK] * (len(DETAIL_HEADERS) - 3)
            yield [f"{api_name(call)}.forward.output.0", *blanks, STATUS[result.verdict], result.message]


def _detail_row(call: CheckedCall, output: OutputResult) -> list[Cell]:
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
        *(f"{figures[name]:.14f}" if name in figures else BLANK for name in METRICS),
        STATUS[output.verdict],
        output.message,
    ]
