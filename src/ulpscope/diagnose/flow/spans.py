"""Where two runs write the same thing otherwise: what differs between, and is gone in all that is made of it.

One run adds before it multiplies, the other after. Then values stand beside each other that are not meant to be the
same. They are followed: what is made of them and differs by no more than what went in before them agrees again. If all
does, and no loss, gradient or result is left that does not, it is a note.
"""

import math
from collections.abc import Mapping, Sequence

from ulpscope.align.tensors import KEPT_ROLES
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import Birth, Cause, Flow
from ulpscope.judge.rounding.limits import LIMITS
from ulpscope.records.enums import GRADIENT_ROLE, LOSS_ROLE, PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE

Sources = Mapping[int, Sequence[int]]
"""By row of a pair of values: rows that it was judged against, in the order in which they were judged."""
LEAVING = (*KEPT_ROLES, LOSS_ROLE, GRADIENT_ROLE, PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE)


def healed(evidence: RankEvidence, flow: Flow, sources: Sources) -> list[Birth]:
    """Differences that began where the runs are written otherwise, if nothing of them is left."""
    births = [birth for birth in flow.births if _is_written_otherwise(evidence, birth)]
    if not births:
        return []
    came_in = {birth.slot.values: _worst(evidence, sources.get(birth.slot.values, ())) for birth in births}
    for row, given in sources.items():
        if row in came_in or not any(source in came_in for source in given):
            continue
        before = max((came_in.get(source, evidence.operands[source].error) for source in given), default=0.0)
        least = LIMITS.rounding * max(evidence.roundoffs[row], evidence.resolutions[row])
        if evidence.operands[row].error > math.hypot(before, least):
            came_in[row] = before
    used = {source for given in sources.values() for source in given}
    leaves = any(
        slot.values in came_in and (slot.role in LEAVING or slot.values not in used) for slot in evidence.slots
    )
    return [] if leaves else births


def _is_written_otherwise(evidence: RankEvidence, birth: Birth) -> bool:
    """Whether both runs have calls of their own before it, or give it what other calls have made."""
    gap = birth.gap
    if birth.cause is not Cause.GAP or gap is None or gap.outside or birth.slot.makes:
        return False
    makers = [int(side.producer[birth.slot.values]) for side in evidence.sides]
    return not gap.one_sided or (not gap.calls and min(makers) >= 0)


def _worst(evidence: RankEvidence, rows: Sequence[int]) -> float:
    errors = [evidence.operands[row].error for row in rows if not evidence.values.discrete[row]]
    return max((error for error in errors if math.isfinite(error)), default=0.0)
