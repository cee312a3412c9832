"""Tells which steps' files a question needs, so that one call of a thousand steps is found by opening a few.

Ids grow over the steps, and step.json says where a step's values begin and what it points to in earlier steps. A row
that is not where it should be is looked for in all steps by whoever asks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from ulpscope.records.calls import Call

if TYPE_CHECKING:
    from ulpscope.trace.reader import RankTrace

# To learn where a step's calls begin, one of its files is opened. For ids of many steps, scanning all files is quicker.
STEPS_SOUGHT = 16
# Greater than every id.
NO_CALL = 2**63


class Whereabouts:
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
        return [step for step in self.since(min(written, default=0)) if step in written or self._reads(step, value_ids)]

    def of_relatives(self, call: Call) -> list[int]:
        """Steps with calls whose parent or forward may be this one."""
        return [step for step in self.since(call.step) if step == call.step or self._belongs(step, call.id)]

    def since(self, first: int) -> list[int]:
        """Steps from this one on."""
        return [step for step in self._rank.steps if step >= first]

    def _reads(self, step: int, value_ids: Sequence[int]) -> bool:
        reach = self._rank.reach(step)
        return reach is None or any(value_id in reach.values for value_id in value_ids)

    def _belongs(self, step: int, call_id: int) -> bool:
        reach = self._rank.reach(step)
        return reach is None or call_id in reach.calls

    def _calls_begin(self, step: int) -> int:
        """The first call that a step's files hold; of a step without calls, that of the next."""
        firsts = (self._first_call(each) for each in self.since(step))
        return next((first for first in firsts if first is not None), NO_CALL)

    def _first_call(self, step: int) -> int | None:
        if step not in self._first_calls:
            first = self._rank.collect(self._rank.scan("calls", [step]).select("id").head(1))
            self._first_calls[step] = None if first.is_empty() else first.item()
        return self._first_calls[step]
