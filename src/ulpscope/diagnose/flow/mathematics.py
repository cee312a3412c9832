"""What no rounding makes, however small it is: a factor, and what an argument asks for.

Rounding moves elements to either side, and hardly any norm: of its error, the part along the value itself is one of as
many directions as there are elements that count. Norms are summed over all elements, not estimated: so a factor of one
percent is seen below noise of one percent.
"""

import math
from collections.abc import Sequence

from ulpscope.align.tensors import BACKWARD_KINDS
from ulpscope.diagnose.arguments import numbers_differ
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.explaining import Explained
from ulpscope.diagnose.limits import (
    FACTOR_DEVIATIONS,
    FACTOR_ELEMENTS,
    FACTOR_NOISE,
    FACTOR_SHARE,
    LAST_BITS,
)
from ulpscope.judge.rounding.limits import Limits
from ulpscope.operations.registry import Family, Trait
from ulpscope.records.enums import OPTIMIZER_KIND, PARAMETER_AFTER_ROLE


def follows_from_argument(evidence: RankEvidence, slot: Slot, explained: Explained, limits: Limits) -> bool:
    """Whether an error is the work of an argument that differs: of some size, or in noise, where it may drown."""
    if slot.row in evidence.regrouped:
        return slot.role == PARAMETER_AFTER_ROLE and numbers_differ(*evidence.regrouped[slot.row])
    if not slot.makes:
        return False
    in_noise = explained.error > 0 and max(explained.floor, explained.incoming) > LAST_BITS
    if in_noise and slot.pair in evidence.asked_for_more:
        return True
    if slot.pair not in evidence.other_numbers:
        return False
    kind = evidence.calls["kind"][slot.pair]
    if kind == OPTIMIZER_KIND:
        return slot.role == PARAMETER_AFTER_ROLE
    of_some_size = explained.error > max(explained.floor, limits.argument * explained.incoming)
    return kind not in BACKWARD_KINDS and of_some_size


def factor_of(evidence: RankEvidence, row: int) -> float | None:
    """How many times as large the target's value is as the reference's, if that is most of what differs."""
    error = evidence.operands[row].error
    if not LAST_BITS < error < math.inf or independent_elements(evidence, row) < FACTOR_ELEMENTS:
        return None
    factor = math.exp(_logarithm(evidence, row))
    return factor if math.isfinite(factor) and error <= abs(factor - 1.0) / FACTOR_SHARE else None


def makes_factor(evidence: RankEvidence, slot: Slot, sources: Sequence[int], widened: float) -> bool:
    """Whether a call made a factor that neither its operands have nor rounding makes.

    `widened`: by how much its output has cancelled.
    """
    # What a recurrent call rounds inside, and how often, nobody sees; and a part may be larger where the whole is not.
    known = evidence.operations[slot.pair]
    if known.family in (Family.RECURRENT, Family.SELECTION) or known.has(Trait.MOVING):
        return False
    if factor_of(evidence, slot.values) is None:
        return False
    values = evidence.values
    floats = [row for row in sources if not values.discrete[row]]
    noise = math.hypot(evidence.worst_error(floats), evidence.roundoffs[slot.values])
    came_in = [abs(_logarithm(evidence, row)) for row in floats if not values.identical[row]]
    if not floats or noise > FACTOR_NOISE or not all(map(math.isfinite, came_in)):
        return False
    by_chance = noise / math.sqrt(independent_elements(evidence, slot.values))
    explained = (max(came_in, default=0.0) + by_chance) * widened
    return abs(_logarithm(evidence, slot.values)) > FACTOR_DEVIATIONS * explained


def _logarithm(evidence: RankEvidence, row: int) -> float:
    """Of the factor between two values' norms."""
    reference, target = (float(side.summaries.norm[row]) for side in evidence.sides)
    return math.log(target / reference) if reference > 0 and target > 0 else math.nan


def independent_elements(evidence: RankEvidence, row: int) -> float:
    """How many elements make up a value's error: as many as are about as large as the largest."""
    stats = evidence.sides.reference.summaries
    largest = max(abs(float(stats.min[row])), abs(float(stats.max[row])))
    alike = (float(stats.norm[row]) / largest) ** 2 if largest > 0 else 1.0
    return max(alike, 1.0) if math.isfinite(alike) else 1.0
