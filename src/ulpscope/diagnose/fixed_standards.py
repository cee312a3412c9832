"""The answer by a fixed standard: the first tensor that fails it although the inputs of its call do not."""

from dataclasses import replace
from typing import Any

import polars as pl

from ulpscope.judge.rounding.measuring import DTYPE_DIFFERS, SHAPE_DIFFERS
from ulpscope.judge.standards.by_name import Standard
from ulpscope.records.enums import MAKING_ROLES, ExitCode, Phase
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.evidence import Evidence, Numbers
from ulpscope.records.findings import Comparison, Counts, Finding, FindingKind, Outcome, Place
from ulpscope.records.pairs import Judgement, Measured

CALLS = ["rank", "id_target"]


def judge_by(standard: Standard, comparison: Comparison, pairs: pl.DataFrame) -> tuple[Comparison, pl.DataFrame]:
    """The same comparison, judged by limits instead of by rounding."""
    unknown = standard.unknown_in(pairs)
    if unknown:
        raise UlpscopeError(
            f"the standard {standard.name}, but no pair of tensors has {' or '.join(unknown)}",
            expected="metrics that these traces tell: without data only cosine, rmse, distance and relative_distance",
            next_step="capture both runs with --save tensors",
            code=ExitCode.NOTHING,
        )
    judged = _judgements(pairs, standard)
    made = judged.filter(pl.col("judgement") == Judgement.MADE_HERE.value)
    findings = tuple(_finding(row) for row in made.head(1).iter_rows(named=True))
    counts = _counts(comparison.counts, judged)
    outcome = Outcome.DIVERGED if findings else comparison.outcome
    if not findings and outcome is Outcome.DIVERGED:
        outcome = Outcome.AGREE
    scope = replace(comparison.scope, standard=standard.name)
    return (
        replace(comparison, outcome=outcome, findings=findings, counts=counts, scope=scope, neighbours=(), advice=()),
        judged,
    )


def _judgements(pairs: pl.DataFrame, standard: Standard) -> pl.DataFrame:
    # Other shapes and kinds of numbers were not compared, and fail where a standard asks for equal ones.
    judged = pl.col("judgement").is_not_null() | pl.col("reason").is_in([SHAPE_DIFFERS, DTYPE_DIFFERS])
    failing = pairs.with_columns(fails=standard.failing(pairs) & judged)
    makes = pl.col("role").is_in(MAKING_ROLES)
    failing_input = (pl.col("fails") & ~makes).any().over(CALLS)
    first_seen = pl.struct("value_reference", "value_target").is_first_distinct().over("rank")
    word = (
        pl.when(~pl.col("fails") & (pl.col("judgement").is_null() | (pl.col("judgement") == Judgement.IDENTICAL.value)))
        .then("judgement")
        .when(~pl.col("fails"))
        .then(pl.lit(Judgement.ROUNDING.value))
        .when(first_seen & ~(makes & failing_input))
        .then(pl.lit(Judgement.MADE_HERE.value))
        .otherwise(pl.lit(Judgement.INHERITED.value))
    )
    return failing.with_columns(judgement=word).drop("fails")


def _finding(row: dict[str, Any]) -> Finding:
    place = Place(
        rank=row["rank"],
        step=row["step"],
        phase=Phase(row["phase"]),
        call=row["call_target"],
        call_id=row["id_target"],
        op=row["op"],
        module=row["module"],
        tensor=row["place"],
    )
    measured = Measured(row["measured"]) if row["measured"] is not None else None
    evidence = Evidence(Numbers(measured=measured, error_in=row["error_in"], error_out=row["error"]))
    return Finding(FindingKind.COMPUTATION, place, evidence)


def _counts(counts: Counts, judged: pl.DataFrame) -> Counts:
    numbers = dict(judged["judgement"].drop_nulls().value_counts().iter_rows())
    by_word = {word.value: numbers.get(word.value, 0) for word in Judgement}
    return replace(counts, tensors_compared=sum(by_word.values()), **by_word)
