"""What a trace holds, in counts; and its statistics by module and step, which a trend or a heat map shows."""

from dataclasses import dataclass

import polars as pl

from ulpscope.records.enums import Role
from ulpscope.records.runs import RankInfo
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.trace.trainings.course import TrainingCourse, course_of


@dataclass(frozen=True, slots=True)
class KindCount:
    """How many calls of one kind a phase has."""

    kind: str
    phase: str
    calls: int


@dataclass(frozen=True, slots=True)
class RankOverview:
    """One process of the run at a glance."""

    name: str
    info: RankInfo
    steps: tuple[int, ...]
    counts: tuple[KindCount, ...]
    calls: int
    values: int
    saved_values: int
    missing: tuple[str, ...]
    training: TrainingCourse | None = None
    """Of a watched one."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A trace at a glance."""

    path: str
    ranks: tuple[RankOverview, ...]
    missing: tuple[str, ...]
    """What is missing of the trace as a whole; each rank says its own."""


def overview_of(trace: Trace) -> Overview:
    """Count what a trace holds."""
    return Overview(
        path=str(trace.path),
        ranks=tuple(_rank_overview(rank) for rank in trace.ranks),
        missing=trace.missing_ranks,
    )


def _rank_overview(rank: RankTrace) -> RankOverview:
    calls, values = rank.scan("calls", rank.steps), rank.scan("values", rank.steps)
    by_kind = calls.group_by("kind", "phase").agg(calls=pl.len()).sort("calls", descending=True)
    counts = tuple(KindCount(**row) for row in rank.collect(by_kind).iter_rows(named=True))
    written, saved = rank.collect(values.select(pl.len(), saved=pl.col("data_file").count())).row(0)
    return RankOverview(
        name=rank.name,
        info=rank.info,
        steps=rank.steps,
        counts=counts,
        calls=sum(count.calls for count in counts),
        values=written,
        saved_values=saved,
        missing=rank.missing,
        training=course_of(rank),
    )


WHAT = {
    Role.OUTPUT: "output",
    Role.LOSS: "output",
    Role.GRAD_INPUT: "gradient",
    Role.GRADIENT: "weight_gradient",
    Role.PARAMETER: "parameter",
    Role.STATE_AFTER: "state",
}
"""What a call's tensors are to a reader of trends; those of other roles are some other call's."""

SCHEMA = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "module": pl.String,
    "what": pl.String,
    "tensors": pl.UInt32,
    "norm": pl.Float64,
    "size": pl.Float64,
    "mean": pl.Float64,
    "nan": pl.Int64,
    "inf": pl.Int64,
}
"""A row for each rank, step, module and kind of tensor: the largest norm, |x| and |mean|, and how many nan and inf."""


def module_trends(trace: Trace) -> pl.DataFrame:
    """The statistics of all floats of a run; calls outside of modules have none for `module`."""
    columns = [pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()]
    frames = [rank.collect(_trends(rank, step)).select(columns) for rank in trace.ranks for step in rank.steps]
    found = pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
    order = {name: place for place, name in enumerate(dict.fromkeys(WHAT.values()))}
    return found.sort(pl.col("what").replace_strict(order), "rank", "step", maintain_order=True)


TRAINING = "training"
"""What the loss, the gradient norm and learning rates of a watched training are to a reader of trends."""


def training_trends(trace: Trace) -> pl.DataFrame:
    """The course of each rank of a watched training in the columns of SCHEMA, each number where a module's name is."""
    courses = [(rank.info.rank, course) for rank in trace.ranks if (course := course_of(rank)) is not None]
    frames = [_as_trends(course.table).with_columns(rank=pl.lit(rank)) for rank, course in courses]
    columns = [pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *(frame.select(columns) for frame in frames)])


def _as_trends(course: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("value").is_finite()
    size = pl.when(known).then(pl.col("value").abs())
    counts = {"tensors": pl.lit(1), "nan": (~known).cast(pl.Int64), "inf": pl.lit(0)}
    return course.select(
        "step",
        module=(pl.col("what").str.replace("_", " ") + " " + pl.col("of")).str.strip_chars(),
        what=pl.lit(TRAINING),
        **dict.fromkeys(("norm", "size", "mean"), size),
        **counts,
    )


def _trends(rank: RankTrace, step: int) -> pl.LazyFrame:
    what = pl.col("role").replace_strict({role.value: word for role, word in WHAT.items()}, default=None)
    uses = rank.tensors(step).select("call", "value", what=what).drop_nulls("what")
    calls = rank.calls(step).select(pl.col("id").alias("call"), "module", "rank", "step")
    values = rank.values(step).filter(pl.col("initialized").fill_null(True), pl.col("nan").is_not_null())
    stats = values.select(
        pl.col("id").alias("value"),
        "norm",
        "nan",
        size=pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs()),
        mean=pl.col("mean").abs(),
        inf=pl.col("pos_inf") + pl.col("neg_inf"),
    )
    joined = uses.join(calls, on="call").join(stats, on="value").sort("call")
    keys = ["rank", "step", "module", "what"]
    # A module and the call inside it have the same output.
    once = joined.unique([*keys, "value"], keep="first", maintain_order=True)
    groups = once.group_by(keys, maintain_order=True)
    return groups.agg(pl.len().alias("tensors"), pl.col("norm", "size", "mean").max(), pl.col("nan", "inf").sum())
