"""Measures pairs of values: from saved data, from sketches, from stats, or only whether they are identical."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.rounding.masks import LargeParts, large_parts, masked_rows, of_other_types
from ulpscope.judge.rounding.values import NO_DTYPE, Bools, Floats, Ints, Values
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.pairs.msaccucmp.metrics import FAILED, Figure
from ulpscope.numerics.summaries.estimates import least_distances, sketch_distances, stats_distances
from ulpscope.records.pairs import Measured, Pair, PairMetrics

Rows = list[int] | NDArray[np.intp]

NO_REASON = ""
SHAPE_DIFFERS = "shapes differ"
DTYPE_DIFFERS = "other kinds of numbers (integer, real, complex)"
UNINITIALIZED = "memory that nobody has written"
NO_SUMMARY = "no stats"
LOST = "not in the trace, which is incomplete"
MASK_DIFFERS = "other elements are set aside (attention masks)"
LARGE_DIFFER = "bits differ among numbers of 2^29 and more, by how much is not known"
TOO_SMALL = "bits differ by less than the sketch resolves"
"""These two of pairs that were compared, and of which it cannot be told whether rounding explains what differs."""


@dataclass(frozen=True, slots=True)
class ValuePairs:
    """Pairs of values with what is known of their difference."""

    sides: Pair[Values]
    """Columns of what the pairs are made of, a row a pair."""
    identical: Bools
    distance: Floats
    """L2 distance over what is finite and not set aside; nan if not known."""
    error: Floats
    """Distance relative to the reference; inf where discrete values differ; nan if not compared."""
    discrete: Bools
    """Integers and bools: they are equal or not."""
    pattern: Bools
    """inf, nan or mask values are not in the same number on both sides."""
    unresolved: Bools
    """Bits differ among numbers that are set aside; by how much is not known."""
    blind: Bools
    """Bits differ, and sketches see nothing of it: less than they resolve, or what cancels in their sums."""
    measured: NDArray[np.object_]
    reason: NDArray[np.object_]
    """Why a pair was not compared; empty if it was."""
    compared: Bools
    """Where there is no such reason."""
    metrics: dict[int, PairMetrics]
    """From saved data, by row."""
    score_errors: dict[int, float] = field(default_factory=dict)
    """Of attention scores with a mask, by row: root mean square of the differences of what is not masked."""

    def with_rows(self, rows: Rows, **columns: Any) -> "ValuePairs":
        """The same pairs, where columns have other contents in these rows."""
        changed = {name: getattr(self, name).copy() for name in columns}
        for name, contents in columns.items():
            changed[name][rows] = contents
        return replace(self, **changed)

    def with_norms(self, rows: Rows, norms: Floats) -> "ValuePairs":
        """The same pairs, where the reference has other norms in these rows."""
        reference = self.sides.reference
        norm = reference.summaries.norm.copy()
        norm[rows] = norms
        reference = replace(reference, summaries=replace(reference.summaries, norm=norm))
        return replace(self, sides=Pair(reference, self.sides.target))


def measure(reference: Values, target: Values, *, same_digests: bool) -> ValuePairs:
    """Measure pairs from summaries; row i of one belongs to row i of the other."""
    discrete_reference, discrete_target = _discrete(reference), _discrete(target)
    discrete = discrete_reference & discrete_target
    large = large_parts(reference, target)
    reason = _reasons(reference, target, discrete_reference != discrete_target, large)
    identical = same_digests & reference.has_digest & target.has_digest & (reference.digest == target.digest)
    distance, measured = summary_distances(reference, target)
    unseen = large.told & (distance == 0.0) & (large.error == 0.0) & ~identical & ~discrete
    blind = _blind(distance, reference, target, same_digests=same_digests)
    distance = np.where(blind, np.maximum(reference.resolution, target.resolution) * reference.summaries.norm, distance)
    distance[identical] = 0.0
    measured[identical] = Measured.DIGEST
    distance, error, measured = with_large(distance, measured, Pair(reference, target), large)
    # Other tools' stats have no digest: equal numbers are all that can be known.
    no_digest = ~(reference.has_digest & target.has_digest) if same_digests else np.ones_like(identical)
    from_stats = np.fromiter((word is Measured.STATS for word in measured), dtype=np.bool_, count=len(measured))
    identical = identical | (no_digest & from_stats & (distance == 0.0) & ~unseen)
    if discrete.any():
        # Of other dtypes, or without a common digest, integers are equal as far as their stats tell.
        alike = _equal_integers(reference, target, same_digests=same_digests) & ~identical
        error = np.where(discrete, np.where(identical | alike, 0.0, np.inf), error)
        measured[discrete] = Measured.DIGEST
        measured[discrete & alike] = Measured.STATS
    pattern = _patterns(reference, target, large) & ~discrete
    # Where inf or nan are all that is known of one side, they are what differs.
    measured[np.isnan(error) & pattern] = Measured.STATS
    error[np.isnan(error) & pattern] = np.inf
    unknown = np.isnan(error) & (reason == NO_REASON)
    only_digest = unknown & same_digests & reference.has_digest & target.has_digest
    error[only_digest] = np.inf
    measured[only_digest] = Measured.DIGEST
    reason[unknown & ~only_digest] = NO_SUMMARY
    pattern = pattern & (reason == NO_REASON)
    unresolved = unseen & ~pattern & (reason == NO_REASON)
    measured[unresolved] = Measured.DIGEST
    measured[reason != NO_REASON] = None
    error[unresolved | (reason != NO_REASON)] = np.nan
    identical = identical & (reason == NO_REASON)
    return ValuePairs(
        Pair(reference, target),
        identical,
        distance,
        error,
        discrete,
        pattern,
        unresolved,
        blind,
        measured,
        reason,
        reason == NO_REASON,
        {},
    )


def with_large(
    distance: Floats, measured: NDArray[np.object_], values: Pair[Values], large: LargeParts
) -> tuple[Floats, Floats, NDArray[np.object_]]:
    """Distances, errors and what told them, with what is large: the worse of the two parts is the value's."""
    norms = values.reference.summaries.norm, values.target.summaries.norm
    # Where other elements are set aside, sketches are of different things.
    other = large.told & (values.reference.large() != values.target.large())
    kept = np.where(other, 0.0, relative(distance, *norms))
    by_extremes = large.told & ~(kept > large.error) & (other | (large.error > 0.0))
    error = np.where(by_extremes, large.error, kept)
    with np.errstate(invalid="ignore"):
        distance = np.where(by_extremes, error * np.where(norms[0] > 0, norms[0], norms[1]), distance)
    measured = measured.copy()
    measured[by_extremes] = Measured.STATS
    return distance, error, measured


def _patterns(reference: Values, target: Values, large: LargeParts) -> Bools:
    """Where inf, nan or mask values are not in the same number; a mask may have become -inf where it was added up."""
    differ = (reference.large() != target.large()) & ~large.told
    for name in ("nan", "pos_inf", "neg_inf"):
        differ = differ | (getattr(reference, name) != getattr(target, name))
    hidden = (side.large() + side.neg_inf for side in (reference, target))
    return np.asarray(differ & ~(large.masked & np.equal(*hidden)), dtype=np.bool_)


def _discrete(values: Values) -> Bools:
    kinds = {
        name: name in DTYPES and DTYPES[name].kind in (DtypeKind.INT, DtypeKind.BOOL) for name in set(values.dtype)
    }
    return np.fromiter((kinds[name] for name in values.dtype), dtype=np.bool_, count=len(values.dtype))


def _parts(values: Values) -> Ints:
    """Numbers that an element holds: two in a complex one."""
    known = {name: DTYPES[name].parts if name in DTYPES else 1 for name in set(values.dtype)}
    return np.fromiter((known[name] for name in values.dtype), dtype=np.int64, count=len(values.dtype))


def _reasons(reference: Values, target: Values, other_kind: Bools, large: LargeParts) -> NDArray[np.object_]:
    reason = np.full(len(reference.id), NO_REASON, dtype=object)
    # finfo(dtype).min is another number in another dtype, and may be set aside in one and not in the other.
    other_mask = (reference.large() != target.large()) & of_other_types(reference, target) & ~large.told
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


def _blind(distance: Floats, reference: Values, target: Values, *, same_digests: bool) -> Bools:
    """Numbers of one type with other digests are not equal, though sketches see no difference."""
    differ = same_digests & reference.has_digest & target.has_digest & (reference.digest != target.digest)
    # A digest is also one of the dtype and the shape.
    rows = np.flatnonzero(differ & (reference.dtype == target.dtype) & (distance == 0.0)).tolist()
    blind = np.zeros(len(distance), dtype=np.bool_)
    blind[[row for row in rows if reference.shape(row) == target.shape(row)]] = True
    return blind


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
    compared = pairs.with_rows(rows, reason=NO_REASON, compared=True, measured=None, pattern=False)
    return compared.with_norms(rows, np.array(list(norms.values())))


def refine(pairs: ValuePairs, found_by_row: Mapping[int, PairMetrics | None]) -> ValuePairs:
    """Replace estimates by what the saved data says."""
    known = {row: found for row, found in found_by_row.items() if found is not None}
    rows, (reference, target) = list(known), pairs.sides
    if not rows:
        return pairs
    differ = np.array([found.different > 0 for found in known.values()])
    mismatched = np.array([found.mismatched > 0 for found in known.values()])
    distance, norm, target_norm = (
        np.array([getattr(found, name) for found in known.values()], dtype=np.float64)
        for name in ("distance", "reference_norm", "target_norm")
    )
    whole, large = relative(distance, norm, target_norm), (reference.large()[rows], target.large()[rows])
    masks = (masked_rows(reference) & masked_rows(target))[rows]
    some_large, discrete = np.maximum(*large) > 0, pairs.discrete[rows]
    # What is large is set aside in a sketch; in the data it drowns everything else.
    by_sketch = np.array([word is Measured.SKETCH for word in pairs.measured[rows]])
    beside = some_large & by_sketch & (masks | (whole <= pairs.error[rows]))
    equal = ~differ & ~mismatched
    refined = pairs.with_rows(
        rows,
        measured=Measured.DATA,
        identical=equal,
        pattern=mismatched | (masks & pairs.pattern[rows] & (large[0] != large[1])),
        unresolved=False,
        blind=False,
        distance=np.where(discrete | beside, pairs.distance[rows], distance),
        error=np.where(discrete, np.where(equal, 0.0, np.inf), np.where(beside, pairs.error[rows], whole)),
    )
    norm = np.where(some_large & ~discrete & ~beside, norm, reference.summaries.norm[rows])
    return replace(refined.with_norms(rows, norm), metrics={**pairs.metrics, **known})


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Two tensors side by side."""

    summaries: Pair[NDArray[np.float64]]
    """Rows of numerics.summary."""
    dtypes: Pair[str]
    shapes: Pair[Shape]
    metrics: PairMetrics
    told_shape: Shape
    """As msaccucmp tells it."""
    figures: dict[str, Figure] | None = None
    """msaccucmp's metrics, if they were asked for."""
    mask: Pair[float] | None = None
    """The numbers of an attention mask: `metrics` are without the elements that it sets aside."""
    far_on_one_side: bool = False
    """Whether elements are far away that no mask of the other side explains."""


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What became of one row."""

    row: int
    measurement: Measurement | None = None
    twin: int | None = None
    """The row whose tensor this is, bit for bit."""
    reason: str = ""
    """Why nothing was measured, in msaccucmp's words where it has some."""
    sizes: Pair[int] | None = None
    """Elements of both sides, where they do not fit."""
    overflow: str = FAILED
    """msaccucmp's column of that name."""


def comparable_by_data(pairs: ValuePairs, measured: Mapping[int, Measurement]) -> ValuePairs:
    """The pairs with those compared, too, of which summaries cannot tell a distance, but the data can.

    Devices compute in floats what was integers, float16 ends where the reference goes on, and a mask may be another
    number in another type.
    """
    norms = {
        row: found.metrics.reference_norm
        for row, found in measured.items()
        if _counts_in_floats(pairs, row) or _is_masked(pairs, row, found)
    }
    return compared_by_data(pairs, norms)


def _counts_in_floats(pairs: ValuePairs, row: int) -> bool:
    reference, target = (DTYPES[side.dtype[row]].kind for side in (pairs.sides.reference, pairs.sides.target))
    whole = reference in (DtypeKind.INT, DtypeKind.BOOL)
    return bool(pairs.reason[row] == DTYPE_DIFFERS) and whole and target is DtypeKind.FLOAT


def _is_masked(pairs: ValuePairs, row: int, found: Measurement) -> bool:
    if pairs.reason[row] == MASK_DIFFERS and found.far_on_one_side:
        return True
    return bool(found.mask is not None and pairs.reason[row] in (NO_REASON, MASK_DIFFERS))
