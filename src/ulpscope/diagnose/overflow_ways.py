"""How an overflow travels: the calls that hand it on, from the one that made it to the loss."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from ulpscope.diagnose.overflow_signs import signs_of
from ulpscope.records.calls import Call
from ulpscope.records.enums import Role
from ulpscope.records.overflow_findings import WayCall
from ulpscope.records.overflows import NotFinite
from ulpscope.trace.reader import RankTrace


class _Shown(NamedTuple):
    """A tensor in which an overflow shows."""

    call: int
    role: str
    place: str
    value: int
    made: bool
    digest: int | None


@dataclass(slots=True)
class _Spread:
    """What an overflow has reached."""

    before: dict[int, int | None] = field(default_factory=dict)
    """Each call that has handed it on, and the one it was given it by; in the order of execution."""
    makers: dict[int, int] = field(default_factory=dict)
    """By value."""
    alike: dict[int, int] = field(default_factory=dict)
    """By digest: dumps do not tell which output an input is, but it has the same bits."""
    loss: int | None = None
    """The call that made the loss."""

    def giver(self, given: Sequence[_Shown]) -> int | None:
        """Whose result the first of these is that the overflow has reached."""
        for shown in given:
            maker = self.makers.get(shown.value)
            if maker is None and shown.digest is not None:
                maker = self.alike.get(shown.digest)
            if maker is not None:
                return maker
        return None

    def reach(self, call: int, giver: int | None, made: Sequence[_Shown]) -> None:
        self.before[call] = giver
        for shown in made:
            self.makers.setdefault(shown.value, call)
            if shown.digest is not None:
                self.alike.setdefault(shown.digest, call)

    def way_to(self, call: int) -> list[int]:
        """The calls that led there, the first first."""
        way = [call]
        while (giver := self.before[way[-1]]) is not None:
            way.append(giver)
        return way[::-1]


class OverflowWays:
    """The ways of the overflows of one step."""

    def __init__(self, rank: RankTrace, step: int) -> None:
        self._rank = rank
        columns = list(_Shown._fields)
        table = signs_of(rank, step).filter("sign").sort("call", maintain_order=True).select(columns)
        self._calls = [
            (number, list(map(_Shown._make, part.iter_rows())))
            for (number,), part in table.group_by("call", maintain_order=True)
        ]
        parents = rank.collect(rank.calls(step).select(pl.col("parent").drop_nulls().unique()))
        self._around = frozenset(parents["parent"])
        """Calls with calls inside, in which the same shows."""

    def way_of(self, born: int) -> tuple[WayCall, ...]:
        """From a call that made an overflow to the loss, or to the last of its phase; empty if it ends there."""
        spread = self._spread(born)
        if len(spread.before) < 2:
            return ()
        reached = self._rank.find_calls(spread.before)
        end = spread.loss if spread.loss is not None else _last(reached, born)
        way = spread.way_to(end)
        return tuple(self._told([reached[call] for call in way], spread.loss)) if len(way) > 1 else ()

    def _spread(self, born: int) -> _Spread:
        spread = _Spread()
        for call, shown in self._calls:
            if call < born or (call in self._around and call != born):
                continue
            made, given = [one for one in shown if one.made], [one for one in shown if not one.made]
            giver = None if call == born else spread.giver(given)
            if call != born and giver is None:
                continue
            if any(one.role == Role.LOSS.value for one in given) and spread.loss is None:
                spread.loss = giver
            if made or call == born:
                spread.reach(call, giver, made)
        return spread

    def _told(self, calls: Sequence[Call], loss: int | None) -> Iterator[WayCall]:
        shown = dict(self._calls)
        tensors = [next((one for one in shown[call.id] if one.made), shown[call.id][0]) for call in calls]
        values = self._rank.find_values(tensor.value for tensor in tensors)
        for call, tensor in zip(calls, tensors, strict=True):
            stats = values[tensor.value].stats
            counts = NotFinite() if stats is None else NotFinite(stats.nan, stats.pos_inf, stats.neg_inf)
            yield WayCall(call.name, call.op, call.module, call.phase, tensor.place, counts, is_loss=call.id == loss)


def _last(reached: dict[int, Call], born: int) -> int:
    """The last call of the phase in which it was born, however it goes on."""
    phase = reached[born].phase
    return max(number for number, call in reached.items() if call.phase is phase)
