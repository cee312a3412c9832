"""Tables of msprobe's own results: of its compare, its API checker, and its comparison of two devices.

NPU Name,Bench Name,...,Cosine,...,Result,Err_message             compare_result_*.csv
API name,Forward Test Success,Backward Test Success,Message       accuracy_checking_result_*.csv, api_precision_...
API Name,Bench Dtype,DEVICE Dtype,Shape,余弦相似度,...,Status     accuracy_checking_details_*.csv
API Name,小值域错误比值,...,比对结果,比对算法,Message             api_precision_compare_details_*.csv
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ulpscope.dialects.msprobe.names import Direction as EntryDirection
from ulpscope.dialects.msprobe.names import NameReader
from ulpscope.records.checks import CaseId, DataSource, Direction, OutputResult, Variant, Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import open_text

Row = Mapping[str, str]

_LIMIT = 2**30
"""Bytes; the table of a large model has tens of megabytes."""
_LINE_LIMIT = 1 << 16


class TableKind(Enum):
    """Which table; the value is what it is called."""

    COMPARE = "a result of msprobe's compare"
    CHECK = "a result of msprobe's API checker"
    CHECK_DETAILS = "the details of msprobe's API checker"
    DEVICES_DETAILS = "the details of msprobe's api_precision_compare"


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table as it is written."""

    kind: TableKind
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


_COLUMNS: Mapping[TableKind, tuple[str, ...]] = {
    TableKind.COMPARE: ("NPU Name", "Bench Name"),
    TableKind.CHECK: ("Forward Test Success", "Backward Test Success"),
    TableKind.DEVICES_DETAILS: ("API Name", "比对结果"),
    TableKind.CHECK_DETAILS: ("API Name", "Bench Dtype", "Status"),
}
VERDICTS = ("Result", "Accuracy Reached or Not", "Status", "比对结果", *_COLUMNS[TableKind.CHECK])
"""Columns that hold one; a table has one or two of them."""

METRICS: Mapping[str, str] = {
    "余弦相似度": "cosine",
    "最大绝对误差": "max_abs",
    "双百指标": "hundredth",
    "双千指标": "thousandth",
    "双万指标": "ten_thousandth",
    "二进制一致错误率": "error_rate",
    "误差均衡性": "error_balance",
    "均方根误差": "rmse",
    "小值域错误占比": "small_value_ratio",
    "相对误差最大值": "max_rel",
    "相对误差平均值": "mean_rel",
    "inf/nan错误率": "inf_nan_ratio",
    "相对误差错误率": "rel_err_ratio",
    "绝对误差错误率": "abs_err_ratio",
    "ULP误差最大值": "max_ulp",
    "ULP误差平均值": "mean_ulp",
    "ULP误差大于阈值占比": "ulp_share",
}
_DEVICE_DTYPES = ("DEVICE Dtype", "NPU Dtype", "GPU Dtype")
_OUTPUT = re.compile(r"(?P<entry>.+\.(?P<direction>forward|backward))\.(?P<place>.+)", re.DOTALL)
_STATUSES = {"pass": Verdict.PASS, "warning": Verdict.WARN, "error": Verdict.FAIL}


def table_kind(path: Path) -> TableKind | None:
    """Which of these tables a file is, as far as its first line tells."""
    if not path.is_file():
        return None
    try:
        with open_text(path, limit=_LIMIT, errors="replace", newline="") as file:
            header = {name.strip().strip('"') for name in file.readline(_LINE_LIMIT).split(",")}
    except OSError:
        return None
    return next((kind for kind, columns in _COLUMNS.items() if header.issuperset(columns)), None)


def read_table(path: Path) -> ResultTable:
    """All rows of such a table; cells that a row lacks are empty."""
    kind = table_kind(path)
    if kind is None:
        raise _bad_table(path, "is no table of msprobe's results", TableKind.COMPARE)
    try:
        with open_text(path, limit=_LIMIT, errors="replace", newline="") as file:
            lines = csv.DictReader(file, restval="")
            columns = tuple(name.strip() for name in lines.fieldnames or [])
            lines.fieldnames = columns
            rows = tuple({name: row[name].strip() for name in columns} for row in lines)
    except (OSError, csv.Error) as error:
        raise _bad_table(path, f"cannot be read ({error})", kind) from error
    return ResultTable(kind, columns, rows)


def checked_outputs(path: Path) -> dict[tuple[str, str], tuple[CaseId, OutputResult]]:
    """The outputs of a table of details, by call and place."""
    table = read_table(path)
    if table.kind is not TableKind.CHECK_DETAILS:
        raise _bad_table(path, f"is {table.kind.value}", TableKind.CHECK_DETAILS)
    names = NameReader("pytorch")
    found = (_checked(row, names) for row in table.rows)
    return {(case.name + output.direction.value, output.place): (case, output) for case, output in found}


def details_of(path: Path) -> Path | None:
    """The table of details: this one, or that which was written with it."""
    kind = table_kind(path)
    if kind is TableKind.CHECK_DETAILS:
        return path
    beside = path.with_name(path.name.replace("_result", "_details", 1))
    return beside if kind is TableKind.CHECK and table_kind(beside) is TableKind.CHECK_DETAILS else None


def _checked(row: Row, names: NameReader) -> tuple[CaseId, OutputResult]:
    """`Functional.linear.0.backward.output.1`: the call, and which of its outputs or gradients."""
    stated = row["API Name"]
    parts = _OUTPUT.fullmatch(stated)
    entry, place = (parts["entry"], parts["place"]) if parts else (stated, "")
    name = names.parse(entry)
    backward = name.direction is EntryDirection.BACKWARD
    case = CaseId("", 0, f"{name.op}.{name.number}", name.op, Variant.RECORDED, DataSource.RANDOM)
    dtype = next((row[column] for column in _DEVICE_DTYPES if column in row), "")
    metrics = ((metric, _number(row.get(column, ""))) for column, metric in METRICS.items())
    return case, OutputResult(
        place=f"grad.{place.removeprefix('output.')}" if backward else place,
        direction=Direction.BACKWARD if backward else Direction.FORWARD,
        verdict=_STATUSES.get(row["Status"].lower(), Verdict.SKIP),
        statistic="",
        message=row.get("Message", ""),
        dtype=dtype.removeprefix("torch."),
        metrics=tuple((metric, figure) for metric, figure in metrics if figure is not None),
    )


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _bad_table(path: Path, problem: str, kind: TableKind) -> UlpscopeError:
    return UlpscopeError(
        f"{path} {problem}",
        expected=f"{kind.value}: a CSV with the columns {', '.join(_COLUMNS[kind])}",
        next_step="check the path",
    )
