"""The table of a comparison's result, read for exports."""

from pathlib import Path

import polars as pl

from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pair_table import PAIR_COLUMNS
from ulpscope.workflows.report import read_summary
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
    try:
        return pl.read_parquet(result / PAIRS, columns=list(PAIR_COLUMNS))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise UlpscopeError(
            f"{result / PAIRS} cannot be read: {str(error).splitlines()[0]}",
            expected="the table that ulpscope compare --out wrote",
            next_step="compare again: ulpscope compare REFERENCE TARGET --out DIR --overwrite",
        ) from error
