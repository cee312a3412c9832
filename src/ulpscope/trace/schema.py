"""Names and columns of a trace on disk, and what must hold in them; docs/trace-format.md says what each field means.

A file that was changed is told by the field that is wrong, so that nobody who reads it need ask again: a call without
an id, two of the same id, a call that is inside of a later one, a shape that no tensor has.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeAlias

import polars as pl
from polars.datatypes import DataType, DataTypeClass
from polars.exceptions import PanicException, PolarsError

from ulpscope.numerics.summaries.constants import EXPONENT_BINS, SKETCH_LENGTH
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.trace.files import check_file, open_file

SCHEMA_MAJOR = 1
SCHEMA_MINOR = 3

Columns: TypeAlias = Mapping[str, DataType | DataTypeClass]
Table: TypeAlias = Literal["calls", "values", "tensors", "stacks"]

CLAIM_FILE = "claim.json"
RANK_FILE = "rank.json"
ANOMALIES_FILE = "anomalies.jsonl"
STEP_FILE = "step.json"
STEPS_FILE = "steps.json"
"""Of a block."""

CALLS: Columns = {
    "id": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "op": pl.String,
    "module": pl.String,
    "module_class": pl.String,
    "phase": pl.String,
    "step": pl.Int64,
    "micro_step": pl.Int64,
    "parent": pl.Int64,
    "forward": pl.Int64,
    "stack": pl.Int64,
    "autocast": pl.String,
    "recompute": pl.Boolean,
    "random": pl.Boolean,
    "generator": pl.String,
    "arguments": pl.String,
    "error": pl.String,
}

VALUE_IDENTITY: Columns = {
    "id": pl.Int64,
    "storage": pl.Int64,
    "version": pl.Int64,
    "producer": pl.Int64,
    "dtype": pl.String,
    "shape": pl.List(pl.Int64),
    "strides": pl.List(pl.Int64),
    "device": pl.String,
    "layout": pl.String,
    "requires_grad": pl.Boolean,
    "initialized": pl.Boolean,
}

VALUE_SUMMARY: Columns = {
    "min": pl.Float64,
    "max": pl.Float64,
    "mean": pl.Float64,
    "norm": pl.Float64,
    "abs_sum": pl.Float64,
    "nan": pl.Int64,
    "pos_inf": pl.Int64,
    "neg_inf": pl.Int64,
    "set_aside": pl.Int64,
    "zero": pl.Int64,
    "subnormal": pl.Int64,
    "exponents": pl.Array(pl.UInt32, EXPONENT_BINS),
    "sketch": pl.Array(pl.Float32, SKETCH_LENGTH),
    "sketch_rest": pl.Array(pl.Float64, SKETCH_LENGTH),
    "digest": pl.UInt64,
}

VALUE_DATA: Columns = {
    "data_file": pl.String,
    "data_key": pl.String,
    "data_offset": pl.Int64,
    "data_strides": pl.List(pl.Int64),
}

VALUE_SHARD: Columns = {
    "global_shape": pl.List(pl.Int64),
    "global_offset": pl.List(pl.Int64),
    "mesh": pl.String,
}

VALUES: Columns = {**VALUE_IDENTITY, **VALUE_SUMMARY, **VALUE_DATA, **VALUE_SHARD}

TENSORS: Columns = {
    "call": pl.Int64,
    "role": pl.String,
    "place": pl.String,
    "value": pl.Int64,
}

STACKS: Columns = {
    "stack": pl.Int64,
    "depth": pl.Int64,
    "file": pl.String,
    "line": pl.Int64,
    "function": pl.String,
}

LATER_COLUMNS: Mapping[Table, tuple[str, ...]] = {"values": ("sketch_rest",)}
"""Columns that traces of an earlier minor version do not have: null there."""

PART_OF = "part_of"
"""A column that tables of a block have besides: the step that a row is part of."""

TABLES: Mapping[Table, Columns] = {"calls": CALLS, "values": VALUES, "tensors": TENSORS, "stacks": STACKS}


def step_name(step: int) -> str:
    """The directory of a step within a rank's directory."""
    return f"step{step}"


def block_name(number: int) -> str:
    """The directory of a block of steps within a rank's directory."""
    return f"steps-{number:03d}"


# As block_name writes it.
BLOCK = re.compile(r"steps-(\d{3}|[1-9]\d{3,8})")


def columns_in(folder: Path, table: Table) -> Columns:
    """The columns of a table's files in a directory."""
    return {**TABLES[table], PART_OF: pl.Int64} if BLOCK.fullmatch(folder.name) else TABLES[table]


def part_name(table: Table, part: int) -> str:
    """The file of one part of a table."""
    return f"{table}-{part:03d}.parquet"


def data_name(part: int) -> str:
    """The file of one pack of saved data."""
    return f"data-{part:03d}.safetensors"


Asked = ParamSpec("Asked")

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
class Rules:
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


RULES: Mapping[Table, Rules] = {
    "calls": Rules(
        required=("id", "name", "kind", "op", "phase", "step", "micro_step"),
        counts=("id", "step", "micro_step", "parent", "forward", "stack"),
        key=("id",),
        words=(("kind", Kind), ("phase", Phase)),
        earlier=("parent", "forward"),
    ),
    "values": Rules(
        required=("id", "dtype", "shape", "device", "layout", "initialized"),
        counts=("id", "producer", "nan", "pos_inf", "neg_inf", "set_aside", "zero", "subnormal", "data_offset"),
        key=("id",),
        lists=("shape", "strides", "data_strides"),
    ),
    "tensors": Rules(required=("call", "role", "place", "value"), counts=("call", "value"), words=(("role", Role),)),
    "stacks": Rules(
        required=("stack", "depth", "file", "line", "function"),
        counts=("stack", "depth", "line"),
        key=("stack", "depth"),
    ),
}


def _telling(look: Callable[Asked, str | None]) -> Callable[Asked, str | None]:
    """What cannot be read at all is told as any other problem is."""

    @wraps(look)
    def told(*files: Asked.args, **table: Asked.kwargs) -> str | None:
        try:
            return look(*files, **table)
        except OSError as error:
            return error.strerror or str(error)
        except (PolarsError, PanicException) as error:
            return str(error)

    return told


@_telling
def wrong_size(files: list[Path], table: Table | None = None) -> str | None:
    """Whether files are no regular ones, or claim far more rows than they have bytes for."""
    size = sum(map(check_file, files))
    rows = pl.scan_parquet(files, glob=False).select(pl.len()).collect().item() if files else 0
    width = NARROWEST if table is None else sum(map(_width, TABLES[table].values()))
    if rows * width > MEMORY_A_BYTE * size + MEMORY_BESIDES:
        return f"it claims {rows:,} rows in {size:,} bytes"
    return None


@_telling
def wrong_columns(file: Path, table: Table) -> str | None:
    """Which column of a table a file lacks, or has with other content."""
    with open_file(file) as content:
        found = pl.read_parquet_schema(content)
    for name, dtype in columns_in(file.parent, table).items():
        if name not in found and name not in LATER_COLUMNS.get(table, ()):
            return f"it has no column {name}"
        if found.get(name, dtype) != dtype:
            return f"its column {name} holds {found[name]}, not {dtype}"
    return None


@_telling
def wrong_content(file: Path) -> str | None:
    """Why a file cannot be read to its end."""
    pl.read_parquet(file, glob=False)
    return None


@_telling
def wrong_rows(files: list[Path], table: Table) -> str | None:
    """The first field that breaks a rule in some row of these files."""
    checks = list(_checks(RULES[table]))
    wrong = (rows.fill_null(False).any().alias(str(place)) for place, (_, rows, _) in enumerate(checks))
    rows = pl.scan_parquet(files, extra_columns="ignore", glob=False)
    found = rows.select(*wrong).collect().row(0)
    for (field, _, problem), is_wrong in zip(checks, found, strict=True):
        if is_wrong:
            return f"field {field} {problem}"
    if table == "values" and _has_endless(rows):
        return "field shape is that of more elements than memory has in some row"
    return None


def _has_endless(values: pl.LazyFrame) -> bool:
    """Whether a shape has too many elements; products take ten times as long as their bound, which few shapes reach."""
    shape = pl.col("shape").list
    large = values.filter(shape.len() * shape.max().log(2) >= math.log2(MOST_ELEMENTS)).select("shape")
    elements = shape.eval(pl.element().cast(pl.Float64).product()).list.first()
    return bool(large.select((elements >= MOST_ELEMENTS).any()).collect().item())


def _checks(rules: Rules) -> Iterator[tuple[str, pl.Expr, str]]:
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
