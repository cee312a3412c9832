"""Whether an overflow is the type's own limit: its call executed again on the CPU, where that is possible."""

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ulpscope.records.calls import Call
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import OutputResult
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.overflows import Overflow
from ulpscope.records.settings import IntRanges
from ulpscope.trace.reader import Trace

MOST_EXECUTED = 20
"""The first answer the question; `ulpscope check --overflow` executes all of them."""

CallKey: TypeAlias = tuple[str, int]
"""Process and call."""
Verdicts: TypeAlias = Mapping[CallKey, tuple[Overflow, str]]

_KINDS = {kind.value: kind for kind in Overflow}


def execute_births(trace: Trace, born: Sequence[tuple[str, Sequence[int]]]) -> Verdicts:
    """Verdicts on the first of these calls; none where this is no run of torch, or torch is not installed."""
    wanted = [(process, call) for process, calls in born for call in calls][:MOST_EXECUTED]
    if not wanted or not _is_torch(trace) or importlib.util.find_spec("torch") is None:
        return {}
    births = _find(trace, wanted)
    steps = tuple((step, step) for step in sorted({call.step for call in births.values()}))
    checked = _execute(trace, {_executed(birth, call) for birth, call in births.items()}, IntRanges(steps))
    outputs = {birth: checked.get(_executed(birth, call)) for birth, call in births.items()}
    return {birth: (_KINDS[found.statistic], found.message) for birth, found in outputs.items() if found is not None}


def _is_torch(trace: Trace) -> bool:
    return all(rank.info.framework.get("name") == "torch" for rank in trace.ranks)


def _find(trace: Trace, wanted: Sequence[CallKey]) -> dict[CallKey, Call]:
    found: dict[CallKey, Call] = {}
    for rank in trace.ranks:
        calls = rank.find_calls(call for process, call in wanted if process == rank.name)
        found |= {(rank.name, number): call for number, call in calls.items()}
    return found


def _executed(birth: CallKey, call: Call) -> CallKey:
    """A backward is executed with its forward, and told by it."""
    return birth[0], call.id if call.forward is None else call.forward


def _execute(trace: Trace, calls: Collection[CallKey], steps: IntRanges) -> dict[CallKey, OutputResult]:
    """What came of these calls; those that cannot be executed are left out."""
    from ulpscope.workflows.check.modes import check_overflow, plan_overflow

    options = CheckOptions(steps=steps, every=True, stress=False)
    try:
        whole = plan_overflow(trace.path, options)
    except UlpscopeError:
        # A trace without API calls, such as one of modules: its overflows stay unclear.
        return {}
    cases = tuple(case for case in whole.plan.cases if (case.process, case.call) in calls)
    if not cases:
        return {}
    run = check_overflow(replace(whole, plan=replace(whole.plan, cases=cases)), options).found.run
    return {
        (call.process, call.place.call_id): call.output
        for call in run.calls
        if call.place.call_id is not None and call.output is not None and call.output.statistic in _KINDS
    }
