"""What the rows of a step point to in earlier steps.

Its calls read values that were written before, and may have their forward there. A few ranges of ids that cover them
all, in step.json, tell a reader which of a thousand steps need not be opened to find who reads a value.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.records.settings import IntRanges

MAX_RANGES = 16

REACH_FIELDS = {"values": "earlier_values", "calls": "earlier_calls"}
"""Fields of step.json, by the table that they point to."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Ranges of ids that cover all rows of earlier steps to which a step points."""

    values: IntRanges
    calls: IntRanges

    def to_json(self) -> dict[str, list[list[int]]]:
        return {field: [list(ends) for ends in getattr(self, rows).ranges] for rows, field in REACH_FIELDS.items()}


class ReachCollector:
    """Gathers the reach of a step from its parts, in the order in which they are written."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._values = _Earlier()
        self._calls = _Earlier()

    def add(self, *, calls: pl.DataFrame, values: pl.DataFrame, tensors: pl.DataFrame) -> None:
        """Frames may lack columns, which are null then."""
        self._values.add(own=_ids(values, "id"), pointed=[_ids(tensors, "value")])
        # The row of a call that began earlier may come in this step.
        own = calls.filter(pl.col("step") == self.step) if "step" in calls.columns else calls
        self._calls.add(own=_ids(own, "id"), pointed=[_ids(calls, "parent"), _ids(calls, "forward")])

    def reach(self) -> Reach:
        return Reach(values=self._values.ranges(), calls=self._calls.ranges())


class _Earlier:
    """Ids that are pointed to and come before a step's first own one."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._found: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, *, own: pl.Series, pointed: list[pl.Series]) -> None:
        # Ids grow: a later part has none below the first part's but those of calls that took long.
        if self._first is None and len(own):
            self._first = int(own.min())  # type: ignore[arg-type]
        ids = pl.concat(pointed).unique().to_numpy()
        self._found = np.union1d(self._found, ids if self._first is None else ids[ids < self._first])

    def ranges(self) -> IntRanges:
        return cover(self._found)


def cover(ids: NDArray[np.int64]) -> IntRanges:
    """At most MAX_RANGES ranges that hold all of these sorted ids, parted where the gaps are widest."""
    if not len(ids):
        return IntRanges(())
    gaps = np.diff(ids)
    widest = np.argsort(gaps)[::-1][: MAX_RANGES - 1]
    ends = np.sort(widest[gaps[widest] > 1])
    lows, highs = ids[np.append(0, ends + 1)], ids[np.append(ends, len(ids) - 1)]
    return IntRanges(tuple(zip(lows.tolist(), highs.tolist(), strict=True)))


def _ids(frame: pl.DataFrame, column: str) -> pl.Series:
    found = frame[column] if column in frame.columns else pl.Series([], dtype=pl.Int64)
    return found.cast(pl.Int64).drop_nulls()
