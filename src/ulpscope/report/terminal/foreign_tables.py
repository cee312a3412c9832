"""Tells what a table of msprobe's results says: how many rows passed, and which did not.

compare_result_20261115060612.csv: a result of msprobe's compare
  118 of 1,120 rows do not pass: 112 error, 6 warning

NPU Name                                  Result  Cosine   Err_message
Functional.layer_norm.3.forward.output.0  error   0.99998  ...
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from ulpscope.dialects.msprobe.result_tables import VERDICTS, ResultTable, Row, TableKind
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.language import count_text

_PASSING = ("pass", "skip", "yes", "n/a", "none", "-", "")
_FIGURES = {
    TableKind.COMPARE: ("Cosine", "MaxAbsErr", "MaxRelativeErr", "NormRelativeErr", "NPU MD5", "BENCH MD5"),
    TableKind.CHECK: (),
    TableKind.CHECK_DETAILS: ("余弦相似度", "最大绝对误差", "双千指标"),
    TableKind.DEVICES_DETAILS: ("均方根误差比值", "相对误差最大值比值", "相对误差平均值比值"),
}
_NAMES = ("NPU Name", "API Name", "API name")
_DTYPES = ("NPU Dtype", "DEVICE Dtype")
_MESSAGES = ("Err_message", "Message")


@dataclass(frozen=True, slots=True)
class TableView:
    """A table, and how many of the rows that do not pass are to be told."""

    path: Path
    content: ResultTable
    limit: int | None

    @property
    def failing(self) -> list[Row]:
        return [row for row in self.content.rows if self.verdict(row) not in _PASSING]

    def verdict(self, row: Row) -> str:
        """The worst word among the row's verdicts, in lower case."""
        words = [row[column].lower() for column in VERDICTS if column in row]
        return max(words, key=lambda word: (word not in _PASSING, word == "error"), default="")


def table_text(view: TableView, *, width: int, color: bool) -> str:
    """The answer as text of this width."""
    failing = view.failing
    counts = Counter(view.verdict(row) for row in failing)
    told = ", ".join(f"{number:,} {word}" for word, number in counts.most_common())
    rows = count_text(len(view.content.rows), "row")
    share = f"{len(failing):,} of {rows} {'does' if len(view.content.rows) == 1 else 'do'} not pass"
    parts: list[RenderableType] = [
        plain(f"{view.path}: {view.content.kind.value}", style="bold"),
        plain(f"  {share}{f': {told}' if told else ''}"),
    ]
    shown = failing[: view.limit]
    if shown:
        columns = _columns(view.content)
        names = [column for column in columns if column in (*_NAMES, *_MESSAGES)]
        parts += [plain(""), table(columns, ([row[column] for column in columns] for row in shown), folds=names)]
    if len(failing) > len(shown):
        parts += [plain(f"{len(failing) - len(shown):,} more; --limit 0 for all")]
    return render(Group(*parts), width=width, color=color)


def table_json(view: TableView) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    counts = Counter(view.verdict(row) or "blank" for row in view.content.rows)
    return {
        "schema": 1,
        "command": "show",
        "view": "table",
        "path": str(view.path),
        "kind": view.content.kind.value,
        "counts": dict(counts),
        "rows": [dict(row) for row in view.failing[: view.limit]],
    }


def _columns(content: ResultTable) -> Sequence[str]:
    wanted = (*_NAMES, *_DTYPES, *VERDICTS, *_FIGURES[content.kind], *_MESSAGES)
    return [column for column in wanted if column in content.columns]
