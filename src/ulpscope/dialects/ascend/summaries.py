"""Summaries of many tensors at once: threads read and sum up, because mapped files and compiled sums let them."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.ascend.executed import ExecutedTensor
from ulpscope.dialects.summaries import frame_of_rows
from ulpscope.numerics.compiled import summarize_into
from ulpscope.numerics.dtypes import DTYPES
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
