"""What is wrong with a training while it runs: told from norms, counts and digests of its own steps."""

from dataclasses import dataclass
from enum import Enum


class Quantity(str, Enum):
    """What of a training is followed from step to step, in the order in which a step makes them."""

    OUTPUT = "output"
    """What a module gives."""
    LOSS = "loss"
    OUTPUT_GRADIENT = "output_gradient"
    """Of what a module gives."""
    LOCAL_GRADIENT = "local_gradient"
    """Of a parameter, as backward makes it: before ranks reduce it, before it is clipped."""
    GRADIENT = "gradient"
    """Of a parameter, as an optimizer reads it."""
    TOTAL_GRADIENT = "total_gradient"
    """Of all parameters of an optimizer together, as it reads them."""
    STATE = "state"
    """What an optimizer keeps of a parameter: its moments."""
    UPDATE = "update"
    """How far an optimizer has moved a parameter."""
    PARAMETER = "parameter"
    """After the update."""


class AnomalyKind(str, Enum):
    """How a number is unlike what it was so far."""

    NOT_FINITE = "not_finite"
    JUMP = "jump"
    """Larger or smaller than the run's own noise explains."""
    VANISHED = "vanished"
    """A gradient that is zero, or on its way there, and was not."""
    DEAD = "dead"
    """Outputs that are all zero, or nearly, and were not."""
    STUCK = "stuck"
    """A parameter that updates no longer move."""
    WRITTEN = "written"
    """A parameter that somebody else than the optimizer has changed."""
    RANKS = "ranks"
    """A parameter that ranks have in common, and that is not the same on all of them."""
    LIKE = "like"
    """A loss that parts from that of the earlier training."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong, and where it was seen first; what follows from it is counted."""

    kind: AnomalyKind
    step: int
    rank: int
    quantity: Quantity
    name: str
    """A module, a parameter, or what else the quantity is of."""
    value: float | None = None
    """What was seen; of what is not finite, how many elements."""
    usual: float | None = None
    """What it was so far."""
    call: str | None = None
    call_id: int | None = None
    others: int = 0
    """How many more numbers were unlike themselves in the same step."""
    tests: int = 0
    """How many numbers were asked so far: an alarm must be rarer than one in so many."""
    other_rank: int | None = None

    @property
    def when(self) -> tuple[int, int]:
        """Its step, and where in a step it was seen."""
        return self.step, list(Quantity).index(self.quantity)

    def is_like(self, other: "Anomaly") -> bool:
        """Whether another rank says the same."""
        return (self.kind, self.step, self.quantity, self.name) == (other.kind, other.step, other.quantity, other.name)
