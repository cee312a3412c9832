"""Which calls of a trace made nan, inf or a saturated float16 out of inputs that hold none of it, and which calls hand
it on from there to the loss: by their stats.

What no call has made was there before the trace begins (a weight, a mask), or was made where nobody looked. What masks
hold is sound, whoever hands it on, until nan comes of it, or a loss or an optimizer gets it. What a loss has passed
already, such as a gradient that was written into, goes on with the weights of the next steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import polars as pl

from ulpscope.operations.registry import Family, Trait, operation
from ulpscope.records.calls import Call
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.overflows import NotFinite, WayCall
from ulpscope.trace.overflow.steps import Row, ShownStep, Values, ends, rows_by_call, shown_step, signs_of
from ulpscope.trace.reader import RankTrace

STEPS_FOLLOWED = 4
"""Later steps that are looked at for a loss. Networks that are trained in turns have a step each."""


@dataclass(frozen=True, slots=True)
class Births:
    """The calls of one step in which something shows."""

    step: int
    calls: int
    born: tuple[int, ...] = ()
    """Ids in the order of execution, innermost calls only."""
    stated: tuple[int, ...] = ()
    """Those of them that an argument asks to: masked_fill(mask, -inf)."""
    written: tuple[int, ...] = ()
    """Those of them that an argument asks to, though no mask needs it: nan, or inf in a gradient or a loss."""
    given: int | None = None
    """The first call that was given nan or +inf that no call has made, if nothing was born before. Masks hold -inf."""
    inherited: int = 0
    unknown: int = 0
    """Calls whose inputs are not recorded, after the first in which something shows."""
    untold: int = 0
    """Calls of which nobody recorded whether what they gave is finite."""


class _Outcome(Enum):
    """What became of a call in which something shows."""

    BORN = "born"
    STATED = "stated"
    WRITTEN = "written"
    INHERITED = "inherited"
    CARRIED = "carried"
    """It hands on what masks hold."""
    UNKNOWN = "unknown"


_SOUND = (_Outcome.STATED, _Outcome.CARRIED)
_BIRTHS = (_Outcome.BORN, _Outcome.STATED, _Outcome.WRITTEN)


@dataclass(slots=True)
class _Known:
    """What calls of a rank have made so far."""

    broken: Values = field(default_factory=Values)
    sound: Values = field(default_factory=Values)
    made: Values = field(default_factory=Values)
    reads: bool = False
    """Whether inputs are recorded."""

    def forget_between(self, last: int, first: int) -> None:
        """Forget what calls between these two have made: in a run that is long, that would fill the memory."""
        for values in (self.broken, self.sound, self.made):
            values.forget_between(last, first)

    def is_outside(self, row: Row) -> bool:
        """Whether it is wrong, and no call has made it."""
        return row.wrong and not self.made.have(row) and row.storage not in self.broken.storages

    def is_broken(self, row: Row) -> bool:
        """Whether it comes of what was born, or came from outside and is not what masks hold."""
        return self.broken.have(row) or (row.wrong and not self.sound.have(row))

    def is_late(self, rows: Sequence[Row]) -> bool:
        """Whether others wrote all of these, as hooks write gradients."""
        return all(self.broken.have(row) or row.storage in self.broken.storages for row in rows)


class BirthSearch:
    """Looks at the steps of a rank in order, and remembers what calls have made."""

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        self._known = _Known()
        self._found = False
        self._first_end = self._last_begin = 0
        """The last call of the first step, the first of the last one."""

    def go_on_in(self, rank: RankTrace) -> None:
        """Later steps are those of this rank; what is older than the first and the last one has lost its meaning."""
        self._rank = rank
        self._known.forget_between(self._first_end, self._last_begin)

    def look(self, step: int) -> Births:
        """Where overflows of a step begin."""
        rank = self._rank
        columns = ("id", "kind", "op", "parent", "forward", "arguments")
        calls = rank.collect(rank.calls(step).select(columns).sort("id"))
        if not calls.is_empty():
            self._last_begin = calls["id"][0]
            self._first_end = self._first_end or calls["id"][-1]
        uses = signs_of(rank, step)
        self._known.reads = self._known.reads or not uses["made"].all()
        made = uses.filter("made")
        # Where no result at all is recorded, all calls; elsewhere a call without one gave no tensor.
        untold = calls.height if made.is_empty() else made.filter(~pl.col("told"))["call"].n_unique()
        if not uses["sign"].any():
            return Births(step, calls.height, untold=untold)
        shown = shown_step(calls, uses)
        judged = _StepSearch(shown, self._known)
        judged.judge()
        of = {kind: tuple(call for call, each in judged.outcomes.items() if each is kind) for kind in _Outcome}
        born = sorted(call for kind in _BIRTHS for call in of[kind])
        return Births(
            step=step,
            calls=calls.height,
            born=tuple(born),
            stated=of[_Outcome.STATED],
            written=of[_Outcome.WRITTEN],
            given=self._given(judged, [call for call in born if call not in of[_Outcome.STATED]]),
            inherited=sum(bool(shown.given(call)) for call in {*judged.around, *judged.outcomes} - {*born}),
            unknown=len(of[_Outcome.UNKNOWN]),
            untold=untold,
        )

    def _given(self, judged: "_StepSearch", born: Sequence[int]) -> int | None:
        outside = judged.outside
        found, self._found = self._found, self._found or bool(born) or bool(outside)
        if found or not outside or (born and born[0] < outside[0].call):
            return None
        first = outside[0]
        readers = {row.call for row in outside if row.value == first.value or row.digest == first.digest is not None}
        return min(judged.shown.innermost(readers))


class _StepSearch:
    """Judges the calls of one step, in their order."""

    def __init__(self, shown: ShownStep, known: _Known) -> None:
        self.shown = shown
        self.around = shown.around()
        self.outcomes: dict[int, _Outcome] = {}
        self.outside: list[Row] = []
        """What no call has made, where it is read."""
        self._known = known
        self._makers: dict[int, int] = {}
        self._open: list[int] = []
        """Calls around the one that is looked at."""

    def judge(self) -> None:
        for call in self.shown.order():
            self._close(self.shown.above(call))
            self._meet(call)
            made = self.shown.made(call)
            if call in self.around:
                self._open.append(call)
            elif made:
                self._judge(call, made)
                self._known.made.add(made)
        self._close(())

    def _close(self, still: Iterable[int]) -> None:
        """What a call around others gives is there when it ends."""
        kept = set(still)
        for call in [call for call in self._open if call not in kept]:
            self._open.remove(call)
            self._known.made.add(self.shown.made(call))

    def _meet(self, call: int) -> None:
        """Look at what comes from outside."""
        for row in filter(self._known.is_outside, self.shown.read(call)):
            asker = self.shown.asker(row)
            if asker is None:
                self.outside.append(row)
                continue
            self.outcomes[asker] = _Outcome.WRITTEN if row.nan else _Outcome.STATED
            self._known.made.add([row])
            (self._known.broken if row.nan else self._known.sound).add([row])

    def _judge(self, call: int, made: Sequence[Row]) -> None:
        known = self._known
        outcome = self.outcomes[call] = self._outcome(call, made, self.shown.given(call))
        self._makers |= {row.value: call for row in made if row.value not in self._makers}
        if outcome not in _SOUND:
            known.broken.add(made)
        elif any(row.value in self.shown.losses or row.storage in self.shown.trained for row in made):
            # It is a loss, or a gradient or parameter of an optimizer: no mask belongs there.
            source = _source(call, self.shown, self.outcomes, self._makers)
            was_stated = self.outcomes[source] is _Outcome.STATED
            self.outcomes[source] = _Outcome.WRITTEN if was_stated else _Outcome.BORN
            known.broken.add([*made, *self.shown.made(source)])
        else:
            known.sound.add(made)

    def _outcome(self, call: int, made: Sequence[Row], given: Sequence[Row]) -> _Outcome:
        shown, known = self.shown, self._known
        if not given and not known.reads and call != shown.first:
            return _Outcome.UNKNOWN
        late = shown.kinds[call] == Kind.MODULE_BACKWARD.value and known.is_late(made)
        if late or any(map(known.is_broken, given)):
            return _Outcome.INHERITED
        after, before, asked = ends(made), ends(given), shown.asked(call)
        # It makes no more than it hands on. -inf that is negated is +inf, but then no -inf is left.
        is_new = (after.nan and not before.nan) or (after.high and after.low and not before.high)
        if after.nan and not after.high and self._is_masked_row(call, given):
            return _Outcome.CARRIED
        # It makes tensors, of what masks hold, of what is no tensor: torch.from_numpy(mask).
        wraps = known.reads and call not in shown.readers and not (after.nan or after.high or asked.low)
        if (given and not is_new) or wraps:
            return _Outcome.CARRIED
        if not asked.cover(after):
            return _Outcome.BORN
        return _Outcome.WRITTEN if after.nan else _Outcome.STATED

    def _is_masked_row(self, call: int, given: Sequence[Row]) -> bool:
        """Whether it is a softmax of what a mask has made -inf: of a row that is nothing else, nan is all there is."""
        known = operation(self.shown.asking.get(call, (None, None))[0] or "")
        before = ends(given)
        is_softmax = known.family is Family.EXPONENTIAL and known.has(Trait.SHAPE_KEPT)
        only_masked = is_softmax and before.low and not before.high and not before.nan
        return only_masked and self._is_taken_out(call)

    def _is_taken_out(self, call: int) -> bool:
        """Whether somebody overwrites the nan that a call has made, wherever it goes."""
        readers: dict[int, set[int]] = {}
        for reader in self.shown.rows:
            for row in self.shown.read(reader) if reader not in self.around else ():
                readers.setdefault(row.value, set()).add(reader)
        waiting, seen, ends_somewhere = [row.value for row in self.shown.made(call) if row.nan], set[int](), False
        while waiting:
            value = waiting.pop()
            if not readers.get(value):
                return False
            for reader in readers[value] - seen:
                seen.add(reader)
                handed_on = [row.value for row in self.shown.made(reader) if row.nan]
                waiting += handed_on
                ends_somewhere |= not handed_on
        return ends_somewhere


def _source(call: int, shown: ShownStep, outcomes: Mapping[int, _Outcome], makers: Mapping[int, int]) -> int:
    """The call that something sound comes from, or that has turned -inf into +inf."""
    while outcomes[call] is _Outcome.CARRIED:
        given = shown.given(call)
        after, before = ends(shown.made(call)), ends(given)
        if (after.high and not before.high) or (after.nan and not before.nan):
            return call
        earlier = [makers[row.value] for row in given if makers.get(row.value, call) < call]
        if not earlier:
            return call
        call = earlier[0]
    return call


class _Step(NamedTuple):
    """The calls of a step in which something shows."""

    calls: dict[int, list[Row]]
    """What shows, by call, in the order of execution."""
    around: set[int]
    """Calls with calls inside, in which the same shows."""


@dataclass(slots=True)
class _Spread:
    """What an overflow has reached."""

    before: dict[int, int | None] = field(default_factory=dict)
    """Each call that has handed it on, and the one it was given it by; in the order of execution."""
    reached: Values = field(default_factory=Values)
    made: set[int] = field(default_factory=set)
    """Values of which it is known who made them."""
    loss: int | None = None
    """The call that made the loss."""
    is_elsewhere: bool = False
    """It shows in other memory than that in which it was born."""

    def giver(self, given: Sequence[Row]) -> int | None:
        """Whose result the first of these is that the overflow has reached."""
        for shown in given:
            maker = self.reached.ids.get(shown.value)
            if maker is None and shown.value not in self.made:
                # No call is known to have made it.
                maker = self.reached.storages.get(shown.storage, self.reached.digests.get(shown.digest))
            if maker is not None:
                return maker
        return None

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
                elsewhere = any(one.storage not in self.reached.storages for one in made)
                self.is_elsewhere |= giver is not None and elsewhere
                self.before[call] = giver
                self.reached.add(made)

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
            calls = self._rank.collect(self._rank.calls(number).select("id", "kind", "parent"))
            # An optimizer's kernels have the weights as they are inside of it; the next step reads its own.
            optimizers = calls.filter(pl.col("kind") == Kind.OPTIMIZER.value)["id"]
            around = set(calls["parent"].drop_nulls()) - set(optimizers)
            self._read[number] = _Step(rows_by_call(signs_of(self._rank, number)), around)
        return self._read[number]

    def _told(self, calls: Sequence[Call], loss: int | None) -> Iterator[WayCall]:
        shown = [self._step(call.step).calls[call.id] for call in calls]
        tensors = [_handed_on(rows, after) for rows, after in zip(shown, [*shown[1:], []], strict=True)]
        values = self._rank.find_values(tensor.value for tensor in tensors)
        for call, tensor in zip(calls, tensors, strict=True):
            stats = values[tensor.value].stats if tensor.value in values else None
            counts = NotFinite() if stats is None else NotFinite(stats.nan, stats.pos_inf, stats.neg_inf)
            told = WayCall(call.name, call.op, call.module, call.phase, tensor.place, counts, step=call.step)
            yield replace(told, is_loss=call.id == loss, is_update=call.kind is Kind.OPTIMIZER)


def _handed_on(shown: Sequence[Row], after: Sequence[Row]) -> Row:
    """Of what a call made, that which the next one reads."""
    made = [one for one in shown if one.made] or list(shown)
    read = {one.value for one in after if not one.made}
    return next((one for one in made if one.value in read), made[0])


def _last(reached: dict[int, Call], born: int) -> int:
    """The last call of its phase, however it goes on; without one, the last forward of the next step, or of its own."""
    first = reached[born]
    of_phase = [call.id for call in reached.values() if (call.step, call.phase) == (first.step, first.phase)]
    if max(of_phase) != born:
        return max(of_phase)
    later = {call.step for call in reached.values() if call.step > first.step}
    forward = [call.id for call in reached.values() if later and (call.step, call.phase) == (min(later), Phase.FORWARD)]
    return max(forward, default=max(call.id for call in reached.values() if call.step == first.step))
