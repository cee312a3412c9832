"""Real data summarised as a capture would: the files themselves tell a range only, which compares nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.compiled import summarize_into
from ulpscope.numerics.summaries.rows import Column, rows_to_columns, stats_from_row
from ulpscope.numerics.summaries.summary import empty_row, flat_elements
from ulpscope.records.values import Stats, Value
from ulpscope.trace.objects import value_from_row
from ulpscope.trace.schema import VALUE_SUMMARY, VALUES

Data = Callable[[Value], NDArray[Any] | None]


def with_summaries(values: pl.DataFrame, data: Data) -> pl.DataFrame:
    """The frame with stats, sketch and digest of the values whose data is there."""
    stored = [_value(row) for row in values.iter_rows(named=True) if row["data_file"] and row["dtype"] in DTYPES]
    rows = {value: summary_row(found, value.dtype) for value in stored if (found := data(value)) is not None}
    if not rows:
        return values
    own = frame_of_rows(
        list(rows.values()), dtypes=[value.dtype for value in rows], shapes=[value.shape for value in rows]
    ).with_columns(pl.Series("id", [value.id for value in rows]))
    joined = values.join(own, on="id", how="left", suffix=" of data", maintain_order="left")
    both = [name for name in VALUE_SUMMARY if name in values.columns]
    return joined.with_columns(pl.coalesce(f"{name} of data", name).alias(name) for name in both).drop(
        f"{name} of data" for name in both
    )


def summary_row(array: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """All numbers that a trace has of a tensor, in the order of numerics.rows."""
    row = empty_row()
    summarize_into(flat_elements(array, DTYPES[dtype]), dtype, row)
    return row


def stats_of(array: NDArray[Any], dtype: str) -> Stats:
    """Stats as a trace has them."""
    return stats_from_row(summary_row(array, dtype), dtype, array.shape)


def frame_of_rows(
    rows: Sequence[NDArray[np.float64]], *, dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> pl.DataFrame:
    """Summaries of values of these types and shapes, as the columns of a trace."""
    if not rows:
        return pl.DataFrame(schema=dict(VALUE_SUMMARY))
    columns = rows_to_columns(np.stack(rows), dtype_names=dtypes, shapes=shapes)
    return pl.DataFrame([_series(name, columns[name]) for name in VALUE_SUMMARY])


def _value(row: dict[str, Any]) -> Value:
    return value_from_row({**dict.fromkeys(VALUES), "process": None, **row})


def _series(name: str, column: Column) -> pl.Series:
    whole = pl.Series(name, column.values, dtype=VALUE_SUMMARY[name])
    return pl.select(pl.when(pl.Series(column.valid)).then(whole).alias(name)).to_series()
