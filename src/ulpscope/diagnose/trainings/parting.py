"""Where two trainings part, and why: the first step in which something differs by more than the pair's own noise.

A step is asked in the order in which it runs: the optimizers' settings, the weights, random numbers and losses, and the
gradients. As long as all is identical, anything that differs is news, unless it is as small as rounding: then the runs
are noisy from there on. In noise, news is what leaves behind how errors have moved from step to step so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ulpscope.diagnose.limits import (
    COARSEST_ROUNDOFF,
    DRIFT_SHARE,
    DRIFT_STEPS,
    FIRST_ERROR,
    FIRST_GRADIENTS,
    FIRST_LOSS,
    HALF_ROUNDOFF,
    JUMP_SCATTERS,
    LEAST_JUMP,
    LOSS_ROUNDOFFS,
    PARAMETERS_NAMED,
    PEERS_APART,
    SAME_DIRECTION,
    SMALL_GRADIENT,
    SMALLEST_ERROR,
    STEPS_OF_NOISE,
    STEPS_REMEMBERED,
    UPDATES_APART,
)
from ulpscope.diagnose.trainings.courses import Courses, Update
from ulpscope.numerics.chance import median_deviation
from ulpscope.numerics.dtypes import Bools, Floats
from ulpscope.records.enums import GRADIENT_ROLE, LOSS_ROLE, PARAMETER_ROLE, Phase
from ulpscope.records.findings import Place
from ulpscope.records.pairs import Pair
from ulpscope.records.trainings import Beginning, Cause, Drift, PartedParameter, Parting


@dataclass(frozen=True)
class Course:
    """One kind of number, step by step: what is not there is nan, what is identical 0."""

    names: tuple[str, ...]
    errors: Floats
    """A row a step, a column a name."""
    own: Pair[Floats]
    """How far each run has moved since the step before, alike."""
    uncertain: Floats
    """Shares of elements whose sign an error may have turned, alike."""
    roundoff: Floats
    """Of the coarsest type either run has there, by name."""
    table: pl.DataFrame

    def news(self, row: int) -> Bools:
        """What differs in a step by more than rounding, or than it did so far."""
        now = self.errors[row]
        there = np.nan_to_num(now, nan=0.0) > 0
        if not self.was_noisy(row):
            return np.asarray(there & (now > np.sqrt(self.roundoff)))
        return np.asarray(there & self.leaps(row))

    def is_noisy(self, row: int) -> bool:
        """Whether anything differs in a step."""
        return bool(self._noisy[row])

    def was_noisy(self, row: int) -> bool:
        """Whether anything differed before it."""
        return bool(self._noisy[:row].any())

    @cached_property
    def _noisy(self) -> Bools:
        return np.asarray(np.nansum(self.errors, axis=1) != 0)

    def recent(self, row: int) -> Floats:
        """The largest errors of the steps before one, by name."""
        return _largest(self.errors, row)

    def leaps(self, row: int) -> Bools:
        """What leaves behind how errors have moved so far."""
        moved = self._moved(row)
        known = [self._moved(earlier) for earlier in range(max(1, row - STEPS_REMEMBERED), row)]
        scatter = _scatter(np.concatenate(known)) if len(known) >= STEPS_OF_NOISE else 0.0
        return np.asarray(np.nan_to_num(moved, nan=0.0) > max(np.log(LEAST_JUMP), JUMP_SCATTERS * scatter))

    def _moved(self, row: int) -> Floats:
        """By how much, in logarithms, errors of a step are larger than those before."""
        if row not in self._known_moves:
            self._known_moves.pop(row - 2 * STEPS_REMEMBERED, None)  # steps are asked in their order
            self._known_moves[row] = self._find_moved(row)
        return self._known_moves[row]

    @cached_property
    def _known_moves(self) -> dict[int, Floats]:
        return {}

    def _find_moved(self, row: int) -> Floats:
        floor = np.maximum(self.roundoff, SMALLEST_ERROR)
        now = np.log(np.fmax(self.errors[row], floor))
        moved: Floats = now - np.log(np.maximum(self.recent(row), floor))
        return np.where(np.isfinite(self.errors[row]) | (self.errors[row] == np.inf), moved, np.nan)


def _largest(numbers: Floats, row: int) -> Floats:
    """The largest of the steps before one, by name."""
    before = np.nan_to_num(numbers[max(0, row - STEPS_REMEMBERED) : row], nan=0.0)
    return np.asarray(before.max(axis=0, initial=0.0))


def _scatter(moved: Floats) -> float:
    known = moved[np.isfinite(moved)]
    return median_deviation(known) if len(known) else 0.0


def _course(courses: Courses, role: str) -> Course:
    table = courses.table.filter(pl.col("role") == role)
    names = tuple(table["parameter"].unique(maintain_order=True))
    columns, rows = {name: index for index, name in enumerate(names)}, {s: i for i, s in enumerate(courses.steps)}
    errors, roundoff = np.full((len(rows), len(names)), np.nan), np.zeros(len(names))
    own = Pair(np.full_like(errors, np.nan), np.full_like(errors, np.nan))
    uncertain = np.full_like(errors, np.nan)
    known = table.select("step", "parameter", "error", "own", "own_target", "uncertain", "roundoff")
    for step, name, error, reference, target, share, unit in known.iter_rows():
        place = rows[step], columns[name]
        errors[place], own.reference[place], own.target[place], uncertain[place] = error, reference, target, share
        roundoff[columns[name]] = max(roundoff[columns[name]], unit)
    return Course(names, errors, own, uncertain, roundoff, table)


class PartingSearch:
    """Goes through the steps of one rank."""

    def __init__(self, courses: Courses) -> None:
        self._courses = courses
        self._losses, self._gradients, self._weights = (
            _course(courses, role) for role in (LOSS_ROLE, GRADIENT_ROLE, PARAMETER_ROLE)
        )

    def find(self) -> Parting | None:
        """The first parting."""
        found = (self._ask(row) for row in range(len(self._courses.steps)))
        return next((parting for parting in found if parting is not None), None)

    def noisy_since(self) -> int | None:
        """The first step in which anything differs."""
        kinds = (self._losses, self._gradients, self._weights)
        rows = (row for row in range(len(self._courses.steps)) if any(kind.is_noisy(row) for kind in kinds))
        row = next(rows, None)
        return None if row is None else self._courses.steps[row]

    def beginning(self) -> Beginning | None:
        """How the first step of both begins."""
        if not self._courses.steps:
            return None
        known, apart = self._courses.precision, np.nan_to_num(self._losses.errors[0], nan=0.0, posinf=np.inf)
        roundoffs = float(apart.max(initial=0.0)) / known.roundoff if self._begins_alike(0) else None
        step, types = self._courses.steps[0], (known.types.reference, known.types.target)
        return Beginning(self._courses.rank, step, types, roundoffs, (roundoffs or 0.0) > LOSS_ROUNDOFFS)

    def drift(self) -> Drift | None:
        """From where on the median gradient differs about as much as those of two batches do."""
        shares = self._gradients.table.filter(pl.col("own") > 0).with_columns(share=pl.col("error") / pl.col("own"))
        steps = shares.group_by("step").agg(pl.col("share").median()).sort("step")
        far = steps["share"].to_numpy() >= DRIFT_SHARE
        row = next((at for at in range(len(far)) if far[at:].all() and len(far) - at >= DRIFT_STEPS), None)
        if row is None:
            return None
        step = int(steps["step"][row])
        worst = shares.filter(pl.col("step") == step).sort("share", descending=True).row(0, named=True)
        return Drift(self._courses.rank, step, worst["parameter"], worst["cosine"])

    def _ask(self, row: int) -> Parting | None:
        updates = self._courses.updates.get(self._courses.steps[row], [])
        for ask in (self._settings, self._missing, self._written, self._computed):
            parting = ask(row, updates)
            if parting is not None:
                return parting
        return None

    def _settings(self, row: int, updates: Sequence[Update]) -> Parting | None:
        for update in updates:
            if update.arguments and not self._differed_before(row, update):
                return self._parting(Cause.SETTING, row, update, _of_group(update))
        return None

    def _differed_before(self, row: int, update: Update) -> bool:
        """Whether the same was true in the first step, of which it was told."""
        earlier = self._courses.updates.get(self._courses.steps[row - 1], []) if row else []
        return any(each.op == update.op and each.arguments == update.arguments for each in earlier)

    def _missing(self, row: int, updates: Sequence[Update]) -> Parting | None:
        for update in updates:
            if update.one_sided:
                parted = tuple(PartedParameter(name, np.inf, 0.0) for name in update.one_sided[:PARAMETERS_NAMED])
                return Parting(Cause.MISSING, self._place(row, update, parted), parted, of=len(self._weights.names))
        return None

    def _written(self, row: int, updates: Sequence[Update]) -> Parting | None:
        """Weights that differ where nothing before them does, or more than they did."""
        news = self._weight_news(row)
        if not news.any():
            return None
        if row == 0:
            cause = Cause.START
        else:
            # An update moves all that it is given; who writes into weights past it means some.
            there = np.isfinite(self._weights.errors[row])
            cause = Cause.CHANGED if 2 * news.sum() <= there.sum() else Cause.UPDATE
        return self._parting(cause, row, updates[0] if updates else None, self._parted(self._weights, row, news))

    def _weight_news(self, row: int) -> Bools:
        """An update moves each weight by itself: where all was identical, few that differ are no rounding."""
        course = self._weights
        now = np.nan_to_num(course.errors[row], nan=0.0)
        if course.was_noisy(row) or self._gradients.was_noisy(row):
            return np.asarray(course.leaps(row) & (now > self._explained(row)))
        differ = now > 0
        return differ if 2 * differ.sum() <= np.isfinite(course.errors[row]).sum() else course.news(row)

    def _explained(self, row: int) -> Floats:
        """How far weights may be apart after an update from gradients that were so far apart.

        Optimizers that divide by a gradient's size move weights by its sign: of gradients with an error, about so large
        a share has the other one, and all that are smaller than the error may. Of gradients that have nothing in common
        one run may move a weight, and the other not.
        """
        course, gradients = self._weights, self._gradients
        before = np.maximum(gradients.recent(row), _largest(gradients.uncertain, row))
        known = dict(zip(gradients.names, before, strict=True))
        apart = np.array([min(1.0, known.get(name, 1.0)) for name in course.names])
        own = course.own.map(lambda moved: np.nan_to_num(moved[row], nan=0.0))
        moved = np.where(apart >= 1.0, np.maximum(*own), own.reference)
        return np.asarray(course.recent(row) + UPDATES_APART * np.sqrt(apart) * moved)

    def _computed(self, row: int, updates: Sequence[Update]) -> Parting | None:
        """Losses and gradients that differ though the weights do not, or no more than they did."""
        losses, gradients = self._loss_news(row), self._gradient_news(row)
        if not gradients.any() and not (losses and self._begins_alike(row)):
            return None
        # Of the first step, what the forward left in the loss is seen to the last bit.
        same_loss = not self._losses.is_noisy(row) if self._begins_alike(row) else not losses
        if same_loss and len(self._losses.names):
            cause = Cause.BACKWARD
        else:
            cause = Cause.RANDOMNESS if self._draws_apart(row, updates) else Cause.INPUT
        parted = self._parted(self._gradients, row, gradients)
        return self._parting(cause, row, updates[0] if updates else None, parted)

    def _begins_alike(self, row: int) -> bool:
        """Whether this is the first step, from weights of the same bits: what differs is not left by steps before."""
        return row == 0 and not self._weights.is_noisy(row)

    def _loss_news(self, row: int) -> bool:
        """Losses of the same weights differ by what rounds; later ones as they have differed so far."""
        if not self._begins_alike(row):
            return bool(self._losses.news(row).any())
        unit = self._courses.precision.roundoff
        errors = np.nan_to_num(self._losses.errors[row], nan=0.0, posinf=np.inf)
        return bool((errors > (np.sqrt(unit) if unit >= HALF_ROUNDOFF else FIRST_LOSS * unit)).any())

    def _gradient_news(self, row: int) -> Bools:
        """All of them move together where the loss is another one; a single one only where it stands out."""
        course = self._gradients
        now = course.errors[row]
        there = np.isfinite(now)
        if not there.any():
            return np.asarray(there)
        median = float(np.median(now[there]))
        if row:
            news = course.news(row)
            return news if 2 * news.sum() >= there.sum() else np.asarray(news & (now > PEERS_APART * median))
        now = now * self._weights_of_gradients(row)
        unit = self._courses.precision.roundoff if self._begins_alike(row) else COARSEST_ROUNDOFF
        first = FIRST_ERROR if unit >= HALF_ROUNDOFF else FIRST_GRADIENTS * unit
        return np.asarray(there & (now > (first if median > first else max(first, PEERS_APART * median))))

    def _weights_of_gradients(self, row: int) -> Floats:
        """How much errors count: those of gradients that are small beside all others may be all that these are."""
        step = self._gradients.table.filter(pl.col("step") == self._courses.steps[row])
        norms = dict(step.select("parameter", "norm_reference").iter_rows())
        sizes = np.nan_to_num(np.array([norms.get(name) or 0.0 for name in self._gradients.names], dtype=np.float64))
        least = SMALL_GRADIENT * float(np.linalg.norm(sizes))
        return np.asarray(sizes / np.maximum(sizes, max(least, SMALLEST_ERROR)))

    def _draws_apart(self, row: int, updates: Sequence[Update]) -> bool:
        """Whether generators have just parted."""
        earlier = self._courses.updates.get(self._courses.steps[row - 1], []) if row else []
        return not all(each.same_random for each in updates) and all(each.same_random for each in earlier)

    def _parted(self, course: Course, row: int, news: Bools) -> tuple[PartedParameter, ...]:
        errors = np.where(news, course.errors[row], -1.0)
        order = np.argsort(-errors, kind="stable")[: min(int(news.sum()), PARAMETERS_NAMED)]
        recent, step = course.recent(row), self._courses.steps[row]
        return tuple(self._parameter(course, step, int(each), float(recent[each])) for each in order)

    def _parameter(self, course: Course, step: int, column: int, before: float) -> PartedParameter:
        found = course.table.filter(pl.col("step") == step, pl.col("parameter") == course.names[column])
        known = found.row(0, named=True)
        return PartedParameter(course.names[column], known["error"], before, known["cosine"], known["signs"])

    def _parting(self, cause: Cause, row: int, update: Update | None, parted: tuple[PartedParameter, ...]) -> Parting:
        return Parting(
            cause,
            self._place(row, update, parted),
            parted[:PARAMETERS_NAMED] if cause is not Cause.SETTING else parted,
            () if update is None or cause is not Cause.SETTING else update.arguments,
            self._loss(row),
            len(self._weights.names),
            self._factor(row) if cause is Cause.BACKWARD else None,
        )

    def _place(self, row: int, update: Update | None, parted: Sequence[PartedParameter]) -> Place:
        named = None if update is None else (update.call, update.call_id, update.op)
        call, call_id, op = named or (None, None, None)
        tensor = parted[0].name if parted else None
        module = None if tensor is None else tensor.rpartition(".")[0] or None
        step, rank = self._courses.steps[row], self._courses.rank
        return Place(rank, step, Phase.UPDATE, call, call_id, op, module, tensor)

    def _loss(self, row: int) -> tuple[float, float] | None:
        """The mean of each run's losses of a step."""
        losses = self._losses.table.filter(pl.col("step") == self._courses.steps[row])
        if losses.is_empty():
            return None
        means = losses.select(pl.col("mean_reference", "mean_target").mean()).row(0)
        return None if None in means else (float(means[0]), float(means[1]))

    def _factor(self, row: int) -> float | None:
        """How many times as large the gradients are, if all have the same directions."""
        step = self._gradients.table.filter(pl.col("step") == self._courses.steps[row], pl.col("norm_reference") > 0)
        factors = (step["norm_target"] / step["norm_reference"]).to_numpy()
        if not len(factors) or float(step["cosine"].min() or 0.0) < 1.0 - SAME_DIRECTION:  # type: ignore[arg-type]
            return None
        typical = float(np.median(factors))
        is_common = abs(typical - 1.0) > SAME_DIRECTION and np.allclose(factors, typical, rtol=SAME_DIRECTION)
        return typical if is_common else None


def _of_group(update: Update) -> tuple[PartedParameter, ...]:
    """The parameters whose options these are."""
    return tuple(PartedParameter(name, 0.0, 0.0) for name in update.parameters)


_ORDER = tuple(Cause)


def first_of(partings: Sequence[Parting]) -> list[Parting]:
    """In the order of steps; a rank whose loss differs comes before those that were given its gradients."""
    return sorted(partings, key=lambda each: (each.place.step, _ORDER.index(each.cause), each.place.rank))
