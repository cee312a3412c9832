"""tensors.csv and the workbook of a comparison."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest
from tests.unit.comparisons import HARMLESS, HOSTILE, agreeing, diverged

from ulpscope.records.pairs import PAIR_COLUMNS
from ulpscope.report.files.compare_tables import plain_table, write_csv, write_parquet, write_xlsx

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "＝1", "=cmd|' /C calc'!A0")


def row(**cells: Any) -> dict[str, Any]:
    plain = {
        "rank": 0,
        "step": 0,
        "phase": "forward",
        "kind": "api",
        "op": "torch.relu",
        "call_reference": "torch.relu.0",
        "call_target": "torch.relu.0",
        "id_target": 7,
        "role": "output",
        "place": "output.0",
        "shape_reference": [2, 12, 64],
        "shape_target": [],
        "judgement": "identical",
        "error": 0.0,
        "min_target": -2.5,
    }
    return {**plain, **cells}


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    """A table with every column, as the workflow hands it over."""
    floats = {"error": pl.Float64, "cosine": pl.Float64, "min_target": pl.Float64}
    given = pl.DataFrame(list(rows), schema_overrides={"module": pl.String, **floats}, infer_schema_length=None)
    missing = [name for name in PAIR_COLUMNS if name not in given.columns]
    return given.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in missing)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_the_columns_of_the_contract(tmp_path: Path) -> None:
    write_csv(table(row()).with_columns(extra=pl.lit(1)), tmp_path / "tensors.csv")
    (read,) = read_csv(tmp_path / "tensors.csv")
    assert list(read) == list(PAIR_COLUMNS)
    assert (read["shape_reference"], read["shape_target"]) == ("[2, 12, 64]", "[]")
    assert (read["min_target"], read["error"], read["cosine"], read["module"]) == ("-2.5", "0.0", "", "")


def test_a_column_that_nobody_made_is_empty(tmp_path: Path) -> None:
    write_csv(pl.DataFrame({"op": ["torch.relu"]}), tmp_path / "tensors.csv")
    assert read_csv(tmp_path / "tensors.csv")[0]["judgement"] == ""


def test_csv_of_no_rows_has_a_header(tmp_path: Path) -> None:
    write_csv(table(row()).clear(), tmp_path / "tensors.csv")
    assert (tmp_path / "tensors.csv").read_text(encoding="utf-8") == ",".join(PAIR_COLUMNS) + "\n"


@pytest.mark.parametrize("name", FORMULAS)
def test_csv_has_no_formulas(tmp_path: Path, name: str) -> None:
    write_csv(table(row(op=name, module=name), row()), tmp_path / "tensors.csv")
    first, second = read_csv(tmp_path / "tensors.csv")
    assert first["op"] == first["module"] == f"'{name}"
    assert (second["op"], second["min_target"]) == ("torch.relu", "-2.5")


def test_csv_has_no_control_characters(tmp_path: Path) -> None:
    write_csv(table(row(op=HOSTILE, module="\t=1", place="\r\n=1"), row(op='a,"b"')), tmp_path / "tensors.csv")
    first, second = read_csv(tmp_path / "tensors.csv")
    assert (first["op"], first["module"], first["place"]) == (HARMLESS, "\\t=1", "\\r\\n=1")
    assert second["op"] == 'a,"b"'
    assert len((tmp_path / "tensors.csv").read_bytes().splitlines()) == 3


def test_csv_writes_nan_and_inf_as_words(tmp_path: Path) -> None:
    rows = [row(error=number, cosine=0.5) for number in (float("nan"), float("inf"), float("-inf"), 1e-30, None)]
    write_csv(table(*rows), tmp_path / "tensors.csv")
    read = [line["error"] for line in read_csv(tmp_path / "tensors.csv")]
    assert read == ["nan", "inf", "-inf", "1e-30", ""]
    assert [line["cosine"] for line in read_csv(tmp_path / "tensors.csv")] == ["0.5"] * 5


def test_lists_of_any_kind_become_text() -> None:
    shapes = {"shape_reference": pl.Series([[2, 3]], dtype=pl.Array(pl.Int64, 2)), "shape_target": ["[2, 3]"]}
    kinds = {"kind": pl.Series(["api"], dtype=pl.Categorical), "phase": pl.Series(["x"], dtype=pl.Enum(["x"]))}
    plain = plain_table(pl.DataFrame({**shapes, **kinds}))
    assert plain["shape_reference"].item() == plain["shape_target"].item() == "[2, 3]"
    assert (plain["kind"].item(), plain["phase"].item()) == ("api", "x")


def book(tmp_path: Path, pairs: pl.DataFrame, **options: Any) -> Any:
    write_xlsx(pairs, tmp_path / "tensors.xlsx", options.pop("comparison", diverged()), **options)
    return openpyxl.load_workbook(tmp_path / "tensors.xlsx")


def test_workbook_begins_with_the_verdict(tmp_path: Path) -> None:
    pages = book(tmp_path, table(row()))
    assert pages.sheetnames == ["summary", "tensors"]
    told = dict(pages["summary"].iter_rows(values_only=True))
    assert told["verdict"] == "diverged"
    assert told["finding"].startswith("torch.Tensor.add.17 in model.layers.2.input_layernorm")
    assert told["next"] == "ulpscope show runs/target torch.Tensor.add.17 --step 0 --phase forward"
    assert (told["matched"], told["made_here"]) == (1001, 1)


def test_rows_are_coloured_by_judgement(tmp_path: Path) -> None:
    judgements = ["made_here", "inherited", "after_choice", None, "rounding", "identical"]
    sheet = book(tmp_path, table(*(row(judgement=judgement) for judgement in judgements)))["tensors"]
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref.startswith("A1:")
    assert [cell.value for cell in sheet[1]] == list(PAIR_COLUMNS)
    colors = [sheet.cell(number, 5).fill.start_color.rgb[2:] for number in range(2, 8)]
    assert colors == ["F4B6B6", "FBDDB5", "DDDDDD", "DDDDDD", "000000", "000000"]


def test_workbook_has_no_formulas_links_or_broken_numbers(tmp_path: Path) -> None:
    names = [*FORMULAS, "http://x.y", "mailto:a@b", HOSTILE, "x" * 50_000]
    rows = [row(op=name, error=float("nan"), cosine=float("-inf")) for name in names]
    sheet = book(tmp_path, table(*rows))["tensors"]
    cells = [sheet.cell(number, 5) for number in range(2, 2 + len(names))]
    assert [cell.value for cell in cells[:-2]] == names[:-2]
    assert cells[-2].value == HARMLESS
    assert all(cell.data_type in ("s", "inlineStr") and cell.hyperlink is None for cell in cells)
    index = list(PAIR_COLUMNS).index
    assert sheet.cell(2, index("error") + 1).value == "nan"
    assert sheet.cell(2, index("cosine") + 1).value == "-inf"
    assert sheet.cell(2, index("min_target") + 1).value == -2.5


def test_more_rows_than_a_sheet_takes_go_on_in_the_next(tmp_path: Path) -> None:
    pages = book(tmp_path, table(*(row(id_target=number) for number in range(7))), rows_per_sheet=3)
    assert pages.sheetnames == ["summary", "tensors", "tensors 2", "tensors 3"]
    column = list(PAIR_COLUMNS).index("id_target")
    found = [
        line[column] for name in pages.sheetnames[1:] for line in pages[name].iter_rows(min_row=2, values_only=True)
    ]
    assert found == list(range(7))


def test_workbook_of_no_rows(tmp_path: Path) -> None:
    pages = book(tmp_path, table(row()).clear(), comparison=agreeing())
    assert pages["tensors"].max_row == 1


@pytest.mark.parametrize(
    "write",
    [write_csv, write_parquet, lambda pairs, path: write_xlsx(pairs, path, agreeing())],
    ids=["csv", "parquet", "xlsx"],
)
def test_a_full_disk_is_told_as_the_system_tells_it(
    tmp_path: Path, write: Callable[[pl.DataFrame, Path], None]
) -> None:
    path = tmp_path / "table"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        write(table(*(row(step=step) for step in range(5000))), path)
