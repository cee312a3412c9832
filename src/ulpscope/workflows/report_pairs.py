"""The table of a comparison's result, and the traces that it names."""

from pathlib import Path

import polars as pl

from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pair_table import PAIR_COLUMNS
from ulpscope.workflows.report import read_summary, read_table
from ulpscope.workflows.results import SUMMARY

PAIRS = "pairs.parquet"


def is_result(path: Path) -> bool:
    """Whether this is the directory of a result; a trace has no summary."""
    return (path / SUMMARY).is_file()


def read_pairs(result: Path) -> pl.DataFrame:
    """All pairs of tensors; UlpscopeError for a result of something else than two traces."""
    command = read_summary(result)["command"]
    if command != "compare" or not (result / PAIRS).is_file():
        raise UlpscopeError(
            f"{result} is a result of {command} without {PAIRS}",
            expected="a trace, or the result of comparing two traces",
            next_step="export the trace itself, or compare: ulpscope compare REFERENCE TARGET --out DIR",
        )
    return read_table(result / PAIRS, list(PAIR_COLUMNS))


def located(path: str, result: Path) -> Path:
    """Where a trace is: as it was named when it was compared, from here or from a directory above the result."""
    given = Path(path)
    places = [given, *(above / given for above in result.resolve().parents)]
    return next((place for place in places if place.exists()), given)
