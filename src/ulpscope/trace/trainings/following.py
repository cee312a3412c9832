"""All that is asked of a training's steps on one rank: its own numbers, other ranks' parameters, an earlier loss."""

import re
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from ulpscope.records.anomalies import Anomaly
from ulpscope.trace.trainings.agreement import RankAgreement
from ulpscope.trace.trainings.earlier import EarlierLosses, LossCourse
from ulpscope.trace.trainings.numbers import NumberReader
from ulpscope.trace.trainings.search import AnomalySearch

_RANK = re.compile(r"rank(\d+)$")


class TrainingFollower:
    """Goes with a training, step by step."""

    def __init__(self, directory: Path, *, like: EarlierLosses | None = None) -> None:
        """`directory` is the rank's."""
        named = _RANK.match(directory.name)
        rank = int(named[1]) if named else 0
        self._reader = NumberReader()
        self._search = AnomalySearch(rank)
        self._agreement = RankAgreement(directory.parent, rank) if named else None
        self._earlier = None if like is None else LossCourse(like, rank)

    def look(self, step: int, tables: Mapping[str, pl.DataFrame], *, skipped: bool = False) -> list[Anomaly]:
        """What is found with this step, each thing once."""
        numbers = self._reader.read(step, tables)
        found = self._search.look(numbers, skipped=skipped)
        if self._agreement is not None:
            found += self._agreement.look(numbers, tables)
        if self._earlier is not None:
            found += self._earlier.look(numbers)
        return found
