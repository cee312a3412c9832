"""The error ledger: the difference of two runs at one call, taken apart by executing both calls again.

With f the call in high precision, in and out what a run's call read and gave:

    out_target - out_reference =  [out_target - f(in_target)]        made by the target
                                + [f(in_target) - f(in_reference)]   inherited
                                + [f(in_reference) - out_reference]  made by the reference
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from numpy.typing import NDArray

from ulpscope.records.checks import Direction, OutputEvidence, Verdict


class Replay(str, Enum):
    """Which calls of two runs are executed again."""

    AUTO = "auto"
    """Suspects and their neighbours, where both runs saved their data."""
    ON = "on"
    OFF = "off"


class Maker(str, Enum):
    """Who made a difference at a call."""

    TARGET = "target"
    REFERENCE = "reference"
    BOTH = "both"
    """Both runs, and alike: a property of the kernel, not of a run."""
    KERNEL = "kernel"
    """The target, as this machine's own kernel does."""
    NEITHER = "neither"


GUILTY = frozenset((Maker.TARGET, Maker.REFERENCE))
"""Makers that are one run: what it did is a fault of that run."""


@dataclass(frozen=True, slots=True)
class PairEvidence:
    """One output or gradient of a pair of calls, beside what is true for each run's inputs."""

    place: str
    direction: Direction
    reference: OutputEvidence
    target: OutputEvidence
    exact_reference: NDArray[Any]
    """From the reference's inputs as they were stored; `reference.exact` may start from what autocast made of them."""
    exact_target: NDArray[Any]
    crossed: NDArray[Any] | None
    """From the target's inputs with the reference's arguments, where the arguments differ."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts of a difference."""

    norm: float
    """L2 norm, relative to that of the reference's output."""
    worst: float
    """The largest element, in units of the last place of its own size, or of a typical element's if that is larger."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The difference of one output or gradient of a pair of calls."""

    rank: int
    step: int
    call: str
    call_id: int
    call_reference: str
    op: str
    module: str | None
    place: str
    direction: Direction
    dtypes: tuple[str, str]
    observed: Part
    made_by_target: Part
    by_arguments: Part | None
    inherited: Part
    made_by_reference: Part
    verdict_target: Verdict
    statistic: str
    """What decided on the run that is to blame; on the target where neither is."""
    message: str
    verdict_reference: Verdict
    maker: Maker
    worst: tuple[int, ...] | None
    """Index of the worst element of what that run made."""
    worst_values: tuple[float, float] | None
    """What it gave there, and the truth."""
    contribution: float | None = None
    """What the call's own error adds to the final difference, in its unit."""


def ledger_json(entry: LedgerEntry) -> dict[str, Any]:
    """An entry as it stands in the evidence of a finding."""
    parts = ("observed", "made_by_target", "by_arguments", "inherited", "made_by_reference")
    found = {name: getattr(entry, name) for name in parts}
    return {
        **{name: {"norm": part.norm, "worst_ulp": part.worst} for name, part in found.items() if part is not None},
        "maker": entry.maker,
        "verdict_target": entry.verdict_target,
        "verdict_reference": entry.verdict_reference,
        "statistic": entry.statistic,
        "message": entry.message,
        **({} if entry.contribution is None else {"contribution": entry.contribution}),
    }


@dataclass(frozen=True, slots=True)
class FinalDifference:
    """The difference at the end of a step's forward, and how much of it the ledger accounts for."""

    rank: int
    step: int
    call: str
    difference: float
    """Of the loss; of anything else than a number, the length of the difference."""
    calls: float
    """What errors made in the replayed calls contribute, to first order."""
    start: float
    """What differing inputs and parameters contribute."""
    unseen: float = 0.0
    """What comes from calls that could not be executed again, or through them."""

    @property
    def closure(self) -> float | None:
        """The sum of the parts over the difference: 1 where they add up."""
        return (self.calls + self.start + self.unseen) / self.difference if self.difference else None


@dataclass(frozen=True, slots=True)
class Ledger:
    """What executing calls of both runs again has shown."""

    replay: Replay
    entries: tuple[LedgerEntry, ...] = ()
    finals: tuple[FinalDifference, ...] = ()
    left: tuple[tuple[str, int], ...] = ()
    """Pairs of calls that were not executed again, by reason."""

    @property
    def calls(self) -> int:
        return len({(entry.rank, entry.call_id) for entry in self.entries})
