"""What the flow of errors knows: states of values, where differences began, how calls passed errors on, and what the
same operation does elsewhere in the run: the yardstick for errors that hide in noise.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.unpaired import Gap
from ulpscope.diagnose.limits import MANY_MODULES
from ulpscope.judge.rounding.limits import LIMITS, Limits, default_gain, layer_pattern
from ulpscope.operations.registry import Family
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
    ANOTHER_WAY = 7


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
    State.ANOTHER_WAY: Judgement.ANOTHER_WAY,
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
    drawn: bool = False
    """Numbers that were drawn, in another type."""


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
    gone: list[Birth] = field(default_factory=list)
    """Differences that began somewhere, and of which nothing is to be seen in what leaves the steps."""
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
    other_functions: set[int] = field(default_factory=set)
    """Values that the runs compute by formulas which, tried on the same numbers, are not one function."""
    first_slot: dict[int, Slot] = field(default_factory=dict)
    """Where each pair of values was judged."""

    def put_inside(self, births: Sequence[Birth]) -> None:
        """Take these differences for what is computed another way, and if they are all, what was made of them."""
        self.gone, self.births = [*self.gone, *births], [birth for birth in self.births if birth not in births]
        inside = WRONG if not self.births else frozenset[State]()
        self.states = [State.ANOTHER_WAY if state in inside else state for state in self.states]
        for birth in births:
            self.states[birth.slot.values] = State.ANOTHER_WAY


def finite(number: float) -> float | None:
    """A number that can be told; none for inf and nan."""
    return number if math.isfinite(number) else None


# What is rounded inside of these depends on sizes that are not seen (scores, states), other ones in every layer.
COMPOSED = frozenset((Family.ATTENTION, Family.RECURRENT))
ALL = ""


class PeerGains:
    """What peers allow; each question is answered once."""

    def __init__(self, evidence: RankEvidence, flow: Flow, limits: Limits = LIMITS) -> None:
        self._evidence = evidence
        self._limits = limits
        self._numbers = _numbers(evidence)
        self._peers: dict[Hashable, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Logarithms of the gains of one operation at one place in all layers, apart by module."""
        for gain in flow.gains:
            if gain.sound and 0 < gain.gain < math.inf:
                module = str(evidence.calls["module"][gain.pair])
                self._peers[self._key(gain.pair, gain.place)][module].append(math.log(gain.gain))
        self._known: dict[tuple[Hashable, str], tuple[float, float] | None] = {}

    def allowed(self, pair: int, place: str) -> float:
        """The gain that an output's peers and its kind of operation allow."""
        usual = default_gain(self._evidence.operations[pair], self._limits)
        found = self._middle_and_scatter(pair, place)
        if found is None:
            return usual
        middle, scatter = found
        near, far = self._bound(middle, scatter, 1.0), self._bound(middle, scatter, self._limits.plain_outlier)
        least = min(self._limits.least_gain, usual)
        strict = min(max(near, least), max(far, self._limits.least_outlier))
        if self._evidence.operations[pair].family in COMPOSED:
            strict = max(strict, usual)
        return min(strict, self._limits.peer_ratio * usual)

    def _bound(self, middle: float, scatter: float, times: float) -> float:
        allowed = max(math.log(self._limits.peer_ratio), self._limits.peer_scatter * scatter)
        return times * math.exp(middle + allowed)

    def would_change(self, flow: Flow) -> bool:
        """Whether any call was judged otherwise than its peers would have it."""
        least = min(self._limits.least_outlier, self._limits.gain)
        for gain in flow.gains:
            # What is below every limit is judged alike by all of them.
            if gain.gain <= least:
                continue
            usual = default_gain(self._evidence.operations[gain.pair], self._limits)
            if (gain.gain > usual) != (gain.gain > self.allowed(gain.pair, gain.place)):
                return True
        return False

    def usual(self, pair: int, place: str) -> float | None:
        """The median gain of an output's peers in other modules."""
        found = self._middle_and_scatter(pair, place)
        return None if found is None else math.exp(found[0])

    def _middle_and_scatter(self, pair: int, place: str) -> tuple[float, float] | None:
        key = self._key(pair, place)
        peers = self._peers.get(key)
        if peers is None:
            return None
        # A fault is in its own module in every step. Among many layers one does not move the median, faulty or not.
        module = ALL if len(peers) >= MANY_MODULES else str(self._evidence.calls["module"][pair])
        if (key, module) not in self._known:
            others = [gain for name, gains in peers.items() if name != module for gain in gains]
            enough = len(others) >= self._limits.least_peers
            middle = median(others) if enough else 0.0
            scatter = median(abs(gain - middle) for gain in others) if enough else 0.0
            self._known[key, module] = (middle, scatter) if enough else None
        return self._known[key, module]

    def _key(self, pair: int, place: str) -> Hashable:
        calls = self._evidence.calls
        pattern = layer_pattern(calls["module"][pair])
        return calls["kind"][pair], calls["op"][pair], pattern, self._numbers[pair], place


def _numbers(evidence: RankEvidence) -> list[int]:
    """Which of the calls of its operation in its module and step each call is."""
    calls = evidence.calls
    seen: dict[Hashable, int] = defaultdict(int)
    found = []
    for key in zip(calls["step"], calls["kind"], calls["op"], calls["module"], strict=True):
        found.append(seen[key])
        seen[key] += 1
    return found
