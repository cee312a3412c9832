"""Measures pairs of values anew from saved data, which tells more than summaries do."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ulpscope.judge.rounding.masks import (
    Mask,
    attention_mask,
    compare_unmasked,
    far_on_one_side,
    masks_differ,
    may_be_masked,
)
from ulpscope.judge.rounding.measuring import MASK_DIFFERS, ValuePairs, compared_by_data, refine
from ulpscope.numerics.dtypes import AnyArray
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.records.calls import Value
from ulpscope.records.errors import TraceError
from ulpscope.records.pairs import Pair, PairMetrics
from ulpscope.records.remarks import Counted, remark
from ulpscope.report.words.language import element_text
from ulpscope.trace.reader import RankTrace

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


def measure_data(
    traces: Pair[RankTrace], pairs: ValuePairs, told: list[str], *, jobs: int, detailed: bool, advance: "Advance"
) -> ValuePairs:
    """Measure what is not identical and saved on both sides, with ULP and KL divergence if `detailed`.

    `told` gets what cannot be read, and other masks.
    """
    saved = pairs.sides.reference.has_data & pairs.sides.target.has_data
    measurable = pairs.compared | (pairs.reason == MASK_DIFFERS)
    rows = np.flatnonzero(saved & measurable & ~pairs.identical).tolist()
    if not rows:
        return pairs
    read = _Reader(traces, pairs, rows, detailed=detailed)
    found: dict[int, PairMetrics | None] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for row, metrics in zip(rows, pool.map(read, rows), strict=True):
            found[row] = metrics
            advance(1)
    if read.failures:
        told.append(remark("without_data", pairs=Counted(len(read.failures), "pair"), problem=read.failures[0]))
    told += other_masks([mask.numbers for _, mask in sorted(read.masks.items()) if masks_differ(mask.numbers)])
    norms = {
        row: metrics.reference_norm
        for row, metrics in found.items()
        if metrics is not None and (row in read.masks or not pairs.compared[row])
    }
    return replace(refine(compared_by_data(pairs, norms), found), score_errors=read.score_errors)


def other_masks(numbers: Sequence[Pair[float]]) -> list[str]:
    """What is told of tensors whose masks are not the same number on both sides."""
    if not numbers:
        return []
    first, count = numbers[0], Counted(len(numbers), "tensor")
    sides = {"reference": element_text(first.reference), "target": element_text(first.target)}
    return [remark("other_masks", tensors=count, **sides)]


class _Reader:
    """Reads the saved data of pairs of values and compares it."""

    def __init__(self, traces: Pair[RankTrace], pairs: ValuePairs, rows: list[int], *, detailed: bool) -> None:
        self.traces = traces
        self.pairs = pairs
        self.detailed = detailed
        self.failures: list[str] = []
        self.score_errors: dict[int, float] = {}
        self.masks: dict[int, Mask] = {}
        self.values = Pair(
            traces.reference.find_values(pairs.sides.reference.id[rows].tolist()),
            traces.target.find_values(pairs.sides.target.id[rows].tolist()),
        )

    def __call__(self, row: int) -> PairMetrics | None:
        reference = self.values.reference[int(self.pairs.sides.reference.id[row])]
        target = self.values.target[int(self.pairs.sides.target.id[row])]
        try:
            one, other = self.traces.reference.data(reference), self.traces.target.data(target)
        except TraceError as error:
            self.failures.append(error.seen)
            return None
        if one is None or other is None:
            return None
        if one.shape != other.shape:
            one, other = one.reshape(-1), other.reshape(-1)
        return self._compared(row, Pair(reference, target), Pair(one, other))

    def _compared(self, row: int, values: Pair[Value], arrays: Pair[AnyArray]) -> PairMetrics | None:
        dtypes, sides = Pair(values.reference.dtype, values.target.dtype), (values.reference, values.target)
        masked = values.reference.shape == values.target.shape and all(
            may_be_masked(one.stats, one.dtype) for one in sides
        )
        found, mask = measure_arrays(arrays, dtypes, masked=masked, detailed=self.detailed)
        if mask is not None:
            self.masks[row] = mask
            self.score_errors[row] = found.rmse or 0.0
        elif not self.pairs.compared[row] and not far_on_one_side(arrays, dtypes):
            return None
        return found


def measure_arrays(
    arrays: Pair[AnyArray], dtypes: Pair[str], *, masked: bool, detailed: bool
) -> tuple[PairMetrics, Mask | None]:
    """Set two arrays side by side; where they may be `masked` scores, without what the mask sets aside."""
    mask = attention_mask(arrays, dtypes) if masked else None
    if mask is not None:
        return compare_unmasked(arrays, mask, dtypes, detailed=detailed), mask
    names = {"reference_dtype": dtypes.reference, "target_dtype": dtypes.target}
    return compare_arrays(arrays.reference, arrays.target, **names, detailed=detailed), None
