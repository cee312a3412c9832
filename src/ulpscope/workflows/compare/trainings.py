"""`ulpscope compare` on two trainings of which gradients were watched: at which step they part, and why."""

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from ulpscope.diagnose.trainings.courses import Courses, read_courses
from ulpscope.diagnose.trainings.parting import PartingSearch, first_of
from ulpscope.records.enums import GRADIENT_ROLE, LOSS_ROLE, PARAMETER_ROLE, Watch
from ulpscope.records.findings import Outcome
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import within
from ulpscope.records.runs import IntRanges
from ulpscope.records.trainings import Trainings
from ulpscope.report.files.training_tables import write_course, write_gradients, write_similarities
from ulpscope.report.terminal.trainings import trainings_json, trainings_text
from ulpscope.trace.reader import RankTrace, Trace, open_trace
from ulpscope.trace.watched import is_watched
from ulpscope.workflows.answers import SpokenAnswer

COURSE, GRADIENTS, SIMILARITIES = "course.csv", "gradients.csv", "similarities"


def are_trainings(reference: str | Path, target: str | Path) -> bool:
    """Whether both are traces of watched gradients; what else they are, whoever opens them tells."""
    return all(is_watched(Path(path), Watch.GRADIENTS) for path in (reference, target))


def compare_trainings(
    reference: str | Path, target: str | Path, *, steps: IntRanges | None = None, ranks: IntRanges | None = None
) -> SpokenAnswer:
    """Set two watched trainings side by side."""
    traces, names = Pair(open_trace(reference), open_trace(target)), Pair(str(reference), str(target))
    paired = _paired_ranks(traces, ranks)
    common = _common(traces, steps)
    courses = [read_courses(each, [step for step in common if step in set(each.reference.steps)]) for each in paired]
    found = _found(traces, names, common, courses)
    tables: dict[str, Callable[[Trainings, Path], None]] = {COURSE: write_course, GRADIENTS: write_gradients}
    if found.signs:
        tables[SIMILARITIES] = write_similarities
    return SpokenAnswer(found, found.code, trainings_text, trainings_json, tables, has_page=False)


def _found(traces: Pair[Trace], names: Pair[str], common: Sequence[int], courses: Sequence[Courses]) -> Trainings:
    searches = [PartingSearch(each) for each in courses]
    partings = first_of([parting for search in searches if (parting := search.find()) is not None])
    drifts = [] if partings else [drift for search in searches if (drift := search.drift()) is not None]
    noisy = [since for search in searches if (since := search.noisy_since()) is not None]
    table = pl.concat(each.table for each in courses) if courses else pl.DataFrame()
    gradients = table.filter(pl.col("role") == GRADIENT_ROLE) if courses else table
    compared = gradients.filter(pl.col("error").is_not_nan()).height if courses else 0
    return Trainings(
        reference=names.reference,
        target=names.target,
        outcome=Outcome.DIVERGED if partings else Outcome.AGREE if compared else Outcome.NOTHING_COMPARED,
        partings=tuple(partings),
        drifts=tuple(drifts),
        noisy_since=min(noisy, default=None),
        beginnings=tuple(each for search in searches if (each := search.beginning()) is not None),
        steps=tuple(common),
        gradients=compared,
        identical=int(gradients["identical"].sum()) if courses else 0,
        signs=int(gradients["signs"].is_not_null().sum()) if courses else 0,
        left=(len(set(traces.reference.steps) - set(common)), len(set(traces.target.steps) - set(common))),
        missing=tuple(within(side.path, sentence) for side in traces for sentence in side.missing),
        table=gradients.drop("role") if courses else table,
        course=_course(table) if courses else table,
    )


def _paired_ranks(traces: Pair[Trace], ranks: IntRanges | None) -> list[Pair[RankTrace]]:
    """Ranks of one number; a second process of a number is left out."""
    by_number = traces.map(lambda trace: {rank.info.rank: rank for rank in reversed(trace.ranks)})
    return [
        Pair(rank, by_number.target[number])
        for number, rank in sorted(by_number.reference.items())
        if number in by_number.target and (ranks is None or number in ranks)
    ]


def _common(traces: Pair[Trace], steps: IntRanges | None) -> list[int]:
    both = set(traces.reference.steps) & set(traces.target.steps)
    return sorted(step for step in both if steps is None or step in steps)


def _course(table: pl.DataFrame) -> pl.DataFrame:
    """A row a step: losses, norms of all gradients together, how far these and the weights are apart."""
    of = {role: pl.col("role") == role for role in (LOSS_ROLE, GRADIENT_ROLE, PARAMETER_ROLE)}

    def norm(column: str, role: str) -> pl.Expr:
        return pl.col(column).filter(of[role]).fill_nan(None).pow(2).sum().sqrt()

    gradients = of[GRADIENT_ROLE]
    apart = (pl.col("error") * pl.col("norm_reference")).filter(gradients).fill_nan(None).pow(2).sum().sqrt()
    weights = (pl.col("error") * pl.col("norm_reference")).filter(of[PARAMETER_ROLE]).fill_nan(None)
    return (
        table.group_by("rank", "step")
        .agg(
            loss_reference=pl.col("mean_reference").filter(of[LOSS_ROLE]).mean(),
            loss_target=pl.col("mean_target").filter(of[LOSS_ROLE]).mean(),
            gradient_norm_reference=norm("norm_reference", GRADIENT_ROLE),
            gradient_norm_target=norm("norm_target", GRADIENT_ROLE),
            gradient_error=apart / norm("norm_reference", GRADIENT_ROLE),
            weight_error=weights.pow(2).sum().sqrt() / norm("norm_reference", PARAMETER_ROLE),
            median_cosine=pl.col("cosine").filter(gradients).fill_nan(None).median(),
            signs=pl.col("signs").filter(gradients).mean(),
        )
        .sort("rank", "step")
    )
