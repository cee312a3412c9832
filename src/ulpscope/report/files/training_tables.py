"""Tables of two watched trainings.

course.csv                        a step a row: losses, norms of gradients, how far gradients and weights are apart
gradients.csv                     a gradient a row
similarities/rankN/similarities.csv    a step a row, as msprobe's GradComparator writes it: the share of equal signs
"""

from pathlib import Path

import polars as pl

from ulpscope.records.trainings import Trainings
from ulpscope.report.tables import write_table


def write_course(found: Trainings, path: Path) -> None:
    write_table(path, found.course.columns, found.course.rows())


def write_gradients(found: Trainings, path: Path) -> None:
    columns = found.table.drop("mean_reference", "mean_target", "roundoff")
    write_table(path, columns.columns, columns.rows())


def write_similarities(found: Trainings, folder: Path) -> None:
    """Of each step, the share of elements whose gradients have one sign, of all parameters together."""
    kept = found.table.filter(pl.col("signs").is_not_null())
    weight = pl.col("elements")
    steps = kept.group_by("rank", "step").agg(similarity=(pl.col("signs") * weight).sum() / weight.sum())
    for (rank,), rows in steps.sort("rank", "step").group_by("rank"):
        own = folder / f"rank{rank}"
        own.mkdir(parents=True, exist_ok=True)
        write_table(own / "similarities.csv", ("step", "similarity"), rows.select("step", "similarity").rows())
