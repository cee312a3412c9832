"""`ulpscope check`: every API call of a trace against a high-precision reference."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.records.calls import Call
from ulpscope.records.check_runs import CheckedCall, CheckedCase, CheckOptions, CheckRun
from ulpscope.records.checks import CaseId, CaseResult, Verdict
from ulpscope.records.enums import ExitCode
from ulpscope.records.findings import Place
from ulpscope.report.files.check_tables import write_details, write_msprobe_tables, write_results
from ulpscope.report.terminal.check import check_json, check_text
from ulpscope.report.words.language import Language
from ulpscope.trace.reader import RankTrace
from ulpscope.workflows.check.journal import FAILING, Journal
from ulpscope.workflows.check.messages import WorkerSettings
from ulpscope.workflows.check.planning import CheckPlan
from ulpscope.workflows.check.pool import WORKER, Pool, PoolSettings, device_of
from ulpscope.workflows.report.command import write_report
from ulpscope.workflows.results import TellsItself, writing

Heard = Callable[[CheckedCase], None]


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult(TellsItself):
    """What a check found, to be told."""

    run: CheckRun

    @property
    def verdict(self) -> str:
        """sound, unsound or nothing_checked."""
        return self.run.soundness.value

    @property
    def code(self) -> ExitCode:
        return self.run.code

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return check_text(self.run, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return check_json(self.run, language)

    def write(self, out: str | Path, *, language: Language = Language.EN) -> Path:
        """Write summary.json, the tables and the page, beside the journal if there is one; gives the page."""
        out = Path(out)
        with writing(out, next_step="make room, and go on with --resume"):
            out.mkdir(parents=True, exist_ok=True)
            write_results(self.run, out / "result.csv")
            write_details(self.run, out / "details.csv")
        return write_report(out, self, language=language)

    def write_msprobe_tables(self, out: Path) -> None:
        """Beside the others, the tables that msprobe's pre-check writes."""
        with writing(out):
            write_msprobe_tables(self.run, out, stamp=time.strftime("%Y%m%d%H%M%S"))


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
    waiting = [case for case in plan.cases if case.text not in done]
    pool = Pool(waiting, _pool_settings(plan, options, journal, command))
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
    return CheckResult(_outcome(plan, options, done, pool, interrupted=interrupted))


def _pool_settings(
    plan: CheckPlan, options: CheckOptions, journal: Journal | None, command: Sequence[str]
) -> PoolSettings:
    failing = journal.out / FAILING if journal is not None and options.save_failing else None
    first_line = {
        device: WorkerSettings(
            trace=str(plan.trace.path),
            device=device,
            seed=options.seed,
            standard=options.standard,
            references=options.references,
            failing=failing,
            figures=journal is not None,
        ).json()
        for device in options.devices
    }
    return PoolSettings(first_line, jobs=options.jobs, timeout=options.timeout, command=command)


def _outcome(
    plan: CheckPlan, options: CheckOptions, done: Mapping[str, CheckedCase], pool: Pool, *, interrupted: bool
) -> CheckRun:
    return CheckRun(
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


def _checked_calls(plan: CheckPlan, options: CheckOptions, done: Mapping[str, CheckedCase]) -> tuple[CheckedCall, ...]:
    """Calls with their cases, as they follow each other in each process; what was not executed is missing."""
    found = [done[case.text] for case in plan.cases if case.text in done]
    found += [_left(case, reason, options) for case, reason in plan.left]
    by_call: dict[tuple[str, int], list[CheckedCase]] = {}
    for checked in found:
        case = checked.result.case
        by_call.setdefault((case.process, case.call), []).append(checked)
    places = _places(plan, by_call)
    ranks = {rank.name: place for place, rank in enumerate(plan.trace.ranks)}
    order = sorted(by_call, key=lambda key: (ranks[key[0]], key[1]))
    return tuple(CheckedCall(places[key], key[0], tuple(by_call[key])) for key in order)


def _left(case: CaseId, reason: str, options: CheckOptions) -> CheckedCase:
    result = CaseResult(case, forward=Verdict.SKIP, backward=None, message=reason)
    return CheckedCase(result, device_of(case, options.devices))


def _places(plan: CheckPlan, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Place]:
    ids: dict[str, list[int]] = {}
    for process, number in keys:
        ids.setdefault(process, []).append(number)
    places: dict[tuple[str, int], Place] = {}
    for process, wanted in ids.items():
        rank = plan.trace.process(process)
        lines = _source_lines(rank)
        for number, call in rank.find_calls(wanted).items():
            places[process, number] = _place(call, lines)
    return places


def _source_lines(rank: RankTrace) -> dict[int, str]:
    """`model.py:57` by stack: the innermost line of the user's code."""
    innermost = rank.stacks().filter(pl.col("depth") == 0).select("stack", "file", "line")
    return {stack: f"{file}:{line}" for stack, file, line in rank.collect(innermost).iter_rows()}


def _place(call: Call, lines: Mapping[int, str]) -> Place:
    return Place(
        rank=call.rank,
        step=call.step,
        phase=call.phase,
        call=call.name,
        call_id=call.id,
        op=call.op,
        module=call.module,
        source=None if call.stack is None else lines.get(call.stack),
    )
