"""ledger.parquet and ledger.csv: a row an output or gradient of a pair of calls that was executed again."""

from typing import Any

import polars as pl

from ulpscope.records.ledger import Ledger, LedgerEntry
from ulpscope.report.ledger_clauses import share_of

PARTS = ("observed", "made_by_target", "by_arguments", "inherited", "made_by_reference")
LEDGER_COLUMNS: dict[str, Any] = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "op": pl.String,
    "module": pl.String,
    "call_reference": pl.String,
    "call_target": pl.String,
    "id_target": pl.Int64,
    "direction": pl.String,
    "place": pl.String,
    "dtype_reference": pl.String,
    "dtype_target": pl.String,
    "maker": pl.String,
    **{f"{part}_{size}": pl.Float64 for part in PARTS for size in ("norm", "ulp")},
    "contribution": pl.Float64,
    "share": pl.Float64,
    "verdict_target": pl.String,
    "verdict_reference": pl.String,
    "statistic": pl.String,
    "message": pl.String,
    "worst": pl.List(pl.Int64),
    "worst_computed": pl.Float64,
    "worst_exact": pl.Float64,
}


def ledger_table(ledger: Ledger) -> pl.DataFrame:
    """All entries, in the order of the target's calls."""
    rows = [_row(entry, ledger) for entry in ledger.entries]
    return pl.DataFrame(rows, schema=LEDGER_COLUMNS, orient="row")


def _row(entry: LedgerEntry, ledger: Ledger) -> dict[str, Any]:
    same = ("rank", "step", "op", "module", "call_reference", "place", "statistic", "message")
    computed, exact = entry.worst_values or (None, None)
    return {
        **{name: getattr(entry, name) for name in same},
        **_sizes(entry),
        "call_target": entry.call,
        "id_target": entry.call_id,
        "direction": entry.direction.value,
        "dtype_reference": entry.dtypes[0],
        "dtype_target": entry.dtypes[1],
        "maker": entry.maker.value,
        "contribution": entry.contribution,
        "share": share_of(entry, ledger),
        "verdict_target": entry.verdict_target.value,
        "verdict_reference": entry.verdict_reference.value,
        "worst": None if entry.worst is None else list(entry.worst),
        "worst_computed": computed,
        "worst_exact": exact,
    }


def _sizes(entry: LedgerEntry) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for part in PARTS:
        size = getattr(entry, part)
        found |= {f"{part}_norm": size and size.norm, f"{part}_ulp": size and size.worst}
    return found
