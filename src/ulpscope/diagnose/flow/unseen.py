"""What sketches do not tell: errors of few elements, which can cancel in them."""

import math
from collections.abc import Sequence

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.explaining import Explained
from ulpscope.diagnose.flow.states import Flow
from ulpscope.diagnose.flow.updates import Update
from ulpscope.diagnose.limits import LAST_BITS
from ulpscope.judge.rounding.limits import Limits
from ulpscope.judge.rounding.masks import largest
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS
from ulpscope.numerics.summaries.estimates import scatter_of_few
from ulpscope.records.pairs import Measured


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
        self._largest = largest(evidence.sides.reference)

    def begin(self) -> None:
        """Forget what was seen: the run is gone through again."""
        self.scattered = set()

    def doubt(self, slot: Slot) -> float:
        """By how much an error that was told from a sketch may be too large because it is one of few elements."""
        update = self.updates.get(slot.row)
        from_sketch = self._from_sketch[slot.values] if update is None else not update.from_data
        return scatter_of_few(self.evidence.operands[slot.values].elements) if from_sketch else 1.0

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
