"""What summary rows mean: the columns that a trace stores, and Stats.

An integer or bool value has min, max, mean and zero count; everything else about it but the digest is null.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Floats, Shape
from ulpscope.numerics.summaries import constants as at
from ulpscope.numerics.summaries.summary import digest_seed, finish_digests
from ulpscope.records.calls import Stats

_FLOAT_COUNTS = {
    "nan": at.NAN,
    "pos_inf": at.POS_INF,
    "neg_inf": at.NEG_INF,
    "set_aside": at.SET_ASIDE,
    "subnormal": at.SUBNORMAL,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of many values; where `valid` is false the entry is null."""

    values: NDArray[np.generic]
    valid: NDArray[np.bool_]


class _Kinds:
    """Dtypes and shapes of many values, of which few differ."""

    def __init__(self, dtype_names: Sequence[str], shapes: Sequence[Shape]) -> None:
        numbers: dict[tuple[str, Shape], int] = {}
        pairs = zip(dtype_names, shapes, strict=True)
        self._index = np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], dtype=np.int64)
        self._kinds = list(numbers)

    def column(self, told: Callable[[str, Shape], float], dtype: type[np.generic]) -> NDArray[Any]:
        """What is told of dtype and shape, for each value."""
        return np.array([told(name, tuple(shape)) for name, shape in self._kinds], dtype=dtype)[self._index]


def rows_to_columns(rows: Floats, *, dtype_names: Sequence[str], shapes: Sequence[Shape]) -> dict[str, Column]:
    """The columns of trace.schema.VALUE_SUMMARY for many rows (n x ROW_LENGTH)."""
    kinds = _Kinds(dtype_names, shapes)
    floats = kinds.column(lambda name, _: DTYPES[name].has_sketch, np.bool_)
    # A complex element holds two numbers.
    elements = kinds.column(lambda name, shape: prod(shape) * DTYPES[name].parts, np.int64)
    present = np.ones(len(rows), dtype=np.bool_)
    summed = elements - rows[:, at.SET_ASIDE]
    some_finite = rows[:, at.MIN] <= rows[:, at.MAX]
    raw_digests = np.ascontiguousarray(rows[:, at.DIGEST]).view(np.uint64)
    # Sums as float32, and what that leaves of them; of doubles both are stored.
    sums = rows[:, at.SKETCH : at.SKETCH + at.SKETCH_LENGTH]
    sketch = sums.astype(np.float32)
    columns = {
        "min": Column(rows[:, at.MIN], some_finite),
        "max": Column(rows[:, at.MAX], some_finite),
        "mean": Column(rows[:, at.SUM] / np.maximum(summed, 1), summed > 0),
        "norm": Column(np.sqrt(rows[:, at.SUM_SQUARES]), floats),
        "abs_sum": Column(rows[:, at.ABS_SUM], floats),
        "zero": Column(rows[:, at.ZERO].astype(np.int64), present),
        "exponents": Column(rows[:, at.EXPONENTS : at.EXPONENTS + at.EXPONENT_BINS].astype(np.uint32), floats),
        "sketch": Column(sketch, floats),
        "sketch_rest": Column(sums - sketch, kinds.column(lambda name, _: DTYPES[name].is_double, np.bool_)),
        "digest": Column(finish_digests(raw_digests, kinds.column(digest_seed, np.uint64)), present),
    }
    counts = {name: Column(rows[:, slot].astype(np.int64), floats) for name, slot in _FLOAT_COUNTS.items()}
    return columns | counts


def stats_from_row(row: Floats, dtype_name: str, shape: Shape) -> Stats:
    is_float = DTYPES[dtype_name].has_sketch
    summed = prod(shape) * DTYPES[dtype_name].parts - int(row[at.SET_ASIDE])
    some_finite = bool(row[at.MIN] <= row[at.MAX])
    return Stats(
        min=float(row[at.MIN]) if some_finite else None,
        max=float(row[at.MAX]) if some_finite else None,
        mean=float(row[at.SUM]) / summed if summed else None,
        norm=sqrt(row[at.SUM_SQUARES]) if is_float else None,
        abs_sum=float(row[at.ABS_SUM]) if is_float else None,
        zero=int(row[at.ZERO]),
        exponents=tuple(row[at.EXPONENTS : at.EXPONENTS + at.EXPONENT_BINS].astype(int).tolist()) if is_float else (),
        **{name: int(row[slot]) for name, slot in _FLOAT_COUNTS.items()},
    )


def raw_digest_of_row(row: Floats) -> int:
    return int(row[at.DIGEST : at.DIGEST + 1].view(np.uint64)[0])
