"""Tables behind a comparison: of parquet, tensors.csv and a workbook, a row a tensor of a pair of calls.

Names come from traces: none of them may become a formula or steer a terminal.

ledger.parquet and ledger.csv: a row an output or gradient of a pair of calls that was executed again.
"""

import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ulpscope.records.evidence import Ledger, LedgerEntry
from ulpscope.records.findings import Comparison
from ulpscope.records.pairs import PAIR_COLUMNS, Judgement
from ulpscope.report.record_json import fields_of, to_json
from ulpscope.report.tables import FORMULA, LONGEST_CELL
from ulpscope.report.terminal.compare import compare_json
from ulpscope.report.words.comparison import share_of
from ulpscope.report.words.language import Language, shown_name

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.format import Format
    from xlsxwriter.worksheet import Worksheet


ROWS_PER_SHEET = 1_048_575
"""What Excel takes, less the header."""
ROWS_AT_ONCE = 10_000
COLUMN_WIDTHS = {"op": 32, "module": 40, "call_reference": 36, "call_target": 36, "place": 16, "reason": 32}

_STEERING = r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]"
_FORMULA = f"^{FORMULA}"
_COLORS = {
    Judgement.MADE_HERE.value: "#F4B6B6",
    Judgement.INHERITED.value: "#FBDDB5",
    Judgement.AFTER_CHOICE.value: "#DDDDDD",
    Judgement.ANOTHER_WAY.value: "#CDE8E3",
    Judgement.UNRESOLVED.value: "#E9EDC4",
    None: "#DDDDDD",
}


def write_parquet(rows: pl.DataFrame, path: Path) -> None:
    # Into memory first: of a file that cannot be written, polars says "transport error" instead of why.
    content = io.BytesIO()
    rows.write_parquet(content)
    path.write_bytes(content.getbuffer())


def write_csv(rows: pl.DataFrame, path: str | Path, *, columns: Iterable[str] = PAIR_COLUMNS) -> None:
    """UTF-8 text; a name that a spreadsheet would compute begins with an apostrophe."""
    table = plain_table(rows, columns)
    neutral = pl.col(_texts_with(table, _FORMULA)).str.replace(f"^({FORMULA})", "'$1")
    floats = table.select(pl.selectors.float())
    with_nan = pl.col([column.name for column in floats if column.is_nan().any()])
    table.with_columns(neutral, with_nan.cast(pl.String).replace("NaN", "nan")).write_csv(path)


def write_xlsx(
    pairs: pl.DataFrame,
    path: str | Path,
    comparison: Comparison,
    *,
    language: Language = Language.EN,
    rows_per_sheet: int = ROWS_PER_SHEET,
) -> None:
    """A workbook: the verdict on its first sheet, then the rows, coloured by judgement."""
    import xlsxwriter

    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    table, content = plain_table(pairs), io.BytesIO()  # a file that cannot be written is an error of its own there
    with xlsxwriter.Workbook(content, options) as workbook:
        _write_summary(workbook, compare_json(comparison, language))
        for number, start in enumerate(range(0, max(table.height, 1), rows_per_sheet), start=1):
            name = "tensors" if number == 1 else f"tensors {number}"
            _write_sheet(workbook, name, table.slice(start, rows_per_sheet))
    Path(path).write_bytes(content.getbuffer())


def plain_table(rows: pl.DataFrame, columns: Iterable[str] = PAIR_COLUMNS) -> pl.DataFrame:
    """These columns and no others, lists as text, names without what steers a terminal."""
    present = rows.select(
        pl.col(column) if column in rows.columns else pl.lit(None).alias(column) for column in columns
    )
    table = present.with_columns(_text_of(column, dtype) for column, dtype in present.schema.items())
    for column in _texts_with(table, _STEERING):
        names = table[column].drop_nulls().unique()
        table = table.with_columns(
            pl.col(column).replace({each: shown_name(each, longest=LONGEST_CELL) for each in names})
        )
    return table


def _text_of(column: str, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.List | pl.Array):
        items = pl.col(column).cast(pl.List(pl.String)).list.join(", ")
        return pl.format("[{}]", items).alias(column)
    if isinstance(dtype, pl.Enum | pl.Categorical):
        return pl.col(column).cast(pl.String)
    return pl.col(column)


def _texts_with(table: pl.DataFrame, pattern: str) -> list[str]:
    """Columns in which some name matches; each name is looked at once, however many rows have it."""
    texts = [column for column, dtype in table.schema.items() if dtype == pl.String]
    return [column for column in texts if table[column].unique().str.contains(pattern).any()]


def _write_summary(workbook: "Workbook", summary: dict[str, Any]) -> None:
    sheet = workbook.add_worksheet("summary")
    bold, wrapped = workbook.add_format({"bold": True}), workbook.add_format({"text_wrap": True, "valign": "top"})
    sheet.set_column(0, 0, 24)
    sheet.set_column(1, 1, 120)
    for row, (name, content) in enumerate(_summary_rows(summary)):
        sheet.write_string(row, 0, name, bold)
        if isinstance(content, int):
            sheet.write_number(row, 1, content, wrapped)
        else:
            sheet.write_string(row, 1, content, wrapped)


def _summary_rows(summary: dict[str, Any]) -> Iterator[tuple[str, str | int]]:
    yield "verdict", summary["verdict"]
    for name in ("reference", "target"):
        yield name, shown_name(summary[name])
    for title, entries in (("finding", summary["findings"]), ("note", summary["notes"])):
        for entry in entries:
            yield title, entry["sentence"]
            yield "next", entry["next"]
    yield from (("advice", advice["sentence"]) for advice in summary["advice"])
    yield from summary["counts"].items()
    for left in summary["scope"]["not_compared"]:
        yield "not compared", f"{left['tensors']}: {shown_name(left['reason'])}"
    yield from (("missing", shown_name(text, longest=LONGEST_CELL)) for text in summary["missing"])


def _write_sheet(workbook: "Workbook", name: str, table: pl.DataFrame) -> None:
    sheet = workbook.add_worksheet(name)
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, table.height, table.width - 1)
    header = workbook.add_format({"bold": True, "bottom": 1})
    for index, column in enumerate(table.columns):
        sheet.set_column(index, index, COLUMN_WIDTHS.get(column, 12))
        sheet.write_string(0, index, column, header)
    formats = {judgement: workbook.add_format({"bg_color": color}) for judgement, color in _COLORS.items()}
    judged = table.get_column_index("judgement")
    for row, cells in enumerate(table.iter_rows(buffer_size=ROWS_AT_ONCE), start=1):
        _write_row(sheet, row, cells, formats.get(cells[judged]))


def _write_row(sheet: "Worksheet", row: int, cells: tuple[Any, ...], style: "Format | None") -> None:
    if style is not None:
        sheet.set_row(row, None, style)
    for index, cell in enumerate(cells):
        if cell is None:
            continue
        if isinstance(cell, str):
            sheet.write_string(row, index, cell)
        elif isinstance(cell, bool):
            sheet.write_boolean(row, index, cell)
        elif math.isfinite(cell):
            sheet.write_number(row, index, cell)
        else:
            sheet.write_string(row, index, str(cell))


PARTS = ("observed", "made_by_target", "by_arguments", "inherited", "made_by_reference")
LEDGER_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("rank", "step"), pl.Int64),
    **dict.fromkeys(("op", "module", "call_reference", "call_target"), pl.String),
    "id_target": pl.Int64,
    **dict.fromkeys(("direction", "place", "dtype_reference", "dtype_target", "maker"), pl.String),
    **{f"{part}_{size}": pl.Float64 for part in PARTS for size in ("norm", "ulp")},
    **dict.fromkeys(("contribution", "share"), pl.Float64),
    **dict.fromkeys(("verdict_target", "verdict_reference", "statistic", "message"), pl.String),
    "worst": pl.List(pl.Int64),
    **dict.fromkeys(("worst_computed", "worst_exact"), pl.Float64),
}


def ledger_table(ledger: Ledger) -> pl.DataFrame:
    """All entries, in the order of the target's calls."""
    rows = [_row(entry, ledger) for entry in ledger.entries]
    return pl.DataFrame(rows, schema=LEDGER_COLUMNS, orient="row")


def _row(entry: LedgerEntry, ledger: Ledger) -> dict[str, Any]:
    computed, exact = entry.worst_values or (None, None)
    sizes = fields_of(entry, *PARTS)
    same = ("rank", "step", "op", "module", "call_reference", "direction", "place", "maker", "contribution")
    row: dict[str, Any] = to_json(
        {
            **fields_of(entry, *same, "verdict_target", "verdict_reference", "statistic", "message", "worst"),
            **{f"{name}_norm": size and size.norm for name, size in sizes.items()},
            **{f"{name}_ulp": size and size.worst for name, size in sizes.items()},
            "call_target": entry.call,
            "id_target": entry.call_id,
            "dtype_reference": entry.dtypes[0],
            "dtype_target": entry.dtypes[1],
            "share": share_of(entry, ledger),
            "worst_computed": computed,
            "worst_exact": exact,
        },
        no_number=float,
    )
    return row
