"""Columns of a trace's tables out of rows and summaries."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.datatypes import DataType, DataTypeClass

from ulpscope.numerics.summaries.rows import Column
from ulpscope.trace.schema import VALUE_SUMMARY, Columns


def attributes(rows: Sequence[Any], names: Columns) -> dict[str, Sequence[Any]]:
    """The attributes of these names, one column each."""
    return turned(map(attrgetter(*names), rows), names)


def turned(rows: Iterable[tuple[Any, ...]], names: Columns) -> dict[str, Sequence[Any]]:
    columns = tuple(zip(*rows, strict=True)) or ((),) * len(names)
    return dict(zip(names, columns, strict=True))


def series(name: str, column: Sequence[Any], dtype: DataType | DataTypeClass) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, column, dtype=dtype)
    # Of lists there are few that differ, and polars takes each by itself.
    numbers: dict[Any, int] = {}
    index = [numbers.setdefault(item, len(numbers)) for item in column]
    return pl.Series(name, list(numbers), dtype=dtype).gather(np.array(index, dtype=np.int64))


def spread(summary: dict[str, Column], having: NDArray[np.bool_]) -> list[pl.Series]:
    """Summary columns over all values, null for those without a summary."""
    rows = np.flatnonzero(having)
    plain: list[pl.Series] = []
    nulls: list[pl.Expr] = []
    for name, dtype in VALUE_SUMMARY.items():
        column = summary[name]
        if not column.valid.any():
            plain.append(pl.Series(name, [None], dtype=dtype).new_from_index(0, len(having)))
            continue
        entries = np.zeros((len(having), *column.values.shape[1:]), dtype=column.values.dtype)
        entries[rows] = column.values
        plain.append(pl.Series(name, entries, dtype=dtype))
        valid = np.zeros(len(having), dtype=np.bool_)
        valid[rows] = column.valid
        if not valid.all():
            plain.append(pl.Series(f"{name} is there", valid))
            nulls.append(pl.when(f"{name} is there").then(name).alias(name))
    spread_out = pl.DataFrame(plain).with_columns(nulls)
    return [spread_out.get_column(name) for name in VALUE_SUMMARY]
