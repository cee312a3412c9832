"""Other questions to the calls of a trace than whether they compute rightly, and what came of them."""

from dataclasses import dataclass

from ulpscope.records.check_runs import CheckRun
from ulpscope.records.enums import ExitCode
from ulpscope.records.perturbations import Perturbation, PerturbStandard


@dataclass(frozen=True, slots=True)
class OverflowRun:
    """Every call that made inf or nan out of finite numbers, executed again."""

    run: CheckRun
    inherited: int
    """Calls that gave inf or nan because they were given it."""

    @property
    def code(self) -> ExitCode:
        if self.run.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.DIFFERENCE if self.run.wrong else ExitCode.OK


@dataclass(frozen=True, slots=True)
class PerturbRun:
    """Every call, executed before and after a small change."""

    run: CheckRun
    mode: Perturbation
    standard: PerturbStandard

    @property
    def code(self) -> ExitCode:
        return self.run.code
