"""What sketches do not tell: errors of few elements, which can cancel in them."""

import math
from collections.abc import Sequence
from functools import cached_property

import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.explaining import Explained
from ulpscope.diagnose.flow.states import Flow
from ulpscope.diagnose.flow.updates import Update
from ulpscope.diagnose.limits import LAST_BITS
from ulpscope.judge.rounding.limits import Limits
from ulpscope.judge.rounding.masks import largest
from ulpscope.judge.rounding.measuring import NO_SUMMARY
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS
from ulpscope.numerics.summaries.estimates import scatter_of_few, shortfall_of_few
from ulpscope.records.enums import COMPILED_KIND, INPUT_ROLE, OPTIMIZER_KIND, STATE_ROLE
from ulpscope.records.pairs import Measured, Pair


class Unseen:
    """Of the values of one rank."""

    def __init__(self, evidence: RankEvidence, updates: dict[int, Update], limits: Limits) -> None:
        self.evidence = evidence
        self.updates = updates
        self.limits = limits
        self.scattered: set[int] = set()
        """Values in which a choice that flipped has moved single elements."""
        values = evidence.values
        self._from_sketch = [how is Measured.SKETCH for how in values.measured.tolist()]
        self._identical, self._discrete = values.identical.tolist(), values.discrete.tolist()
        self._unrecorded = [reason == NO_SUMMARY for reason in values.reason.tolist()]
        self._largest = largest(evidence.sides.reference)

    def begin(self) -> None:
        """Forget what was seen: the run is gone through again."""
        self.scattered = set()

    def doubt(self, slot: Slot, sources: Sequence[int]) -> float:
        """By how much an error that was told from a sketch may be too large because it is one of few elements, or those
        of its operands too small."""
        update = self.updates.get(slot.row)
        from_sketch = self._from_sketch[slot.values] if update is None else not update.from_data
        own = scatter_of_few(self.evidence.operands[slot.values].elements) if from_sketch else 1.0
        return own * (self._shortfall(sources) if update is None else 1.0)

    def reads_unrecorded(self, pair: int) -> bool:
        """Whether these calls were given what nobody has recorded, in both runs: what they make of it is not known."""
        given = (slot.values for slot in self.evidence.slots_of[pair] if slot.role == INPUT_ROLE)
        return any(self._unrecorded[row] for row in given)

    def is_state_of_unseen(self, slot: Slot) -> bool:
        """Whether a compiled call of one run left it in a state that an optimizer's step of the other has made: what
        became of the gradients there, and whether they cancelled, nobody knows."""
        if self.evidence.calls["kind"][slot.pair] != COMPILED_KIND or self.evidence.storage(slot) not in self._states:
            return False
        makers = (int(side.producer[slot.values]) for side in self.evidence.sides)
        by_optimizer = [maker in known for maker, known in zip(makers, self._updates, strict=True)]
        return by_optimizer[0] is not by_optimizer[1]

    @cached_property
    def _states(self) -> set[int]:
        return self.evidence.storages_of(STATE_ROLE)

    @cached_property
    def _updates(self) -> Pair[frozenset[int]]:
        """Steps of optimizers of either run."""
        is_update = pl.col("kind") == OPTIMIZER_KIND
        return self.evidence.plan.calls.map(lambda calls: frozenset(calls.filter(is_update)["id"]))

    def _shortfall(self, sources: Sequence[int]) -> float:
        """How many times more the worst error of these operands may be than sketches of few elements tell."""
        operands = self.evidence.operands
        errors = {row: operands[row].error for row in sources if not self._discrete[row] and operands[row].error > 0}
        told = max(errors.values(), default=0.0)
        if not 0.0 < told < math.inf:
            return 1.0
        few = {row: shortfall_of_few(operands[row].elements) if self._from_sketch[row] else 1.0 for row in errors}
        return max(error * few[row] for row, error in errors.items()) / told

    def hidden(self, sources: Sequence[int], gain: float, explained: Explained, flow: Flow) -> float:
        """What operands may have at most of which a sketch may see nothing.

        Behind a choice a single element moved, perhaps the largest; in a small gradient, where few elements are behind
        a kink, no more than what explains it.
        """
        operands, found = self.evidence.operands, 0.0
        for source in sources:
            if not self._from_sketch[source] or self._discrete[source]:
                continue
            if source in self.scattered and operands[source].norm > 0:
                moved = math.sqrt(2.0) * float(self._largest[source]) / operands[source].norm
                found = max(found, gain * explained.widened * moved)
            elif self._sees_nothing(source) and source in self.evidence.gradients:
                first = flow.first_slot.get(source)
                found = max(found, flow.expected.get(first.row, 0.0) if first is not None else 0.0)
        return min(found, self.limits.saturated)

    def _sees_nothing(self, row: int) -> bool:
        """Whether bits of few elements differ, and their sketch does not show it."""
        operand = self.evidence.operands[row]
        return not self._identical[row] and operand.elements <= BLOCK_ELEMENTS and operand.error <= LAST_BITS
