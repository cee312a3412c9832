"""What the page of a comparison holds."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from ulpscope.judge.rounding import unit_roundoff
from ulpscope.report.language import Language, phrases
from ulpscope.report.page.packing import Content
from ulpscope.report.page.sources import Sources

UNMATCHED = {
    "rank": pl.Int64,
    "side": pl.String,
    "id": pl.Int64,
    "step": pl.Int64,
    "name": pl.String,
    "module": pl.String,
    "phase": pl.String,
}
"""Columns of the calls that only one run has."""


def compare_content(sources: Sources) -> Content:
    """The pairs of tensors, the calls without a partner, and what is told of them."""
    pairs = sources.tables["pairs"]
    ranks = (sources.plan or {}).get("ranks", [])
    meta = {
        "kind": "compare",
        "summary": sources.summary,
        "told": sources.told_of("findings", "notes", "advice"),
        "stacks": sources.told["stacks"],
        "rounding": _rounding(pairs),
        "reasons": {reason: _in_each_language(reason) for reason in _reasons(sources.summary)},
        "modules": {str(rank["rank"]): rank.get("modules", {}) for rank in ranks},
    }
    unmatched = pl.DataFrame(list(_unmatched(ranks)), schema=UNMATCHED)
    return Content(meta, {"pairs": pairs, "unmatched": unmatched})


def _rounding(pairs: pl.DataFrame) -> dict[str, float]:
    """The rounding of one number, by dtype."""
    columns = [column for column in ("dtype_reference", "dtype_target") if column in pairs.columns]
    names = sorted({name for column in columns for name in pairs[column].drop_nulls().unique()})
    return {name: roundoff for name in names if (roundoff := unit_roundoff(name))}


def _reasons(summary: Mapping[str, Any]) -> list[str]:
    return [left["reason"] for left in summary["scope"].get("not_compared", ())]


def _in_each_language(reason: str) -> dict[str, str]:
    """Why tensors were not compared; what has no phrase is a text for all."""
    return {language.value: phrases(language).templates.get(f"reason.{reason}", reason) for language in Language}


def _unmatched(ranks: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        for side in ("reference", "target"):
            for call in rank.get(f"unmatched_{side}", ()):
                known = {name: call[name] for name in UNMATCHED if name in call}
                yield {**known, "rank": rank["rank"], "side": side}
