"""Data on the nodes of a Model Explorer graph: what colours them, and what stands on them.

    {"target": {"results": {"17": {"value": 0.25, "bgColor": "#c62f17"}, ...}}, "reference": ...}

Colours of numbers are given node by node: Model Explorer's own gradient is linear, and errors span many decades.
"""

import math

import polars as pl

from ulpscope.records.pairs import Judgement
from ulpscope.report.record_json import to_json
from ulpscope.report.viewers.model_explorer import Json, NodeIds, RunStep, handed_out, node_calls

NOT_COMPARED = "not compared"

COLORS = {
    Judgement.MADE_HERE.value: "#c62f17",
    Judgement.INHERITED.value: "#d98a00",
    Judgement.AFTER_CHOICE.value: "#8557bd",
    Judgement.UNRESOLVED.value: "#6b7a1e",
    Judgement.ROUNDING.value: "#2b7bbd",
    Judgement.IDENTICAL.value: "#7d8997",
    NOT_COMPARED: "#b4bdc8",
}
"""Of judgements, the worst first; the same as in the page of a comparison."""

_JUDGEMENTS = dict(enumerate(COLORS))
_PLACES = {name: place for place, name in _JUDGEMENTS.items()}

FINE, BAD = "#2b7bbd", "#c62f17"

LOW_MAGNITUDE, HIGH_MAGNITUDE = (0xEE, 0xF3, 0xF9), (0x1B, 0x4F, 0x8F)


def error_data(step: RunStep, pairs: pl.DataFrame, side: str, ids: NodeIds) -> Json:
    """On each node the worst error of its outputs, in the colour of their worst judgement."""
    found = _judged(step, pairs, side).drop_nulls("error").select("call", "error", "judgement")
    return {
        "results": {
            ids.of(call): {"value": to_json(error), "bgColor": COLORS[judgement or NOT_COMPARED]}
            for call, error, judgement in found.iter_rows()
        }
    }


def judgement_data(step: RunStep, pairs: pl.DataFrame, side: str, ids: NodeIds) -> Json:
    """On each node the worst judgement of its outputs; groups tell how many there are of each."""
    found = dict(_judged(step, pairs, side).select("call", "judgement").iter_rows())
    words = {call: found.get(call) or NOT_COMPARED for call in node_calls(step)["id"]}
    results = {ids.of(call): {"value": word.replace("_", " "), "bgColor": COLORS[word]} for call, word in words.items()}
    return {"results": results, "showExpandedSummaryOnGroupNode": True}


def magnitude_data(step: RunStep, ids: NodeIds) -> Json:
    """On each node the largest |x| of its outputs, darker by its exponent."""
    size = pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs())
    sizes = _outputs(step).group_by("call").agg(value=size.max()).drop_nulls().sort("call")
    found = {call: value for call, value in sizes.iter_rows() if math.isfinite(value)}
    exponents = {call: math.log10(value) for call, value in found.items() if value > 0}
    lowest, highest = min(exponents.values(), default=0.0), max(exponents.values(), default=0.0)
    return {
        "results": {
            ids.of(call): {"value": value, "bgColor": _shade(exponents.get(call, lowest), lowest, highest)}
            for call, value in found.items()
        }
    }


def not_finite_data(step: RunStep, ids: NodeIds) -> Json:
    """On each node how many nan and inf are in its outputs."""
    known = _outputs(step).drop_nulls("not_finite")
    counts = known.group_by("call").agg(pl.col("not_finite").sum()).sort("call")
    return {"results": {ids.of(call): _count(number) for call, number in counts.iter_rows()}}


def _outputs(step: RunStep) -> pl.DataFrame:
    return handed_out(step).join(step.values.rename({"id": "value"}), on="value")


def _judged(step: RunStep, pairs: pl.DataFrame, side: str) -> pl.DataFrame:
    """By node (`call`), the worst error and judgement of its outputs.

    A value that a call made is judged by all rows that have it: the one that tells of new error may be that of a
    module around the call. Of a value that a call handed on only its own rows count: it made nothing.
    """
    rows = pairs.select(
        "error",
        worst=pl.col("judgement").replace_strict(_PLACES, default=None, return_dtype=pl.Int64),
        call=f"id_{side}",
        value=f"value_{side}",
    )
    made = step.values.select(call="producer", value="id").drop_nulls()
    of_makers = made.join(rows.drop("call"), on="value")
    of_calls = rows.join(handed_out(step), on=["call", "value"], how="semi")
    both = pl.concat([of_makers.select("call", "error", "worst"), of_calls.select("call", "error", "worst")])
    found = both.group_by("call").agg(pl.col("error").max(), pl.col("worst").min()).sort("call")
    return found.with_columns(
        judgement=pl.col("worst").replace_strict(_JUDGEMENTS, default=None, return_dtype=pl.String)
    )


def _count(number: int) -> Json:
    return {"value": number, "bgColor": BAD if number else FINE}


def _shade(exponent: float, lowest: float, highest: float) -> str:
    share = (exponent - lowest) / (highest - lowest) if highest > lowest else 0.0
    mixed = (round(low + (high - low) * share) for low, high in zip(LOW_MAGNITUDE, HIGH_MAGNITUDE, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
