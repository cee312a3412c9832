"""`ulpscope check --overflow` and `ulpscope check --perturb`: the calls of a trace, asked other questions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ulpscope.records.check_runs import CallKey, CheckedCase, CheckOptions, OverflowRun, PerturbRun
from ulpscope.records.checks import Perturbation, PerturbStandard
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.planning import births
from ulpscope.replay.recorded import read_calls
from ulpscope.report.files.check_tables import write_overflows, write_perturbations
from ulpscope.report.terminal.check_modes import overflow_json, overflow_text, perturb_json, perturb_text
from ulpscope.report.words.language import Language
from ulpscope.workflows.check.command import CheckPlan, check, plan_check
from ulpscope.workflows.check.pool import WORKER
from ulpscope.workflows.report.command import write_result

OVERFLOW_TABLE, PERTURB_TABLE = "overflow.csv", "perturb.csv"

Heard = Callable[[CheckedCase], None]


@dataclass(frozen=True, slots=True)
class OverflowPlan:
    """The calls whose overflow is looked into, those whose results are not recorded among them."""

    plan: CheckPlan
    inherited: int
    untold: frozenset[CallKey]


@dataclass(frozen=True, slots=True)
class OverflowResult:
    """What became of overflows, to be told."""

    found: OverflowRun

    @property
    def code(self) -> ExitCode:
        return self.found.code

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return overflow_text(self.found, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return overflow_json(self.found, language)

    def write(self, out: Path, *, language: Language = Language.EN) -> Path:
        return write_result(
            out, self, lambda folder: write_overflows(self.found, folder / OVERFLOW_TABLE), language=language
        )


@dataclass(frozen=True, slots=True)
class PerturbResult:
    """How far outputs moved, to be told."""

    found: PerturbRun

    @property
    def code(self) -> ExitCode:
        return self.found.code

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return perturb_text(self.found, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return perturb_json(self.found, language)

    def write(self, out: Path, *, language: Language = Language.EN) -> Path:
        return write_result(
            out, self, lambda folder: write_perturbations(self.found, folder / PERTURB_TABLE), language=language
        )


def plan_overflow(path: str | Path, options: CheckOptions) -> OverflowPlan:
    """Calls of which something was not finite though what it was made of was, or is not recorded."""
    plan = plan_check(path, replace(options, every=True, stress=False))
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


def check_overflow(plan: OverflowPlan, options: CheckOptions, *, heard: Heard = lambda _: None) -> OverflowResult:
    """Execute overflowing calls on the CPU, in their dtype and in high precision."""
    result = check(plan.plan, options, heard=heard, command=(*WORKER, "overflow"))
    return OverflowResult(OverflowRun(result.run, plan.inherited, plan.untold))


def plan_perturb(path: str | Path, options: CheckOptions) -> CheckPlan:
    """The calls that a check would execute, with recorded data only."""
    return plan_check(path, replace(options, stress=False))


def check_perturb(
    plan: CheckPlan,
    options: CheckOptions,
    *,
    mode: Perturbation,
    standard: PerturbStandard = PerturbStandard.CONDITION,
    heard: Heard = lambda _: None,
) -> PerturbResult:
    """Execute calls before and after a small change."""
    if mode is Perturbation.TO_CPU and "cpu" in options.devices:
        raise UlpscopeError(
            "--perturb to_cpu with --device cpu",
            expected="a device that is compared with the CPU",
            next_step="--device cuda:0; or --perturb improve_precision",
        )
    result = check(plan, options, heard=heard, command=(*WORKER, "perturb", mode.value, standard.value))
    return PerturbResult(PerturbRun(result.run, mode, standard))
