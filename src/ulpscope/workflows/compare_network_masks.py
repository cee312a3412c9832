"""Measures attention scores without what their masks leave out, which would drown everything else."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ulpscope.judge.masks import attention_mask, compare_unmasked, far_on_one_side, may_be_masked
from ulpscope.judge.network_outcomes import Measurement, RowOutcome
from ulpscope.numerics.rows import stats_from_row
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.records.values import Stats
from ulpscope.workflows.compare_network_measuring import TensorOrder, Wanted, measure_tensors, read_pair


def measure_batch(orders: Sequence[TensorOrder], wanted: Wanted) -> list[RowOutcome]:
    """Measure tensors; those with a mask once more, without what it masks."""
    return list(_without_masks(orders, measure_tensors(orders, wanted), wanted))


def _without_masks(
    orders: Iterable[TensorOrder], outcomes: Iterable[RowOutcome], wanted: Wanted
) -> Iterator[RowOutcome]:
    by_row = {order.row: order for order in orders}
    for outcome in outcomes:
        found = outcome.measurement
        if found is not None and _may_have_masks(found):
            found = _unmasked(by_row[outcome.row], found, wanted)
        yield replace(outcome, measurement=found)


def _may_have_masks(found: Measurement) -> bool:
    """Whether scores may be masked on both sides, or more elements are large on one of them."""
    dtypes = found.dtypes.reference, found.dtypes.target
    reference = stats_from_row(found.summaries.reference, dtypes[0], found.shapes.reference)
    target = stats_from_row(found.summaries.target, dtypes[1], found.shapes.target)
    masked = may_be_masked(reference, dtypes[0]) and may_be_masked(target, dtypes[1])
    return masked or _large(reference) != _large(target)


def _large(stats: Stats) -> int:
    """Finite elements that are set aside."""
    return stats.set_aside - stats.nan - stats.pos_inf - stats.neg_inf


def _unmasked(order: TensorOrder, found: Measurement, wanted: Wanted) -> Measurement:
    assert order.reference is not None
    try:
        pair = read_pair(order.tensor.whole(), order.reference, order.stated)
        arrays = Pair(pair.reference, pair.target.reshape(pair.reference.shape))
        mask = attention_mask(arrays, pair.dtypes)
        if mask is None:
            return replace(found, far_on_one_side=far_on_one_side(arrays, pair.dtypes))
        metrics = compare_unmasked(arrays, mask, pair.dtypes, detailed=wanted.details)
    except (UlpscopeError, OSError, MemoryError):
        # Measured as a whole it is already.
        return found
    return replace(found, metrics=metrics, mask=mask.numbers)
