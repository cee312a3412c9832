"""Results of `ulpscope check` on two devices, set against each other."""

from dataclasses import dataclass

from ulpscope.records.checks import CaseId, OutputResult, Verdict
from ulpscope.records.enums import ExitCode
from ulpscope.records.findings import Outcome
from ulpscope.records.pairs import Pair


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
        return _CODES[self.outcome]

    def count(self, verdict: Verdict) -> int:
        return sum(output.verdict is verdict for output in self.outputs)


_CODES = {
    Outcome.AGREE: ExitCode.OK,
    Outcome.DIVERGED: ExitCode.DIFFERENCE,
    Outcome.NOTHING_COMPARED: ExitCode.NOTHING,
}
