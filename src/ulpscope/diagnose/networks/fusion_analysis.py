"""Reads, of a judged comparison of a network with and without fusion, what each fused operator does."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from ulpscope.records.enums import Role
from ulpscope.records.graphs import Operator
from ulpscope.records.network import JUDGEMENTS, FusedOperator


def fused_operators(pairs: pl.DataFrame, operators: Mapping[str, Operator]) -> tuple[FusedOperator, ...]:
    """Operators with a compared output, of `pairs` (records.pair_table), the table of the comparison: each where it is
    worst, and in the order in which they ran there."""
    made = pairs.filter(pl.col("role") == Role.OUTPUT.value, pl.col("judgement").is_in(JUDGEMENTS))
    worst: dict[str, dict[str, Any]] = {}
    for row in made.sort("step", "id_target", maintain_order=True).iter_rows(named=True):
        known = worst.get(row["module"])
        if known is None or _severity(row) > _severity(known):
            worst[row["module"]] = row
    ordered = sorted(worst.values(), key=lambda row: (row["step"], row["id_target"]))
    return tuple(_operator(row, operators.get(row["module"])) for row in ordered)


def _severity(row: Mapping[str, Any]) -> int:
    return JUDGEMENTS.index(row["judgement"])


def _operator(row: Mapping[str, Any], operator: Operator | None) -> FusedOperator:
    return FusedOperator(
        name=row["module"],
        type=row["op"],
        passes=() if operator is None else operator.passes,
        call=row["call_target"],
        rank=row["rank"],
        step=row["step"],
        tensor=row["place"],
        judgement=row["judgement"],
        error=row["error"],
        error_in=row["error_in"],
        expected=row["expected"],
    )
