"""Call stacks of what a comparison found, for its page."""

from typing import Any

import polars as pl

from ulpscope.align.plan import Plan, RankPlan
from ulpscope.records.findings import Comparison, Place
from ulpscope.report.page.stack_lines import stack_line


def finding_stacks(comparison: Comparison, plan: Plan) -> list[list[dict[str, Any]]]:
    """For each finding the lines that led to its call, the innermost first; none where no stack was recorded."""
    ranks = {rank.rank: rank for rank in plan.ranks}
    return [_stack(finding.place, ranks.get(finding.place.rank)) for finding in comparison.findings]


def _stack(place: Place, plan: RankPlan | None) -> list[dict[str, Any]]:
    if plan is None or place.call is None:
        return []
    in_target = place.call_id is not None
    calls, trace = (
        (plan.calls.target, plan.traces.target) if in_target else (plan.calls.reference, plan.traces.reference)
    )
    found = calls.filter(
        pl.col("name") == place.call, pl.col("step") == place.step, pl.col("phase") == place.phase.value
    )["stack"].drop_nulls()
    return [] if found.is_empty() else [stack_line(frame) for frame in trace.stack(found[0])]
