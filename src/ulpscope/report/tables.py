"""Plain text and tables of it, for a terminal and as CSV.

Nothing that a trace holds is taken for markup or terminal control, or becomes a formula in a spreadsheet.
"""

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ulpscope.records.calls import Stats
from ulpscope.records.findings import Outcome
from ulpscope.report.words.language import LONGEST_TEXT, Phrases, shown_name, shown_text

BAD, GOOD, OPEN = "bold red", "bold green", "bold yellow"
"""Headings of answers: something is wrong, nothing is, nothing can be said."""
OUTCOME_STYLES = {
    Outcome.DIVERGED: BAD,
    Outcome.AGREE: GOOD,
    Outcome.NOTHING_COMPARED: OPEN,
    Outcome.INCOMPLETE: OPEN,
}


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
    """A name and what there is to say about it, one a line; of what is None nothing is said."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, content in rows:
        if content is not None:
            drawn.add_row(plain(name), content if isinstance(content, Text) else plain(content))
    return drawn


def section(title: str, *content: RenderableType) -> Group:
    """A title with its content below, set in."""
    return Group(Text(), plain(title, style="bold"), *map(set_in, content))


def stats_cells(stats: Stats, *counts: int) -> list[Text]:
    """Four numbers of a tensor, and how many of its elements are of a kind that none should be of."""
    numbers = ["-" if each is None else f"{each:.6g}" for each in (stats.min, stats.max, stats.mean, stats.norm)]
    return [*map(plain, numbers), *(plain(f"{count:,}", style="red" if count else "") for count in counts)]


def set_in(*content: RenderableType, by: int = 2) -> Padding:
    """Content that begins some columns further right."""
    return Padding(Group(*content), (0, 0, 0, by))


def left_out(number: int, *, option: str = "--limit") -> list[Text]:
    """The line below a list that was cut."""
    return [plain(f"{number:,} more; {option} 0 for all")] if number > 0 else []


def apart(groups: Iterable[Iterable[RenderableType]]) -> Group:
    """Groups of lines with a blank line between them."""
    parts: list[RenderableType] = []
    for group in groups:
        parts += [*([Text()] if parts else []), *group]
    return Group(*parts)


def answer_text(
    words: Phrases,
    heading: Text,
    blocks: Iterable[Iterable[RenderableType]],
    commands: Iterable[str] = (),
    *,
    gap: str = "",
    width: int,
    color: bool,
) -> str:
    """An answer: its heading, what is to be said, a blank line before each block, and what to type next."""
    parts: list[RenderableType] = [heading]
    for block in map(list, blocks):
        if block:
            parts += [Text(), set_in(*(plain(part) if isinstance(part, str) else part for part in block))]
    # Commands are to be copied: a terminal that breaks a long line itself keeps it one line.
    lines = [f"  {words.say('next', command=command)}\n" for command in commands]
    return render(Group(*parts), width=width, color=color) + "".join([gap if lines else "", *lines])


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
"""Blanks between columns."""

Cells = Sequence[str]


def draw_long(
    headers: Cells, rows: Iterable[Sequence[object]], *, right: Collection[str], width: int, color: bool
) -> str | None:
    """table() without folds, in a second where rich takes a minute; None where a cell does not fit on its line."""
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


LONGEST_CELL = 1_000
FORMULA = r"[=+\-@＝＋－＠]"
"""What a spreadsheet takes for the beginning of a formula, also in its full-width form."""


def write_table(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[object] | Mapping[str, object]],
    *,
    encoding: str = "utf-8",
) -> None:
    """As CSV; a row has a cell a column, or cells by the names of their columns."""
    with open(path, "w", encoding=encoding, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            cells = [row.get(column) for column in columns] if isinstance(row, Mapping) else row
            writer.writerow([_csv_cell(cell) for cell in cells])


def _csv_cell(cell: object) -> object:
    """Text that neither steers a terminal nor becomes a formula; numbers as they are."""
    if isinstance(cell, Enum):
        return cell.value
    if isinstance(cell, tuple):
        return str(list(cell))
    if not isinstance(cell, str):
        return cell
    visible = shown_name(cell, longest=LONGEST_CELL)
    return f"'{visible}" if re.match(FORMULA, visible) else visible
