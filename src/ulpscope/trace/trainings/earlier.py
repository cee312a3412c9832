"""Whether a training's loss is an earlier one's: it parts where it leaves the pair's own noise, or drifts away."""

from collections import deque
from pathlib import Path

import numpy as np
import polars as pl

from ulpscope.numerics.chance import median_deviation
from ulpscope.numerics.dtypes import Floats
from ulpscope.records.anomalies import Anomaly, AnomalyKind, Quantity
from ulpscope.trace.reader import Trace, open_trace
from ulpscope.trace.trainings.course import losses_of
from ulpscope.trace.trainings.limits import (
    DRIFT_NOISE,
    DRIFT_STEPS,
    DRIFTED,
    LEAST_PAIR_NOISE,
    PARTED_LEAST,
    PARTED_LOSS,
    PARTED_NOISE,
    RECENT,
    REMEMBERED,
    USUAL_RUN,
)
from ulpscope.trace.trainings.numbers import StepNumbers


class EarlierLosses:
    """The mean loss of each step of an earlier trace, by rank; another rank's where it has not as many."""

    def __init__(self, path: Path) -> None:
        self._trace: Trace = open_trace(path)

    def of(self, rank: int) -> dict[int, float]:
        ranks = {each.info.rank: each for each in self._trace.ranks}
        return losses_of(ranks.get(rank) or self._trace.ranks[0])


class LossCourse:
    """How far this training's losses are from the earlier one's, step by step; told once."""

    def __init__(self, earlier: EarlierLosses, rank: int) -> None:
        self._earlier, self._rank = earlier.of(rank), rank
        self._apart: deque[float] = deque(maxlen=REMEMBERED)
        self._told = False

    def look(self, numbers: StepNumbers) -> list[Anomaly]:
        usual = self._earlier.get(numbers.step)
        losses = numbers.table.filter(pl.col("quantity") == Quantity.LOSS.value)
        if usual is None or losses.is_empty() or self._told:
            return []
        loss = losses["size"][0]
        if loss is None or not np.isfinite(loss):
            return []
        apart = (loss - usual) / max(abs(usual), np.finfo(np.float64).tiny)
        self._told = self._is_parted(apart)
        self._apart.append(apart)
        if not self._told:
            return []
        row = losses.row(0, named=True)
        return [
            Anomaly(
                AnomalyKind.LIKE,
                numbers.step,
                self._rank,
                Quantity.LOSS,
                row["name"],
                loss,
                usual,
                row["call"],
                row["call_id"],
            )
        ]

    def _is_parted(self, apart: float) -> bool:
        before: Floats = np.array(self._apart)
        if len(before) and not before.any():
            return abs(apart) > PARTED_LOSS
        if len(before) < USUAL_RUN:
            return False
        noise = max(LEAST_PAIR_NOISE, median_deviation(before))
        jump = abs(apart - float(np.median(before[-RECENT:])))
        if jump > max(PARTED_LEAST, PARTED_NOISE * noise):
            return True
        if len(before) < DRIFT_STEPS:
            return False
        last = before[-DRIFT_STEPS:]
        scatter = median_deviation(last) / np.sqrt(DRIFT_STEPS)
        return bool(abs(np.median(last)) > max(DRIFTED, DRIFT_NOISE * scatter))
