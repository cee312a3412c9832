"""Makes of a trace with data the one that `--save stats` leaves: the same rows, without data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl

DATA_COLUMNS = ("data_file", "data_key", "data_offset", "data_strides")


def strip(trace: Path, stats: Path) -> None:
    aside = stats.with_name(f".{stats.name}")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(trace, aside, ignore=shutil.ignore_patterns("*.safetensors"))
    for file in aside.rglob("values-*.parquet"):
        table = pl.read_parquet(file)
        table.with_columns(pl.lit(None, dtype=table.schema[name]).alias(name) for name in DATA_COLUMNS).write_parquet(
            file
        )
    for file in aside.rglob("rank.json"):
        _forget_data(file)
    aside.rename(stats)


def _forget_data(file: Path) -> None:
    rank = json.loads(file.read_text())
    rank["capture"]["save"] = "stats"
    rank["coverage"]["saved_bytes"] = 0
    file.write_text(json.dumps(rank, indent=2))
