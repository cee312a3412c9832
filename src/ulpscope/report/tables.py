"""Plain text and tables of it, made with rich. Nothing that a trace holds is taken for markup or terminal control.

Tables of very many rows: what rich draws in a minute, in a second.
"""

import io
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ulpscope.report.words.language import LONGEST_TEXT, shown_text


def plain(content: object, *, style: str = "") -> Text:
    """Text as it is; what could steer a terminal is written out, the middle of what is endless left out."""
    return Text(shown_text(str(content)), style=style, overflow="fold", no_wrap=False)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = (), folds: Sequence[str] = ()
) -> Table:
    """Columns without a frame; a cell that is too long goes on in the next line.

    Where the width does not suffice, the columns of `folds` give way first, so that no number is broken in two.
    """
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        whole = bool(folds) and header not in folds
        justify: Literal["left", "right"] = "right" if header in right else "left"
        drawn.add_column(plain(header), justify=justify, overflow="fold", no_wrap=whole)
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return drawn


def pairs(rows: Iterable[tuple[str, object]]) -> Table:
    """A name and what there is to say about it, one a line."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, content in rows:
        drawn.add_row(plain(name), content if isinstance(content, Text) else plain(content))
    return drawn


def section(title: str, *content: RenderableType) -> Group:
    """A title with its content below, set in."""
    return Group(Text(), plain(title, style="bold"), *(Padding(part, (0, 0, 0, 2)) for part in content))


def render(content: RenderableType, *, width: int, color: bool) -> str:
    """The text that a terminal of this width shows, without blanks at the ends of lines."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        # Told nothing, rich colours whatever is made inside of a notebook.
        force_jupyter=False,
        color_system="auto" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(content)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


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
