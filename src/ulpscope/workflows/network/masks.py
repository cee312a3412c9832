"""Measures attention scores without what their masks leave out, which would drown everything else.

Reads tensors of a measured network once more, for what only their elements tell.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ulpscope.align.network_layouts import Stated
from ulpscope.align.network_pairs import NetworkRow
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.judge.rounding.choices import numbers_alike
from ulpscope.judge.rounding.masks import attention_mask, compare_unmasked, far_on_one_side, may_be_masked
from ulpscope.judge.rounding.network_outcomes import Measurement, RowOutcome
from ulpscope.numerics.summaries.rows import stats_from_row
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.records.values import Stats
from ulpscope.workflows.network.measuring import TensorOrder, Wanted, measure_tensors, read_pair


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


class TensorReader:
    """Of operators and the values that they read or make themselves; nothing of what only stands for those."""

    def __init__(
        self, rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome], measured: Mapping[int, Measurement]
    ) -> None:
        self._rows = rows
        numbers = {id(outcome.measurement): number for number, outcome in outcomes.items() if outcome.measurement}
        self._row_of = {value: numbers[id(found)] for value, found in measured.items() if id(found) in numbers}
        self._own = _own_rows(rows, outcomes)

    def __call__(self, operator: str, value: int) -> Pair[NDArray[Any]] | None:
        number = self._row_of.get(value)
        if number is None or number not in self._own[operator]:
            return None
        row = self._rows[number]
        if row.tensor is None or row.reference is None:
            return None
        original = row.original
        stated = Stated() if original is None else Stated(original.layout, original.shape)
        try:
            found = read_pair(row.tensor.whole(), row.reference, stated)
        except (UlpscopeError, OSError, MemoryError):
            return None
        return numbers_alike(Pair(found.reference, found.target), found.dtypes)


def _own_rows(rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome]) -> dict[str, set[int]]:
    """Rows by the operators that read or made their tensors."""
    own: dict[str, set[int]] = defaultdict(set)
    outputs = {
        (row.operator.name, row.tensor.position): number
        for number, row in enumerate(rows)
        if row.tensor is not None and row.tensor.side is Side.OUTPUT
    }
    for number, row in enumerate(rows):
        source, outcome = row.planned.source, outcomes.get(number)
        own[row.operator.name].add(number)
        if outcome is not None and outcome.twin is not None:
            own[row.operator.name].add(outcome.twin)
        if source is not None:
            own[source[0]].add(number)
        if source in outputs:
            own[row.operator.name].add(outputs[source])
    return own
