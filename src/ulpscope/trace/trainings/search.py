"""Finds what of a training is unlike the training itself, step by step, as a run makes them.

A number jumps if it leaves where it was by more than the noise of its own last steps, and of all numbers like it: how
far the largest departure of a step reaches in this run tells how far it may reach by chance in a run so long. What is
odd in the steps just behind an anomaly follows from it, and is counted there.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ulpscope.numerics.dtypes import Bools, Floats
from ulpscope.records.anomalies import Anomaly, AnomalyKind, Quantity
from ulpscope.trace.trainings.histories import Courses, Habit, Ints, Key
from ulpscope.trace.trainings.limits import (
    ALIVE_SHARE,
    ALL_STUCK_RATE,
    CHANCE,
    CONFIRMED_RUN,
    DEAD_SHARE,
    FADED,
    HEAVIEST_TAIL,
    LEAST_ELEMENTS,
    LEAST_FALL,
    LEAST_RISE,
    LEAST_STEPS,
    MOST_SKIPS,
    OTHERS_FADED,
    QUIET_STEPS,
    STEPS_OF_LARGEST,
    STUCK_RATE,
    USUAL_RUN,
    WRITTEN_TIMES,
)
from ulpscope.trace.trainings.numbers import StepNumbers

_OUTPUT, _LOSS, _UPDATE = Quantity.OUTPUT.value, Quantity.LOSS.value, Quantity.UPDATE.value
_SCALED = (Quantity.OUTPUT_GRADIENT.value, Quantity.LOCAL_GRADIENT.value)
"""What a loss scale overflows first."""
_OF_PARAMETERS = (Quantity.LOCAL_GRADIENT.value, Quantity.GRADIENT.value)
_BACKWARD = (*_SCALED, Quantity.GRADIENT.value, Quantity.TOTAL_GRADIENT.value)
FAMILIES = ((_OUTPUT, _LOSS), _BACKWARD, (Quantity.STATE.value,), (_UPDATE,))
"""Numbers that are noisy alike."""


class Reach:
    """How far the largest departure of a step reaches, of one family of numbers."""

    def __init__(self) -> None:
        self._largest: deque[float] = deque(maxlen=STEPS_OF_LARGEST)
        self._steps = 0

    @property
    def limit(self) -> float:
        """Deviations that noise does not reach in so long a run: its tail is taken to be exponential."""
        if len(self._largest) < USUAL_RUN:
            return math.inf
        largest = np.array(self._largest)
        median = float(np.median(largest))
        tail = max(HEAVIEST_TAIL, float(np.mean(largest[largest >= median] - median)))
        return median + tail * math.log(max(self._steps, LEAST_STEPS) / CHANCE)

    def remember(self, largest: float) -> None:
        self._steps += 1
        self._largest.append(largest)


class _Step:
    """The columns of one step's numbers, as arrays."""

    def __init__(self, numbers: StepNumbers) -> None:
        self.table = numbers.table.unique(["quantity", "name"], keep="last", maintain_order=True)
        self.number = numbers.step
        self.keys: list[Key] = self.table.select("quantity", "name").rows()
        self.quantity = self.table["quantity"].to_numpy()
        self.size, self.rate, self.distance = (
            self.table[name].fill_null(np.nan).to_numpy() for name in ("size", "lr", "distance")
        )
        self.bad, self.minus_inf, self.zeros, self.elements = (
            self.table[name].fill_null(0).to_numpy() for name in ("not_finite", "minus_inf", "zeros", "elements")
        )
        self.content = self.table["digest"].fill_null(0).to_numpy()
        self.moved: Bools = self.table["moved"].fill_null(True).to_numpy()
        self.rows: Ints = np.empty(0, dtype=np.int64)

    def of(self, *quantities: str) -> Bools:
        return np.isin(self.quantity, quantities)

    @property
    def compared(self) -> Floats:
        """Sizes in which no known setting shows: updates in units of the learning rate. Nan of what is not finite."""
        rate = np.where(self.of(_UPDATE) & np.isfinite(self.rate), self.rate, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            sizes = np.where(rate > 0, self.size / rate, np.nan)
        return np.where((self.bad > 0) | (self.minus_inf > 0), np.nan, sizes)

    @property
    def loss_is_finite(self) -> bool:
        losses = self.of(_LOSS)
        return bool(np.isfinite(self.size[losses]).all()) and not self.bad[losses].any()


class AnomalySearch:
    """Knows a training so far, on one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._rows: dict[Key, int] = {}
        self._courses = Courses()
        self._finite, self._alive, self._nonzero, self._moving, self._own = (Habit() for _ in range(5))
        self._met = self._masked = np.zeros(0, dtype=bool)
        self._largest_update = self._largest_rate = np.zeros(0)
        self._content = np.zeros(0, dtype=np.uint64)
        """Digests."""
        self._fallen = np.zeros(0, dtype=np.int64)
        """Steps in a row in which a number was far below all before."""
        self._reach = [Reach() for _ in FAMILIES]
        self._skips = self._tests = 0
        self._last_odd: int | None = None
        self._worst = False
        """Whether what is going on is not finite."""

    def look(self, numbers: StepNumbers, *, skipped: bool = False) -> list[Anomaly]:
        """What is new in this step; `skipped`: a GradScaler has left its update out."""
        step = _Step(numbers)
        self._grow(step)
        sizes = np.where(self._is_untouched(step), np.nan, step.compared)
        self._courses.notice(step.number, step.rows, sizes)
        self._skips = self._skips + 1 if skipped else 0
        odd = [*self._not_finite(step, skipped=skipped), *self._written(step), *self._stuck(step)]
        odd += [*self._dead(step), *self._vanished(step), *self._jumps(step, sizes)]
        # One that has just fallen is not what it was, and not yet what it is.
        self._courses.remember(step.rows, np.where(self._fallen[step.rows] == 1, np.nan, sizes))
        return self._told(step, odd)

    def _grow(self, step: _Step) -> None:
        step.rows = np.array([self._rows.setdefault(key, len(self._rows)) for key in step.keys], dtype=np.int64)
        known = len(self._rows)
        for each in (self._courses, self._finite, self._alive, self._nonzero, self._moving, self._own):
            each.grow(known)
        more = known - len(self._met)
        self._met, self._masked = (np.pad(each, (0, more)) for each in (self._met, self._masked))
        self._largest_update, self._largest_rate = (
            np.pad(each, (0, more)) for each in (self._largest_update, self._largest_rate)
        )
        self._content, self._fallen = np.pad(self._content, (0, more)), np.pad(self._fallen, (0, more))

    def _is_untouched(self, step: _Step) -> Bools:
        """What an optimizer keeps and has not written since: that it is as it was, is no sign of little noise."""
        same: Bools = step.of(Quantity.STATE.value) & (step.content == self._content[step.rows])
        self._content[step.rows] = step.content
        return same

    def _not_finite(self, step: _Step, *, skipped: bool) -> Iterator[tuple[AnomalyKind, int]]:
        """Numbers that were finite so far. -inf of a forward beside a finite loss is a mask."""
        fine = step.loss_is_finite
        masks = step.of(_OUTPUT) & (step.bad == 0) & fine
        bad = (step.bad > 0) | ((step.minus_inf > 0) & ~masks)
        if skipped and fine and self._skips < MOST_SKIPS:
            bad &= ~step.of(*_SCALED)
        first = ~self._met[step.rows]
        self._masked[step.rows[first & bad & step.of(_OUTPUT) & fine]] = True
        self._met[step.rows] = True
        bad &= ~self._masked[step.rows]
        news = bad & (self._finite.off[step.rows] == 0)
        self._finite.note(step.rows, ~bad, bad)
        return ((AnomalyKind.NOT_FINITE, int(at)) for at in np.flatnonzero(news))

    def _written(self, step: _Step) -> Iterator[tuple[AnomalyKind, int]]:
        """Parameters that are not what the last update has left, by far more than any update moves them."""
        updates = step.of(_UPDATE) & np.isfinite(step.distance)
        rows = step.rows
        changed = updates & (step.distance > 0)
        habit = self._own.note(rows, updates & ~changed, changed)
        news = (habit == 1) & (step.distance > WRITTEN_TIMES * self._largest_update[rows])
        moves = np.where(updates & np.isfinite(step.size), step.size, 0.0)
        self._largest_update[rows] = np.maximum(self._largest_update[rows], moves)
        return ((AnomalyKind.WRITTEN, int(at)) for at in np.flatnonzero(news))

    def _stuck(self, step: _Step) -> Iterator[tuple[AnomalyKind, int]]:
        """Parameters whose updates change no bit any more, though their learning rate would."""
        updates, rows = step.of(_UPDATE), step.rows
        rate = np.where(np.isfinite(step.rate), step.rate, 1.0)
        self._largest_rate[rows] = np.maximum(self._largest_rate[rows], np.where(updates, rate, 0.0))
        share = np.divide(rate, self._largest_rate[rows], out=np.zeros(len(rows)), where=self._largest_rate[rows] > 0)
        asked = updates & (share > STUCK_RATE) & self._ran(step)
        still = self._moving.note(rows, asked & step.moved, asked & ~step.moved)
        if 2 * np.count_nonzero(asked & step.moved) < np.count_nonzero(asked):
            still = np.where(share > ALL_STUCK_RATE, still, 0)
        return ((AnomalyKind.STUCK, int(at)) for at in np.flatnonzero(still == CONFIRMED_RUN))

    def _dead(self, step: _Step) -> Iterator[tuple[AnomalyKind, int]]:
        share = step.zeros / np.maximum(step.elements, 1)
        asked = step.of(_OUTPUT) & (step.elements >= LEAST_ELEMENTS)
        dead = self._alive.note(step.rows, asked & (share < ALIVE_SHARE), asked & (share >= DEAD_SHARE))
        return ((AnomalyKind.DEAD, int(at)) for at in np.flatnonzero(dead == CONFIRMED_RUN))

    def _vanished(self, step: _Step) -> Iterator[tuple[AnomalyKind, int]]:
        """Gradients that are zero, or have shrunk far more than the others have. Modules that did not run have none."""
        asked = step.of(*_OF_PARAMETERS) & (step.elements > 0) & (step.bad == 0) & self._ran(step)
        zero = asked & (step.zeros >= step.elements)
        gone = self._nonzero.note(step.rows, asked & ~zero, zero) == CONFIRMED_RUN
        with np.errstate(divide="ignore", invalid="ignore"):
            faded = self._courses.early[step.rows] - np.log(np.where(asked & ~zero, step.size, np.nan))
        known = np.isfinite(faded)
        if known.any() and np.median(faded[known]) < math.log(OTHERS_FADED):
            gone |= known & (faded > math.log(FADED))
        return ((AnomalyKind.VANISHED, int(at)) for at in np.flatnonzero(gone))

    def _ran(self, step: _Step) -> Bools:
        """Whether the module of a parameter has given anything in this step, if it ever does."""
        there = {name for quantity, name in step.keys if quantity == _OUTPUT}
        modules = [name.rpartition(".")[0] for _, name in step.keys]
        return np.array([one in there or (_OUTPUT, one) not in self._rows for one in modules], dtype=bool)

    def _jumps(self, step: _Step, sizes: Floats) -> Iterator[tuple[AnomalyKind, int]]:
        """What has risen; what has fallen for two steps: sums of either sign are small for a moment now and then."""
        departures = self._courses.depart(step.rows, sizes)
        deviations = departures.deviations
        falls = (departures.fall > math.log(LEAST_FALL)) & ~step.of(_UPDATE)
        self._fallen[step.rows] = np.where(falls, self._fallen[step.rows] + 1, 0)
        large = (departures.rise > math.log(LEAST_RISE)) | (self._fallen[step.rows] == CONFIRMED_RUN)
        for family, reach in zip(FAMILIES, self._reach, strict=True):
            asked = step.of(*family) & np.isfinite(deviations)
            if not asked.any():
                continue
            self._tests += int(np.count_nonzero(asked))
            news = asked & large & (deviations > reach.limit)
            if not (news | (asked & falls)).any():
                reach.remember(float(deviations[asked].max()))
            yield from ((AnomalyKind.JUMP, int(at)) for at in np.flatnonzero(news))

    def _told(self, step: _Step, odd: Sequence[tuple[AnomalyKind, int]]) -> list[Anomaly]:
        """The first of what is odd, unless it follows from what was told before."""
        if not odd:
            return []
        follows = self._last_odd is not None and step.number - self._last_odd <= QUIET_STEPS
        infinite = [each for each in odd if each[0] is AnomalyKind.NOT_FINITE]
        escalates = bool(infinite) and not (follows and self._worst)
        self._worst = bool(infinite) or (follows and self._worst)
        self._last_odd = step.number
        if follows and not escalates:
            return []
        kind, at = _first(infinite or odd, step)
        return [replace(self._anomaly(kind, at, step), others=len({place for _, place in odd}) - 1)]

    def _anomaly(self, kind: AnomalyKind, at: int, step: _Step) -> Anomaly:
        row = step.table.row(at, named=True)
        value: float | None = row["size"]
        usual: float | None = None
        if kind is AnomalyKind.NOT_FINITE:
            value = row["not_finite"] + row["minus_inf"]
        elif kind is AnomalyKind.WRITTEN:
            value, usual = row["distance"], float(self._largest_update[step.rows[at]])
        elif kind is AnomalyKind.DEAD:
            value = row["zeros"] / max(row["elements"], 1)
        elif kind in (AnomalyKind.JUMP, AnomalyKind.VANISHED):
            usual = self._courses.usual(int(step.rows[at]))
            if row["quantity"] == _UPDATE and usual is not None:
                usual *= row["lr"] or 1.0
        return Anomaly(
            kind,
            step.number,
            self._rank,
            Quantity(row["quantity"]),
            row["name"],
            value,
            usual,
            row["call"],
            row["call_id"],
            tests=self._tests,
        )


def _first(odd: Sequence[tuple[AnomalyKind, int]], step: _Step) -> tuple[AnomalyKind, int]:
    """What happened first: writes before the forward, then as a step goes; a module before the one around it."""
    written = [each for each in odd if each[0] is AnomalyKind.WRITTEN]
    ordered = written or sorted(odd, key=lambda each: each[1])
    first = ordered[0]
    quantity = step.keys[first[1]][0]
    alike = [each for each in ordered if step.keys[each[1]][0] == quantity]
    names = [step.keys[place][1] for _, place in alike]
    innermost = (each for each, name in zip(alike, names, strict=True) if not _holds(name, names))
    return next(innermost, first)


def _holds(name: str, names: Sequence[str]) -> bool:
    return any(other.startswith(f"{name}.") for other in names)
