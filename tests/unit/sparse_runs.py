"""Traces whose tensors are larger than memory: files of holes that take no room on the disk."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tests.unit.saved_runs import write_result

from ulpscope.trace.schema import VALUES

FILE = "step0/data-000.safetensors"


def write_sparse_result(folder: Path, *, shape: tuple[int, ...], marked: dict[int, float]) -> Path:
    """Two runs with a float32 tensor of zeros; `marked` are numbers of the target by their flat index."""
    small = np.zeros(shape[-1:], np.float32)
    result = write_result(folder, {"torch.zeros": (small, small + 1)})
    for side in ("ref", "target"):
        _enlarge(folder / side / "rank0", shape, marked if side == "target" else {})
    pairs = pl.read_parquet(result / "pairs.parquet")
    large = pl.lit(list(shape), dtype=pl.List(pl.Int64))
    stats = {f"{name}_{side}": None for name in ("min", "max", "mean", "norm") for side in ("reference", "target")}
    pairs.with_columns(shape_reference=large, shape_target=large, **stats).write_parquet(result / "pairs.parquet")
    return result


def _enlarge(rank: Path, shape: tuple[int, ...], marked: dict[int, float]) -> None:
    size = 4 * math.prod(shape)
    header = json.dumps({"0": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(rank / FILE, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        os.truncate(file.fileno(), 8 + len(header) + size)
        for place, number in marked.items():
            os.pwrite(file.fileno(), np.float32(number).tobytes(), 8 + len(header) + 4 * place)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    large: dict[str, Any] = {"shape": list(shape), "strides": strides, "data_strides": strides}
    table = rank / "step0" / "values-000.parquet"
    columns = {name: pl.lit(content, dtype=VALUES[name]) for name, content in large.items()}
    pl.read_parquet(table).with_columns(data_key=pl.lit("0"), **columns).write_parquet(table)
