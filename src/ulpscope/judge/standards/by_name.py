"""Fixed standards, by name: for users who must report against them. The default, `rounding`, is not among them.

cosine:0.98     cosine similarity of at least 0.98
msprobe         the rules behind msprobe's column Result (statistics or tensors)
FILE.yaml       limits of your own: `cosine: 0.99`, `max_abs: 0.001`, ... , all of which must hold

The answer by one is the first tensor that fails it although the inputs of its call do not.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.judge.rounding.measuring import DTYPE_DIFFERS, SHAPE_DIFFERS
from ulpscope.judge.standards.limits import MSPROBE_NORM_IN, MSPROBE_NORM_OUT, MSPROBE_SHARE_IN, MSPROBE_SHARE_OUT
from ulpscope.records.enums import MAKING_ROLES, ExitCode, Phase
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.evidence import Evidence, Numbers
from ulpscope.records.findings import Comparison, Finding, FindingKind, Outcome, Place
from ulpscope.records.pairs import Judgement, Measured

AT_LEAST = ("cosine", "within_thousandth", "within_five_thousandths")
AT_MOST = (
    "max_abs", "max_rel", "mean_rel", "accumulated_rel", "relative_distance", "rmse", "mae", "kl_divergence", "max_ulp",
    "mean_ulp", "error", "distance", "mismatched",
)  # fmt: skip
ON_DEMAND = ("max_ulp", "mean_ulp", "kl_divergence")
CALLS = ["rank", "id_target"]


@dataclass(frozen=True, slots=True)
class Standard:
    """A named rule of limits on metrics."""

    name: str
    limits: dict[str, float]

    @property
    def needs_details(self) -> bool:
        """Whether it asks for metrics that are only computed on demand."""
        return any(metric in ON_DEMAND for metric in self.limits)

    def unknown_in(self, pairs: pl.DataFrame) -> list[str]:
        """Metrics with a limit that no pair of tensors has, though some differ."""
        differing = pairs.filter(pl.col("judgement").is_not_null(), pl.col("judgement") != "identical")
        if differing.is_empty():
            return []
        return [metric for metric in self.limits if differing[metric].null_count() == differing.height]

    def failing(self, pairs: pl.DataFrame) -> pl.Series:
        """For each row whether it fails; a metric that is not known for a row does not count."""
        if self.name == "msprobe":
            return pairs.select(_msprobe()).to_series()
        tests = [
            pl.col(metric) < limit if metric in AT_LEAST else pl.col(metric) > limit
            for metric, limit in self.limits.items()
        ]
        return pairs.select(pl.any_horizontal(tests).fill_null(False) | (pl.col("mismatched") > 0)).to_series()


def parse_standard(text: str) -> Standard | None:
    """The standard of that name or file; none for `rounding`."""
    if text == "rounding":
        return None
    if text == "msprobe":
        return Standard("msprobe", {})
    metric, colon, number = text.partition(":")
    if colon and metric in (*AT_LEAST, *AT_MOST):
        return Standard(text, {metric: _number(text, number)})
    path = Path(text)
    if path.suffix in (".yaml", ".yml"):
        return Standard(text, _read(path))
    raise _unknown(f"the standard {text!r}")


def _msprobe() -> pl.Expr:
    """Errors of msprobe: target not finite, dtype or shape differs, or clean inputs and a wrong output."""
    makes = pl.col("role").is_in(MAKING_ROLES)
    gap = (pl.col("norm_target") - pl.col("norm_reference")).abs()
    # Equal norms have no error, also if both are 0.
    norm_error = pl.when(gap == 0).then(0.0).otherwise(gap / pl.col("norm_reference").abs())
    in_norm = norm_error.filter(~makes).max().over(CALLS).fill_null(0.0)
    in_share = pl.col("within_thousandth").filter(~makes).min().over(CALLS).fill_null(1.0)
    not_finite = (pl.col("not_finite_target") > 0) & (pl.col("not_finite_reference") == 0)
    differs = (pl.col("dtype_target") != pl.col("dtype_reference")) | (
        pl.col("shape_target") != pl.col("shape_reference")
    )
    by_norm = makes & (in_norm < MSPROBE_NORM_IN) & (norm_error > MSPROBE_NORM_OUT)
    by_share = makes & (in_share > MSPROBE_SHARE_IN) & (pl.col("within_thousandth") < MSPROBE_SHARE_OUT)
    return pl.any_horizontal(not_finite, differs, by_norm, by_share).fill_null(False)


def _read(path: Path) -> dict[str, float]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _unknown(f"the standard {path}, which cannot be read ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict) or not content:
        raise _unknown(f"the standard {path}, which holds no limits")
    for metric in content:
        if metric not in (*AT_LEAST, *AT_MOST):
            raise _unknown(f"the limit {metric!r} in {path}")
    return {str(metric): _number(f"{metric} in {path}", limit) for metric, limit in content.items()}


def _number(what: str, given: Any) -> float:
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise _unknown(f"{what}, whose limit {given!r} is no number")
    return number


def _unknown(seen: str) -> UlpscopeError:
    return UlpscopeError(
        seen,
        expected=f"rounding, msprobe, METRIC:LIMIT or a YAML file of limits on {', '.join((*AT_LEAST, *AT_MOST))}",
        next_step="see docs/compare.md, section Standards",
    )


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
    numbers = dict(judged["judgement"].drop_nulls().value_counts().iter_rows())
    by_word = {word.value: numbers.get(word.value, 0) for word in Judgement}
    counts = replace(comparison.counts, tensors_compared=sum(by_word.values()), **by_word)
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
