"""Outputs that nothing reads: other tools record them although nobody may have written them.

A kernel may return memory that it reserves for its backward (the batch norm of an inference). A capture of ours knows
what was never written; another tool's dump shows numbers that lay there before.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import SOUND, UNKNOWN, State
from ulpscope.records.enums import OUTPUT_ROLE, Kind


class UnreadOutputs:
    """Of one rank."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence

    def has(self, slot: Slot, states: Sequence[State]) -> bool:
        """Whether nothing reads this output, and what is read of its call agrees: then it did to no one any harm."""
        evidence = self.evidence
        is_api = evidence.calls["kind"][slot.pair] == Kind.API.value
        if evidence.complete or not is_api or slot.role != OUTPUT_ROLE or self._readers[slot.values]:
            return False
        others = [other.values for other in evidence.in_role(slot.pair, OUTPUT_ROLE) if self._readers[other.values]]
        return bool(others) and all(states[other] in SOUND - {UNKNOWN} for other in others)

    @cached_property
    def _readers(self) -> Counter[int]:
        """How many calls, backwards among them, read each pair of values."""
        return Counter(slot.values for slot in self.evidence.slots if not slot.makes)
