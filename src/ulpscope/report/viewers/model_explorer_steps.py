"""Steps of runs as tables that graphs are made of: from a trace, or from what a comparison's table keeps of it."""

import polars as pl

from ulpscope.records.enums import Kind
from ulpscope.report.viewers.model_explorer import CALL_COLUMNS, USE_COLUMNS, VALUE_COLUMNS, RunStep
from ulpscope.trace.neighbours import MADE_ROLES
from ulpscope.trace.reader import RankTrace
from ulpscope.trace.schema import Columns

MODULES = (Kind.MODULE.value, Kind.MODULE_BACKWARD.value)


def captured_step(rank: RankTrace, step: int) -> RunStep:
    """A step of a trace."""
    calls = rank.collect(rank.calls(step))
    innermost = rank.stacks().filter(pl.col("depth") == 0)
    lines = rank.collect(innermost.select("stack", source=pl.concat_str("file", "line", separator=":")))
    placed = calls.join(lines.unique("stack"), on="stack", how="left")
    # The backward of a module stands around those of its calls, which do not name it.
    around = pl.col("id").is_in(calls["parent"].drop_nulls().unique().to_list()) | pl.col("kind").is_in(MODULES[1:])
    values = rank.values(step).with_columns(not_finite=pl.col("nan") + pl.col("pos_inf") + pl.col("neg_inf"))
    return RunStep(
        calls=_select(placed.with_columns(around=around), CALL_COLUMNS),
        uses=_select(rank.collect(rank.tensors(step)), USE_COLUMNS),
        values=_select(rank.collect(values.select(*VALUE_COLUMNS)), VALUE_COLUMNS),
    )


def compared_step(pairs: pl.DataFrame, side: str) -> RunStep:
    """What rows of pairs.parquet, of one rank and step, tell of one run: the calls and values that have a partner."""
    ends = f"_{side}"
    one = pairs.select(
        pl.exclude("^.*_(reference|target)$"),
        pl.col(f"^.*{ends}$").name.map(lambda name: name.removesuffix(ends)),
        name=f"call{ends}",
    )
    calls = one.select("id", "name", "kind", "op", "module", "phase", around=pl.col("kind").is_in(MODULES)).unique(
        "id", maintain_order=True
    )
    values = one.select(pl.exclude("id"), id="value").unique("id", maintain_order=True)
    return RunStep(
        calls=_select(calls, CALL_COLUMNS),
        uses=_select(one.with_columns(call="id"), USE_COLUMNS),
        values=_select(values.join(_makers(one), on="id", how="left"), VALUE_COLUMNS),
    )


def _makers(one: pl.DataFrame) -> pl.DataFrame:
    """The call that made each value: no module while a call inside it has the value too; the first of several."""
    depth = pl.when(pl.col("kind").is_in(MODULES)).then(pl.col("module").str.count_matches(r"\.").fill_null(0))
    made = one.filter(pl.col("role").is_in([role.value for role in MADE_ROLES]))
    # Null, for what is no module, comes first.
    first = made.with_columns(depth=-depth.cast(pl.Int64)).sort("depth", "id", nulls_last=False)
    return first.unique("value", keep="first", maintain_order=True).select(producer="id", id="value")


def _select(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """These columns; those that are not there are null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in columns.items()
    )
