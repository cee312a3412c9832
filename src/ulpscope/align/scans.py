"""Reads tables of many steps at once: a scan a step costs more than what it reads."""

from collections.abc import Callable, Sequence

import polars as pl

from ulpscope.trace.reader import RankTrace


def calls_of(trace: RankTrace, steps: Sequence[int]) -> pl.DataFrame:
    """The calls of these steps, in execution order."""
    return trace.collect(_of_steps(trace, trace.calls, steps)).sort("id")


def uses_of(trace: RankTrace, steps: Sequence[int]) -> pl.LazyFrame:
    """Which call of these steps uses which value."""
    return _of_steps(trace, trace.tensors, steps)


def _of_steps(trace: RankTrace, scan: Callable[..., pl.LazyFrame], steps: Sequence[int]) -> pl.LazyFrame:
    if not steps:
        return scan().limit(0)
    return scan() if set(steps) == set(trace.steps) else pl.concat(scan(step) for step in steps)
