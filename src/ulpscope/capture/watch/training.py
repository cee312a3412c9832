"""Looks at the steps of a watched training as they are written, and tells what is unlike the training itself."""

from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.capture.recording import writing_process
from ulpscope.capture.recording.rows import Tables
from ulpscope.capture.recording.writing_process import PartReceiver, StepEnd, StepWriter
from ulpscope.trace.trainings.earlier import EarlierLosses
from ulpscope.trace.trainings.following import TrainingFollower
from ulpscope.trace.trainings.written import add_anomaly, anomaly_fields
from ulpscope.trace.writer import RankWriter

TROUBLE = "trouble"
"""In the place of an anomaly: why no more of them are looked for."""


class TrainingKeeper(StepWriter):
    """Writes all steps, and asks each of them when it has ended."""

    def __init__(self, writer: RankWriter, like: str | Path | None = None) -> None:
        super().__init__(writer)
        self._follower: TrainingFollower | None = None
        self._like = None if like is None else EarlierLosses(Path(like))
        self._waiting: list[Tables] = []
        self._found: list[dict[str, Any]] = []
        self._has_failed = False

    def take_found(self) -> list[dict[str, Any]]:
        found, self._found = self._found, []
        return found

    def write(self, step: int, tables: Tables, end: StepEnd | None) -> int:
        size = super().write(step, tables, end)
        self._waiting.append(tables)
        if end is not None:
            waiting, self._waiting = self._waiting, []
            whole = {name: pl.concat([each[name] for each in waiting]) for name in tables}
            if not whole["calls"].is_empty() and not self._has_failed:
                self._try(step, whole, skipped=end.skipped)
        return size

    def _try(self, step: int, tables: Tables, *, skipped: bool) -> None:
        """Steps are recorded though nobody can ask them."""
        try:
            self._look(step, tables, skipped=skipped)
        except Exception as error:
            self._has_failed = True
            self._found.append({TROUBLE: f"step {step} was the last that was asked: {type(error).__name__}: {error}"})

    def _look(self, step: int, tables: Tables, *, skipped: bool) -> None:
        directory = self._writer.directory
        if self._follower is None:
            self._follower = TrainingFollower(directory, like=self._like)
        for anomaly in self._follower.look(step, tables, skipped=skipped):
            add_anomaly(directory, anomaly)
            self._found.append(anomaly_fields(anomaly))


def serve(like: str | None = None) -> None:
    """As of any trace, and with a look at each step."""
    writing_process.serve(lambda writer: PartReceiver(TrainingKeeper(writer, like)))
