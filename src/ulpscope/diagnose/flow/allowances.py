"""What a sound call may do beyond the rule of its family, as far as stats tell.

What is only added (a bias) counts with what it does to the result. Behind a kink (relu) a single gradient may move, and
that may be the largest there is. A gradient that is summed over many rows keeps what the errors of the rows have in
common: they were all made with the same rounded weights.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from ulpscope.align.tensors import BACKWARD_KINDS
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.explaining import Explained
from ulpscope.diagnose.limits import COARSEST_ROUNDOFF
from ulpscope.judge.rounding.families import Operand, felt_error, summed_length
from ulpscope.judge.rounding.limits import Limits, unit_roundoff
from ulpscope.operations.traits import Family, Trait
from ulpscope.records.enums import GRAD_OUTPUT_ROLE


class Allowances:
    """Of the calls of one rank."""

    def __init__(self, evidence: RankEvidence, limits: Limits, parameters: Collection[int]) -> None:
        """`parameters` are their storages in the target."""
        self.evidence = evidence
        self.limits = limits
        self.parameters = parameters
        self.coarsest = min(
            max(unit_roundoff(name) for side in evidence.sides for name in {"", *side.dtype}), COARSEST_ROUNDOFF
        )

    def applied(self, slot: Slot, sources: Sequence[int], explained: Explained, gain: float) -> Explained:
        """The explanation of an output by its own call's operands, with what else is allowed, or counts for less."""
        if self.evidence.calls["kind"][slot.pair] in BACKWARD_KINDS:
            more = max(self._largest_kinked(slot, sources), self._in_common(slot, explained))
            return replace(explained, expected=max(explained.expected, more))
        felt = self._felt(slot, sources, explained, gain)
        more = max(self._rows_of_small_norm(slot, felt), self._aligned(slot, sources, felt))
        return replace(felt, expected=max(felt.expected, more))

    def _aligned(self, slot: Slot, sources: Sequence[int], explained: Explained) -> float:
        """What a weight's error can do at most: an update that differs lies along the inputs that it was made of."""
        evidence = self.evidence
        operation = evidence.operations[slot.pair]
        if operation.family not in (Family.CONTRACTION, Family.CONVOLUTION) or len(sources) < 2:
            return 0.0
        weight = sources[1]
        rounding = self.limits.gain * self.limits.rounding * evidence.roundoffs[weight]
        is_parameter = int(evidence.sides.target.storage[weight]) in self.parameters
        if not is_parameter or evidence.operands[weight].error <= rounding:
            return 0.0
        operands = [evidence.operands[source] for source in sources]
        length = summed_length(operation, operands, evidence.operands[slot.values])
        most = math.sqrt(length) * evidence.operands[weight].error * explained.widened
        return math.hypot(explained.expected, most)

    def _rows_of_small_norm(self, slot: Slot, explained: Explained) -> float:
        """A norm divides each row by its own size, which stats do not tell: that of padding may be very small."""
        if self.evidence.operations[slot.pair].family is not Family.NORMALIZATION or explained.incoming <= 0:
            return 0.0
        return self.limits.norm_roundings * self.limits.rounding * self.coarsest

    def _felt(self, slot: Slot, sources: Sequence[int], explained: Explained, gain: float) -> Explained:
        evidence = self.evidence
        addends = self._addends(slot.pair)
        if not addends:
            return explained
        others = [evidence.operands[source].error for source in sources if source not in addends]
        output = evidence.operands[slot.values]
        added = felt_error((evidence.operands[source] for source in addends), output)
        came_in = min(math.hypot(max(others, default=0.0), added), explained.incoming)
        if not came_in < explained.incoming:
            return explained
        base = math.hypot(came_in, explained.floor)
        return replace(
            explained,
            incoming=came_in,
            expected=math.inf if came_in > self.limits.saturated else gain * base * explained.widened,
            gain=explained.error / explained.widened / base if base else math.inf,
        )

    def added_in_own_type(self, slot: Slot) -> float:
        """What a norm's weight or bias loses if its gradient is added up, row by row, in the type it is stored in."""
        gradients, family = self._gradients(slot), self.evidence.operations[slot.pair].family
        if family is not Family.NORMALIZATION or not gradients:
            return 0.0
        rows = _rows(family, self.evidence.operands[gradients[0]], self.evidence.operands[slot.values])
        return self.limits.rounding * self.evidence.roundoffs[slot.values] * math.sqrt(rows) if rows > 1 else 0.0

    def _addends(self, pair: int) -> set[int]:
        """What is only added in these calls."""
        places = self.evidence.operations[pair].added
        slots = self.evidence.slots_of[pair] if places else ()
        return {slot.values for slot in slots if not slot.makes and slot.place in places}

    def _gradients(self, slot: Slot) -> list[int]:
        return [other.values for other in self.evidence.in_role(slot.pair, GRAD_OUTPUT_ROLE)]

    def _largest_kinked(self, slot: Slot, sources: Sequence[int]) -> float:
        """The error if the largest gradient moved across a kink, and the usual share of the others."""
        evidence = self.evidence
        output, gradients = evidence.operands[slot.values], self._gradients(slot)
        forward = [evidence.operands[source].error for source in sources if source not in gradients]
        moved = max(forward, default=0.0)
        if not evidence.operations[slot.pair].has(Trait.KINKED) or not gradients or moved <= 0 or output.norm <= 0:
            return 0.0
        stats = evidence.sides.reference.summaries
        largest = max(max(abs(stats.min[row]), abs(stats.max[row])) for row in gradients)
        return float(self.limits.kink * math.sqrt(min(moved, 1.0)) + largest / output.norm)

    def _in_common(self, slot: Slot, explained: Explained) -> float:
        """The error of a sum over rows, if a share of the rows' errors is the same in all."""
        gradients, output = self._gradients(slot), self.evidence.operands[slot.values]
        if not gradients:
            return 0.0
        rows = _rows(self.evidence.operations[slot.pair].family, self.evidence.operands[gradients[0]], output)
        gain = min(self.limits.in_common * math.sqrt(rows), self.limits.in_common_gain)
        return gain * explained.incoming * explained.widened if rows > 1 else 0.0


def _rows(family: Family, gradient: Operand, output: Operand) -> float:
    """Over how many rows, or positions, the gradient of a vector or of a convolution's weight was summed."""
    summed = len(output.shape) == 1 or family is Family.CONVOLUTION
    if not summed or len(gradient.shape) < 2 or output.shape[0] not in gradient.shape:
        return 1.0
    return gradient.elements / max(output.shape[0], 1)
