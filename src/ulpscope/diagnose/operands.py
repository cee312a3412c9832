"""Operands that nothing was compared with: what comes with them is not known."""

from ulpscope.diagnose.arguments import tensor_places
from ulpscope.diagnose.evidence import RankEvidence


def has_unknown_operand(evidence: RankEvidence, pair: int) -> bool:
    """Whether a pair of calls, or its forward, is given a tensor that was not compared, or that one run lacks."""
    forward = evidence.forwards[pair]
    return any(_has_unknown(evidence, each) for each in ([pair] if forward < 0 else [pair, forward]))


def _has_unknown(evidence: RankEvidence, pair: int) -> bool:
    calls, compared = evidence.calls, evidence.values.compared
    if not all(compared[slot.values] for slot in evidence.slots_of[pair] if not slot.makes):
        return True
    return tensor_places(calls["reference_arguments"][pair]) != tensor_places(calls["arguments"][pair])
