"""The numbers of a watched training's steps: a row for each output, gradient, parameter and update, and each loss."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from ulpscope.numerics.dtypes import Floats
from ulpscope.numerics.summaries.constants import SKETCH_LENGTH
from ulpscope.numerics.summaries.estimates import sketch_distances
from ulpscope.records.anomalies import Quantity
from ulpscope.records.enums import (
    COMPILED_KIND,
    GRAD_INPUT_ROLE,
    GRAD_OUTPUT_ROLE,
    GRADIENT_ROLE,
    LOSS_ROLE,
    MODULE_BACKWARD_KIND,
    MODULE_KIND,
    OPTIMIZER_KIND,
    OUTPUT_ROLE,
    PARAMETER_AFTER_ROLE,
    PARAMETER_ROLE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
    Phase,
)
from ulpscope.trace.watched import SCALE, SCALER_OP

NUMBERS = {
    "step": pl.Int64,
    "quantity": pl.String,
    "name": pl.String,
    "size": pl.Float64,
    "not_finite": pl.Int64,
    "minus_inf": pl.Int64,
    "zeros": pl.Int64,
    "elements": pl.Int64,
    "call": pl.String,
    "call_id": pl.Int64,
    "lr": pl.Float64,
    "moved": pl.Boolean,
    "digest": pl.UInt64,
    "distance": pl.Float64,
}
"""`size`: root mean square; of losses their mean, of an optimizer's whole gradient its norm, of updates the root mean
square of what was added. `not_finite`: nan and +inf; -inf stands beside it. `lr`: of the parameter's group. `moved`:
whether an update has changed a bit. `distance`: root mean square of what was added since the last update, or null."""

VALUE_COLUMNS = ("id", "shape", "mean", "norm", "nan", "pos_inf", "neg_inf", "zero", "sketch", "digest")
CALL_COLUMNS = ("id", "name", "kind", "op", "module", "phase", "step", "recompute", "arguments")

_OF_UPDATES = {
    GRADIENT_ROLE: Quantity.GRADIENT.value,
    STATE_AFTER_ROLE: Quantity.STATE.value,
    PARAMETER_AFTER_ROLE: Quantity.PARAMETER.value,
}
_ORDER = {quantity.value: number for number, quantity in enumerate(Quantity)}
_COUNTS = ("elements", "not_finite", "minus_inf", "zeros")
LASTING = 4
"""Times as many values as an update uses are remembered for later ones: optimizers may take turns."""
_COUNTER = ".step"
"""Where optimizers keep how many steps they have made: no number of the model's."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step."""

    step: int
    table: pl.DataFrame
    """The columns are those of NUMBERS."""
    scale: float | None
    """What a GradScaler has multiplied the loss by."""


class NumberReader:
    """Turns tables of steps into numbers; steps come in their order."""

    def __init__(self) -> None:
        self._lasting: pl.DataFrame | None = None
        """Values that later steps may use again: parameters, and what optimizers keep of them."""
        self._last: dict[str, _Content] = {}
        """Parameters after their last updates."""
        self._step: int | None = None

    def read(self, step: int, tables: Mapping[str, pl.DataFrame]) -> StepNumbers:
        """Of one whole step."""
        if self._step is not None and step > self._step + 1:
            self._last.clear()  # nobody has seen the updates in between
        self._step = step
        values = tables["values"].select(VALUE_COLUMNS)
        if self._lasting is not None:
            values = pl.concat([self._lasting, values]).unique("id", keep="last")
        uses = _sized(
            tables["tensors"].join(tables["calls"].select(CALL_COLUMNS), left_on="call", right_on="id"), values
        )
        scale = _scale(uses)
        updates = uses.filter(pl.col("kind") == OPTIMIZER_KIND)
        self._keep(updates, values)
        rows = [
            _losses(uses, scale),
            _outputs(uses),
            *_backwards(uses, scale),
            *_updated(updates),
            self._moves(updates),
        ]
        table = pl.concat([_as_numbers(each, step) for each in rows])
        order = pl.col("quantity").replace_strict(_ORDER, return_dtype=pl.Int64)
        return StepNumbers(step, table.sort(order, "call_id", maintain_order=True), scale)

    def _moves(self, updates: pl.DataFrame) -> pl.DataFrame:
        """How far each parameter was moved, and how far somebody else had moved it before."""
        after = updates.filter(pl.col("role") == PARAMETER_AFTER_ROLE).select("call", "place", "digest", "sketch")
        both = updates.filter(pl.col("role") == PARAMETER_ROLE)
        both = both.join(after, on=["call", "place"], suffix="_after", maintain_order="left")
        root = np.sqrt(np.maximum(both["elements"].to_numpy(), 1))
        before, then = _sketches(both["sketch"]), _sketches(both["sketch_after"])
        last = [self._last.get(place) for place in both["place"]]
        unknown = np.full(SKETCH_LENGTH, np.nan)
        was = np.array([unknown if each is None else each.sketch for each in last]).reshape(-1, SKETCH_LENGTH)
        same = [each is not None and each.digest == now for each, now in zip(last, both["digest"], strict=True)]
        beside = np.where(same, 0.0, sketch_distances(was, before) / root)
        for place, digest, sketch in zip(both["place"], both["digest_after"], then, strict=True):
            self._last[place] = _Content(digest, sketch)
        return both.select(
            *("call", "name", "op", "lr", "elements"),
            label="place",
            quantity=pl.lit(Quantity.UPDATE.value),
            size=pl.Series(sketch_distances(before, then) / root),
            moved=pl.col("digest") != pl.col("digest_after"),
            distance=pl.Series(beside),
            not_finite=pl.lit(0),
            minus_inf=pl.lit(0),
            zeros=pl.lit(0),
        )

    def _keep(self, updates: pl.DataFrame, values: pl.DataFrame) -> None:
        used = updates.filter(
            pl.col("role").is_in([PARAMETER_AFTER_ROLE, PARAMETER_ROLE, STATE_AFTER_ROLE, STATE_ROLE])
        )
        fresh = values.filter(pl.col("id").is_in(used["value"].implode()))
        lasting = fresh if self._lasting is None else pl.concat([self._lasting, fresh]).unique("id", keep="last")
        # A parameter has few values that are still used; of one that never moves the only one is old.
        self._lasting = lasting.sort("id").tail(LASTING * max(1, fresh.height))


class _Content(NamedTuple):
    """A parameter at one time."""

    digest: int | None
    sketch: Floats


def _updated(updates: pl.DataFrame) -> list[pl.DataFrame]:
    """What optimizers read, keep and leave behind."""
    made = updates.filter(pl.col("role").is_in(list(_OF_UPDATES)), ~pl.col("place").str.ends_with(_COUNTER))
    made = made.with_columns(quantity=pl.col("role").replace_strict(_OF_UPDATES, return_dtype=pl.String), label="place")
    graded = made.filter(pl.col("role") == GRADIENT_ROLE)
    total = graded.group_by("op", maintain_order=True).agg(
        *(pl.col(name).first() for name in ("call", "name")),
        *(pl.col(name).sum() for name in _COUNTS),
        size=pl.col("norm").pow(2).sum().sqrt(),
        quantity=pl.lit(Quantity.TOTAL_GRADIENT.value),
    )
    return [made, total.with_columns(label=pl.col("op").str.split(".").list.last())]


def _sized(uses: pl.DataFrame, values: pl.DataFrame) -> pl.DataFrame:
    """Uses with the numbers of their values, in order, and the learning rates of updates."""
    uses = uses.join(values, left_on="value", right_on="id", how="left", maintain_order="left")
    updates = uses.filter(pl.col("kind") == OPTIMIZER_KIND).unique("call").select("call", "arguments")
    rates = pl.DataFrame(
        {"call": updates["call"], "lr": pl.Series(map(rate_of, updates["arguments"]), dtype=pl.Float64)}
    )
    elements = pl.col("shape").list.eval(pl.element().product()).list.first().fill_null(1)
    return uses.join(rates, on="call", how="left", maintain_order="left").with_columns(
        elements=elements,
        size=pl.col("norm") / elements.clip(1).sqrt(),
        not_finite=pl.col("nan").fill_null(0) + pl.col("pos_inf").fill_null(0),
        minus_inf=pl.col("neg_inf").fill_null(0),
        zeros=pl.col("zero").fill_null(0),
    )


def _scale(uses: pl.DataFrame) -> float | None:
    found = uses.filter(pl.col("op") == SCALER_OP, pl.col("place") == SCALE, pl.col("role") == STATE_ROLE)["mean"]
    scale = None if found.is_empty() else found[-1]
    return None if not scale or not np.isfinite(scale) else float(scale)


def _losses(uses: pl.DataFrame, scale: float | None) -> pl.DataFrame:
    losses = uses.filter(pl.col("role") == LOSS_ROLE, pl.col("elements") == 1)
    losses = losses.with_columns(
        quantity=pl.lit(Quantity.LOSS.value), label=pl.lit("loss"), size=pl.col("mean") / (scale or 1.0)
    )
    return _together(losses, pl.col("size").mean())


def _outputs(uses: pl.DataFrame) -> pl.DataFrame:
    made = uses.filter(
        pl.col("kind").is_in([MODULE_KIND, COMPILED_KIND]),
        pl.col("role") == OUTPUT_ROLE,
        pl.col("phase") == Phase.FORWARD.value,
        ~pl.col("recompute"),
        pl.col("elements") > 0,
    )
    tested = pl.col("arguments").str.contains('"training":false', literal=True)
    label = _placed("output.0") + pl.when(tested).then(pl.lit(" (eval)")).otherwise(pl.lit(""))
    return _together(made.with_columns(quantity=pl.lit(Quantity.OUTPUT.value), label=label))


def _backwards(uses: pl.DataFrame, scale: float | None) -> list[pl.DataFrame]:
    """What modules' backwards get, and what they give to parameters; a loss scale is taken out of both."""
    made = uses.filter(pl.col("kind") == MODULE_BACKWARD_KIND, pl.col("elements") > 0)
    made = made.with_columns(size=pl.col("size") / (scale or 1.0))
    came = made.filter(pl.col("role") == GRAD_OUTPUT_ROLE)
    came = came.with_columns(quantity=pl.lit(Quantity.OUTPUT_GRADIENT.value), label=_placed("output.0"))
    is_own = ~pl.col("place").str.contains(r"^(args|kwargs)\.")
    left = made.filter(pl.col("role") == GRAD_INPUT_ROLE, is_own)
    label = pl.col("module") + "." + pl.col("place")
    left = left.with_columns(quantity=pl.lit(Quantity.LOCAL_GRADIENT.value), label=label)
    return [_together(came), _together(left)]


def _placed(usual: str) -> pl.Expr:
    """A module's path, with the place of what it gives where that is not the only one."""
    others = pl.col("module") + " " + pl.col("place")
    return pl.when(pl.col("place") == usual).then(pl.col("module")).otherwise(others)


def _together(uses: pl.DataFrame, size: pl.Expr | None = None) -> pl.DataFrame:
    """One row for all that has one name in a step: a module may be called several times. The call is one that erred."""
    weight = pl.col("elements")
    mean_square = (pl.col("size").pow(2) * weight).sum() / weight.sum()
    is_bad = pl.col("not_finite") + pl.col("minus_inf") > 0
    return uses.group_by("quantity", "label", maintain_order=True).agg(
        *(pl.coalesce(pl.col(name).filter(is_bad).first(), pl.col(name).first()) for name in ("call", "name")),
        *(pl.col(name).sum() for name in _COUNTS),
        size=mean_square.sqrt() if size is None else size,
    )


def _as_numbers(rows: pl.DataFrame, step: int) -> pl.DataFrame:
    """Rows under the names of NUMBERS; what they do not have is null."""
    named = {"step": pl.lit(step), "name": pl.col("label"), "call": pl.col("name"), "call_id": pl.col("call")}
    absent = {name: pl.lit(None) for name in NUMBERS if name not in named and name not in rows.columns}
    columns = {name: named.get(name, absent.get(name, pl.col(name))) for name in NUMBERS}
    return rows.select(column.cast(NUMBERS[name]).alias(name) for name, column in columns.items())


def rate_of(arguments: str) -> float | None:
    """The learning rate among an update's options."""
    try:
        rate = json.loads(arguments).get("kwargs", {}).get("lr")
    except (ValueError, AttributeError):
        return None
    return float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) else None


def _sketches(column: pl.Series) -> Floats:
    """A row a value; nan for one without."""
    found = np.full((len(column), SKETCH_LENGTH), np.nan)
    there = column.is_not_null().to_numpy()
    if there.any():
        found[there] = column.filter(column.is_not_null()).to_numpy()
    return found
