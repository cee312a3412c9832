"""Measures attention scores without what their masks leave out, which would drown everything else."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ulpscope.judge.masks import attention_mask, may_be_masked
from ulpscope.judge.network_outcomes import Measurement, RowOutcome
from ulpscope.numerics.metrics import compare_arrays
from ulpscope.numerics.rows import stats_from_row
from ulpscope.records.errors import UlpscopeError
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
        if found is not None and _may_be_masked(found):
            found = _unmasked(by_row[outcome.row], found, wanted)
        yield replace(outcome, measurement=found)


def _may_be_masked(found: Measurement) -> bool:
    stats = [
        stats_from_row(getattr(found.summaries, side), getattr(found.dtypes, side), getattr(found.shapes, side))
        for side in ("reference", "target")
    ]
    return all(may_be_masked(each.min, each.max) for each in stats)


def _unmasked(order: TensorOrder, found: Measurement, wanted: Wanted) -> Measurement:
    assert order.reference is not None
    try:
        pair = read_pair(order.tensor.whole(), order.reference, order.stated)
        masked = attention_mask(pair.reference, pair.target.reshape(pair.reference.shape))
        if masked is None:
            return found
        metrics = compare_arrays(
            pair.reference[~masked],
            pair.target.reshape(pair.reference.shape)[~masked],
            reference_dtype=pair.dtypes.reference,
            target_dtype=pair.dtypes.target,
            detailed=wanted.details,
        )
    except (UlpscopeError, OSError, MemoryError):
        # Measured as a whole it is already.
        return found
    # What is masked may differ, too: identical bits are those of the whole.
    metrics = replace(metrics, different=found.metrics.different)
    return replace(found, metrics=metrics, masked=int(masked.sum()))
