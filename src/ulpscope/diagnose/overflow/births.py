"""Which calls of a trace made nan, inf or a saturated float16 out of inputs that hold none of it: by their stats.

What no call has made was there before the trace begins (a weight, a mask), or was made where nobody looked. What masks
hold is sound, whoever hands it on, until nan comes of it, or a loss or an optimizer gets it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import polars as pl

from ulpscope.diagnose.overflow.steps import Row, ShownStep, Values, ends, shown_step, signs_of
from ulpscope.records.enums import Kind
from ulpscope.trace.reader import RankTrace


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

    def look(self, step: int) -> Births:
        """Where overflows of a step begin."""
        rank = self._rank
        columns = ("id", "kind", "op", "parent", "forward", "arguments")
        calls = rank.collect(rank.calls(step).select(columns).sort("id"))
        uses = signs_of(rank, step)
        self._known.reads = self._known.reads or not uses["made"].all()
        untold = _untold(calls, uses)
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
        elif any(map(self.shown.is_trained_on, made)):
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
        if given and not _is_new(made, given):
            return _Outcome.CARRIED
        if known.reads and call not in shown.readers and _is_mask(made) and not shown.asked(call).low:
            # It makes tensors of what is no tensor: torch.from_numpy(mask).
            return _Outcome.CARRIED
        if not shown.asked(call).cover(ends(made)):
            return _Outcome.BORN
        return _Outcome.WRITTEN if ends(made).nan else _Outcome.STATED


def _untold(calls: pl.DataFrame, uses: pl.DataFrame) -> int:
    """Where no result at all is recorded, all calls; elsewhere a call without one gave no tensor."""
    made = uses.filter("made")
    return calls.height if made.is_empty() else made.filter(~pl.col("told"))["call"].n_unique()


def _source(call: int, shown: ShownStep, outcomes: Mapping[int, _Outcome], makers: Mapping[int, int]) -> int:
    """The call that something sound comes from, or that has turned -inf into +inf."""
    while outcomes[call] is _Outcome.CARRIED:
        given = shown.given(call)
        if ends(shown.made(call)).high and not ends(given).high:
            return call
        earlier = [makers[row.value] for row in given if makers.get(row.value, call) < call]
        if not earlier:
            return call
        call = earlier[0]
    return call


def _is_mask(rows: Sequence[Row]) -> bool:
    """Whether all that shows is what masks hold."""
    return not ends(rows).nan and not ends(rows).high


def _is_new(made: Sequence[Row], given: Sequence[Row]) -> bool:
    """Whether a call makes more than it hands on. -inf that is negated is +inf, but then no -inf is left."""
    after, before = ends(made), ends(given)
    return (after.nan and not before.nan) or (after.high and after.low and not before.high)
