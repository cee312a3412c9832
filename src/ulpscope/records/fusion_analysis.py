"""What fusion does to a network's numbers: the same network compiled with and without it, pass by pass."""

from dataclasses import dataclass

from ulpscope.records.enums import ExitCode
from ulpscope.records.findings import Outcome

JUDGEMENTS = ("identical", "rounding", "unresolved", "after_choice", "inherited", "made_here")
"""From best to worst: an operator is as bad as the worst of its outputs."""


@dataclass(frozen=True, slots=True)
class FusedOperator:
    """An operator of the compilation with fusion, set against what it stands for in the one without."""

    name: str
    type: str
    passes: tuple[str, ...]
    """Passes that made it; empty: it was not fused."""
    call: str
    rank: int
    step: int
    tensor: str
    """The output that decided."""
    judgement: str
    error: float | None
    """Relative L2 distance."""
    error_in: float | None
    expected: float | None
    """What rounding and the inputs explain of the error."""

    @property
    def parts(self) -> bool:
        """Whether it made error of its own."""
        return self.judgement == "made_here"


@dataclass(frozen=True, slots=True)
class FusionAnalysis:
    """All operators that have a partner, in the order in which they ran."""

    fused: str
    """The dump with fusion."""
    unfused: str
    graphs: tuple[str, str]
    """Of both, in this order."""
    operators: tuple[FusedOperator, ...]
    missing: tuple[str, ...] = ()

    @property
    def parting(self) -> tuple[FusedOperator, ...]:
        """Operators that made error of their own: the first is the answer."""
        return tuple(operator for operator in self.operators if operator.parts)

    @property
    def passes(self) -> dict[str, tuple[FusedOperator, ...]]:
        """Operators by the pass that made them; one that several made is in each of them."""
        found: dict[str, list[FusedOperator]] = {}
        for operator in self.operators:
            for name in operator.passes:
                found.setdefault(name, []).append(operator)
        return {name: tuple(operators) for name, operators in found.items()}

    @property
    def outcome(self) -> Outcome:
        if not self.operators:
            return Outcome.NOTHING_COMPARED
        return Outcome.DIVERGED if self.parting else Outcome.AGREE

    @property
    def code(self) -> ExitCode:
        codes = {Outcome.AGREE: ExitCode.OK, Outcome.DIVERGED: ExitCode.DIFFERENCE}
        return codes.get(self.outcome, ExitCode.NOTHING)
