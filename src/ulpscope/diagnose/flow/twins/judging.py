"""Judges values by the twins of the reference, where these tell what is healthy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ulpscope.align.tensors import BACKWARD_KINDS
from ulpscope.diagnose.flow.allowances import Allowances
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.explaining import Explained
from ulpscope.diagnose.flow.states import AFTER_CHOICE, WRONG, State
from ulpscope.diagnose.flow.twins.healthy import Twins
from ulpscope.diagnose.flow.unpaired import Gap
from ulpscope.diagnose.flow.updates import Update
from ulpscope.diagnose.limits import LAST_BITS
from ulpscope.operations.registry import Trait


@dataclass(frozen=True, slots=True)
class Told:
    """What twins tell of one value."""

    most: float
    """A larger error is not healthy."""
    chance: float | None
    """How likely a sound call has its error, or more; none where its operands do not tell."""
    beyond: bool
    """Whether it is further off than twins ever are, whatever it was made of."""


class TwinJudge:
    """Of one rank."""

    def __init__(
        self, evidence: RankEvidence, twins: Twins, updates: dict[int, Update], allowances: Allowances
    ) -> None:
        self.evidence = evidence
        self.twins = twins
        self.updates = updates
        self.allowances = allowances
        self.astray: set[int] = set()
        """Values in which a kink has moved elements that it has not moved in the twins, and what is made of them."""

    def begin(self) -> None:
        """Forget what was seen: the run is gone through again."""
        self.astray = set()

    def told(
        self,
        slot: Slot,
        sources: Sequence[int],
        explained: Explained,
        states: Sequence[State],
        *,
        gap: Gap | None,
        is_sound_if_near: bool,
    ) -> Told | None:
        """What twins tell of a value that was made of these; none where they do not tell. One that is as near to the
        reference as its twins is sound, whatever rules say of it, unless something else is asked of its call."""
        update = self.updates.get(slot.row)
        # Behind a choice that flipped here, and not in the twins, they went another way.
        if any(states[source] is AFTER_CHOICE for source in sources):
            return None
        healthy, alone = self.twins.of(slot, sources, update), self.twins.alone(slot, update)
        own = self.twins.own(slot, update) if is_sound_if_near else None
        if own is not None and explained.error <= own:
            return Told(own, None if healthy is None else healthy.chance_of(explained.error), beyond=False)
        flips = self._flips_few(slot)
        beyond = alone is None or explained.error > alone.most
        astray = any(source in self.astray and self.twins.counts(source, slot, update) for source in sources)
        if (flips and beyond) or ((flips or beyond) and astray):
            self.astray.add(slot.values)
            return None
        if healthy is None:
            return None
        # Sums in another order differ by more than operands that move by a bit now and then.
        in_own_type = self.evidence.precision.coarsest < LAST_BITS
        # What a kernel rounds inside, no twin shows.
        inside = gap is None and self.evidence.operations[slot.pair].has(Trait.ROUNDING_INSIDE)
        wrong = any(states[source] in WRONG for source in sources)
        most = max(healthy.most, explained.expected) if wrong or in_own_type or inside else healthy.most
        most = math.hypot(most, self.allowances.added_in_own_type(slot))
        return Told(most, healthy.chance_of(explained.error), beyond=alone is not None and beyond)

    def _flips_few(self, slot: Slot) -> bool:
        """Whether a few elements make all of an error, and how many is a matter of chance: behind a kink, or in what an
        adaptive optimizer makes of the signs of small gradients."""
        if slot.row in self.updates:
            return True
        is_backward = self.evidence.calls["kind"][slot.pair] in BACKWARD_KINDS
        return is_backward and self.evidence.operations[slot.pair].has(Trait.KINKED)
