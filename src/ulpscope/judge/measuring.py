"""Measures pairs of values: from saved data, from sketches, from stats, or only whether they are identical."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.judge.rounding import SKETCH_FLOOR
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.estimates import Summaries, least_distances, sketch_distances, stats_distances
from ulpscope.records.pairs import Measured, Pair, PairMetrics
from ulpscope.trace.reader import RankTrace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_REASON = ""
SHAPE_DIFFERS = "shapes differ"
DTYPE_DIFFERS = "other kinds of numbers (integer, real, complex)"
UNINITIALIZED = "memory that nobody has written"
NO_SUMMARY = "no stats"
LOST = "not in the trace, which is incomplete"
MASK_DIFFERS = "other elements are set aside (attention masks)"

# Of a value that is not there.
NO_DTYPE = ""

VALUE_COLUMNS = (
    "id", "producer", "storage", "dtype", "shape", "initialized", "min", "max", "mean", "norm", "abs_sum",
    "nan", "pos_inf", "neg_inf", "set_aside", "zero", "digest",
)  # fmt: skip


SUMMARIZED = pl.any_horizontal(pl.col("zero", "norm", "max", "nan").is_not_null())


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one side, a row a value of some list; nan and -1 stand for what is not known."""

    id: Ints
    producer: Ints
    storage: Ints
    dtype: NDArray[np.object_]
    frame: pl.DataFrame
    """The same rows as a table, for what is only shown."""
    initialized: Bools
    summarized: Bools
    summaries: Summaries
    nan: Ints
    pos_inf: Ints
    neg_inf: Ints
    set_aside: Ints
    digest: NDArray[np.uint64]
    has_digest: Bools
    has_data: Bools
    exponents: NDArray[np.uint32] | None

    def shapes(self) -> list[list[int]]:
        return self.frame["shape"].to_list()

    def shape(self, row: int) -> tuple[int, ...]:
        return tuple(self.frame["shape"][row])

    def not_finite(self) -> Ints:
        return self.nan + self.pos_inf + self.neg_inf

    def large(self) -> Ints:
        """Finite elements that are set aside: masks."""
        return self.set_aside - self.not_finite()

    def take(self, rows: NDArray[np.intp]) -> "Values":
        """The same columns for a choice of rows."""
        summaries = self.summaries
        return Values(
            id=self.id[rows],
            producer=self.producer[rows],
            storage=self.storage[rows],
            dtype=self.dtype[rows],
            frame=self.frame[rows],
            initialized=self.initialized[rows],
            summarized=self.summarized[rows],
            summaries=Summaries(
                elements=summaries.elements[rows],
                min=summaries.min[rows],
                max=summaries.max[rows],
                mean=summaries.mean[rows],
                norm=summaries.norm[rows],
                sketch=None if summaries.sketch is None else summaries.sketch[rows],
            ),
            nan=self.nan[rows],
            pos_inf=self.pos_inf[rows],
            neg_inf=self.neg_inf[rows],
            set_aside=self.set_aside[rows],
            digest=self.digest[rows],
            has_digest=self.has_digest[rows],
            has_data=self.has_data[rows],
            exponents=None if self.exponents is None else self.exponents[rows],
        )


def read_values(trace: RankTrace, ids: Ints, calls: Ints | None = None) -> Values:
    """The values of these ids, in the order of their ids; what other calls than `calls` made came from outside."""
    wanted = pl.DataFrame({"id": np.unique(ids)}, schema={"id": pl.Int64})
    columns = [*VALUE_COLUMNS, "sketch", "exponents", pl.col("data_file").is_not_null().alias("has_data")]
    frame = trace.collect(trace.values().select(columns))
    # A value that a broken trace has lost stands here without anything known of it.
    frame = wanted.join(frame, on="id", how="left").sort("id")
    absent = pl.col("dtype").fill_null(NO_DTYPE), pl.col("shape").fill_null([]), pl.col("has_data").fill_null(False)
    frame = frame.with_columns(absent)
    producer = _ints(frame, "producer", missing=-1)
    return Values(
        id=frame["id"].to_numpy(),
        producer=producer if calls is None else np.where(np.isin(producer, calls), producer, -1),
        storage=_ints(frame, "storage", missing=-1),
        dtype=frame["dtype"].to_numpy().astype(object),
        frame=frame.select("id", "dtype", "shape", "min", "max", "mean", "norm"),
        initialized=frame["initialized"].fill_null(True).to_numpy(),
        summarized=frame.select(SUMMARIZED).to_series().to_numpy(),
        summaries=_summaries(frame),
        nan=_ints(frame, "nan"),
        pos_inf=_ints(frame, "pos_inf"),
        neg_inf=_ints(frame, "neg_inf"),
        set_aside=_ints(frame, "set_aside"),
        digest=frame["digest"].fill_null(0).to_numpy(),
        has_digest=frame["digest"].is_not_null().to_numpy(),
        has_data=frame["has_data"].to_numpy(),
        exponents=_arrays(frame["exponents"]),
    )


def _summaries(frame: pl.DataFrame) -> Summaries:
    shapes = frame["shape"].to_list()
    parts = [DTYPES[name].parts if name in DTYPES else 1 for name in frame["dtype"].to_list()]
    elements = [math.prod(shape) * part for shape, part in zip(shapes, parts, strict=True)]
    return Summaries(
        elements=np.asarray(elements, dtype=np.float64),
        min=_floats(frame, "min"),
        max=_floats(frame, "max"),
        mean=_floats(frame, "mean"),
        norm=_floats(frame, "norm"),
        sketch=_arrays(frame["sketch"]),
    )


def _arrays(column: pl.Series) -> NDArray[Any] | None:
    """A column of fixed-length arrays as one array; missing ones are nan or 0; none if all are missing."""
    if column.null_count() == len(column) or not isinstance(column.dtype, pl.Array):
        return None
    if column.null_count():
        empty = 0 if column.dtype.inner.is_integer() else np.nan
        column = column.fill_null(pl.Series([[empty] * column.dtype.size], dtype=column.dtype))
    return column.to_numpy()


def _floats(frame: pl.DataFrame, column: str) -> Floats:
    return frame[column].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _ints(frame: pl.DataFrame, column: str, *, missing: int = 0) -> Ints:
    return frame[column].fill_null(missing).to_numpy()


@dataclass(frozen=True, slots=True)
class ValuePairs:
    """Pairs of values with what is known of their difference."""

    values: Pair[Values]
    """Rows of the pairs on each side."""
    identical: Bools
    distance: Floats
    """L2 distance over what is finite and not set aside; nan if not known."""
    error: Floats
    """Distance relative to the reference; inf where discrete values differ; nan if not compared."""
    discrete: Bools
    """Integers and bools: they are equal or not."""
    pattern: Bools
    """inf, nan or mask values are not in the same number on both sides."""
    measured: NDArray[np.object_]
    reason: NDArray[np.object_]
    """Why a pair was not compared; empty if it was."""
    compared: Bools
    """Where there is no such reason."""
    metrics: dict[int, PairMetrics]
    """From saved data, by row."""
    score_errors: dict[int, float] = field(default_factory=dict)
    """Of attention scores with a mask, by row: root mean square of the differences of what is not masked."""


def measure(reference: Values, target: Values, *, same_digests: bool) -> ValuePairs:
    """Measure pairs from summaries; row i of one belongs to row i of the other."""
    discrete_reference, discrete_target = _discrete(reference), _discrete(target)
    discrete = discrete_reference & discrete_target
    reason = _reasons(reference, target, discrete_reference != discrete_target)
    identical = same_digests & reference.has_digest & target.has_digest & (reference.digest == target.digest)
    distance, measured = summary_distances(reference, target)
    distance = _told_apart(distance, reference, target, same_digests=same_digests)
    distance[identical] = 0.0
    measured[identical] = Measured.DIGEST
    error = relative(distance, reference.summaries.norm, target.summaries.norm)
    # Other tools' stats have no digest: equal numbers are all that can be known.
    no_digest = ~(reference.has_digest & target.has_digest) if same_digests else np.ones_like(identical)
    from_stats = np.fromiter((word is Measured.STATS for word in measured), dtype=np.bool_, count=len(measured))
    identical = identical | (no_digest & from_stats & (distance == 0.0))
    if discrete.any():
        # Of other dtypes, or without a common digest, integers are equal as far as their stats tell.
        alike = _equal_integers(reference, target, same_digests=same_digests) & ~identical
        error = np.where(discrete, np.where(identical | alike, 0.0, np.inf), error)
        measured[discrete] = Measured.DIGEST
        measured[discrete & alike] = Measured.STATS
    pattern = _patterns(reference, target) & ~discrete
    # Where inf or nan are all that is known of one side, they are what differs.
    measured[np.isnan(error) & pattern] = Measured.STATS
    error[np.isnan(error) & pattern] = np.inf
    unknown = np.isnan(error) & (reason == NO_REASON)
    only_digest = unknown & same_digests & reference.has_digest & target.has_digest
    error[only_digest] = np.inf
    measured[only_digest] = Measured.DIGEST
    reason[unknown & ~only_digest] = NO_SUMMARY
    pattern = pattern & (reason == NO_REASON)
    measured[reason != NO_REASON] = None
    error[reason != NO_REASON] = np.nan
    identical = identical & (reason == NO_REASON)
    return ValuePairs(
        Pair(reference, target),
        identical,
        distance,
        error,
        discrete,
        pattern,
        measured,
        reason,
        reason == NO_REASON,
        {},
    )


def _patterns(reference: Values, target: Values) -> Bools:
    """Where inf, nan or mask values are not in the same number."""
    differ = reference.large() != target.large()
    for name in ("nan", "pos_inf", "neg_inf"):
        differ = differ | (getattr(reference, name) != getattr(target, name))
    return np.asarray(differ, dtype=np.bool_)


def _discrete(values: Values) -> Bools:
    kinds = {
        name: name in DTYPES and DTYPES[name].kind in (DtypeKind.INT, DtypeKind.BOOL) for name in set(values.dtype)
    }
    return np.fromiter((kinds[name] for name in values.dtype), dtype=np.bool_, count=len(values.dtype))


def _parts(values: Values) -> Ints:
    """Numbers that an element holds: two in a complex one."""
    known = {name: DTYPES[name].parts if name in DTYPES else 1 for name in set(values.dtype)}
    return np.fromiter((known[name] for name in values.dtype), dtype=np.int64, count=len(values.dtype))


def _reasons(reference: Values, target: Values, other_kind: Bools) -> NDArray[np.object_]:
    reason = np.full(len(reference.id), NO_REASON, dtype=object)
    # finfo(dtype).min is another number in another dtype, and may be set aside in one and not in the other.
    other_mask = (reference.large() != target.large()) & (reference.dtype != target.dtype)
    reason[other_mask] = MASK_DIFFERS
    parts = Pair(_parts(reference), _parts(target))
    reason[other_kind | (parts.reference != parts.target)] = DTYPE_DIFFERS
    sizes = reference.summaries.elements / parts.reference, target.summaries.elements / parts.target
    reason[sizes[0] != sizes[1]] = SHAPE_DIFFERS
    reason[~(reference.summarized | reference.has_digest) | ~(target.summarized | target.has_digest)] = NO_SUMMARY
    reason[~reference.initialized | ~target.initialized] = UNINITIALIZED
    reason[(reference.dtype == NO_DTYPE) | (target.dtype == NO_DTYPE)] = LOST
    return reason


def summary_distances(reference: Values, target: Values) -> tuple[Floats, NDArray[np.object_]]:
    """L2 distances as far as summaries tell them, and what told them."""
    measured = np.full(len(reference.id), None, dtype=object)
    distance = np.full(len(reference.id), np.nan)
    sketches = reference.summaries.sketch, target.summaries.sketch
    if sketches[0] is not None and sketches[1] is not None:
        # nan stays nan: where a sketch is missing, the distance is guessed below.
        distance = np.maximum(sketch_distances(sketches[0], sketches[1]), least_apart(reference, target))
        measured[~np.isnan(distance)] = Measured.SKETCH
    guess = np.isnan(distance)
    if guess.any():
        guessed = stats_distances(reference.summaries, target.summaries)
        distance = np.where(guess, guessed, distance)
        measured[guess & ~np.isnan(guessed)] = Measured.STATS
    return distance, measured


def least_apart(reference: Values, target: Values) -> Floats:
    """What L2 distances are at least, by the stats alone."""
    counted = Pair(*(side.summaries.elements - side.set_aside for side in (reference, target)))
    same = np.where(counted.reference == counted.target, counted.reference, 0.0)
    return least_distances(reference.summaries, target.summaries, same)


def _told_apart(distance: Floats, reference: Values, target: Values, *, same_digests: bool) -> Floats:
    """Numbers of one type with other digests are not equal, though sketches see no difference: it is below theirs."""
    differ = same_digests & reference.has_digest & target.has_digest & (reference.digest != target.digest)
    # A digest is also one of the dtype and the shape.
    rows = np.flatnonzero(differ & (reference.dtype == target.dtype) & (distance == 0.0)).tolist()
    unseen = [row for row in rows if reference.shape(row) == target.shape(row)]
    told = distance.copy()
    told[unseen] = SKETCH_FLOOR * reference.summaries.norm[unseen]
    return told


def scaled(values: Values, factors: Floats) -> Values:
    """The summaries of the values times these positive factors, one each."""
    known = values.summaries
    sketch = None if known.sketch is None else (known.sketch * factors[:, None]).astype(np.float32)
    stats = {name: getattr(known, name) * factors for name in ("min", "max", "mean", "norm")}
    return replace(values, summaries=Summaries(elements=known.elements, sketch=sketch, **stats))


def relative(distance: Floats, reference_norm: Floats, target_norm: Floats) -> Floats:
    """Distances beside the norm of the reference, or of the target where that is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        against = np.where(reference_norm > 0, reference_norm, target_norm)
        return np.where(distance == 0, 0.0, distance / against)


def _equal_integers(reference: Values, target: Values, *, same_digests: bool) -> Bools:
    """Integers of different types, or without a common digest, are told apart by their stats."""
    comparable = (reference.dtype != target.dtype) | (not same_digests) | ~reference.has_digest | ~target.has_digest
    one, other = reference.summaries, target.summaries
    some_mean = np.isnan(one.mean) | np.isnan(other.mean)
    equal = (one.min == other.min) & (one.max == other.max) & ((one.mean == other.mean) | some_mean)
    return np.asarray(comparable & equal, dtype=np.bool_)


def compared_by_data(pairs: ValuePairs, norms: Mapping[int, float]) -> ValuePairs:
    """The pairs with some compared of which summaries tell no distance, or a wrong one, but the data can.

    `norms` are those of what the data compares in the reference, by row.
    """
    rows = list(norms)
    if not rows:
        return pairs
    reason, compared, measured = pairs.reason.copy(), pairs.compared.copy(), pairs.measured.copy()
    pattern, norm = pairs.pattern.copy(), pairs.values.reference.summaries.norm.copy()
    reason[rows], compared[rows], measured[rows], pattern[rows] = NO_REASON, True, None, False
    norm[rows] = list(norms.values())
    values = pairs.values.reference
    reference = replace(values, summaries=replace(values.summaries, norm=norm))
    sides = Pair(reference, pairs.values.target)
    return replace(pairs, reason=reason, compared=compared, measured=measured, pattern=pattern, values=sides)


def refine(pairs: ValuePairs, found_by_row: Mapping[int, PairMetrics | None]) -> ValuePairs:
    """Replace estimates by what the saved data says."""
    distance, error, measured = pairs.distance.copy(), pairs.error.copy(), pairs.measured.copy()
    identical, pattern = pairs.identical.copy(), pairs.pattern.copy()
    metrics = dict(pairs.metrics)
    large = pairs.values.reference.large(), pairs.values.target.large()
    for row, found in found_by_row.items():
        if found is None:
            continue
        metrics[row] = found
        measured[row] = Measured.DATA
        pattern[row] = found.mismatched > 0 or (pairs.pattern[row] and large[0][row] != large[1][row])
        # A mask's values are set aside in a sketch; in the data they drown everything else.
        masked = pairs.measured[row] is Measured.SKETCH and max(large[0][row], large[1][row]) > 0
        if not pairs.discrete[row] and not masked:
            distance[row] = found.distance
            norms = np.array([found.reference_norm]), np.array([found.target_norm])
            error[row] = relative(np.array([found.distance]), *norms)[0]
        identical[row] = found.different == 0 and found.mismatched == 0
        if pairs.discrete[row]:
            error[row] = 0.0 if identical[row] else np.inf
    return replace(
        pairs, distance=distance, error=error, measured=measured, identical=identical, pattern=pattern, metrics=metrics
    )
