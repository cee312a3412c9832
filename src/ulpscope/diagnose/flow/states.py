"""What the flow of errors knows: states of values, where differences began, how calls passed errors on."""

import math
from dataclasses import dataclass, field
from enum import Enum

from ulpscope.diagnose.flow.evidence import Slot
from ulpscope.diagnose.flow.unpaired import Gap
from ulpscope.records.pairs import Judgement


class State(int, Enum):
    """What is known of a pair of values."""

    UNKNOWN = 0
    IDENTICAL = 1
    ROUNDING = 2
    AFTER_CHOICE = 3
    INHERITED = 4
    MADE = 5
    UNRESOLVED = 6


# Looked up as members, they would cost more than what is done with them.
UNKNOWN, IDENTICAL, ROUNDING = State.UNKNOWN, State.IDENTICAL, State.ROUNDING
AFTER_CHOICE, INHERITED, MADE = State.AFTER_CHOICE, State.INHERITED, State.MADE
UNRESOLVED = State.UNRESOLVED
WRONG = frozenset((INHERITED, MADE))
SOUND = frozenset((IDENTICAL, ROUNDING, UNKNOWN, UNRESOLVED))
JUDGEMENTS = {
    State.IDENTICAL: Judgement.IDENTICAL,
    State.ROUNDING: Judgement.ROUNDING,
    State.AFTER_CHOICE: Judgement.AFTER_CHOICE,
    State.INHERITED: Judgement.INHERITED,
    State.MADE: Judgement.MADE_HERE,
    State.UNRESOLVED: Judgement.UNRESOLVED,
}


class Cause(str, Enum):
    """Why a difference counts as made here."""

    ERROR = "error"
    """More than rounding and operands explain."""
    NOT_FINITE = "not_finite"
    DISCRETE = "discrete"
    """Integers differ although all operands are identical, or closer to each other than what was chosen."""
    GAP = "gap"
    """It appeared between a producer's output and its consumer's input."""
    OUTSIDE = "outside"
    """It came from outside of the trace."""


@dataclass(frozen=True, slots=True)
class Birth:
    """A pair of values whose difference began here."""

    slot: Slot
    cause: Cause
    error_in: float
    error_out: float
    expected: float
    gain: float
    gap: Gap | None = None

    @property
    def score(self) -> float:
        """How many times more than explained."""
        return self.error_out / self.expected if self.expected > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Choice:
    """Integers that flipped although their operands differ by rounding only."""

    slot: Slot
    error_in: float


@dataclass(frozen=True, slots=True)
class Gain:
    """How a call passed error on: what its peers are compared by."""

    pair: int
    place: str
    gain: float
    sound: bool
    """Whether what came in was rounding only."""


@dataclass(slots=True)
class Flow:
    """The judgement of one rank."""

    states: list[State]
    births: list[Birth] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    gains: list[Gain] = field(default_factory=list)
    error_in: dict[int, float] = field(default_factory=dict)
    """Of an output's slot, by its row."""
    expected: dict[int, float] = field(default_factory=dict)
    chances: dict[int, float] = field(default_factory=dict)
    """By the row of an output's slot: how likely a sound call has its error or more, where twins tell."""
    started: list[Slot] = field(default_factory=list)
    """Parameters and states that differed a little when the comparison began, at a step other than 0."""
    unread: set[int] = field(default_factory=set)
    """Outputs that differ and that nothing reads, beside one that agrees: perhaps nobody has written them."""
    first_slot: dict[int, Slot] = field(default_factory=dict)
    """Where each pair of values was judged."""


def finite(number: float) -> float | None:
    """A number that can be told; none for inf and nan."""
    return number if math.isfinite(number) else None
