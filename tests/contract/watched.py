"""Captures a function and gives its trace in a form that tests can ask."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import ulpscope
from ulpscope.records.calls import Call, Value
from ulpscope.trace.reader import RankTrace, open_trace

torch.set_num_threads(1)


@dataclass(frozen=True)
class Watched:
    """A trace of one process."""

    trace: RankTrace

    @property
    def calls(self) -> pl.DataFrame:
        return self.trace.calls().collect().sort("id")

    def ops(self, **where: Any) -> list[str]:
        """Operations in execution order."""
        frame = self.calls
        for column, wanted in where.items():
            frame = frame.filter(pl.col(column) == wanted)
        return frame["op"].to_list()

    def call(self, op: str, number: int = 0, **where: Any) -> Call:
        """The number-th call of an operation, by its last name or its whole one."""
        frame = self.calls.filter((pl.col("op") == op) | pl.col("op").str.ends_with(f".{op}"))
        for column, wanted in where.items():
            frame = frame.filter(pl.col(column) == wanted)
        return self.trace.call(frame["id"][number])

    def value(self, call: Call, role: str, place: str | None = None) -> Value:
        for use in self.trace.uses(call.id):
            if use.role.value == role and place in (None, use.place):
                return self.trace.value(use.value)
        raise AssertionError(f"{call.name} has no {role} {place}")

    def data(self, call: Call, role: str, place: str | None = None) -> np.ndarray[Any, Any]:
        found = self.trace.data(self.value(call, role, place))
        assert found is not None
        return found

    def roles(self, call: Call) -> list[tuple[str, str]]:
        return [(use.role.value, use.place) for use in self.trace.uses(call.id)]


def watch(folder: Path, work: Callable[[], Any], **options: Any) -> Watched:
    """Run `work` captured with the given options."""
    out = folder / "trace"
    with ulpscope.capture(out, overwrite=True, **options):
        work()
    trace = open_trace(out).ranks[0]
    assert trace.info.errors == ()
    return Watched(trace)
