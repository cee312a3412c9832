"""Blocks: steps of a long run that share a directory, with a file a table, and what step.json says of each in another.

A directory a step is four files: of 100,000 steps nobody wants them. Only whole steps are in a block. It grows: its
files are written anew, steps.json last, which says what they are read for. What of a step lies in a directory of its
own as well is what was there before the step was whole.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from ulpscope.trace.schema import PART_OF


def marked(table: pl.DataFrame, rows: Iterable[tuple[int, int]]) -> pl.DataFrame:
    """Rows of several steps, each with its step; `rows` has the steps, and how many rows are part of each."""
    steps, counts = zip(*rows, strict=True)
    return table.with_columns(pl.Series(PART_OF, np.repeat(np.array(steps, np.int64), counts)))


def rows_of(frame: pl.LazyFrame, steps: Sequence[int]) -> pl.LazyFrame:
    """Those of a block's rows that are part of these steps."""
    # The first condition tells which row groups need not be read.
    return frame.filter(pl.col(PART_OF).is_between(min(steps), max(steps)) & pl.col(PART_OF).is_in(steps))
