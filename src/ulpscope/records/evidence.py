"""What a finding rests on, in small parts that belong together. report.words makes sentences of them.

The error ledger is the difference of two runs at one call, taken apart by executing both calls again. With f the call
in high precision, in and out what a run's call read and gave:

    out_target - out_reference =  [out_target - f(in_target)]        made by the target
                                + [f(in_target) - f(in_reference)]   inherited
                                + [f(in_reference) - out_reference]  made by the reference
"""

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from numpy.typing import NDArray

from ulpscope.records.checks import Direction, OutputEvidence, Verdict
from ulpscope.records.pairs import Measured


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


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """An argument that is not the same in both runs, as readable text."""

    place: str
    reference: str
    target: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """How far a tensor is off, beside what rounding and its call's inputs explain. Errors are relative L2 distances."""

    measured: Measured | None = None
    error_in: float | None = None
    """Of the worst input."""
    error_out: float | None = None
    expected: float | None = None
    """What rounding and the inputs' errors explain of error_out."""
    dtype: str | None = None
    """The coarsest element type of the call in either run."""
    peers: float | None = None
    """How much of its inputs' error the same operation passes on elsewhere in the run."""
    gain: float | None = None
    """error_out / error_in, each counted as at least the rounding of the dtype."""
    scale: float | None = None
    """Factor between the two runs (of a loss that is scaled)."""
    factor: float | None = None
    """How many times as large the target's values are as a whole, where that is most of what differs."""
    left: float | None = None
    """By how much all that leaves the steps differs at most, if nothing of this is to be seen in it."""
    agrees_again: bool | None = None
    """Whether what is made of it differs by no more than what went in before it: the same, written otherwise."""
    worst: tuple[int, ...] | None = None
    """Index of the element that differs most."""
    worst_values: tuple[float, float] | None = None
    """What the run to blame gave there, and the truth."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """What a call or tensor that both runs have is in reference and target, where that differs."""

    dtypes: tuple[str, str] | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    arguments: tuple[ArgumentDifference, ...] = ()
    classes: tuple[str, str] | None = None
    """Of a module that is of another class in the other run."""
    generators: tuple[str, str] | None = None
    """Digests of the generator's state before a random call."""


@dataclass(frozen=True, slots=True)
class OneRun:
    """What only one run does."""

    only_reference: tuple[str, ...] = ()
    """Calls without a partner between the last agreeing tensors and this one."""
    only_target: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    """Calls among these, in the target's names, that both runs make, at different places."""
    backwards: tuple[int, int] | None = None
    """How many backwards there are before an optimizer step, in reference and target."""
    shifted: int | None = None
    """How many whole steps only one run makes: positive of the reference, negative of the target."""
    paired: tuple[int, int] | None = None
    """How many calls have a partner, of how many in the run that makes fewer."""

    @property
    def calls(self) -> tuple[str, ...]:
        return (*self.only_reference, *self.only_target)


@dataclass(frozen=True, slots=True)
class OperandOrigin:
    """Where what a call was given comes from."""

    unknown_input: bool | None = None
    """Whether the call is given a tensor that was not compared, or that one run lacks."""
    shown: str | None = None
    """Of a tensor that the call did not make: `given` (an operand) or `summed` (a parameter's gradient)."""
    origins: tuple[str, str] | None = None
    """What an operand is in reference and target, where it is not the result of the same call."""
    given_as: str | None = None
    """The place at which the reference's call is given what the target's is given here: operands are swapped."""


@dataclass(frozen=True, slots=True)
class ParameterHistory:
    """What became of parameters and their gradients. A run is `reference` or `target`."""

    parameters: tuple[str, ...] = ()
    """Parameters that differ (names; at most a few)."""
    tied: tuple[str, str] | None = None
    """The run in which the parameter is the same as another one, and that one's name."""
    without_gradient: str | None = None
    """The run in which an optimizer has no gradient for the parameter."""
    updated_in: str | None = None
    """The run whose optimizer alone changes the parameter."""
    changed_unseen: bool | None = None
    """True of a parameter that was the same before, and that no recorded call has changed."""
    changed_in: str | None = None
    """The run in which alone it has changed so."""
    leftover: tuple[str, int] | None = None
    """The run whose gradient still holds that of an earlier step, and that step."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """Numbers that left their type, in reference and target."""

    not_finite: tuple[int, int] | None = None
    """Elements that are inf or nan."""
    extremes: tuple[float | None, float | None] | None = None
    """Largest finite |x|."""


@dataclass(frozen=True, slots=True)
class Amount:
    count: int | None = None
    """How many tensors, calls or elements this is about."""
    followers: int | None = None
    """Calls that carry the error on."""


@dataclass(frozen=True, slots=True)
class NetworkSpan:
    """Of a device's network: operators that may have made the difference as well as the one that shows it."""

    uncompared: tuple[str, ...] = ()
    """Operators that were not compared, and of which the call was given what they made or led to."""
    error_before: float | None = None
    """In place of error_in: of the worst of the nearest tensors before those that were compared."""
    given_by: str | None = None
    """The operator that made what the call was given, and made it otherwise."""
    seen_at: str | None = None
    """`fc1/Relu:input:0`: where an output was compared that is not there itself."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a finding rests on: of each part what applies; the rest of it is None or empty."""

    numbers: Numbers = Numbers()
    unlike: Unlike = Unlike()
    one_run: OneRun = OneRun()
    operand: OperandOrigin = OperandOrigin()
    history: ParameterHistory = ParameterHistory()
    overflow: Overflow = Overflow()
    amount: Amount = Amount()
    span: NetworkSpan = NetworkSpan()
    ledger: LedgerEntry | None = None
    """What executing the call again has shown."""

    def with_known(self, more: "Evidence") -> "Evidence":
        """The same, with what the other knows in its parts."""
        parts = {name: replace(getattr(self, name), **_told(part)) for name, part in _parts(more).items()}
        return replace(self, **parts)


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    """What the JSON of a finding has of its evidence: all parts in one object, without what does not apply."""
    entries = {name: entry for part in _parts(evidence).values() for name, entry in _told(part).items()}
    return entries if evidence.ledger is None else {**entries, "ledger": ledger_json(evidence.ledger)}


def _parts(evidence: Evidence) -> dict[str, Any]:
    return {field.name: getattr(evidence, field.name) for field in fields(Evidence) if field.name != "ledger"}


def _told(part: Any) -> dict[str, Any]:
    """What applies of a part."""
    entries = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: entry for name, entry in entries.items() if entry is not None and entry != ()}
