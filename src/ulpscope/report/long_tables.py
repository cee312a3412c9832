"""Tables of very many rows: what rich draws in a minute, in a second."""

from collections.abc import Collection, Iterable, Sequence

from rich.cells import cell_len

from ulpscope.report.language import LONGEST_TEXT
from ulpscope.report.tables import plain, render

GAP = 2
"""Blanks between columns, as in report.tables."""

Cells = Sequence[str]


def draw_long(
    headers: Cells, rows: Iterable[Sequence[object]], *, right: Collection[str], width: int, color: bool
) -> str | None:
    """The text of report.tables.table() without folds; None where a cell does not fit on its line."""
    drawn = [[_visible(str(cell)) for cell in row] for row in rows]
    if any("\n" in cell for row in drawn for cell in row):
        return None
    widths = [max(map(cell_len, column)) for column in zip(headers, *drawn, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) > width:
        return None
    aligned = [header in right for header in headers]
    header = render(plain(_line(headers, widths, aligned), style="bold"), width=width, color=color)
    return header + "".join(f"{_line(row, widths, aligned)}\n" for row in drawn)


def _visible(cell: str) -> str:
    return cell if len(cell) < LONGEST_TEXT and cell.isascii() and cell.isprintable() else plain(cell).plain


def _line(row: Cells, widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = (_set(cell, width, right=side) for cell, width, side in zip(row, widths, right, strict=True))
    return (" " * GAP).join(cells).rstrip()


def _set(cell: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return blanks + cell if right else cell + blanks
