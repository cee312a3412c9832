"""Other questions to the calls of a trace than whether they compute rightly, and what came of them."""

from dataclasses import dataclass

from ulpscope.records.check_runs import CheckedCall, CheckRun
from ulpscope.records.enums import ExitCode
from ulpscope.records.overflows import Overflow
from ulpscope.records.perturbations import Perturbation, PerturbStandard

CallKey = tuple[str, int | None]
"""Process and call."""


@dataclass(frozen=True, slots=True)
class OverflowRun:
    """Every call that made inf or nan out of finite numbers, or may have, executed again."""

    run: CheckRun
    inherited: int
    """Calls that gave inf or nan because they were given it."""
    untold: frozenset[CallKey] = frozenset()
    """Calls whose results are not recorded: only executing them tells."""

    @property
    def overflowed(self) -> tuple[CheckedCall, ...]:
        """Calls that made inf or nan, in the run or, where that is not recorded, here."""
        return tuple(call for call in self.run.calls if self._was_recorded(call) or _overflows(call))

    @property
    def tells(self) -> bool:
        """Whether one result at least is known."""
        return bool(self.overflowed or self.run.tested or not self.run.calls)

    @property
    def code(self) -> ExitCode:
        if self.run.interrupted:
            return ExitCode.INTERRUPTED
        if self.run.wrong:
            return ExitCode.DIFFERENCE
        return ExitCode.OK if self.tells else ExitCode.NOTHING

    def _was_recorded(self, call: CheckedCall) -> bool:
        return (call.process, call.place.call_id) not in self.untold


def _overflows(call: CheckedCall) -> bool:
    kinds = {output.statistic for case in call.cases for output in case.result.outputs}
    return not kinds.isdisjoint({kind.value for kind in (Overflow.NORMAL, Overflow.ABNORMAL, Overflow.STATED)})


@dataclass(frozen=True, slots=True)
class PerturbRun:
    """Every call, executed before and after a small change."""

    run: CheckRun
    mode: Perturbation
    standard: PerturbStandard

    @property
    def code(self) -> ExitCode:
        return self.run.code
