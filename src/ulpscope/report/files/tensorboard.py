"""Scalars for TensorBoard: a tag for each statistic, kind of tensor and module, a run directory for each rank.

DIR/rank0/events.out.tfevents.0.ulpscope      norm/output/model.layers.0.mlp, max_abs/gradient/model.head, ...

Event files of TensorBoard: records framed as in a TFRecord file, each one Event in protobuf's wire format.

Event:   1 wall time, double | 2 step, varint | 3 file version, text | 5 Summary
Summary: 1 Value, repeated         Value: 1 tag, text | 2 simple value, float
"""

import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import polars as pl

from ulpscope.dialects.tfrecord import record
from ulpscope.dialects.wire import number_bytes
from ulpscope.records.pairs import Judgement
from ulpscope.trace.overview import WHAT

EVENTS = "events.out.tfevents.0.ulpscope"
"""TensorBoard looks for `tfevents` in names."""

OUTSIDE = "(outside of modules)"

TREND_STATS = {"norm": "norm", "size": "max_abs", "mean": "mean_abs", "nan": "nan", "inf": "inf"}
"""Columns of trace.trends with what a tag calls them."""

SCALARS = {"rank": pl.Int64, "step": pl.Int64, "tag": pl.String, "value": pl.Float32}

_KEYS = ("rank", "step", "module", "what")


def trend_scalars(trends: pl.DataFrame) -> pl.DataFrame:
    """The statistics of a run (trace.trends) in the columns of SCALARS."""
    return _scalars(trends.rename(TREND_STATS), tuple(TREND_STATS.values()))


def course_scalars(rank: int, course: pl.DataFrame) -> pl.DataFrame:
    """Loss, gradient norm and learning rates of a watched training (COURSE), in the columns of SCALARS."""
    tag = pl.when(pl.col("of") == "").then("what").otherwise(pl.col("what") + "/" + pl.col("of"))
    rows = course.with_columns(rank=pl.lit(rank), tag=tag)
    return rows.select(pl.col(name).cast(dtype) for name, dtype in SCALARS.items())


def comparison_scalars(pairs: pl.DataFrame) -> pl.DataFrame:
    """The errors of a comparison (pairs.parquet) in the columns of SCALARS.

    error: the worst one; error_by_expected: the worst one set against what rounding and the inputs explain, more than
    1 is more than that; made_here: how many tensors; mismatched: places where inf or nan do not agree.
    """
    # Tensors of all roles: a difference may begin in an input, or in a parameter after its update.
    what = pl.col("role").replace({role.value: word for role, word in WHAT.items()})
    groups = pairs.with_columns(what=what).group_by(_KEYS, maintain_order=True)
    numbers = groups.agg(
        pl.col("error").max(),
        error_by_expected=(pl.col("error") / pl.col("expected")).fill_nan(None).max(),
        made_here=(pl.col("judgement") == Judgement.MADE_HERE.value).sum(),
        mismatched=pl.col("mismatched").sum(),
    )
    return _scalars(numbers, ("error", "error_by_expected", "made_here", "mismatched"))


def write_scalars(scalars: pl.DataFrame, out: Path) -> list[Path]:
    """Write SCALARS below a directory, and give the files."""
    now = time.time()
    written = []
    for (rank,), rows in scalars.group_by("rank", maintain_order=True):
        folder = out / f"rank{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / EVENTS, "wb") as file:
            write_events(file, _steps(rows), wall_time=now)
        written.append(folder / EVENTS)
    return written


def _scalars(numbers: pl.DataFrame, stats: tuple[str, ...]) -> pl.DataFrame:
    named = numbers.with_columns(pl.col("module").fill_null(OUTSIDE), pl.col(stats).cast(pl.Float64))
    flat = named.unpivot(stats, index=_KEYS, variable_name="stat").drop_nulls(["rank", "step", "value"])
    tagged = flat.with_columns(tag=pl.concat_str("stat", "what", "module", separator="/"))
    # A rank may have had several processes.
    worst = tagged.group_by("rank", "step", "tag", maintain_order=True).agg(pl.col("value").max())
    return worst.sort("rank", "step", maintain_order=True).select(
        pl.col(name).cast(dtype) for name, dtype in SCALARS.items()
    )


def _steps(rows: pl.DataFrame) -> Iterator[tuple[int, Mapping[str, float]]]:
    for (step,), found in rows.group_by("step", maintain_order=True):
        yield int(str(step)), dict(zip(found["tag"], found["value"], strict=True))


VERSION = "brain.Event:2"
"""What the first record of a file must say."""


def write_events(file: BinaryIO, steps: Iterable[tuple[int, Mapping[str, float]]], *, wall_time: float) -> None:
    """Write the scalars of each step, by their tags, as one event; they must be within the range of a float32."""
    file.write(record(event(wall_time, text_field(3, VERSION))))
    tags: dict[str, bytes] = {}
    for step, scalars in steps:
        tags |= {tag: text_field(1, tag) for tag in scalars if tag not in tags}
        values = [bytes_field(1, tags[tag] + struct.pack("<Bf", 2 << 3 | 5, value)) for tag, value in scalars.items()]
        file.write(
            record(event(wall_time, number_bytes(2 << 3) + number_bytes(step) + bytes_field(5, b"".join(values))))
        )


def event(wall_time: float, content: bytes) -> bytes:
    """An Event at a time."""
    return struct.pack("<Bd", 1 << 3 | 1, wall_time) + content


def text_field(number: int, text: str) -> bytes:
    # A name that is no text, from a file that is none, must still be one for the reader.
    return bytes_field(number, text.encode("utf-8", "replace"))


def bytes_field(number: int, content: bytes) -> bytes:
    """A field that has a length."""
    return b"".join([number_bytes(number << 3 | 2), number_bytes(len(content)), content])
