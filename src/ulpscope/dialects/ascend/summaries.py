"""Summaries of many tensors at once: threads read and sum up, because mapped files and compiled sums let them."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.ascend.executed import ExecutedTensor
from ulpscope.numerics.compiled import summarize_into
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.rows import Column, rows_to_columns
from ulpscope.numerics.summary import empty_row, flat_elements
from ulpscope.trace.schema import VALUE_SUMMARY


def summary_frame(tensors: Sequence[ExecutedTensor]) -> pl.DataFrame:
    """Stats, sketch and digest of each tensor, a row each; what a device's own stats do not tell is null."""
    read = [tensor for tensor in tensors if tensor.read is not None]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        rows = list(threads.map(_row, read))
    own = frame_of_rows(rows, dtypes=[one.dtype for one in read], shapes=[one.shape for one in read])
    told = pl.DataFrame([dict(tensor.numbers) for tensor in tensors if tensor.read is None], schema=dict(VALUE_SUMMARY))
    order = np.argsort([tensor.read is None for tensor in tensors], kind="stable")
    return pl.concat([own, told]).select(pl.all().gather(np.argsort(order)))


def _row(tensor: ExecutedTensor) -> NDArray[np.float64]:
    assert tensor.read is not None
    row = empty_row()
    summarize_into(flat_elements(tensor.read(), DTYPES[tensor.dtype]), tensor.dtype, row)
    return row


def frame_of_rows(
    rows: Sequence[NDArray[np.float64]], *, dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> pl.DataFrame:
    """Summaries of values of these types and shapes, as the columns of a trace."""
    if not rows:
        return pl.DataFrame(schema=dict(VALUE_SUMMARY))
    columns = rows_to_columns(np.stack(rows), dtype_names=dtypes, shapes=shapes)
    frame = pl.DataFrame([_series(name, column) for name, column in columns.items()])
    nulls = [pl.lit(None, kind).alias(name) for name, kind in VALUE_SUMMARY.items() if name not in columns]
    return frame.with_columns(nulls).select(*VALUE_SUMMARY)


def _series(name: str, column: Column) -> pl.Series:
    whole = pl.Series(name, column.values, dtype=VALUE_SUMMARY[name])
    return pl.select(pl.when(pl.Series(column.valid)).then(whole).alias(name)).to_series()
