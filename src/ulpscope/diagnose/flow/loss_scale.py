"""Loss scaling: gradients of one run are a factor times those of the other, until the optimizer reads them.

A GradScaler's factor is a power of two. One run may also divide its loss by a number (of micro-steps, of ranks) by
which the other divides its gradients.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ulpscope.diagnose.limits import (
    COUNT_NEARNESS,
    LEAST_UNANNOUNCED_SCALE,
    SCALE_NEARNESS,
    SCALE_SPREAD,
    SCALED_SHARE,
)
from ulpscope.judge.rounding.masks import large_parts, largest
from ulpscope.judge.rounding.measuring import NO_REASON, ValuePairs, summary_distances, with_large
from ulpscope.judge.rounding.values import Values, scaled
from ulpscope.records.enums import (
    GRAD_INPUT_ROLE,
    GRAD_OUTPUT_ROLE,
    GRADIENT_ROLE,
    INPUT_ROLE,
    LOSS_ROLE,
    OPTIMIZER_KIND,
    OUTPUT_ROLE,
)
from ulpscope.records.pairs import Measured, Pair

if TYPE_CHECKING:
    from ulpscope.diagnose.flow.evidence import Slot

SCALED_ROLES = (GRAD_OUTPUT_ROLE, GRAD_INPUT_ROLE, GRADIENT_ROLE, LOSS_ROLE, OUTPUT_ROLE, INPUT_ROLE)
USED = "used by the optimizer"
GRADIENT_ROLES = (GRAD_INPUT_ROLE, GRAD_OUTPUT_ROLE)


def without_loss_scale(
    slots: Iterable["Slot"], calls: Mapping[str, list[Any]], values: ValuePairs, ops: Iterable[str], *, divides: bool
) -> tuple[ValuePairs, dict[int, float], dict[int, float]]:
    """Divide the target's gradients by its loss scale, where it is undone before the optimizer reads them; and tell
    that scale by step, and by the rows that were divided.

    `calls` has the step and kind of each pair of calls; `ops` are all operations of the target, among which a
    GradScaler shows; `divides`: whether one run alone computes something of gradients.
    """
    ratios = _ratios(values.sides)
    by_step: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for slot in slots:
        if slot.role in SCALED_ROLES:
            used = calls["kind"][slot.pair] == OPTIMIZER_KIND
            by_step[calls["step"][slot.pair]][USED if used else slot.role].append(slot.values)
    announced = any("_amp_" in op for op in ops)
    found = {step: _scale(roles, ratios, announced=announced, divides=divides) for step, roles in by_step.items()}
    scales = {step: scale for step, scale in found.items() if scale is not None}
    factors = {row: scale for step, scale in scales.items() for row in _scaled_rows(by_step[step], ratios, scale)}
    unscaled = _rescaled(values, factors)
    noisy = {row: scale for step, scale in scales.items() for row in _gradients(by_step[step]) if row not in factors}
    # Gradients that are noise, of any size in either run, have been scaled like all others if that brings them nearer.
    # Those of a gradient penalty, which no scale was on, stay as they are.
    tried = _rescaled(unscaled, noisy)
    nearer = {row: scale for row, scale in noisy.items() if tried.distance[row] < unscaled.distance[row]}
    return _rescaled(unscaled, nearer), scales, factors | nearer


def _ratios(values: Pair[Values]) -> np.ndarray:
    """How much larger the target's values are, in binary exponents: by norms, or by extremes where some are large."""
    large = np.maximum(*(side.large() for side in values)) > 0
    sizes = [np.where(large, largest(side), side.summaries.norm) for side in values]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: np.ndarray = np.log2(sizes[1] / sizes[0])
    return ratios


def _scale(roles: dict[str, list[int]], ratios: np.ndarray, *, announced: bool, divides: bool) -> float | None:
    """The loss scale of a step; none if there is none, or if the optimizer still sees one that no GradScaler announced.

    Where a GradScaler's scale is not undone, what undoes it is wrong, and not the scale.
    """
    gradients = [float(ratios[row]) for role in GRADIENT_ROLES for row in roles[role] if np.isfinite(ratios[row])]
    if not gradients:
        return None
    usual = median(gradients)
    exponent = round(usual)
    used = [float(ratios[row]) for row in roles[USED] if np.isfinite(ratios[row])]
    if used and abs(median(used)) > SCALE_SPREAD and not announced:
        return None
    least = 1 if announced else LEAST_UNANNOUNCED_SCALE
    if abs(exponent) >= least and abs(usual - exponent) <= SCALE_NEARNESS:
        return 2.0**exponent if _share_near(gradients, exponent, SCALE_SPREAD) >= SCALED_SHARE else None
    # Gradients that are clipped come out alike, however they went in.
    factor = _count(usual) if divides else None
    if factor is None or not used or abs(median(used)) > SCALE_NEARNESS:
        return None
    return factor if _share_near(gradients, math.log2(factor), SCALE_NEARNESS) >= SCALED_SHARE else None


def _count(ratio: float) -> float | None:
    """The whole number, or one divided by it, that a binary logarithm is near."""
    size = 2.0 ** abs(ratio)
    count = round(size)
    if count < 2 or abs(size / count - 1.0) > COUNT_NEARNESS:
        return None
    return float(count) if ratio > 0 else 1.0 / count


def _share_near(ratios: list[float], scale: float, spread: float) -> float:
    return sum(abs(ratio - scale) < spread for ratio in ratios) / len(ratios)


def _scaled_rows(roles: dict[str, list[int]], ratios: np.ndarray, scale: float) -> list[int]:
    """Values near that scale; what the optimizer reads is without, however noise of the same size may look."""
    used, exponent = set(roles[USED]), math.log2(scale)
    # Between small scales and none lie values that differ for other reasons.
    spread = min(SCALE_SPREAD, SCALE_NEARNESS * abs(exponent))
    return [row for role in SCALED_ROLES for row in {*roles[role]} - used if abs(ratios[row] - exponent) < spread]


def _gradients(roles: dict[str, list[int]]) -> set[int]:
    return {row for role in (*GRADIENT_ROLES, GRADIENT_ROLE) for row in roles[role]} - {*roles[USED]}


def _rescaled(values: ValuePairs, scales: dict[int, float]) -> ValuePairs:
    """The pairs with the target of these rows divided by these scales."""
    if not scales:
        return values
    rows = np.array(list(scales))
    factors = 1.0 / np.array(list(scales.values()), dtype=np.float64)
    sides = values.sides.reference.take(rows), scaled(values.sides.target.take(rows), factors)
    large = large_parts(*sides, rescaled=True)
    told, by = summary_distances(*sides)
    known = np.array([word is Measured.SKETCH for word in by])
    told, errors, by = with_large(told, by, Pair(*sides), large)
    rows = rows[known]
    unscaled = values.with_rows(rows, distance=told[known], error=errors[known], measured=by[known])
    # What only one run sets aside is large by the scale alone.
    scaled_up = rows[(large.told & (sides[0].large() != sides[1].large()))[known]]
    unscaled = unscaled.with_rows(scaled_up, pattern=False, reason=NO_REASON, compared=True)
    metrics = {row: found for row, found in values.metrics.items() if row not in set(rows.tolist())}
    return replace(unscaled, metrics=metrics)
