"""What the rows of a step point to in earlier steps, and which steps' files a question needs.

Calls read values that were written before, and may have their forward there. A few ranges of ids that cover them all,
in step.json, tell which of a thousand steps need not be opened. Ids grow over the steps, and step.json says where a
step's values begin. A row that is not where it should be is looked for in all steps by whoever asks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.records.calls import Call
from ulpscope.records.runs import IntRanges

if TYPE_CHECKING:
    from ulpscope.trace.reader import RankTrace


MAX_RANGES = 16
# Greater than every id.
NO_CALL = 2**63

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
        self._firsts: dict[str, int] = {}
        self._found = {rows: np.empty(0, np.int64) for rows in REACH_FIELDS}
        """Ids that are pointed to and come before the step's first own one, by table."""

    def add(self, *, calls: pl.DataFrame, values: pl.DataFrame, tensors: pl.DataFrame) -> None:
        """Frames may lack columns, which are null then."""
        self._add("values", own=_ids(values, "id"), pointed=_ids(tensors, "value"))
        # The row of a call that began earlier may come in this step.
        own = calls.filter(calls["step"] == self.step) if "step" in calls.columns else calls
        self._add("calls", own=_ids(own, "id"), pointed=np.concatenate([_ids(calls, "parent"), _ids(calls, "forward")]))

    def _add(self, rows: str, *, own: NDArray[np.int64], pointed: NDArray[np.int64]) -> None:
        # Ids grow: a later part has none below the first part's but those of calls that took long.
        if rows not in self._firsts and len(own):
            self._firsts[rows] = int(own.min())
        earlier = pointed[pointed < self._firsts.get(rows, NO_CALL)]
        self._found[rows] = np.union1d(self._found[rows], earlier)

    def reach(self) -> Reach:
        return Reach(**{rows: cover(found) for rows, found in self._found.items()})


def cover(ids: NDArray[np.int64]) -> IntRanges:
    """At most MAX_RANGES ranges that hold all of these sorted ids, parted where the gaps are widest."""
    if not len(ids):
        return IntRanges(())
    gaps = np.diff(ids)
    widest = np.argsort(gaps)[::-1][: MAX_RANGES - 1]
    ends = np.sort(widest[gaps[widest] > 1])
    lows, highs = ids[np.append(0, ends + 1)], ids[np.append(ends, len(ids) - 1)]
    return IntRanges(tuple(zip(lows.tolist(), highs.tolist(), strict=True)))


def _ids(frame: pl.DataFrame, column: str) -> NDArray[np.int64]:
    if column not in frame.columns:
        return np.empty(0, np.int64)
    found = frame[column].cast(pl.Int64)
    return (found.drop_nulls() if found.null_count() else found).to_numpy()


# To learn where a step's calls begin, one of its files is opened. For ids of many steps, scanning all files is quicker.
STEPS_SOUGHT = 16


class StepFinder:
    """In which steps of a rank rows are, or should be."""

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._first_calls: dict[int, int | None] = {}

    def of_values(self, value_ids: Sequence[int]) -> list[int]:
        """Steps that should have written these values; an unfinished one may always have."""
        steps = {step: self._rank.step_info(step) for step in self._rank.steps}
        infos = [info for info in steps.values() if info is not None and info.values]
        firsts = [info.first_value for info in infos]
        places = {bisect_right(firsts, value_id) - 1 for value_id in value_ids}
        unfinished = {step for step, info in steps.items() if info is None}
        return sorted(unfinished | {infos[place].step for place in places if place >= 0})

    def of_values_surely(self, value_ids: Sequence[int]) -> Sequence[int]:
        """Steps that have written these values: where they should be if they are there, or else all."""
        likely = self.of_values(value_ids)
        values = self._rank.scan("values", likely).filter(pl.col("id").is_in(value_ids))
        held = self._rank.collect(values.select(pl.col("id").n_unique())).item()
        return likely if held == len(value_ids) else self._rank.steps

    def of_calls(self, call_ids: Sequence[int]) -> Sequence[int]:
        """Steps that should have the rows of these calls (sorted); each with the next, where a call may have ended."""
        steps = self._rank.steps
        places: set[int] = set()
        position = 0
        while position < len(call_ids):
            place = bisect_right(steps, call_ids[position], key=self._calls_begin) - 1
            places |= {max(place, 0), min(place + 1, len(steps) - 1)}
            if not steps or len(places) > STEPS_SOUGHT:
                return steps
            following = self._calls_begin(steps[place + 1]) if place + 1 < len(steps) else NO_CALL
            position = bisect_left(call_ids, following, position + 1)
        return [steps[place] for place in sorted(places)]

    def of_uses(self, call_id: int) -> Sequence[int]:
        """Steps that have the uses of a call: from that in which it began to that of its row."""
        near = self.of_calls([call_id])
        rows = self._rank.scan("calls", near).filter(pl.col("id") == call_id)
        began = self._rank.collect(rows.select(pl.col("step").min())).item()
        return self._rank.steps if began is None else [step for step in self.since(began) if step <= near[-1]]

    def of_readers(self, value_ids: Sequence[int]) -> list[int]:
        """Steps whose calls may use these values: those that wrote them, and those that reach back to them."""
        written = set(self.of_values_surely(value_ids))
        steps = self.since(min(written, default=0))
        return [step for step in steps if step in written or self._reaches(step, "values", value_ids)]

    def of_relatives(self, call: Call) -> list[int]:
        """Steps with calls whose parent or forward may be this one."""
        steps = self.since(call.step)
        return [step for step in steps if step == call.step or self._reaches(step, "calls", [call.id])]

    def since(self, first: int) -> list[int]:
        """Steps from this one on."""
        return [step for step in self._rank.steps if step >= first]

    def _reaches(self, step: int, rows: str, ids: Sequence[int]) -> bool:
        reach = self._rank.reach(step)
        return reach is None or any(each in getattr(reach, rows) for each in ids)

    def _calls_begin(self, step: int) -> int:
        """The first call that a step's files hold; of a step without calls, that of the next."""
        firsts = (self._first_call(each) for each in self.since(step))
        return next((first for first in firsts if first is not None), NO_CALL)

    def _first_call(self, step: int) -> int | None:
        if step not in self._first_calls:
            first = self._rank.collect(self._rank.scan("calls", [step]).select("id").head(1))
            self._first_calls[step] = None if first.is_empty() else first.item()
        return self._first_calls[step]
