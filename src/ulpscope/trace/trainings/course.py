"""A training at a glance: loss, gradient norm and learning rate of each step, and what was found odd."""

import math
from dataclasses import dataclass

import polars as pl

from ulpscope.records.anomalies import Anomaly
from ulpscope.records.enums import GRADIENT_ROLE, LOSS_ROLE, OPTIMIZER_KIND, Watch
from ulpscope.trace.reader import RankTrace
from ulpscope.trace.trainings.numbers import rate_of
from ulpscope.trace.trainings.written import read_anomalies
from ulpscope.trace.watched import SCALE, SCALER_OP

LOSS, GRADIENT_NORM, RATE = "loss", "gradient_norm", "lr"
COURSE = {"step": pl.Int64, "what": pl.String, "of": pl.String, "value": pl.Float64}
"""`of`: the update, `AdamW.1`, where a step has several: each group of each optimizer has one."""


@dataclass(frozen=True, slots=True)
class TrainingCourse:
    """Of one rank."""

    table: pl.DataFrame
    """The columns are those of COURSE; steps in their order."""
    anomalies: tuple[Anomaly, ...]


def course_of(rank: RankTrace) -> TrainingCourse | None:
    """None of what is no watched training."""
    if rank.info.capture.get("watch") != Watch.TRAINING.value:
        return None
    updates = rank.collect(
        rank.calls().filter(pl.col("kind") == OPTIMIZER_KIND).select("id", "step", "name", "arguments").sort("id")
    )
    parts = [_losses(rank), _gradient_norms(rank, updates), _rates(updates)]
    table = pl.concat([part.select(pl.col(name).cast(dtype) for name, dtype in COURSE.items()) for part in parts])
    return TrainingCourse(table.sort("what", "of", "step"), tuple(read_anomalies(rank.directory)))


def losses_of(rank: RankTrace) -> dict[int, float]:
    """Mean losses by step, without a loss scale."""
    return dict(_losses(rank).select("step", "value").iter_rows())


def _losses(rank: RankTrace) -> pl.DataFrame:
    of_loss = pl.col("role") == LOSS_ROLE
    of_scale = (pl.col("op") == SCALER_OP) & (pl.col("place") == SCALE)
    calls = rank.calls().select("id", "step", "op")
    uses = rank.tensors().join(calls, left_on="call", right_on="id").filter(of_loss | of_scale)
    values = rank.values().select("id", mean=_known("mean"))
    read = rank.collect(uses.join(values, left_on="value", right_on="id").select("step", "role", "op", "place", "mean"))
    scale = pl.col("mean").filter(of_scale).last().fill_null(1.0)
    steps = read.group_by("step").agg(value=pl.col("mean").filter(of_loss).mean() / scale).drop_nulls().sort("step")
    return steps.with_columns(what=pl.lit(LOSS), of=pl.lit(""))


def _gradient_norms(rank: RankTrace, updates: pl.DataFrame) -> pl.DataFrame:
    """Of all gradients that a step's updates read, together."""
    graded = rank.tensors().filter(pl.col("role") == GRADIENT_ROLE, pl.col("call").is_in(updates["id"].implode()))
    values = rank.values().select("id", norm=_known("norm"))
    read = rank.collect(graded.join(values, left_on="value", right_on="id").select("call", "norm"))
    joined = read.join(updates.select("id", "step"), left_on="call", right_on="id")
    norms = joined.group_by("step").agg(value=pl.col("norm").pow(2).sum().sqrt())
    return norms.with_columns(what=pl.lit(GRADIENT_NORM), of=pl.lit(""))


def _known(stat: str) -> pl.Expr:
    """A number of what is finite; nan of what is not: stats leave such elements out."""
    bad = pl.col("nan").fill_null(0) + pl.col("pos_inf").fill_null(0) + pl.col("neg_inf").fill_null(0)
    return pl.when(bad > 0).then(math.nan).otherwise(stat)


def _rates(updates: pl.DataFrame) -> pl.DataFrame:
    rates = pl.Series([rate_of(text) for text in updates["arguments"]], dtype=pl.Float64)
    short = pl.col("name").str.split(".").list.tail(2).list.join(".")
    rows = updates.select("step", value=rates, what=pl.lit(RATE), of=short).drop_nulls("value")
    return rows if rows["of"].n_unique() > 1 else rows.with_columns(of=pl.lit(""))
