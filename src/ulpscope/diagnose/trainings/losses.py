"""The losses of a run, step by step: of watched gradients, and of captured calls alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ulpscope.records.enums import LOSS_ROLE
from ulpscope.trace.reader import RankTrace


@dataclass(frozen=True, slots=True)
class Losses:
    """What a step has gone back from."""

    digests: frozenset[int]
    mean: float


def read_losses(rank: RankTrace, steps: Sequence[int] | None = None) -> Mapping[int, Losses]:
    """By step; losses are single numbers."""
    uses = rank.tensors(steps).filter(pl.col("role") == LOSS_ROLE).select("call", "value")
    calls = rank.calls(steps).select("step", call="id")
    values = rank.values().select("digest", "mean", "shape", value="id")
    joined = uses.join(calls, on="call").join(values, on="value").filter(pl.col("digest").is_not_null())
    rows = rank.collect(joined.select("step", "digest", "mean", "shape"))
    found: dict[int, list[tuple[int, float]]] = {}
    for step, digest, mean, shape in rows.iter_rows():
        if all(size == 1 for size in shape):
            found.setdefault(step, []).append((digest, mean))
    return {
        step: Losses(frozenset(digest for digest, _ in each), sum(mean for _, mean in each) / len(each))
        for step, each in found.items()
    }


def step_of(losses: Losses, watched: Mapping[int, Losses], *, first: int) -> int | None:
    """The watched step that these losses are of, bit for bit; `first` is looked at first."""
    steps = sorted(watched, key=lambda step: (step != first, abs(step - first)))
    return next((step for step in steps if losses.digests <= watched[step].digests), None)
