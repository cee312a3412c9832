"""Looks at the steps of a watched training as they are written, and tells what is unlike the training itself."""

from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.capture.recording import writing_process
from ulpscope.capture.recording.writing_process import StepWriter, Tables
from ulpscope.trace.trainings.earlier import EarlierLosses
from ulpscope.trace.trainings.following import TrainingFollower
from ulpscope.trace.trainings.written import add_anomaly, anomaly_fields
from ulpscope.trace.writer import RankWriter


class TrainingKeeper(StepWriter):
    """Writes all steps, and asks each of them when it has ended."""

    def __init__(self, writer: RankWriter, like: str | Path | None = None) -> None:
        super().__init__(writer)
        self._follower: TrainingFollower | None = None
        self._like = None if like is None else EarlierLosses(Path(like))
        self._waiting: list[Tables] = []
        self._found: list[dict[str, Any]] = []

    def take_found(self) -> list[dict[str, Any]]:
        found, self._found = self._found, []
        return found

    def write(self, step: int, tables: Tables, *, finished_after: float | None, skipped: bool) -> int:
        size = super().write(step, tables, finished_after=finished_after, skipped=skipped)
        self._waiting.append(tables)
        if finished_after is not None:
            waiting, self._waiting = self._waiting, []
            whole = {name: pl.concat([each[name] for each in waiting]) for name in tables}
            if not whole["calls"].is_empty():
                self._look(step, whole, skipped=skipped)
        return size

    def _look(self, step: int, tables: Tables, *, skipped: bool) -> None:
        directory = self._writer.directory
        if self._follower is None:
            self._follower = TrainingFollower(directory, like=self._like)
        for anomaly in self._follower.look(step, tables, skipped=skipped):
            add_anomaly(directory, anomaly)
            self._found.append(anomaly_fields(anomaly))


def serve(like: str | None = None) -> None:
    """As of any trace, and with a look at each step."""
    writing_process.serve(lambda writer: TrainingKeeper(writer, like))
