"""What each number of a training was so far: how it scatters, and what it has always been."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.chance import NORMAL_DEVIATION
from ulpscope.numerics.dtypes import Bools, Floats
from ulpscope.trace.trainings.limits import (
    LEAST_KNOWN,
    LEAST_NOISE,
    RECENT,
    REMEMBERED,
    USUAL_RUN,
)

Ints = NDArray[np.int64]
Key = tuple[str, str]
"""Quantity and name."""


@dataclass(frozen=True, slots=True)
class Departures:
    """How far numbers are from where they were expected."""

    deviations: Floats
    """From where they were, in units of each number's own noise; nan where nothing is expected yet."""
    rise: Floats
    """Above all that is remembered, as logarithms, alike; negative where they are not."""
    fall: Floats
    """Below all of it, alike."""


class Courses:
    """Logarithms of many numbers over the last steps."""

    def __init__(self) -> None:
        self._levels, self._residuals = (np.full((0, REMEMBERED), np.nan) for _ in range(2))
        self.known, self._last, self._gap = (np.zeros(0, dtype=np.int64) for _ in range(3))
        """How often a number was seen, in which step last, and how many steps lay between two of them, at most."""
        self.early = np.full(0, np.nan)
        """The median of the first steps."""

    def grow(self, rows: int) -> None:
        fresh = rows - len(self.known)
        if fresh > 0:
            more = np.full((fresh, REMEMBERED), np.nan)
            self._levels, self._residuals = np.vstack([self._levels, more]), np.vstack([self._residuals, more])
            none = np.zeros(fresh, dtype=np.int64)
            self.known, self._last, self._gap = (
                np.concatenate([each, none]) for each in (self.known, self._last, self._gap)
            )
            self.early = np.concatenate([self.early, np.full(fresh, np.nan)])

    def notice(self, step: int, rows: Ints, sizes: Floats) -> None:
        """A step has these: what was away for longer than ever may be anywhere now, and where it was is forgotten."""
        rows = rows[np.isfinite(_logarithms(sizes))]
        gap = np.where(self.known[rows] > 0, step - self._last[rows], 0)
        away = rows[(gap > self._gap[rows]) & (self._gap[rows] > 0)]
        self._levels[away] = self._residuals[away] = np.nan
        self.known[away] = 0
        self._gap[rows] = np.maximum(self._gap[rows], gap)
        self._last[rows] = step

    def depart(self, rows: Ints, sizes: Floats) -> Departures:
        """How far these numbers are from what they were."""
        now = _logarithms(sizes)
        usual = _medians(self._levels[rows, -RECENT:])
        noise = NORMAL_DEVIATION * _medians(np.abs(self._residuals[rows]))
        now = np.where(self.known[rows] >= LEAST_KNOWN, now, np.nan)
        low, high = np.fmin.reduce(self._levels[rows], axis=1), np.fmax.reduce(self._levels[rows], axis=1)
        return Departures(np.abs(now - usual) / np.fmax(noise, LEAST_NOISE), now - high, low - now)

    def usual(self, row: int) -> float | None:
        """What a number was in the last steps but this one."""
        before = self._levels[row, -RECENT - 1 : -1]
        return float(np.exp(np.nanmedian(before))) if np.isfinite(before).any() else None

    def remember(self, rows: Ints, sizes: Floats) -> None:
        """Take a step in; what cannot be compared leaves no mark."""
        now = _logarithms(sizes)
        there = np.isfinite(now)
        rows, now = rows[there], now[there]
        usual = _medians(self._levels[rows, -RECENT:])
        self._residuals[rows] = _pushed(self._residuals[rows], now - usual)
        self._levels[rows] = _pushed(self._levels[rows], now)
        self.known[rows] += 1
        settled = rows[self.known[rows] == USUAL_RUN]
        self.early[settled] = _medians(self._levels[settled])


class Habit:
    """For how long numbers have been in a state, and for how long in the other one before."""

    def __init__(self) -> None:
        self.off = np.zeros(0, dtype=np.int64)
        self._before = np.zeros(0, dtype=np.int64)

    def grow(self, rows: int) -> None:
        more = np.zeros(max(0, rows - len(self.off)), dtype=np.int64)
        self.off, self._before = np.concatenate([self.off, more]), np.concatenate([self._before, more])

    def note(self, rows: Ints, usual: Bools, broken: Bools) -> Ints:
        """Which of these are broken, and for how many steps in a row after a habit; 0 for all others."""
        back = usual & (self.off[rows] > 0)
        self._before[rows[back]] = 0
        self.off[rows[usual]] = 0
        self._before[rows[usual]] += 1
        self.off[rows[broken]] += 1
        return np.where(broken & (self._before[rows] >= USUAL_RUN), self.off[rows], 0)


def _logarithms(sizes: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log(np.where(sizes > 0, sizes, np.nan))
    return np.where(np.isfinite(found), found, np.nan)


def _medians(rows: Floats) -> Floats:
    """Of each row, of what is there; nan of nothing."""
    found = np.full(len(rows), np.nan)
    there = np.isfinite(rows).any(axis=1)
    found[there] = np.nanmedian(rows[there], axis=1)
    return found


def _pushed(rows: Floats, last: Floats) -> Floats:
    return np.concatenate([rows[:, 1:], last[:, None]], axis=1)
