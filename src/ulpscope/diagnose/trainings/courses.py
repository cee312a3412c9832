"""What two watched trainings did, step by step: how far gradients, weights and losses of both are apart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.diagnose.arguments import argument_differences
from ulpscope.diagnose.flow.updates import uncertain_share
from ulpscope.diagnose.limits import COARSEST_ROUNDOFF, VALUES_AT_ONCE
from ulpscope.judge.rounding.limits import TF32_ROUNDOFF, unit_roundoff
from ulpscope.judge.rounding.measuring import measure
from ulpscope.judge.rounding.values import Values, read_values
from ulpscope.numerics.dtypes import DTYPES, Floats
from ulpscope.numerics.summaries.estimates import cosines, sketch_distances
from ulpscope.records.calls import Value
from ulpscope.records.enums import GRADIENT_ROLE, LOSS_ROLE, PARAMETER_ROLE
from ulpscope.records.evidence import ArgumentDifference
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace
from ulpscope.trace.watched import POSITIVE, parameter_of

ROLES = (LOSS_ROLE, GRADIENT_ROLE, PARAMETER_ROLE)

TABLE = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "role": pl.String,
    "parameter": pl.String,
    "identical": pl.Boolean,
    "error": pl.Float64,
    "cosine": pl.Float64,
    "norm_reference": pl.Float64,
    "norm_target": pl.Float64,
    "mean_reference": pl.Float64,
    "mean_target": pl.Float64,
    "own": pl.Float64,
    "own_target": pl.Float64,
    "uncertain": pl.Float64,
    "signs": pl.Float64,
    "elements": pl.Int64,
    "roundoff": pl.Float64,
}
"""`own`: how far what the reference has is from what it had in the step before, `own_target` the target, relative as
`error` is. `uncertain`: the share of elements that are so small that the error may have turned their sign."""


@dataclass(frozen=True, slots=True)
class Update:
    """One call of an optimizer, paired; or one that only one run makes."""

    step: int
    call: str | None
    """The target's, as are its number and operation."""
    call_id: int | None
    op: str | None
    arguments: tuple[ArgumentDifference, ...]
    same_random: bool
    """Whether generators are in the same state, as far as that is known."""
    one_sided: tuple[str, ...]
    """Parameters that have a gradient in one run only."""
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Precision:
    """In which types the runs' forwards hold numbers."""

    types: Pair[str | None]
    """The coarsest of each; None where that is not known."""
    roundoff: float
    """Of the coarsest of both, or of products that both may round further."""


@dataclass(frozen=True, slots=True)
class Courses:
    """Two ranks, paired step by step."""

    rank: int
    steps: tuple[int, ...]
    updates: dict[int, list[Update]]
    table: pl.DataFrame
    """A row a loss, gradient and weight of each step."""
    precision: Precision


def read_courses(ranks: Pair[RankTrace], steps: Sequence[int]) -> Courses:
    """Everything about these steps, which both have."""
    updates: dict[int, list[Update]] = {}
    tables: list[pl.DataFrame] = []
    types: list[Pair[str | None]] = []
    earlier: Pair[_Sketches] = Pair({}, {})
    for chunk in _chunks(ranks, steps):
        calls = Pair(*(_calls(side, chunk) for side in ranks))
        types.append(calls.map(_coarsest))
        every = calls.reference.join(calls.target, on=["step", "order"], how="full", coalesce=True, suffix="_target")
        paired = every.drop_nulls(["id", "id_target"])
        uses = Pair(*(_uses(side, chunk, ids["id"]) for side, ids in zip(ranks, calls, strict=True)))
        for update in _updates(every.sort("step", "order"), uses):
            updates.setdefault(update.step, []).append(update)
        tables.append(_measured(ranks, _paired_uses(paired, uses), chunk, earlier))
    table = pl.concat(tables) if tables else pl.DataFrame(schema=TABLE)
    precision = _precision(ranks, types[0] if types else Pair[str | None](None, None))
    return Courses(ranks.target.info.rank, tuple(steps), updates, table, precision)


def _coarsest(calls: pl.DataFrame) -> str | None:
    """What a watch has noted of the forward, at every update alike."""
    return next((name for name in calls["autocast"] if name is not None), None)


def _precision(ranks: Pair[RankTrace], types: Pair[str | None]) -> Precision:
    """What nobody has told may be the coarsest there is."""
    roundoffs = [COARSEST_ROUNDOFF if name is None else unit_roundoff(name) for name in types]
    rounded = ranks.map(_products)
    # A precision of products that one run alone has is no rounding of both: it is what they differ by.
    shared = rounded.reference if rounded.reference == rounded.target else 0.0
    return Precision(types, min(max(*roundoffs, shared), COARSEST_ROUNDOFF))


def _products(rank: RankTrace) -> float:
    """What a switch lets products of float32 round to."""
    switches = rank.info.environment.get("switches", {})
    on_device = any(not name.startswith("cpu") for name in rank.info.devices)
    asked = switches.get("float32_matmul_precision", "highest")
    if asked == "medium":
        return COARSEST_ROUNDOFF
    is_coarse = asked != "highest" or switches.get("cudnn_allow_tf32")
    return TF32_ROUNDOFF if on_device and is_coarse else 0.0


def _chunks(ranks: Pair[RankTrace], steps: Sequence[int]) -> Iterator[Sequence[int]]:
    """Steps that are read together."""
    known = [[side.step_info(step) for step in steps] for side in ranks]
    values = (max(0 if info is None else info.values for info in both) for both in zip(*known, strict=True))
    pieces = np.fromiter(accumulate(values), np.int64, len(steps)) // VALUES_AT_ONCE
    bounds = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(steps)]
    return (steps[start:stop] for start, stop in pairwise(bounds) if start < stop)


def _calls(rank: RankTrace, steps: Sequence[int]) -> pl.DataFrame:
    """Updates in their order of each step."""
    calls = rank.calls(steps).select("id", "step", "name", "op", "arguments", "generator", "autocast").sort("id")
    return rank.collect(calls).with_columns(order=pl.int_range(pl.len()).over("step"))


def _uses(rank: RankTrace, steps: Sequence[int], calls: pl.Series) -> pl.DataFrame:
    uses = rank.tensors(steps).filter(pl.col("call").is_in(calls.implode()))
    return rank.collect(uses.select("call", "role", "place", "value"))


def _updates(every: pl.DataFrame, uses: Pair[pl.DataFrame]) -> Iterator[Update]:
    graded = uses.map(_graded)
    for row in every.iter_rows(named=True):
        is_paired = row["id"] is not None and row["id_target"] is not None
        names = [side.get(row[call], set()) for side, call in zip(graded, ("id", "id_target"), strict=True)]
        yield Update(
            row["step"],
            row["name_target"],
            row["id_target"],
            row["op_target"],
            argument_differences(row["arguments"], row["arguments_target"]) if is_paired else (),
            not is_paired or row["generator"] == row["generator_target"],
            tuple(sorted(names[0] ^ names[1])),
            tuple(sorted(names[1])),
        )


def _graded(uses: pl.DataFrame) -> dict[int | None, set[str]]:
    """The parameters that have a gradient, by update."""
    found: dict[int | None, set[str]] = {}
    for call, place in uses.filter(pl.col("role") == GRADIENT_ROLE).select("call", "place").iter_rows():
        found.setdefault(call, set()).add(parameter_of(place)[0])
    return found


_Sketches = dict[tuple[str, str], tuple[int, NDArray[np.floating[Any]]]]
"""By role and place: what a run had last, and its step."""


def _measured(
    ranks: Pair[RankTrace], both: pl.DataFrame, steps: Sequence[int], earlier: Pair[_Sketches]
) -> pl.DataFrame:
    rows = both.filter(~pl.col("place").str.contains("#"))
    if rows.is_empty():
        return pl.DataFrame(schema=TABLE)
    reference, target = (
        _values(side, rows[name].to_numpy(), steps) for side, name in zip(ranks, ("value", "value_target"), strict=True)
    )
    same = ranks.reference.summary_id == ranks.target.summary_id
    pairs = measure(reference, target, same_digests=same)
    norms = reference.summaries.norm, target.summaries.norm
    error = np.where(pairs.identical, 0.0, pairs.error)
    signs = _agreements(ranks, both)
    roundoff = np.maximum(_roundoffs(reference), _roundoffs(target))
    return rows.select(
        pl.lit(ranks.target.info.rank).alias("rank"),
        "step",
        "role",
        pl.col("place").alias("parameter"),
        pl.Series("identical", pairs.identical),
        pl.Series("error", error),
        pl.Series("cosine", np.where(pairs.identical, 1.0, cosines(*norms, pairs.distance))),
        pl.Series("norm_reference", norms[0]),
        pl.Series("norm_target", norms[1]),
        pl.Series("mean_reference", reference.summaries.mean),
        pl.Series("mean_target", target.summaries.mean),
        pl.Series("own", _own(rows, reference, earlier.reference, norms[0])),
        pl.Series("own_target", _own(rows, target, earlier.target, norms[0])),
        pl.Series("uncertain", _uncertain(reference, np.where(pairs.identical, 0.0, pairs.distance))),
        _signs(rows, signs),
        pl.Series("elements", reference.summaries.elements),
        pl.Series("roundoff", roundoff),
    ).cast(TABLE)  # type: ignore[arg-type]


def _paired_uses(paired: pl.DataFrame, uses: Pair[pl.DataFrame]) -> pl.DataFrame:
    """Uses of paired updates by role and place."""
    calls = paired.select("step", "order", "id", "id_target")
    one = uses.reference.join(calls, left_on="call", right_on="id").select("step", "order", "role", "place", "value")
    other = uses.target.join(calls, left_on="call", right_on="id_target")
    other = other.select("step", "order", "role", "place", value_target="value")
    return one.join(other, on=["step", "order", "role", "place"], maintain_order="left").filter(
        pl.col("role").is_in(ROLES)
    )


def _values(rank: RankTrace, ids: NDArray[np.int64], steps: Sequence[int]) -> Values:
    known = read_values(rank, ids, steps=steps)
    return known.take(np.searchsorted(known.id, ids))


def _roundoffs(values: Values) -> Floats:
    known = {dtype: DTYPES[dtype].unit_roundoff if dtype in DTYPES else 0.0 for dtype in set(values.dtype)}
    return np.array([known[dtype] for dtype in values.dtype], dtype=np.float64)


def _own(rows: pl.DataFrame, side: Values, earlier: _Sketches, norms: Floats) -> Floats:
    """How far each gradient and weight of a run is from the one before it, relative to these norms."""
    own, sketch = np.full(rows.height, np.nan), side.summaries.sketch
    if sketch is None:
        return own
    before = np.full_like(sketch, np.nan)
    for index, (step, role, place) in enumerate(rows.select("step", "role", "place").iter_rows()):
        known = earlier.get((role, place))
        if known is not None and known[0] == step - 1:
            before[index] = known[1]
        earlier[role, place] = step, sketch[index]
    for key, (step, last) in earlier.items():
        earlier[key] = step, last.copy()  # or it would keep those of all these steps
    np.divide(sketch_distances(sketch, before), norms, out=own, where=norms > 0)
    return own


def _uncertain(reference: Values, distance: Floats) -> Floats:
    if reference.exponents is None:
        return np.zeros(len(distance))
    rows = zip(reference.exponents, distance, reference.summaries.elements, strict=True)
    return np.array([uncertain_share(exponents, float(apart), float(size)) for exponents, apart, size in rows])


def _agreements(ranks: Pair[RankTrace], both: pl.DataFrame) -> dict[tuple[int, str], float]:
    """By step and parameter: the share of elements whose gradients have one sign, where both runs kept that."""
    kept = both.filter(pl.col("place").str.ends_with(f"#{POSITIVE}"))
    if kept.is_empty():
        return {}
    sides = Pair(ranks.reference.find_values(kept["value"]), ranks.target.find_values(kept["value_target"]))
    sizes = _elements(ranks.reference, both)
    found: dict[tuple[int, str], float] = {}
    for step, place, one, other in kept.select("step", "place", "value", "value_target").iter_rows():
        name = parameter_of(place)[0]
        apart = _bits_apart(ranks, sides.reference.get(one), sides.target.get(other))
        if apart is not None and sizes.get((step, name)):
            found[step, name] = 1.0 - apart / sizes[step, name]
    return found


def _signs(rows: pl.DataFrame, known: dict[tuple[int, str], float]) -> pl.Series:
    if not known:
        return pl.Series("signs", [None], dtype=pl.Float64).new_from_index(0, rows.height)
    return pl.Series("signs", [known.get(key) for key in rows.select("step", "place").rows()], dtype=pl.Float64)


def _bits_apart(ranks: Pair[RankTrace], one: Value | None, other: Value | None) -> int | None:
    if one is None or other is None:
        return None
    bits = ranks.reference.data(one), ranks.target.data(other)
    if bits[0] is None or bits[1] is None or bits[0].shape != bits[1].shape:
        return None
    return int(np.unpackbits(bits[0] ^ bits[1]).sum())


def _elements(rank: RankTrace, both: pl.DataFrame) -> dict[tuple[int, str], int]:
    gradients = both.filter(pl.col("role") == GRADIENT_ROLE, ~pl.col("place").str.contains("#"))
    shapes = rank.find_values(gradients["value"])
    return {
        (step, place): int(np.prod(shapes[value].shape, dtype=np.int64))
        for step, place, value in gradients.select("step", "place", "value").iter_rows()
        if value in shapes
    }
