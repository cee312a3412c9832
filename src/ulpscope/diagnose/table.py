"""The table behind a comparison: a row a tensor of a pair of calls (records.pair_table)."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import JUDGEMENTS, Flow, State
from ulpscope.judge.rounding.measuring import LARGE_DIFFER, TOO_SMALL
from ulpscope.judge.rounding.values import Ints, Values
from ulpscope.numerics.summaries.estimates import cosines, standard_deviations
from ulpscope.records.pairs import PAIR_COLUMNS, Judgement, PairMetrics

CALL_TEXTS = {
    "kind": "kind", "op": "op", "module": "module", "phase": "phase",
    "call_reference": "reference_name", "call_target": "name",
}  # fmt: skip
CALL_NUMBERS = {"step": "step", "id_reference": "reference_id", "id_target": "id"}
DATA_METRICS = (
    "max_abs", "max_rel", "mean_rel", "accumulated_rel", "mae", "kl_divergence", "within_thousandth",
    "within_five_thousandths", "max_ulp", "mean_ulp",
)  # fmt: skip

INSIDE_BACKWARD = "inside of a judged backward"
UNREAD = "outputs that nothing reads, beside one that agrees"


def pair_table(evidence: RankEvidence, flow: Flow) -> pl.DataFrame:
    """All tensor pairs of one rank, in the order of the target's calls."""
    slots = evidence.slots
    pairs = np.fromiter((slot.pair for slot in slots), dtype=np.int64, count=len(slots))
    rows = np.fromiter((slot.values for slot in slots), dtype=np.int64, count=len(slots))
    columns: dict[str, Any] = {"rank": pl.repeat(evidence.plan.rank, len(slots), dtype=pl.Int64, eager=True)}
    for name, source in CALL_TEXTS.items():
        columns[name] = pl.Series(evidence.calls[source], dtype=pl.String).gather(pairs)
    for name, source in CALL_NUMBERS.items():
        columns[name] = pl.Series(evidence.calls[source], dtype=pl.Int64).gather(pairs)
    columns["role"] = pl.Series([slot.role for slot in slots], dtype=pl.String)
    columns["place"] = pl.Series([slot.place for slot in slots], dtype=pl.String)
    columns |= {name: column.gather(rows) for name, column in _value_columns(evidence).items()}
    columns |= _judged(evidence, flow)
    columns["unread"] = pl.Series([slot.values in flow.unread for slot in slots], dtype=pl.Boolean)
    columns["large"] = pl.Series(evidence.values.unresolved[rows])
    judgement, reason = pl.col("judgement"), pl.col("reason")
    # Also why tensors were measured and not judged, and why it cannot be told how much others differ.
    unjudged = judgement.is_null() & reason.is_null() & pl.col("measured").is_not_null()
    why_unjudged = pl.when("unread").then(pl.lit(UNREAD)).otherwise(pl.lit(INSIDE_BACKWARD))
    why_unresolved = pl.when("large").then(pl.lit(LARGE_DIFFER)).otherwise(pl.lit(TOO_SMALL))
    unresolved = pl.when(judgement == Judgement.UNRESOLVED.value).then(why_unresolved)
    told = unresolved.when(unjudged).then(why_unjudged).otherwise(reason)
    return pl.DataFrame(columns).with_columns(reason=told).select(list(PAIR_COLUMNS))


def _value_columns(evidence: RankEvidence) -> dict[str, pl.Series]:
    """Columns that depend on the pair of values alone."""
    pairs = evidence.values
    reference, target = pairs.sides.reference, pairs.sides.target
    compared = pairs.compared
    continuous = compared & ~pairs.discrete
    summaries = reference.summaries, target.summaries
    norms = summaries[0].norm, summaries[1].norm
    columns = {
        "measured": pl.Series(pairs.measured.tolist(), dtype=pl.String),
        "reason": pl.Series([reason or None for reason in pairs.reason], dtype=pl.String),
        "error": _known(pairs.error, compared & ~np.isinf(pairs.error)),
        "distance": _known(pairs.distance, continuous),
        "cosine": _known(cosines(norms[0], norms[1], np.nan_to_num(pairs.distance)), continuous),
        "relative_distance": _known(pairs.error, continuous),
        "rmse": _known(pairs.distance / np.sqrt(np.maximum(summaries[0].elements, 1)), continuous),
        "std_reference": _known(standard_deviations(summaries[0]), continuous),
        "std_target": _known(standard_deviations(summaries[1]), continuous),
        "mismatched": pl.Series(np.where(pairs.pattern, _least_mismatched(reference, target), 0)),
    }
    columns |= {name: pl.repeat(None, len(pairs.error), dtype=pl.Float64, eager=True) for name in DATA_METRICS}
    for side, values in (("reference", reference), ("target", target)):
        shown = values.frame.select("dtype", "shape", "min", "max", "mean", "norm", value="id")
        columns |= {f"{column.name}_{side}": column for column in shown}
        columns[f"not_finite_{side}"] = pl.Series(values.not_finite())
    return _with_data(columns, pairs.metrics)


def _least_mismatched(reference: Values, target: Values) -> Ints:
    """In how many places at least inf or nan do not agree, by their counts; 1 if those are alike."""
    sides = [(values.nan, values.pos_inf, values.neg_inf) for values in (reference, target)]
    gained = [np.maximum(other - one, 0) for one, other in zip(*sides, strict=True)]
    lost = [np.maximum(one - other, 0) for one, other in zip(*sides, strict=True)]
    least: Ints = np.maximum(np.maximum(sum(gained), sum(lost)), 1)
    return least


def _with_data(columns: dict[str, pl.Series], metrics: dict[int, PairMetrics]) -> dict[str, pl.Series]:
    """Replace estimates by what saved data says."""
    told = (*DATA_METRICS, "cosine", "relative_distance", "rmse", "distance", "mismatched")
    known = {**dict(zip(told, told, strict=True)), "std_reference": "reference_std", "std_target": "target_std"}
    for name, field in known.items() if metrics else ():
        numbers = [getattr(entry, field) for entry in metrics.values()]
        filled = pl.Series(numbers, dtype=columns[name].dtype, strict=False)
        columns[name] = columns[name].scatter(list(metrics), filled)
    return columns


def _known(numbers: NDArray[np.float64], where: NDArray[np.bool_] | None = None) -> pl.Series:
    valid = ~np.isnan(numbers) if where is None else where & ~np.isnan(numbers)
    return pl.select(pl.when(pl.Series(valid)).then(pl.Series(numbers))).to_series()


def _judged(evidence: RankEvidence, flow: Flow) -> dict[str, pl.Series]:
    slots = evidence.slots
    judgements: list[str | None] = []
    compared = evidence.values.compared.tolist()
    for slot in slots:
        state = flow.states[slot.values] if compared[slot.values] else State.UNKNOWN
        if state is State.MADE and flow.first_slot[slot.values] is not slot:
            judgements.append(Judgement.INHERITED.value)
        else:
            judgements.append(JUDGEMENTS[state].value if state is not State.UNKNOWN else None)
    return {
        "judgement": pl.Series(judgements, dtype=pl.String),
        "error_in": pl.Series([flow.error_in.get(slot.row) for slot in slots], dtype=pl.Float64),
        "expected": pl.Series([flow.expected.get(slot.row) for slot in slots], dtype=pl.Float64),
        "chance": pl.Series([flow.chances.get(slot.row) for slot in slots], dtype=pl.Float64),
    }
