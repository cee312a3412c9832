"""What measuring the pairs of a network gave: a row a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.measuring import DTYPE_DIFFERS, MASK_DIFFERS, NO_REASON, ValuePairs
from ulpscope.numerics.constants import SET_ASIDE_EXPONENT
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.msaccucmp_metrics import FAILED, FP16_LARGEST, Figure
from ulpscope.records.pairs import Pair, PairMetrics

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
    masked: int = 0
    """Elements that an attention mask sets aside: `metrics` are without them."""


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What became of one row."""

    row: int
    measurement: Measurement | None = None
    twin: int | None = None
    """The row whose tensor this is, bit for bit."""
    reason: str = ""
    """Why nothing was measured, in msaccucmp's words where it has some."""
    overflow: str = FAILED
    """msaccucmp's column of that name."""


def comparable_by_data(pairs: ValuePairs, measured: Mapping[int, Measurement]) -> ValuePairs:
    """The pairs with those compared, too, of which summaries cannot tell a distance, but the data can.

    Devices compute in floats what was integers, float16 ends where the reference goes on beyond any mask, and a mask
    may be another number in another type.
    """
    rows = [
        row
        for row, found in measured.items()
        if _counts_in_floats(pairs, row) or _ends_early(pairs, row) or _is_masked(pairs, row, found)
    ]
    if not rows:
        return pairs
    reason, compared = pairs.reason.copy(), pairs.compared.copy()
    reason[rows], compared[rows] = NO_REASON, True
    values = pairs.values.reference
    norm = values.summaries.norm.copy()
    norm[rows] = [measured[row].metrics.reference_norm for row in rows]
    reference = replace(values, summaries=replace(values.summaries, norm=norm))
    return replace(pairs, reason=reason, compared=compared, values=Pair(reference, pairs.values.target))


def _counts_in_floats(pairs: ValuePairs, row: int) -> bool:
    reference, target = (DTYPES[side.dtype[row]].kind for side in (pairs.values.reference, pairs.values.target))
    whole = reference in (DtypeKind.INT, DtypeKind.BOOL)
    return bool(pairs.reason[row] == DTYPE_DIFFERS) and whole and target is DtypeKind.FLOAT


def _ends_early(pairs: ValuePairs, row: int) -> bool:
    """Whether float16 is at its end and the reference beyond what a summary holds: upwards, for masks go down."""
    if pairs.reason[row] != MASK_DIFFERS or pairs.values.target.dtype[row] != "float16":
        return False
    reference, target = pairs.values.reference, pairs.values.target
    at_end = target.pos_inf[row] > 0 or target.summaries.max[row] >= FP16_LARGEST
    return bool(at_end and reference.summaries.max[row] >= 2.0**SET_ASIDE_EXPONENT)


def _is_masked(pairs: ValuePairs, row: int, found: Measurement) -> bool:
    return bool(found.masked and pairs.reason[row] in (NO_REASON, MASK_DIFFERS))
