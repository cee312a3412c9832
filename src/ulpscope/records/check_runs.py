"""What `ulpscope check` was asked to do, and what came of a whole trace, or of two devices set against each other.

Other questions to the calls of a trace than whether they compute rightly, and what came of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ulpscope.records.checks import (
    CaseId,
    CaseResult,
    DataSource,
    Direction,
    OutputResult,
    Perturbation,
    PerturbStandard,
    Variant,
    Verdict,
)
from ulpscope.records.enums import ExitCode
from ulpscope.records.findings import Outcome, Place
from ulpscope.records.overflows import Overflow
from ulpscope.records.pairs import Pair
from ulpscope.records.runs import IntRanges

WRONG = (Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT)
"""What makes a trace unsound; the first is told first."""
NOT_TESTED = (Verdict.SKIP, Verdict.UNTESTED)


class CheckStandard(str, Enum):
    """By which rule outputs are judged."""

    ROUNDING = "rounding"
    THOUSANDTH = "thousandth"
    MSPROBE_A = "msprobe-a"


class Soundness(str, Enum):
    """How a check ended."""

    SOUND = "sound"
    UNSOUND = "unsound"
    NOTHING_CHECKED = "nothing_checked"


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Which calls of a trace are checked, where and how."""

    devices: tuple[str, ...] = ("cpu",)
    steps: IntRanges | None = None
    ranks: IntRanges | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    every: bool = False
    """Every call, also those that are the same test as another."""
    stress: bool = True
    source: DataSource | None = None
    """None: saved data where there is some, regenerated data otherwise."""
    standard: CheckStandard = CheckStandard.ROUNDING
    jobs: int = 1
    timeout: float = 60.0
    """Seconds that one case may take."""
    seed: int = 0
    references: tuple[Path, ...] = ()
    """The user's own Python files that register references."""
    save_failing: bool = False


@dataclass(frozen=True, slots=True)
class CheckedCase:
    """What came of one case, and where it was executed."""

    result: CaseResult
    device: str


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """One API call: all its cases, and the verdict over them."""

    place: Place
    process: str
    """The directory of the rank."""
    cases: tuple[CheckedCase, ...]

    @property
    def forward(self) -> Verdict | None:
        return worst_tested(case.result.forward for case in self.cases)

    @property
    def backward(self) -> Verdict | None:
        return worst_tested(case.result.backward for case in self.cases)

    @property
    def verdict(self) -> Verdict:
        found = worst_tested((self.forward, self.backward))
        assert found is not None, "a case has a verdict in one direction at least"
        return found

    @property
    def decisive(self) -> CheckedCase:
        """The case that gave the verdict; one with the recorded data rather than one with changed data."""
        deciding = [case for case in self.cases if self.verdict in (case.result.forward, case.result.backward)]
        return next((case for case in deciding if case.result.case.variant is Variant.RECORDED), deciding[0])

    @property
    def output(self) -> OutputResult | None:
        """The output that gave the verdict; none where there is none to look at (a crash, a skipped call)."""
        outputs = self.decisive.result.outputs
        return next((output for output in outputs if output.verdict is self.verdict), None)

    @property
    def message(self) -> str:
        """Why it is not PASS, in English."""
        return "" if self.verdict is Verdict.PASS else self.decisive.result.message

    @property
    def dtype(self) -> str | None:
        told = self.output
        if told is not None and told.dtype is not None:
            return told.dtype
        return next((output.dtype for output in self.decisive.result.outputs if output.dtype is not None), None)


@dataclass(frozen=True, slots=True)
class CheckRun:
    """Everything that a check found."""

    trace: str
    options: CheckOptions
    calls: tuple[CheckedCall, ...]
    """In the order in which they were planned."""
    processes: int = 1
    """How many the trace has: with more than one, a call's id needs its process."""
    repeated: int = 0
    """Further calls that are the same test as one of these."""
    interrupted: bool = False
    pending: int = 0
    """Cases that an interruption has left."""
    remarks: tuple[str, ...] = ()
    """Circumstances of this check that may matter, a sentence each."""
    missing: tuple[str, ...] = ()
    """What the trace itself lacks, a sentence each."""
    graph: str | None = None
    """The graph whose operators were checked, as dumped; none where calls of a trace were executed."""

    @property
    def wrong(self) -> tuple[CheckedCall, ...]:
        """Calls that failed, then those that crashed or took too long; each in the order of the plan."""
        return tuple(call for verdict in WRONG for call in self.calls if call.verdict is verdict)

    @property
    def tested(self) -> tuple[CheckedCall, ...]:
        return tuple(call for call in self.calls if call.verdict not in NOT_TESTED)

    @property
    def soundness(self) -> Soundness:
        if self.wrong:
            return Soundness.UNSOUND
        return Soundness.SOUND if self.tested else Soundness.NOTHING_CHECKED

    @property
    def code(self) -> ExitCode:
        return ExitCode.INTERRUPTED if self.interrupted else _CODES[self.soundness]

    @property
    def executed(self) -> int:
        """Cases that were executed or begun."""
        results = [case.result for call in self.calls for case in call.cases]
        return sum({result.forward, result.backward} - {None, Verdict.SKIP} != set() for result in results)

    @property
    def untested_outputs(self) -> int:
        """Outputs and gradients that were not tested, of calls that were."""
        results = [case.result for call in self.tested for case in call.cases]
        return sum(output.verdict in NOT_TESTED for result in results for output in result.outputs)

    def count(self, verdict: Verdict) -> int:
        return sum(call.verdict is verdict for call in self.calls)


_CODES = {
    Soundness.SOUND: ExitCode.OK,
    Soundness.UNSOUND: ExitCode.DIFFERENCE,
    Soundness.NOTHING_CHECKED: ExitCode.NOTHING,
}


def worst_tested(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The worst of several; what was not tested counts only where nothing was."""
    found = [verdict for verdict in verdicts if verdict is not None]
    tested = [verdict for verdict in found if verdict not in NOT_TESTED]
    return max(tested or found, key=lambda verdict: verdict.severity, default=None)


def worst_output(outputs: Iterable[OutputResult], direction: Direction) -> Verdict | None:
    """The verdict of one direction of a case."""
    return worst_tested(output.verdict for output in outputs if output.direction is direction)


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


@dataclass(frozen=True, slots=True)
class ComparedOutput:
    """One output or gradient that both devices computed."""

    case: CaseId
    outputs: Pair[OutputResult]
    verdict: Verdict
    """PASS, FAIL or SKIP."""
    rule: str
    """The class of the API, which says what is compared; empty where nothing is."""
    figures: tuple[tuple[str, float], ...]
    """What was compared, by metric: target over reference, or the target's own where a class has limits of its own."""
    failing: tuple[str, ...]
    """Metrics that missed their limit."""


@dataclass(frozen=True, slots=True)
class CheckedSide:
    """One of the two results."""

    path: str
    trace: str
    devices: tuple[str, ...]
    alone: int
    """Outputs that the other result does not have."""


@dataclass(frozen=True, slots=True)
class CheckComparison:
    """What comparing two results gave."""

    sides: Pair[CheckedSide]
    outputs: tuple[ComparedOutput, ...]

    @property
    def failing(self) -> tuple[ComparedOutput, ...]:
        return tuple(output for output in self.outputs if output.verdict is Verdict.FAIL)

    @property
    def outcome(self) -> Outcome:
        if self.failing:
            return Outcome.DIVERGED
        compared = any(output.verdict is Verdict.PASS for output in self.outputs)
        return Outcome.AGREE if compared else Outcome.NOTHING_COMPARED

    @property
    def code(self) -> ExitCode:
        return self.outcome.code

    def count(self, verdict: Verdict) -> int:
        return sum(output.verdict is verdict for output in self.outputs)
