"""Reads tables of many steps at once: a scan a step costs more than what it reads."""

from collections.abc import Sequence

import polars as pl

from ulpscope.trace.reader import RankTrace


def calls_of(trace: RankTrace, steps: Sequence[int]) -> pl.DataFrame:
    """The calls of these steps, in execution order."""
    frame = trace.calls() if _is_all(trace, steps) else pl.concat(trace.calls(step) for step in steps)
    return trace.collect(frame).sort("id")


def uses_of(trace: RankTrace, steps: Sequence[int]) -> pl.LazyFrame:
    """Which call of these steps uses which value."""
    return trace.tensors() if _is_all(trace, steps) else pl.concat(trace.tensors(step) for step in steps)


def _is_all(trace: RankTrace, steps: Sequence[int]) -> bool:
    return not steps or set(steps) == set(trace.steps)
