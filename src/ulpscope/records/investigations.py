"""An investigation of two runs: which stage is next, what each said, and what that makes of it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ulpscope.records.enums import ExitCode
from ulpscope.records.environments import EnvironmentDifference
from ulpscope.records.findings import Comparison, Outcome
from ulpscope.records.pairs import Pair
from ulpscope.records.trainings import Trainings

REFERENCE, TARGET = "reference", "target"
UNKNOWN: Pair[float | None] = Pair(None, None)
NO_TRACES: Pair[str | None] = Pair(None, None)


class Stage(str, Enum):
    """What is done, in this order; a run without an optimizer has modules in the place of losses."""

    LOSSES = "losses"
    MODULES = "modules"
    STEP = "step"
    TENSORS = "tensors"
    RAISED = "raised"
    """The suspect once more inside of the target, in float32 or on the CPU."""


_OPTIONS: Mapping[Stage, tuple[str, ...]] = {
    Stage.LOSSES: ("--watch", "gradients"),
    Stage.MODULES: ("--level", "module"),
    Stage.STEP: (),
    Stage.TENSORS: ("--save", "tensors"),
    Stage.RAISED: (),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A stage, and how runs are captured for it. Prints itself as options of `ulpscope run`."""

    stage: Stage
    steps: tuple[int, int] | None = None
    """The first and the last; the run ends after it."""
    only: str | None = None
    in_float32: str | None = None
    on_cpu: str | None = None
    sides: tuple[str, ...] = (REFERENCE, TARGET)

    @property
    def is_whole(self) -> bool:
        """Whether runs go on to their end."""
        return self.steps is None

    @property
    def options(self) -> tuple[str, ...]:
        first, last = self.steps or (0, 0)
        steps = () if self.steps is None else ("--steps", str(first) if first == last else f"{first}-{last}", "--stop")
        named = {"--only": self.only, "--in-float32": self.in_float32, "--on-cpu": self.on_cpu}
        chosen = (word for option, call in named.items() if call is not None for word in (option, call))
        return (*_OPTIONS[self.stage], *chosen, *steps)

    def __str__(self) -> str:
        return shlex.join(self.options) or "every call"


@dataclass(frozen=True, slots=True)
class Suspect:
    """The call that is blamed, as the target makes it."""

    call: str
    """Of a backward its forward's, which is what can run elsewhere."""
    op: str
    module: str | None
    is_coarse: bool
    """Whether it reads or makes numbers in fewer bits than float32 has."""
    on_device: bool
    """Whether any of its tensors is elsewhere than on the CPU."""


@dataclass(frozen=True, slots=True)
class StepLosses:
    """Losses of one step."""

    step: int
    reference: float
    target: float
    raised: float | None = None
    """The target's, with the suspect elsewhere."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What watched trainings said; None where a run has no optimizer."""

    captured: Pair[bool]
    trainings: Trainings | None = None
    optimizers: int = 1
    """Of either run, at most."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What captured calls said; None where a run had none to capture."""

    captured: Pair[bool]
    comparison: Comparison | None = None
    suspect: Suspect | None = None
    watched_as: int | None = None
    """The watched step whose losses these are, if there is one: runs number their steps otherwise under capture."""
    losses: StepLosses | None = None
    """What was watched of that step."""
    apart: Pair[float | None] = UNKNOWN
    """How far each command's loss of that step is from what it was when it was watched: of what repeats itself, 0."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What became of the losses."""

    losses: tuple[StepLosses, ...]
    calls: int
    """That ran elsewhere."""


@dataclass(frozen=True, slots=True)
class Done:
    """One stage that is complete."""

    plan: Plan
    said: Watched | Compared | Raised
    seconds: float
    """That its runs took, whenever that was."""
    ran: tuple[str, ...] = ()
    """Sides that were run for it, now or in an earlier attempt."""
    traces: Pair[str | None] = NO_TRACES


class Verdict(str, Enum):
    """How an investigation ended."""

    AGREE = "agree"
    FOUND = "found"
    NOT_REPEATABLE = "not_repeatable"
    """A command does not repeat itself: what two runs of two commands differ by says nothing."""
    NOTHING_COMPARED = "nothing_compared"

    @property
    def code(self) -> ExitCode:
        if self is Verdict.NOTHING_COMPARED:
            return ExitCode.NOTHING
        return ExitCode.OK if self is Verdict.AGREE else ExitCode.DIFFERENCE


class Recovery(str, Enum):
    """What becomes of the loss when the suspect runs elsewhere."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What all stages together say."""

    verdict: Verdict
    by: int | None = None
    """The stage whose answer is the finding."""
    environment: EnvironmentDifference | None = None
    """The finding itself, where a switch of precision differs and calls with the same operands do."""
    unrepeatable: str | None = None
    """The side that does not repeat itself."""
    acquitted: bool = False
    """Whether what a stage blamed was cleared by executing it again."""
    recovery: Recovery | None = None


@dataclass(frozen=True, slots=True)
class Investigation:
    """All that is told."""

    commands: Pair[tuple[str, ...]] | None
    """None where traces were given."""
    done: tuple[Done, ...]
    environment: tuple[EnvironmentDifference, ...]
    conclusion: Conclusion
    is_kept: bool = True
    """Whether the traces stay where they are."""
    needed: Plan | None = None
    """What must be captured before it goes on, where traces were given."""

    @property
    def decisive(self) -> Done | None:
        return None if self.conclusion.by is None else self.done[self.conclusion.by]

    def runs(self, side: str) -> tuple[int, int]:
        """How many runs of a command went to their end, and how many ended after a captured step."""
        plans = [done.plan for done in self.done for ran in done.ran if ran == side]
        whole = sum(plan.is_whole for plan in plans)
        return whole, len(plans) - whole


def has_diverged(said: Watched | Compared | Raised) -> bool:
    """Whether a stage has found something."""
    if isinstance(said, Watched):
        return said.trainings is not None and said.trainings.outcome is Outcome.DIVERGED
    return isinstance(said, Compared) and said.comparison is not None and bool(said.comparison.findings)
