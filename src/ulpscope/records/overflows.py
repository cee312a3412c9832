"""Overflows: where numbers left the range of their type, what a device noted, and such a call executed again."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.calls import Stats
from ulpscope.records.checks import DataSource, Direction
from ulpscope.records.enums import ExitCode, Phase
from ulpscope.records.findings import Place


class Overflow(str, Enum):
    """Why a result is not finite."""

    NORMAL = "normal"
    """The dtype cannot hold it: the CPU gives inf or nan too."""
    ABNORMAL = "abnormal"
    """Only the device gave inf or nan."""
    STATED = "stated"
    """An argument of the call asks for it: masked_fill(mask, -inf)."""
    UNCLEAR = "unclear"
    """Data made from stats does not show it."""
    FINITE = "finite"
    """What the run gave is not recorded, and what comes out here is finite."""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """How many elements of a tensor are not finite."""

    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0

    @property
    def total(self) -> int:
        return self.nan + self.pos_inf + self.neg_inf

    def __str__(self) -> str:
        """`3 nan, 2 +inf`; `none`."""
        counts = {"nan": self.nan, "+inf": self.pos_inf, "-inf": self.neg_inf}
        return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "none"


@dataclass(frozen=True, slots=True)
class OverflowEvidence:
    """One output or gradient that was not finite in the run, or is not recorded, and what became of it here."""

    place: str
    direction: Direction
    dtype: str
    shape: tuple[int, ...]
    recorded: NotFinite | None
    """None where nobody recorded it."""
    cpu: NotFinite | None
    """The call on the CPU in the same dtype; none where the CPU has no kernel for it."""
    exact: NotFinite
    """The call in high precision."""
    exact_largest: float | None
    """Largest finite magnitude in high precision; none where nothing is finite."""
    asked_for: bool
    """An argument of the call is itself inf or nan."""
    source: DataSource
    terms: float
    """About how many terms an element is the sum of."""
    device: NotFinite | None = None
    """The call on the device under test, where one was named."""


FLOAT16_LARGEST = 65504.0
"""Devices that saturate give this number where others give inf."""


class Sign(str, Enum):
    """By what an overflow shows in a tensor."""

    NOT_FINITE = "not_finite"
    """It holds nan or inf."""
    SATURATED = "saturated"
    """A float16 tensor reaches its largest number, and all of it is finite."""


class Side(str, Enum):
    """Whether a call read or made a tensor."""

    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor of a call that overflowed."""

    side: Side
    place: str
    dtype: str
    shape: tuple[int, ...]
    stats: Stats | None
    """None where there is nothing to make them of."""

    @property
    def not_finite(self) -> NotFinite:
        stats = self.stats
        return NotFinite() if stats is None else NotFinite(stats.nan, stats.pos_inf, stats.neg_inf)

    @property
    def largest(self) -> float | None:
        """Largest finite magnitude."""
        if self.stats is None or self.stats.min is None or self.stats.max is None:
            return None
        return max(abs(self.stats.min), abs(self.stats.max))

    @property
    def sign(self) -> Sign | None:
        """None where nothing shows."""
        if self.not_finite.total:
            return Sign.NOT_FINITE
        saturated = self.dtype == "float16" and (self.largest or 0.0) >= FLOAT16_LARGEST
        return Sign.SATURATED if saturated else None


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """What a device noted of one overflow."""

    file: str
    unit: str
    """`AI Core`, `AIC`, ..."""
    status: tuple[int, ...]
    meanings: tuple[str, ...]
    """Words of the status, as dialects.ascend.overflow_status has them."""
    task: int | None
    stream: int | None
    timestamp: int
    """Microseconds."""


@dataclass(frozen=True, slots=True)
class WayCall:
    """A call that hands an overflow on."""

    call: str
    op: str
    module: str | None
    phase: Phase
    tensor: str
    """By which it shows."""
    not_finite: NotFinite
    is_loss: bool = False
    """It made the loss."""
    step: int = 0
    is_update: bool = False
    """An optimizer's step: it turns gradients into weights."""


@dataclass(frozen=True, slots=True)
class OverflowFinding:
    """One operation that overflowed."""

    path: str
    """The trace or directory that tells of it."""
    place: Place
    tensors: tuple[SeenTensor, ...]
    record: DeviceRecord | None = None
    """None where numbers alone tell."""
    verdict: Overflow = Overflow.UNCLEAR
    """Whether this is the type's own limit; unclear where the call was not executed again."""
    message: str = ""
    """Why the verdict is what it is."""
    given: bool = False
    """It was not made here, but came with an input that no recorded call has made."""
    way: tuple[WayCall, ...] = ()
    """From this call to the loss, or to the last call of its phase that was given it; without followers, empty."""
    written: bool = False
    """An argument of the call is nan or inf, other calls take it on, and it is no mask."""
    came_from: Place | None = None
    """The call of another rank that made it before ranks shared it."""

    @property
    def worst(self) -> SeenTensor | None:
        """The output by which it shows, or the input that it came with: nan and inf before saturation."""
        side = Side.INPUT if self.given else Side.OUTPUT
        shown = [tensor for tensor in self.tensors if tensor.side is side and tensor.sign is not None]
        return min(shown, key=lambda tensor: tensor.sign is not Sign.NOT_FINITE, default=None)


@dataclass(frozen=True, slots=True)
class OverflowCounts:
    records: int = 0
    """Files that a device wrote about overflows."""
    silent: int = 0
    """Those of them whose status is 0."""
    calls: int = 0
    """Calls that were looked at."""
    born: int = 0
    """Calls that made what is not finite, or saturated, of inputs that are neither."""
    inherited: int = 0
    """Calls that gave it because they were given it."""
    unknown: int = 0
    """Calls that gave it and whose inputs are not recorded."""
    untold: int = 0
    """Calls of which nobody recorded whether what they gave is finite."""

    @property
    def looked_at(self) -> int:
        """Calls and records that tell something."""
        return self.calls - self.untold + self.records


@dataclass(frozen=True, slots=True)
class OverflowSurvey:
    """Everything that `ulpscope overflow` found."""

    paths: tuple[str, ...]
    findings: tuple[OverflowFinding, ...]
    """What the devices noted in time order, then what numbers tell in the order of execution."""
    notes: tuple[OverflowFinding, ...]
    """What an argument of its call asks for: nothing is wrong with it."""
    counts: OverflowCounts
    missing: tuple[str, ...] = ()
    """What could not be read, one sentence each."""

    @property
    def code(self) -> ExitCode:
        if self.findings:
            return ExitCode.DIFFERENCE
        return ExitCode.OK if self.counts.looked_at else ExitCode.NOTHING
