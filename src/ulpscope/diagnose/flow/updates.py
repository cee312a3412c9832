"""Updates of parameters: what an optimizer's step changed, in both runs.

The two updates are compared, not the two parameters. A sketch is linear: sketch(after) - sketch(before) is the sketch
of the update.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.limits import AVERAGE_ERRORS, CHANCE, LARGE_ERRORS
from ulpscope.judge.rounding.measuring import least_apart
from ulpscope.numerics.dtypes import Floats
from ulpscope.numerics.summaries.constants import EXPONENT_BIAS, EXPONENT_BIN_SHIFT
from ulpscope.records.enums import GRADIENT_ROLE, PARAMETER_AFTER_ROLE, PARAMETER_ROLE


@dataclass(frozen=True, slots=True)
class Update:
    """Of one parameter in one step of an optimizer."""

    error: float
    """Relative distance of the two updates."""
    resolution: float
    """Rounding of the parameter itself, relative to the update."""
    uncertain: float
    """Share of the gradient's elements that may be all error: an adaptive optimizer amplifies them all."""


def compare_updates(evidence: RankEvidence) -> dict[int, Update]:
    """Updates by the row of the slot that holds the parameter after it."""
    before, gradients = (
        {(slot.pair, slot.place): slot.values for slot in evidence.by_role.get(role, [])}
        for role in (PARAMETER_ROLE, GRADIENT_ROLE)
    )
    after = [s for s in evidence.by_role.get(PARAMETER_AFTER_ROLE, []) if (s.pair, s.place) in before]
    sketches = [side.summaries.sketch for side in evidence.sides if side.summaries.sketch is not None]
    if not after or len(sketches) < 2:
        return {}
    rows_after = np.array([slot.values for slot in after])
    rows_before = np.array([before[slot.pair, slot.place] for slot in after])
    updates: list[Floats] = [side[rows_after].astype(np.float64) - side[rows_before] for side in sketches]
    norms = [
        np.maximum(np.linalg.norm(update, axis=1), least_apart(side.take(rows_before), side.take(rows_after)))
        for update, side in zip(updates, evidence.sides, strict=True)
    ]
    distance = np.linalg.norm(updates[1] - updates[0], axis=1)
    # From the same start the updates are as far apart as what they led to.
    same = evidence.values.identical[rows_before]
    distance = np.where(same, np.fmax(distance, evidence.values.distance[rows_after]), distance)
    uncertain = [_uncertain(evidence, gradients.get((slot.pair, slot.place))) for slot in after]
    return {
        slot.row: _update(evidence, slot, float(d), float(r or t), share)
        for slot, d, r, t, share in zip(after, distance, norms[0], norms[1], uncertain, strict=True)
        if np.isfinite(d)
    }


def _uncertain(evidence: RankEvidence, row: int | None) -> float:
    """Share of elements that the gradient's error may have turned to the other sign."""
    exponents = evidence.sides.reference.exponents
    if row is None or exponents is None:
        return 0.0
    operand = evidence.operands[row]
    noise = operand.distance / math.sqrt(max(operand.elements, 1.0))
    if noise <= 0 or not math.isfinite(noise):
        return 0.0
    last = _bin(AVERAGE_ERRORS * noise, exponents.shape[1])
    found = max(float(exponents[row, : last + 1].sum()), _fewer_than(LARGE_ERRORS * noise, exponents[row]))
    return min(found / max(operand.elements, 1.0), 1.0)


def _fewer_than(size: float, exponents: NDArray[np.uint32]) -> float:
    """How many elements are below a size, at most: in its own bin as many as chance may have put there."""
    own = _bin(size, len(exponents))
    low, high = (2.0 ** (((own + more) << EXPONENT_BIN_SHIFT) - EXPONENT_BIAS) for more in (0, 1))
    expected = float(exponents[own]) * min(max(size - low, 0.0) / (high - low), 1.0)
    return float(exponents[:own].sum()) + expected + CHANCE * math.sqrt(expected)


def _bin(size: float, bins: int) -> int:
    return min(max((math.frexp(size)[1] - 1 + EXPONENT_BIAS) >> EXPONENT_BIN_SHIFT, 0), bins - 1)


def _update(evidence: RankEvidence, slot: Slot, distance: float, norm: float, uncertain: float) -> Update:
    size = evidence.operands[slot.values].norm
    resolution = max(evidence.roundoffs[slot.values], evidence.resolutions[slot.values] / 2.0) * size
    if norm <= 0:
        # Bits may differ of which neither sketch sees anything: they are as far apart as sketches resolve.
        unseen = max(resolution, evidence.resolutions[slot.values] * size)
        return Update(0.0 if distance <= unseen else 1.0, 0.0, uncertain)
    return Update(distance / norm, resolution / norm, uncertain)
