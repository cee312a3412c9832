"""`ulpscope show` on a table of msprobe's own results."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.dialects.msprobe.result_tables import read_table
from ulpscope.records.enums import ExitCode
from ulpscope.report.terminal.earlier_results import TableView, table_json, table_text


@dataclass(frozen=True, slots=True)
class TableResult:
    """A table, to be told as text or JSON."""

    view: TableView

    @property
    def code(self) -> ExitCode:
        if not self.view.content.rows:
            return ExitCode.NOTHING
        return ExitCode.DIFFERENCE if self.view.failing else ExitCode.OK

    def text(self, *, width: int = 80, color: bool = False) -> str:
        return table_text(self.view, width=width, color=color)

    def json(self) -> dict[str, Any]:
        return table_json(self.view)


def show_table(path: Path, *, limit: int) -> TableResult:
    """Look at a table; 0 lists all of its rows that do not pass."""
    return TableResult(TableView(path, read_table(path), limit or None))
