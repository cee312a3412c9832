"""Updates of parameters: what an optimizer's step changed, in both runs.

The two updates are compared, not the two parameters: from saved data where it is there. A sketch is linear, so that
sketch(after) - sketch(before) is the sketch of the update.
"""

import math
from collections.abc import Sequence
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
    shrunk: float
    """By how much larger the target's update may be than the reference's, because such elements lie below the eps of an
    adaptive optimizer in the reference, and it moves them by next to nothing."""
    from_data: bool
    """Whether saved data tells it; else sketches do, in which errors of few elements may cancel."""


@dataclass(frozen=True, slots=True)
class _Apart:
    """Two updates beside each other."""

    distance: float
    norm: float
    """The reference's, or the target's where the reference has none."""
    target_norm: float
    from_data: bool


def compare_updates(evidence: RankEvidence) -> dict[int, Update]:
    """Updates by the row of the slot that holds the parameter after it."""
    before, gradients = (
        {(slot.pair, slot.place): slot for slot in evidence.by_role.get(role, [])}
        for role in (PARAMETER_ROLE, GRADIENT_ROLE)
    )
    after = [s for s in evidence.by_role.get(PARAMETER_AFTER_ROLE, []) if (s.pair, s.place) in before]
    spans = [(before[slot.pair, slot.place], slot) for slot in after]
    found = _by_sketches(evidence, spans) | _by_data(evidence, spans)
    return {
        slot.row: _update(evidence, slot, found[slot.row], _uncertain(evidence, gradients.get((slot.pair, slot.place))))
        for slot in after
        if slot.row in found and math.isfinite(found[slot.row].distance)
    }


Spans = Sequence[tuple[Slot, Slot]]
"""A parameter before and after a step."""


def _by_data(evidence: RankEvidence, spans: Spans) -> dict[int, _Apart]:
    """By the row of the slot after the step, where all of it was saved."""
    found = {}
    for before, after in spans:
        if evidence.values.identical[before.values] and evidence.values.identical[after.values]:
            continue  # nothing to read: sketches tell that they are the same
        starts, ends = evidence.arrays(before), evidence.arrays(after)
        if starts is None or ends is None or starts.target.shape != ends.target.shape:
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            reference, target = (end.astype(np.float64) - start for start, end in zip(starts, ends, strict=True))
            norms = [float(np.linalg.norm(update)) for update in (reference, target)]
            found[after.row] = _Apart(
                float(np.linalg.norm(target - reference)), norms[0] or norms[1], norms[1], from_data=True
            )
    return found


def _by_sketches(evidence: RankEvidence, spans: Spans) -> dict[int, _Apart]:
    sketches = [side.summaries.sketch for side in evidence.sides if side.summaries.sketch is not None]
    if not spans or len(sketches) < 2:
        return {}
    rows_before, rows_after = (np.array([slot.values for slot in slots]) for slots in zip(*spans, strict=True))
    updates: list[Floats] = [side[rows_after].astype(np.float64) - side[rows_before] for side in sketches]
    norms = [
        np.maximum(np.linalg.norm(update, axis=1), least_apart(side.take(rows_before), side.take(rows_after)))
        for update, side in zip(updates, evidence.sides, strict=True)
    ]
    distance = np.linalg.norm(updates[1] - updates[0], axis=1)
    # From the same start the updates are as far apart as what they led to.
    same = evidence.values.identical[rows_before]
    distance = np.where(same, np.fmax(distance, evidence.values.distance[rows_after]), distance)
    return {
        slot.row: _Apart(float(apart), float(reference or target), float(target), from_data=False)
        for (_, slot), apart, reference, target in zip(spans, distance, norms[0], norms[1], strict=True)
    }


def _uncertain(evidence: RankEvidence, gradient: Slot | None) -> float:
    """Share of elements that the gradient's error may have turned to the other sign."""
    exponents = evidence.sides.reference.exponents
    if gradient is None or exponents is None:
        return 0.0
    row = gradient.values
    operand = evidence.operands[row]
    return uncertain_share(exponents[row], operand.distance, operand.elements)


def uncertain_share(exponents: NDArray[np.uint32], distance: float, elements: float) -> float:
    """The same of a gradient by its bins of exponents, which lies so far from the other run's."""
    noise = distance / math.sqrt(max(elements, 1.0))
    if noise <= 0 or not math.isfinite(noise):
        return 0.0
    last = _bin(AVERAGE_ERRORS * noise, len(exponents))
    found = max(float(exponents[: last + 1].sum()), _fewer_than(LARGE_ERRORS * noise, exponents))
    return min(found / max(elements, 1.0), 1.0)


def _fewer_than(size: float, exponents: NDArray[np.uint32]) -> float:
    """How many elements are below a size, at most: in its own bin as many as chance may have put there."""
    own = _bin(size, len(exponents))
    low, high = (2.0 ** (((own + more) << EXPONENT_BIN_SHIFT) - EXPONENT_BIAS) for more in (0, 1))
    expected = float(exponents[own]) * min(max(size - low, 0.0) / (high - low), 1.0)
    return float(exponents[:own].sum()) + expected + CHANCE * math.sqrt(expected)


def _bin(size: float, bins: int) -> int:
    return min(max((math.frexp(size)[1] - 1 + EXPONENT_BIAS) >> EXPONENT_BIN_SHIFT, 0), bins - 1)


def _update(evidence: RankEvidence, slot: Slot, apart: _Apart, uncertain: float) -> Update:
    size, known = evidence.operands[slot.values].norm, evidence.precision
    seen = 0.0 if apart.from_data else known.resolutions[slot.values]
    resolution = max(known.roundoffs[slot.values], seen / 2.0) * size
    if apart.norm <= 0:
        # Bits may differ of which neither sketch sees anything: they are as far apart as sketches resolve.
        error, resolution = 0.0 if apart.distance <= max(resolution, seen * size) else 1.0, 0.0
        return Update(error, resolution, uncertain, 1.0, apart.from_data)
    most = 1.0 / math.sqrt(1.0 - uncertain) if uncertain < 1.0 else math.inf
    shrunk = max(min(apart.target_norm / apart.norm, most), 1.0)
    return Update(apart.distance / apart.norm, resolution / apart.norm, uncertain, shrunk, apart.from_data)
