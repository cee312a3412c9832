"""What is known of dumped tensors in numbers: made of their data, or told by the device."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.ascend.executed import ExecutedTensor
from ulpscope.dialects.summaries import frame_of_rows, stats_of, summary_row
from ulpscope.records.values import Stats
from ulpscope.trace.schema import VALUE_SUMMARY


def summary_frame(tensors: Sequence[ExecutedTensor]) -> pl.DataFrame:
    """Stats, sketch and digest of each tensor, a row each; what a device's own stats do not tell is null."""
    # Mapped files and compiled sums let threads work at once.
    read = [tensor for tensor in tensors if tensor.read is not None]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        rows = list(threads.map(_row, read))
    own = frame_of_rows(rows, dtypes=[one.dtype for one in read], shapes=[one.shape for one in read])
    told = pl.DataFrame([dict(tensor.numbers) for tensor in tensors if tensor.read is None], schema=dict(VALUE_SUMMARY))
    order = np.argsort([tensor.read is None for tensor in tensors], kind="stable")
    return pl.concat([own, told]).select(pl.all().gather(np.argsort(order)))


def executed_stats(tensor: ExecutedTensor) -> Stats | None:
    """A tensor's stats; none if there is no data, and the device tells nothing."""
    if tensor.read is not None:
        return stats_of(tensor.read(), tensor.dtype)
    told = tensor.numbers
    if all(number is None for number in told.values()):
        return None
    counts = {name: int(told.get(name) or 0) for name in ("nan", "pos_inf", "neg_inf")}
    return Stats(
        min=told.get("min"),
        max=told.get("max"),
        mean=told.get("mean"),
        norm=told.get("norm"),
        abs_sum=None,
        set_aside=sum(counts.values()),
        zero=None,
        subnormal=0,
        exponents=(),
        **counts,
    )


def _row(tensor: ExecutedTensor) -> NDArray[np.float64]:
    assert tensor.read is not None
    return summary_row(tensor.read(), tensor.dtype)
