"""What measuring the pairs of a network gave: a row a tensor."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.msaccucmp_metrics import FAILED, Figure
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
