"""Which calls stand elsewhere in the other run, and read something else there: neither run lacks them."""

from collections.abc import Hashable
from typing import Any

import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.limits import NAMES_LISTED
from ulpscope.operations.registry import operation_name
from ulpscope.records.enums import MODULE_KIND, Kind
from ulpscope.records.evidence import OneRun
from ulpscope.records.pairs import Pair


def moved_calls(evidence: RankEvidence) -> Pair[frozenset[int]]:
    """Calls without a partner that both runs make once in a step and module, with the same arguments."""
    plan = evidence.plan
    reference, target = _by_work(plan.unmatched.reference, {}), _by_work(plan.unmatched.target, plan.modules)
    both = [work for work, calls in reference.items() if len(calls) == len(target.get(work, ())) == 1]
    return Pair(*(frozenset(side[work][0] for work in both) for side in (reference, target)))


def one_run_of(calls: Pair[pl.DataFrame], evidence: RankEvidence) -> OneRun:
    """These calls without partners, of which some have only moved."""
    moved = moved_calls(evidence)
    sides = zip(calls, moved, strict=True)
    lone = (frame.filter(~pl.col("id").is_in(list(elsewhere))) for frame, elsewhere in sides)
    shown = calls.target.filter(pl.col("id").is_in(list(moved.target)))
    if shown.is_empty():
        shown = calls.reference.filter(pl.col("id").is_in(list(moved.reference)))
    only_reference, only_target, both = (_names(frame) for frame in (*lone, shown))
    return OneRun(only_reference, only_target, moved=both)


def _names(calls: pl.DataFrame) -> tuple[str, ...]:
    return tuple(calls["name"].head(NAMES_LISTED).to_list())


def _by_work(calls: pl.DataFrame, modules: dict[str, str]) -> dict[Hashable, list[int]]:
    """Ids of calls by step, module (in the reference's names), and what they do."""
    found: dict[Hashable, list[int]] = {}
    for row in calls.filter(pl.col("kind").is_in([Kind.API.value, MODULE_KIND])).iter_rows(named=True):
        found.setdefault((row["step"], _work(row, modules)), []).append(row["id"])
    return found


def _work(row: dict[str, Any], modules: dict[str, str]) -> Hashable:
    module = modules.get(row["module"], row["module"])
    done = None if row["kind"] == MODULE_KIND else operation_name(row["op"])
    return row["kind"], module, done, row["arguments"]
