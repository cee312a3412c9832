"""What must hold in the table files of a trace, so that nobody who reads them need ask again.

A file that was changed is told by the field that is wrong: a call without an id, two of the same id, a call that is
inside of a later one, a shape that no tensor has.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import polars as pl
from polars.datatypes import DataType, DataTypeClass
from polars.exceptions import PanicException, PolarsError

from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.trace.files import check_file, open_file
from ulpscope.trace.schema import LATER_COLUMNS, TABLES, Table

MEMORY_A_BYTE, MEMORY_BESIDES = 4, 2**30
"""What the rows of files may take in memory: so many times their bytes, and so many bytes besides. A capture's take
less than twice as many; only a file that was made to fill the memory takes more."""

NARROWEST = 8
"""Bytes of a row of a table of which nothing is known: one number."""

MOST_AXES = 64
"""What torch and numpy can hold."""
MOST_ELEMENTS = 2.0**62
"""What no memory holds; the number of bytes must still be one of 64 bits."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What is asked of a table; fields that are not required may be empty."""

    required: Sequence[str]
    counts: Sequence[str]
    """Never negative."""
    key: Sequence[str] = ()
    """Different in every row."""
    words: Sequence[tuple[str, type[Enum]]] = ()
    earlier: Sequence[str] = ()
    """Calls that began before this one, so that nothing is inside of itself."""
    lists: Sequence[str] = ()


_RULES: dict[Table, _Rules] = {
    "calls": _Rules(
        required=("id", "name", "kind", "op", "phase", "step", "micro_step"),
        counts=("id", "step", "micro_step", "parent", "forward", "stack"),
        key=("id",),
        words=(("kind", Kind), ("phase", Phase)),
        earlier=("parent", "forward"),
    ),
    "values": _Rules(
        required=("id", "dtype", "shape", "device", "layout", "initialized"),
        counts=("id", "producer", "nan", "pos_inf", "neg_inf", "set_aside", "zero", "subnormal", "data_offset"),
        key=("id",),
        lists=("shape", "strides", "data_strides"),
    ),
    "tensors": _Rules(required=("call", "role", "place", "value"), counts=("call", "value"), words=(("role", Role),)),
    "stacks": _Rules(
        required=("stack", "depth", "file", "line", "function"),
        counts=("stack", "depth", "line"),
        key=("stack", "depth"),
    ),
}


def wrong_size(files: list[Path], table: Table | None = None) -> str | None:
    """Whether files are no regular ones, or claim far more rows than they have bytes for."""
    try:
        size = sum(map(check_file, files))
        rows = pl.scan_parquet(files, glob=False).select(pl.len()).collect().item() if files else 0
    except OSError as error:
        return error.strerror or str(error)
    except (PolarsError, PanicException) as error:
        return str(error)
    width = NARROWEST if table is None else sum(map(_width, TABLES[table].values()))
    if rows * width > MEMORY_A_BYTE * size + MEMORY_BESIDES:
        return f"it claims {rows:,} rows in {size:,} bytes"
    return None


def wrong_columns(file: Path, table: Table) -> str | None:
    """Which column of a table a file lacks, or has with other content."""
    try:
        with open_file(file) as content:
            found = pl.read_parquet_schema(content)
    except OSError as error:
        return error.strerror or str(error)
    except (PolarsError, PanicException) as error:
        return str(error)
    for name, dtype in TABLES[table].items():
        if name not in found and name not in LATER_COLUMNS.get(table, ()):
            return f"it has no column {name}"
        if found.get(name, dtype) != dtype:
            return f"its column {name} holds {found[name]}, not {dtype}"
    return None


def wrong_content(file: Path) -> str | None:
    """Why a file cannot be read to its end."""
    try:
        pl.read_parquet(file, glob=False)
    except (PolarsError, PanicException, OSError) as error:
        return str(error)
    return None


def wrong_rows(files: list[Path], table: Table) -> str | None:
    """The first field that breaks a rule in some row of these files."""
    checks = list(_checks(_RULES[table]))
    wrong = (rows.fill_null(False).any().alias(str(place)) for place, (_, rows, _) in enumerate(checks))
    rows = pl.scan_parquet(files, extra_columns="ignore", glob=False)
    try:
        found = rows.select(*wrong).collect().row(0)
        if not any(found) and table == "values" and _has_endless(rows):
            return "field shape is that of more elements than memory has in some row"
    except (PolarsError, PanicException, OSError) as error:
        return str(error)
    told = (f"field {field} {problem}" for (field, _, problem), is_wrong in zip(checks, found, strict=True) if is_wrong)
    return next(told, None)


def _has_endless(values: pl.LazyFrame) -> bool:
    """Whether a shape has too many elements; products take ten times as long as their bound, which few shapes reach."""
    shape = pl.col("shape").list
    large = values.filter(shape.len() * shape.max().log(2) >= math.log2(MOST_ELEMENTS)).select("shape")
    elements = shape.eval(pl.element().cast(pl.Float64).product()).list.first()
    return bool(large.select((elements >= MOST_ELEMENTS).any()).collect().item())


def _checks(rules: _Rules) -> Iterator[tuple[str, pl.Expr, str]]:
    """A field, the rows in which it is wrong, and what is wrong there."""
    for field in rules.required:
        yield field, pl.col(field).is_null(), "is empty in some row"
    for field in rules.counts:
        yield field, pl.col(field) < 0, "is negative in some row"
    for field, words in rules.words:
        known = [str(word.value) for word in words]
        yield field, ~pl.col(field).is_in(known), f"is none of {', '.join(known)} in some row"
    for field in rules.earlier:
        yield field, pl.col(field) >= pl.col("id"), "names a call that began no earlier in some row"
    for field in rules.lists:
        yield field, pl.col(field).list.eval(pl.element().is_null()).list.any(), "lacks a number in some row"
    if "shape" in rules.lists:
        shape = pl.col("shape").list
        yield "shape", (shape.min() < 0) | (shape.len() > MOST_AXES), "is none of a tensor in some row"
    if rules.key:
        yield rules.key[-1], pl.struct(rules.key).is_duplicated(), "is the same in two rows"


def _width(kind: DataType | DataTypeClass) -> int:
    """Bytes of a field in memory, at least."""
    if isinstance(kind, pl.Array):
        return 4 * kind.size
    return 1 if kind == pl.Boolean else 8
