"""Names and columns of a trace on disk; docs/trace-format.md says what each field means."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from ulpscope.numerics.summaries.constants import EXPONENT_BINS, SKETCH_LENGTH

SCHEMA_MAJOR = 1
SCHEMA_MINOR = 2

Columns: TypeAlias = Mapping[str, DataType | DataTypeClass]
Table: TypeAlias = Literal["calls", "values", "tensors", "stacks"]

CLAIM_FILE = "claim.json"
RANK_FILE = "rank.json"
STEP_FILE = "step.json"
TWINS = "twins"
"""The folder of a trace that holds its twins, each a trace."""

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

TABLES: Mapping[Table, Columns] = {"calls": CALLS, "values": VALUES, "tensors": TENSORS, "stacks": STACKS}


def step_name(step: int) -> str:
    """The directory of a step within a rank's directory."""
    return f"step{step}"


def part_name(table: Table, part: int) -> str:
    """The file of one part of a table."""
    return f"{table}-{part:03d}.parquet"


def data_name(part: int) -> str:
    """The file of one pack of saved data."""
    return f"data-{part:03d}.safetensors"
