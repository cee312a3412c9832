"""How far calls that one run alone makes spread what comes in, because they exponentiate it.

An exponential makes a relative error of an absolute one: of scores of size s it is s times the relative error that
they had. One run has fused attention, and the other shows its scores.
"""

import math
from functools import cached_property

import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.unpaired import Gap
from ulpscope.operations.registry import Family, operation
from ulpscope.records.enums import INPUT_ROLE
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace

EXPONENTIATING = (Family.EXPONENTIAL, Family.ATTENTION)


class Exponents:
    """Of the calls without partners of one rank."""

    def __init__(self, evidence: RankEvidence) -> None:
        self._evidence = evidence

    def spread(self, gap: Gap) -> float:
        """By how much a relative error may grow on the way; 1 where nothing is exponentiated."""
        sizes = zip(self._sizes, (gap.only_reference, gap.only_target), strict=True)
        return max([1.0, *(known[call] for known, calls in sizes for call in calls if call in known)])

    @cached_property
    def _sizes(self) -> Pair[dict[int, float]]:
        """By id of the call: the size of what it exponentiates."""
        plan = self._evidence.plan
        sides = zip(plan.traces, plan.unmatched, strict=True)
        return Pair(*(self._read(trace, calls) for trace, calls in sides))

    def _read(self, trace: RankTrace, calls: pl.DataFrame) -> dict[int, float]:
        families = {call: operation(op).family for call, op in calls.select("id", "op").iter_rows()}
        chosen = [call for call, family in families.items() if family in EXPONENTIATING]
        if not chosen:
            return {}
        shown = trace.tensors(self._evidence.plan.steps).filter(
            pl.col("role") == INPUT_ROLE, pl.col("call").is_in(chosen)
        )
        stats = trace.values().select("norm", "shape", value="id")
        read = trace.collect(shown.join(stats, on="value").select("call", "place", "norm", "shape"))
        sizes: dict[int, list[float]] = {}
        for call, _, norm, shape in read.sort("call", "place").iter_rows():
            if norm is not None:
                # With the masks that are in the norm: errors are relative to it.
                sizes.setdefault(call, []).append(norm / math.sqrt(max(math.prod(shape), 1)))
        return {call: _exponent(families[call], found) for call, found in sizes.items()}


def _exponent(family: Family, sizes: list[float]) -> float:
    # Scores are products of queries and keys, either of which has an error.
    return 2.0 * sizes[0] * sizes[1] if family is Family.ATTENTION and len(sizes) > 1 else max(sizes)
