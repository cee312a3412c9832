"""How an overflow travels: the calls that hand it on, from the one that made it to the loss.

What a loss has passed already, such as a gradient that was written into, goes on with the weights of the next steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from ulpscope.diagnose.limits import STEPS_FOLLOWED
from ulpscope.diagnose.overflow.steps import Row, rows_by_call, signs_of
from ulpscope.records.calls import Call
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.overflows import NotFinite, WayCall
from ulpscope.trace.reader import RankTrace


@dataclass(frozen=True, slots=True)
class _Step:
    """The calls of a step in which something shows."""

    calls: dict[int, list[Row]]
    """What shows, by call, in the order of execution."""
    around: frozenset[int]
    """Calls with calls inside, in which the same shows."""


@dataclass(slots=True)
class _Spread:
    """What an overflow has reached."""

    before: dict[int, int | None] = field(default_factory=dict)
    """Each call that has handed it on, and the one it was given it by; in the order of execution."""
    makers: dict[int, int] = field(default_factory=dict)
    """By value."""
    alike: dict[int, int] = field(default_factory=dict)
    """By digest: dumps do not tell which output an input is, but it has the same bits."""
    storages: dict[int, int] = field(default_factory=dict)
    """What is written through one view is read through another."""
    made: set[int] = field(default_factory=set)
    """Values of which it is known who made them."""
    loss: int | None = None
    """The call that made the loss."""
    is_elsewhere: bool = False
    """It shows in other memory than that in which it was born."""

    def giver(self, given: Sequence[Row]) -> int | None:
        """Whose result the first of these is that the overflow has reached."""
        for shown in given:
            maker = self.makers.get(shown.value)
            if maker is None and shown.value not in self.made:
                maker = self._unseen(shown)
            if maker is not None:
                return maker
        return None

    def _unseen(self, shown: Row) -> int | None:
        """Whose result this is that no call is known to have made."""
        if shown.storage is not None and shown.storage in self.storages:
            return self.storages[shown.storage]
        return None if shown.digest is None else self.alike.get(shown.digest)

    def reach(self, call: int, giver: int | None, made: Sequence[Row]) -> None:
        self.is_elsewhere |= giver is not None and any(shown.storage not in self.storages for shown in made)
        self.before[call] = giver
        for shown in made:
            self.makers.setdefault(shown.value, call)
            if shown.digest is not None:
                self.alike.setdefault(shown.digest, call)
            if shown.storage is not None:
                self.storages[shown.storage] = call

    def follow(self, step: _Step, born: int) -> None:
        """Go on through the calls of a step."""
        inner = (shown for call, shown in step.calls.items() if call not in step.around)
        self.made |= {one.value for shown in inner for one in shown if one.made}
        for call, shown in step.calls.items():
            if call < born or (call in step.around and call != born):
                continue
            made, given = [one for one in shown if one.made], [one for one in shown if not one.made]
            giver = None if call == born else self.giver(given)
            if call != born and giver is None:
                continue
            if any(one.role == Role.LOSS.value for one in given) and self.loss is None:
                self.loss = giver
            if made or call == born:
                self.reach(call, giver, made)

    def way_to(self, call: int) -> list[int]:
        """The calls that led there, the first first."""
        way = [call]
        while (giver := self.before[way[-1]]) is not None:
            way.append(giver)
        return way[::-1]


class OverflowWays:
    """The ways of the overflows of one rank."""

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._read: dict[int, _Step] = {}

    def way_of(self, born: int, step: int) -> tuple[WayCall, ...]:
        """From a call that made an overflow to the loss, or to the last of its phase; empty if it ends there."""
        spread = self._spread(born, step)
        if len(spread.before) < 2:
            return ()
        reached = self._rank.find_calls(spread.before)
        end = spread.loss if spread.loss is not None else _last(reached, born)
        way = spread.way_to(end)
        return tuple(self._told([reached[call] for call in way], spread.loss)) if len(way) > 1 else ()

    def is_taken_on(self, born: int, step: int) -> bool:
        """Whether it is the loss, or a call makes more of it; one that fills the rest of the same memory does not."""
        spread = self._spread(born, step)
        return spread.is_elsewhere or spread.loss is not None

    def _spread(self, born: int, step: int) -> _Spread:
        spread = _Spread()
        for later in [number for number in self._rank.steps if number >= step][: 1 + STEPS_FOLLOWED]:
            if spread.loss is None:
                spread.follow(self._step(later), born)
        return spread

    def _step(self, number: int) -> _Step:
        if number not in self._read:
            self._read[number] = _read_step(self._rank, number)
        return self._read[number]

    def _told(self, calls: Sequence[Call], loss: int | None) -> Iterator[WayCall]:
        shown = {
            number: rows for step in {call.step for call in calls} for number, rows in self._step(step).calls.items()
        }
        followers = [*(shown[call.id] for call in calls[1:]), []]
        tensors = [_handed_on(shown[call.id], after) for call, after in zip(calls, followers, strict=True)]
        values = self._rank.find_values(tensor.value for tensor in tensors)
        for call, tensor in zip(calls, tensors, strict=True):
            stats = values[tensor.value].stats if tensor.value in values else None
            counts = NotFinite() if stats is None else NotFinite(stats.nan, stats.pos_inf, stats.neg_inf)
            yield WayCall(
                call.name,
                call.op,
                call.module,
                call.phase,
                tensor.place,
                counts,
                is_loss=call.id == loss,
                step=call.step,
                is_update=call.kind is Kind.OPTIMIZER,
            )


def _handed_on(shown: Sequence[Row], after: Sequence[Row]) -> Row:
    """Of what a call made, that which the next one reads."""
    made = [one for one in shown if one.made] or list(shown)
    read = {one.value for one in after if not one.made}
    return next((one for one in made if one.value in read), made[0])


def _read_step(rank: RankTrace, number: int) -> _Step:
    calls = rank.collect(rank.calls(number).select("id", "kind", "parent"))
    # An optimizer's kernels have the weights as they are inside of it; the next step reads its own.
    optimizers = calls.filter(pl.col("kind") == Kind.OPTIMIZER.value)["id"]
    around = set(calls["parent"].drop_nulls()) - set(optimizers)
    return _Step(rows_by_call(signs_of(rank, number)), frozenset(around))


def _last(reached: dict[int, Call], born: int) -> int:
    """The last call of its phase, however it goes on; without one, the last forward of the next step, or of its own."""
    first = reached[born]
    of_phase = [call.id for call in reached.values() if (call.step, call.phase) == (first.step, first.phase)]
    if max(of_phase) != born:
        return max(of_phase)
    later = {call.step for call in reached.values() if call.step > first.step}
    forward = [call.id for call in reached.values() if later and (call.step, call.phase) == (min(later), Phase.FORWARD)]
    return max(forward, default=max(call.id for call in reached.values() if call.step == first.step))
