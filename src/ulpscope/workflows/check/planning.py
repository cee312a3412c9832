"""Which cases a check executes: of these ranks and steps, of calls that patterns name."""

import difflib
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ulpscope.dialects.opening import open_run
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import CaseId, DataSource, Variant
from ulpscope.records.enums import ExitCode, Kind
from ulpscope.records.errors import TraceError
from ulpscope.replay.planning import CasePlan, Choice, matches, plan_cases
from ulpscope.report.words.language import ranges_text
from ulpscope.trace.reader import RankTrace, Trace

NEAR_NAMES = 3


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What of a trace is executed, and what is left out and why."""

    trace: Trace
    cases: tuple[CaseId, ...]
    left: tuple[tuple[CaseId, str], ...]
    repeated: int = 0
    """Calls that are the same test as an earlier one."""


def plan_check(path: str | Path, options: CheckOptions) -> CheckPlan:
    """Open a trace and choose its cases; nothing to choose from is an error that says why."""
    whole = open_run(path)
    trace = _with_ranks(whole, options)
    _check_steps(trace, options)
    calls = _api_calls(trace, options)
    if calls.is_empty():
        raise _no_api_calls(trace)
    for option, patterns in (("--only", options.only), ("--skip", options.skip)):
        for pattern in patterns:
            _check_pattern(trace, calls, option, pattern)
    choice = Choice(
        steps=options.steps,
        only=options.only,
        skip=options.skip,
        every=options.every,
        stress=options.stress,
        source=options.source,
    )
    plans = [(rank.name, plan_cases(rank, choice)) for rank in trace.ranks]
    if not any(plan.cases or plan.left for _, plan in plans):
        raise _no_api_calls(trace) if not (options.only or options.skip) else _none_left(trace, options)
    return CheckPlan(
        trace,
        cases=tuple(case for _, plan in plans for case in plan.cases),
        left=tuple(left for process, plan in plans for left in _left(process, plan, options)),
        repeated=sum(plan.repeated for _, plan in plans),
    )


def _left(process: str, plan: CasePlan, options: CheckOptions) -> Iterable[tuple[CaseId, str]]:
    source = options.source or DataSource.RANDOM
    for each in plan.left:
        yield CaseId(process, each.call, each.name, each.op, Variant.RECORDED, source), each.reason


def _with_ranks(trace: Trace, options: CheckOptions) -> Trace:
    ranks = [rank for rank in trace.ranks if options.ranks is None or rank.info.rank in options.ranks]
    if not ranks:
        raise _nothing(
            trace,
            f"{trace.path} has no rank {options.ranks}",
            expected=f"rank {ranges_text(rank.info.rank for rank in trace.ranks)}",
        )
    return Trace(trace.path, ranks, missing_ranks=trace.missing_ranks)


def _check_steps(trace: Trace, options: CheckOptions) -> None:
    if options.steps is not None and not any(step in options.steps for step in trace.steps):
        raise _nothing(
            trace, f"{trace.path} has no step {options.steps}", expected=f"step {ranges_text(trace.steps) or 'none'}"
        )


def _api_calls(trace: Trace, options: CheckOptions) -> pl.DataFrame:
    """Different names and operations of the calls to choose from."""
    frames = [_api_calls_of(rank, options) for rank in trace.ranks]
    return pl.concat(frames).unique(maintain_order=True)


def _api_calls_of(rank: RankTrace, options: CheckOptions) -> pl.DataFrame:
    calls = rank.calls().filter(pl.col("kind") == Kind.API.value)
    if options.steps is not None:
        calls = calls.filter(pl.any_horizontal(pl.col("step").is_between(*each) for each in options.steps.ranges))
    return rank.collect(calls.select("name", "op").unique(maintain_order=True))


def _check_pattern(trace: Trace, calls: pl.DataFrame, option: str, pattern: str) -> None:
    if any(matches([pattern], name, op) for name, op in calls.iter_rows()):
        return
    ops = calls["op"].unique(maintain_order=True).to_list()
    near = _near(pattern, [*(op.rpartition(".")[2] for op in ops), *ops])
    expected = "an operation or a call of the trace"
    raise _nothing(
        trace,
        f"{option} {pattern!r} matches none of the API calls of {trace.path}",
        expected=f"{expected}; did you mean {' or '.join(near)}" if near else f"{expected}, such as {ops[0]}",
        next_step=f"{option} {shlex.quote(near[0])}" if near else None,
    )


def _near(pattern: str, names: Iterable[str]) -> list[str]:
    unique = {name.lower(): name for name in names}
    found = difflib.get_close_matches(pattern.strip("*?").lower(), unique, n=NEAR_NAMES, cutoff=0.5)
    return [unique[name] for name in found]


def _no_api_calls(trace: Trace) -> TraceError:
    levels = {str(rank.info.capture.get("level", "")) for rank in trace.ranks}
    captured = f" (it was captured at level {', '.join(sorted(levels))})" if levels != {""} else ""
    return TraceError(
        f"{trace.path} holds no API calls{captured}",
        expected="a trace of level api or kernel, or a dump of msprobe at level L1 or mix",
        next_step="capture again: ulpscope run -o DIR --level api -- python train.py",
        code=ExitCode.NOTHING,
    )


def _none_left(trace: Trace, options: CheckOptions) -> TraceError:
    given = [*(f"--only {word}" for word in options.only), *(f"--skip {word}" for word in options.skip)]
    return _nothing(
        trace, f"{' '.join(given)} leaves no API call of {trace.path}", expected="patterns that leave some to check"
    )


def _nothing(trace: Trace, seen: str, *, expected: str, next_step: str | None = None) -> TraceError:
    return TraceError(
        seen,
        expected=expected,
        next_step=next_step or f"see what is there: ulpscope show {shlex.quote(str(trace.path))}",
        code=ExitCode.NOTHING,
    )
