"""Values of one run as columns: what a trace has of each, for measuring pairs of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.judge.rounding.limits import sketch_floors
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.estimates import Summaries
from ulpscope.trace.reader import RankTrace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Of a value that is not there.
NO_DTYPE = ""

VALUE_COLUMNS = (
    "id", "producer", "storage", "dtype", "shape", "initialized", "min", "max", "mean", "norm", "abs_sum",
    "nan", "pos_inf", "neg_inf", "set_aside", "zero", "digest",
)  # fmt: skip


SUMMARIZED = pl.any_horizontal(pl.col("zero", "norm", "max", "nan").is_not_null())


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one side, a row a value of some list; nan and -1 stand for what is not known."""

    id: Ints
    producer: Ints
    storage: Ints
    dtype: NDArray[np.object_]
    frame: pl.DataFrame
    """The same rows as a table, for what is only shown."""
    initialized: Bools
    summarized: Bools
    summaries: Summaries
    nan: Ints
    pos_inf: Ints
    neg_inf: Ints
    set_aside: Ints
    zero: Ints
    digest: NDArray[np.uint64]
    has_digest: Bools
    has_data: Bools
    exponents: NDArray[np.uint32] | None
    resolution: Floats
    """Relative distance below which a sketch is rounding of itself."""

    def shapes(self) -> list[list[int]]:
        return self.frame["shape"].to_list()

    def shape(self, row: int) -> tuple[int, ...]:
        return tuple(self.frame["shape"][row])

    def not_finite(self) -> Ints:
        return self.nan + self.pos_inf + self.neg_inf

    def large(self) -> Ints:
        """Finite elements that are set aside: masks, or numbers that are large."""
        return self.set_aside - self.not_finite()

    def take(self, rows: NDArray[np.intp]) -> "Values":
        """The same columns for a choice of rows."""
        summaries = replace(self.summaries, **_rows_of(self.summaries, rows))
        return replace(self, **_rows_of(self, rows), summaries=summaries)


def _rows_of(columns: Values | Summaries, rows: NDArray[np.intp]) -> dict[str, Any]:
    """Those of all columns that there are."""
    found = {field.name: getattr(columns, field.name) for field in fields(columns)}
    return {name: column[rows] for name, column in found.items() if isinstance(column, np.ndarray | pl.DataFrame)}


def read_values(
    trace: RankTrace, ids: Ints, calls: Ints | None = None, *, steps: Sequence[int] | None = None
) -> Values:
    """The values of these ids, in the order of their ids; what other calls than `calls` made came from outside.

    With `steps`, those that were first met in these.
    """
    wanted = pl.DataFrame({"id": np.unique(ids)}, schema={"id": pl.Int64})
    has_data = pl.col("data_file").is_not_null().alias("has_data")
    columns = [*VALUE_COLUMNS, "sketch", "sketch_rest", "exponents", has_data]
    table = trace.values() if steps is None else trace.scan("values", steps)
    frame = trace.collect(table.select(columns))
    # A value that a broken trace has lost stands here without anything known of it.
    frame = wanted.join(frame, on="id", how="left").sort("id")
    absent = pl.col("dtype").fill_null(NO_DTYPE), pl.col("shape").fill_null([]), pl.col("has_data").fill_null(False)
    frame = frame.with_columns(absent)
    producer = _ints(frame, "producer", missing=-1)
    summaries = _summaries(frame)
    return Values(
        id=frame["id"].to_numpy(),
        producer=producer if calls is None else np.where(np.isin(producer, calls), producer, -1),
        storage=_ints(frame, "storage", missing=-1),
        dtype=frame["dtype"].to_numpy().astype(object),
        frame=frame.select("id", "dtype", "shape", "min", "max", "mean", "norm"),
        initialized=frame["initialized"].fill_null(True).to_numpy(),
        summarized=frame.select(SUMMARIZED).to_series().to_numpy(),
        summaries=summaries,
        nan=_ints(frame, "nan"),
        pos_inf=_ints(frame, "pos_inf"),
        neg_inf=_ints(frame, "neg_inf"),
        set_aside=_ints(frame, "set_aside"),
        zero=_ints(frame, "zero"),
        digest=frame["digest"].fill_null(0).to_numpy(),
        has_digest=frame["digest"].is_not_null().to_numpy(),
        has_data=frame["has_data"].to_numpy(),
        exponents=_arrays(frame["exponents"]),
        resolution=sketch_floors(summaries.elements, whole=frame["sketch_rest"].is_not_null().to_numpy()),
    )


def _summaries(frame: pl.DataFrame) -> Summaries:
    known: dict[tuple[str, tuple[int, ...]], float] = {}  # the same few again and again
    elements = []
    for key in zip(frame["dtype"].to_list(), map(tuple, frame["shape"].to_list()), strict=True):
        if key not in known:
            known[key] = math.prod(key[1]) * (DTYPES[key[0]].parts if key[0] in DTYPES else 1)
        elements.append(known[key])
    return Summaries(
        elements=np.asarray(elements, dtype=np.float64),
        min=_floats(frame, "min"),
        max=_floats(frame, "max"),
        mean=_floats(frame, "mean"),
        norm=_norms(frame, np.asarray(elements, dtype=np.float64)),
        sketch=_sketches(frame),
    )


def _norms(frame: pl.DataFrame, elements: Floats) -> Floats:
    """Norms; where all elements are set aside, and not all one number, those of elements spread from min to max."""
    norm, least, most = (_floats(frame, name) for name in ("norm", "min", "max"))
    large = (elements > 0) & (_ints(frame, "set_aside") == elements) & (least < most)
    size = np.where(large, np.fmax(np.abs(least), np.abs(most)), 1.0)
    low, high = least / size, most / size
    return np.where(large, size * np.sqrt(elements * (low * low + low * high + high * high) / 3.0), norm)


def _sketches(frame: pl.DataFrame) -> NDArray[np.floating[Any]] | None:
    """Sketches as float32; as float64 where some values, of doubles, have them whole."""
    stored, rest = _arrays(frame["sketch"]), _arrays(frame["sketch_rest"])
    return stored if stored is None or rest is None else stored + np.nan_to_num(rest)


def _arrays(column: pl.Series) -> NDArray[Any] | None:
    """A column of fixed-length arrays as one array; missing ones are nan or 0; none if all are missing."""
    if column.null_count() == len(column) or not isinstance(column.dtype, pl.Array):
        return None
    if column.null_count():
        empty = 0 if column.dtype.inner.is_integer() else np.nan
        column = column.fill_null(pl.Series([[empty] * column.dtype.size], dtype=column.dtype))
    return column.to_numpy()


def _floats(frame: pl.DataFrame, column: str) -> Floats:
    return frame[column].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _ints(frame: pl.DataFrame, column: str, *, missing: int = 0) -> Ints:
    return frame[column].fill_null(missing).to_numpy()


def scaled(values: Values, factors: Floats) -> Values:
    """The summaries of the values times these positive factors, one each."""
    known = values.summaries
    sketch = None if known.sketch is None else (known.sketch * factors[:, None]).astype(known.sketch.dtype)
    stats = {name: getattr(known, name) * factors for name in ("min", "max", "mean", "norm")}
    return replace(values, summaries=Summaries(elements=known.elements, sketch=sketch, **stats))
