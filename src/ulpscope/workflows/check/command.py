"""`ulpscope check`: every API call of a trace against a high-precision reference.

`ulpscope check --overflow` and `ulpscope check --perturb`: the calls of a trace, asked other questions.
"""

import difflib
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from ulpscope.dialects.opening import open_run
from ulpscope.records.check_runs import (
    CallKey,
    CheckedCall,
    CheckedCase,
    CheckOptions,
    CheckRun,
    OverflowRun,
    PerturbRun,
)
from ulpscope.records.checks import CaseId, CaseResult, DataSource, Perturbation, PerturbStandard, Variant, Verdict
from ulpscope.records.enums import ExitCode, Kind
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.replay.frameworks import Framework, framework_of, needed_framework
from ulpscope.replay.planning import births, matches, plan_cases
from ulpscope.replay.recorded import read_calls
from ulpscope.report.files.check_tables import (
    write_details,
    write_msprobe_tables,
    write_overflows,
    write_perturbations,
    write_results,
)
from ulpscope.report.terminal.check import check_json, check_text
from ulpscope.report.terminal.check_modes import overflow_json, overflow_text, perturb_json, perturb_text
from ulpscope.report.words.language import Language, ranges_text
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.trace.watched import refuse_gradients
from ulpscope.workflows.answers import SpokenAnswer
from ulpscope.workflows.check.journal import FAILING, Journal, WorkerSettings, record_json
from ulpscope.workflows.check.pool import WORKER, Pool, PoolSettings, device_of
from ulpscope.workflows.results import stamp, writing
from ulpscope.workflows.traces import place_of, with_ranks

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
    trace = with_ranks(open_run(path), options.ranks, see="see what is there")
    refuse_gradients(trace)
    if options.steps is not None and not any(step in options.steps for step in trace.steps):
        raise _nothing(
            trace, f"{trace.path} has no step {options.steps}", expected=f"step {ranges_text(trace.steps) or 'none'}"
        )
    calls = pl.concat([_api_calls(rank, options) for rank in trace.ranks]).unique(maintain_order=True)
    if calls.is_empty():
        raise _no_api_calls(trace)
    for option, patterns in (("--only", options.only), ("--skip", options.skip)):
        for pattern in patterns:
            _check_pattern(trace, calls, option, pattern)
    plans = [(rank.name, plan_cases(rank, options)) for rank in trace.ranks]
    given = [*(f"--only {word}" for word in options.only), *(f"--skip {word}" for word in options.skip)]
    if not any(plan.cases or plan.left for _, plan in plans):
        seen = f"{' '.join(given)} leaves no API call of {trace.path}"
        raise _nothing(trace, seen, expected="patterns that leave some to check") if given else _no_api_calls(trace)
    how = Variant.RECORDED, options.source or DataSource.RANDOM
    return CheckPlan(
        trace,
        cases=tuple(case for _, plan in plans for case in plan.cases),
        left=tuple(
            (CaseId(process, each.call, each.name, each.op, *how), each.reason)
            for process, plan in plans
            for each in plan.left
        ),
        repeated=sum(plan.repeated for _, plan in plans),
    )


def _api_calls(rank: RankTrace, options: CheckOptions) -> pl.DataFrame:
    """Different names and operations of the calls to choose from."""
    calls = rank.calls().filter(pl.col("kind") == Kind.API.value)
    if options.steps is not None:
        calls = calls.filter(pl.any_horizontal(pl.col("step").is_between(*each) for each in options.steps.ranges))
    return rank.collect(calls.select("name", "op").unique(maintain_order=True))


def _check_pattern(trace: Trace, calls: pl.DataFrame, option: str, pattern: str) -> None:
    if any(matches([pattern], name, op) for name, op in calls.iter_rows()):
        return
    ops = calls["op"].unique(maintain_order=True).to_list()
    names = {name.lower(): name for name in (*(op.rpartition(".")[2] for op in ops), *ops)}
    found = difflib.get_close_matches(pattern.strip("*?").lower(), names, n=NEAR_NAMES, cutoff=0.5)
    near, expected = [names[name] for name in found], "an operation or a call of the trace"
    raise _nothing(
        trace,
        f"{option} {pattern!r} matches none of the API calls of {trace.path}",
        expected=f"{expected}; did you mean {' or '.join(near)}" if near else f"{expected}, such as {ops[0]}",
        next_step=f"{option} {shlex.quote(near[0])}" if near else None,
    )


def _no_api_calls(trace: Trace) -> TraceError:
    levels = {str(rank.info.capture.get("level", "")) for rank in trace.ranks}
    captured = f" (it was captured at level {', '.join(sorted(levels))})" if levels != {""} else ""
    return TraceError(
        f"{trace.path} holds no API calls{captured}",
        expected="a trace of level api or kernel, or a dump of msprobe at level L1 or mix",
        next_step="capture again: ulpscope run -o DIR --level api -- python train.py",
        code=ExitCode.NOTHING,
    )


def _nothing(trace: Trace, seen: str, *, expected: str, next_step: str | None = None) -> TraceError:
    return TraceError(
        seen,
        expected=expected,
        next_step=next_step or f"see what is there: ulpscope show {shlex.quote(str(trace.path))}",
        code=ExitCode.NOTHING,
    )


Heard = Callable[[CheckedCase], None]


class CheckResult(SpokenAnswer):
    """What a check found; written beside the journal, if there is one."""

    __slots__ = ()

    @property
    def run(self) -> CheckRun:
        found: CheckRun = self.found
        return found

    @property
    def verdict(self) -> str:
        """sound, unsound or nothing_checked."""
        return self.run.soundness.value

    def write(
        self,
        out: str | Path,
        *,
        language: Language = Language.EN,
        next_step: str = "make room, and go on with --resume",
    ) -> Path | None:
        return SpokenAnswer.write(self, out, language=language, next_step=next_step)

    def write_msprobe_tables(self, out: Path) -> None:
        """Beside the others, the tables that msprobe's pre-check writes."""
        with writing(out):
            write_msprobe_tables(self.run, out, stamp=stamp())


def told_check(run: CheckRun) -> CheckResult:
    """A finished check as its answer."""
    tables = {"result.csv": write_results, "details.csv": write_details}
    return CheckResult(run, run.code, check_text, check_json, tables)


def check(
    plan: CheckPlan,
    options: CheckOptions,
    *,
    journal: Journal | None = None,
    heard: Heard = lambda _: None,
    command: Sequence[str] = WORKER,
) -> CheckResult:
    """Execute a plan in worker processes; `heard` is told each result, those of an earlier check first."""
    planned = {case.text for case in plan.cases}
    done = {text: checked for text, checked in (journal.done if journal else {}).items() if text in planned}
    for checked in done.values():
        heard(checked)
    settings = WorkerSettings(
        trace=str(plan.trace.path),
        device="",
        seed=options.seed,
        standard=options.standard,
        framework=needed_framework(plan.trace),
        references=options.references,
        failing=journal.out / FAILING if journal is not None and options.save_failing else None,
        figures=journal is not None,
    )
    first_line = {device: record_json(replace(settings, device=device)) for device in options.devices}
    waiting = [case for case in plan.cases if case.text not in done]
    work = PoolSettings(first_line, options.jobs, options.timeout, settings.framework, command)
    pool = Pool(waiting, work)
    interrupted = False
    try:
        with closing(pool.run()) as results:
            for checked in results:
                done[checked.result.case.text] = checked
                if journal is not None:
                    journal.add(checked)
                heard(checked)
    except KeyboardInterrupt:
        interrupted = True
    run = CheckRun(
        trace=str(plan.trace.path),
        options=options,
        calls=_checked_calls(plan, options, done),
        processes=len(plan.trace.ranks),
        repeated=plan.repeated,
        interrupted=interrupted,
        pending=sum(case.text not in done for case in plan.cases),
        remarks=tuple(pool.remarks),
        missing=plan.trace.missing,
    )
    return told_check(run)


def _checked_calls(plan: CheckPlan, options: CheckOptions, done: Mapping[str, CheckedCase]) -> tuple[CheckedCall, ...]:
    """Calls with their cases, as they follow each other in each process; what was not executed is missing."""
    by_call: dict[str, dict[int, list[CheckedCase]]] = {}
    found = [done[case.text] for case in plan.cases if case.text in done]
    for case, reason in plan.left:
        left = CaseResult(case, forward=Verdict.SKIP, backward=None, message=reason)
        found.append(CheckedCase(left, device_of(case, options.devices)))
    for checked in found:
        case = checked.result.case
        by_call.setdefault(case.process, {}).setdefault(case.call, []).append(checked)
    calls = []
    for rank in (rank for rank in plan.trace.ranks if rank.name in by_call):
        cases, lines = by_call[rank.name], _source_lines(rank)
        recorded = rank.find_calls(cases)
        for number in sorted(cases):
            stack = recorded[number].stack
            place = place_of(recorded[number], None if stack is None else lines.get(stack))
            calls.append(CheckedCall(place, rank.name, tuple(cases[number])))
    return tuple(calls)


def _source_lines(rank: RankTrace) -> dict[int, str]:
    """`model.py:57` by stack: the innermost line of the user's code."""
    innermost = rank.stacks().filter(pl.col("depth") == 0).select("stack", "file", "line")
    return {stack: f"{file}:{line}" for stack, file, line in rank.collect(innermost).iter_rows()}


@dataclass(frozen=True, slots=True)
class OverflowPlan:
    """The calls whose overflow is looked into, those whose results are not recorded among them."""

    plan: CheckPlan
    inherited: int
    untold: frozenset[CallKey]


def plan_overflow(path: str | Path, options: CheckOptions) -> OverflowPlan:
    """Calls of which something was not finite though what it was made of was, or is not recorded."""
    plan = _of_torch(plan_check(path, replace(options, every=True, stress=False)), "--overflow")
    born: set[CallKey] = set()
    untold: set[CallKey] = set()
    inherited = 0
    for rank in plan.trace.ranks:
        ids = [case.call for case in (*plan.cases, *(case for case, _ in plan.left)) if case.process == rank.name]
        found = births(read_calls(rank, ids))
        born |= {(rank.name, number) for number in found.born}
        untold |= {(rank.name, number) for number in found.untold}
        inherited += found.inherited
    cases = tuple(case for case in plan.cases if (case.process, case.call) in born | untold)
    left = tuple(each for each in plan.left if (each[0].process, each[0].call) in untold)
    return OverflowPlan(replace(plan, cases=cases, left=left, repeated=0), inherited, frozenset(untold))


def check_overflow(plan: OverflowPlan, options: CheckOptions, *, heard: Heard = lambda _: None) -> SpokenAnswer:
    """Execute overflowing calls on the CPU, in their dtype and in high precision."""
    result = check(plan.plan, options, heard=heard, command=(*WORKER, "overflow"))
    found = OverflowRun(result.run, plan.inherited, plan.untold)
    return SpokenAnswer(found, found.code, overflow_text, overflow_json, {"overflow.csv": write_overflows})


def plan_perturb(path: str | Path, options: CheckOptions) -> CheckPlan:
    """The calls that a check would execute, with recorded data only."""
    return _of_torch(plan_check(path, replace(options, stress=False)), "--perturb")


def _of_torch(plan: CheckPlan, option: str) -> CheckPlan:
    """Questions that only calls of torch can be asked."""
    other = next((framework_of(rank) for rank in plan.trace.ranks if framework_of(rank) is not Framework.TORCH), None)
    if other is not None:
        raise UlpscopeError(
            f"{option} with {plan.trace.path}, a trace of {other.shown}",
            expected="a trace of torch; calls of other frameworks are checked against float64",
            next_step=f"leave out {option}: ulpscope check {shlex.quote(str(plan.trace.path))}",
        )
    return plan


def check_perturb(
    plan: CheckPlan,
    options: CheckOptions,
    *,
    mode: Perturbation,
    standard: PerturbStandard = PerturbStandard.CONDITION,
    heard: Heard = lambda _: None,
) -> SpokenAnswer:
    """Execute calls before and after a small change."""
    if mode is Perturbation.TO_CPU and "cpu" in options.devices:
        raise UlpscopeError(
            "--perturb to_cpu with --device cpu",
            expected="a device that is compared with the CPU",
            next_step="--device cuda:0; or --perturb improve_precision",
        )
    result = check(plan, options, heard=heard, command=(*WORKER, "perturb", mode.value, standard.value))
    found = PerturbRun(result.run, mode, standard)
    return SpokenAnswer(found, found.code, perturb_text, perturb_json, {"perturb.csv": write_perturbations})
