"""What measuring the pairs of a network gave: a row a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.rounding.measuring import DTYPE_DIFFERS, MASK_DIFFERS, NO_REASON, ValuePairs, compared_by_data
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.pairs.msaccucmp.metrics import FAILED, Figure
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
