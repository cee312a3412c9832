"""Whether ranks have the same parameters where they should: each rank looks at the one before it.

Parameters of a DistributedDataParallel should agree; so should those that still did after some updates, whoever keeps
them alike.
"""

from collections.abc import Mapping
from pathlib import Path

import polars as pl
from polars.exceptions import PanicException, PolarsError

from ulpscope.records.anomalies import Anomaly, AnomalyKind, Quantity
from ulpscope.records.enums import OPTIMIZER_KIND, PARAMETER_AFTER_ROLE
from ulpscope.trace.schema import STEP_FILE, step_name
from ulpscope.trace.trainings.limits import AGREED_UPDATES
from ulpscope.trace.trainings.numbers import StepNumbers

PARALLEL = "torch.nn.parallel.distributed.DistributedDataParallel"
MOST_WAITING = 8
"""Steps of which the other rank has not written yet. One that is so far behind is not waited for."""

_Digests = dict[str, int]


class RankAgreement:
    """Of one rank with the one before it, which writes into the same trace."""

    def __init__(self, trace: Path, rank: int) -> None:
        self._other = trace / f"rank{rank - 1}"
        self._rank = rank
        self._waiting: dict[int, StepNumbers] = {}
        self._parallel: set[str] = set()
        """Paths of models that keep ranks alike."""
        self._agreed: dict[str, int] = {}
        """By parameter: updates after which both had the same."""
        self._told = False

    def look(self, numbers: StepNumbers, tables: Mapping[str, pl.DataFrame]) -> list[Anomaly]:
        """What is found with the steps that both have written now."""
        if self._rank == 0 or self._told:
            return []
        self._parallel |= set(tables["calls"].filter(pl.col("module_class") == PARALLEL)["module"])
        self._waiting[numbers.step] = numbers
        for step in sorted(self._waiting):
            other = digests_of(self._other, step)
            if other is None:
                break
            found = self._compare(self._waiting.pop(step), other)
            if found is not None:
                self._told = True
                return [found]
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[min(self._waiting)]
        return []

    def _compare(self, numbers: StepNumbers, other: _Digests) -> Anomaly | None:
        mine = numbers.table.filter(pl.col("quantity") == Quantity.PARAMETER.value)
        parted = []
        for row in mine.iter_rows(named=True):
            name, digest = row["name"], row["digest"]
            if digest is None or name not in other:
                continue
            if other[name] == digest:
                self._agreed[name] = self._agreed.get(name, 0) + 1
            elif self._should_agree(name):
                parted.append(row)
        if not parted:
            return None
        first = parted[0]
        return Anomaly(
            AnomalyKind.RANKS,
            numbers.step,
            self._rank,
            Quantity.PARAMETER,
            first["name"],
            call=first["call"],
            call_id=first["call_id"],
            others=len(parted) - 1,
            other_rank=self._rank - 1,
        )

    def _should_agree(self, name: str) -> bool:
        known = self._agreed.get(name, 0) >= AGREED_UPDATES
        return known or any(name.startswith(f"{path}.") for path in self._parallel)


def digests_of(rank: Path, step: int) -> _Digests | None:
    """Parameters of a rank after the updates of a step; None while the step is not whole."""
    directory = rank / step_name(step)
    if not (directory / STEP_FILE).is_file():
        return None
    try:
        calls, tensors, values = (
            pl.scan_parquet(directory / f"{name}-*.parquet") for name in ("calls", "tensors", "values")
        )
        updates = calls.filter(pl.col("kind") == OPTIMIZER_KIND).select(call="id")
        after = tensors.filter(pl.col("role") == PARAMETER_AFTER_ROLE).join(updates, on="call")
        digests = after.join(values.select(value="id", digest="digest"), on="value").select("place", "digest").collect()
    except (OSError, PolarsError, PanicException):
        return None
    return {place: digest for place, digest in digests.iter_rows() if digest is not None}
