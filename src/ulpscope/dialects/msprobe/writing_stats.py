"""Max, Min, Mean and Norm of a value as torch itself would answer, from a summary that leaves nan and inf aside."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.records.values import Stats, Value

Number: TypeAlias = float | int | bool | None
Elements: TypeAlias = Callable[[], NDArray[Any] | None]

NAMES = ("Max", "Min", "Mean", "Norm")


def four_numbers(value: Value, elements: Elements) -> dict[str, Number]:
    """The four statistics of a tensor; null where msprobe has none or the trace cannot tell."""
    return dict(zip(NAMES, _numbers(value, elements), strict=True))


def _numbers(value: Value, elements: Elements) -> tuple[Number, Number, Number, Number]:
    stats = value.stats
    if stats is None or not value.initialized or 0 in value.shape:
        return None, None, None, None
    if value.dtype.startswith("complex"):
        return _of_complex(value, elements)
    if not value.dtype.startswith(("float", "bfloat")):
        return _of_whole(value, stats)
    return _of_float(value, stats, elements)


def _of_whole(value: Value, stats: Stats) -> tuple[Number, Number, Number, Number]:
    kind = bool if value.dtype == "bool" else int
    high = None if stats.max is None else kind(stats.max)
    low = None if stats.min is None else kind(stats.min)
    return (high, high, high, high) if value.shape == () else (high, low, None, None)


def _of_float(value: Value, stats: Stats, elements: Elements) -> tuple[Number, Number, Number, Number]:
    if stats.nan:
        return math.nan, math.nan, math.nan, math.nan
    high = math.inf if stats.pos_inf else -math.inf if stats.max is None else stats.max
    low = -math.inf if stats.neg_inf else math.inf if stats.min is None else stats.min
    if value.shape == ():
        return high, high, high, high
    return high, low, *_mean_and_norm(stats, elements)


def _mean_and_norm(stats: Stats, elements: Elements) -> tuple[Number, Number]:
    if stats.pos_inf or stats.neg_inf:
        both = stats.pos_inf and stats.neg_inf
        return math.nan if both else math.inf if stats.pos_inf else -math.inf, math.inf
    if not stats.set_aside:
        return stats.mean, stats.norm
    # Huge finite elements are not in our sums, but they are in torch's.
    data = elements()
    if data is None:
        return None, None
    wide = data.astype(np.float64)
    return float(wide.mean()), float(np.linalg.norm(wide))


def _of_complex(value: Value, elements: Elements) -> tuple[Number, Number, Number, Number]:
    data = elements()
    if data is None or value.shape == () or data.dtype.kind != "c":
        return None, None, None, None
    size = np.abs(data)
    return float(size.max()), float(size.min()), None, None
