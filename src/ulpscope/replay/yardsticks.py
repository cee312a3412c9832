"""What a sound result may be off, as every framework's replay measures it: from executions in float64, as arrays.

A kernel that computes the exact result of inputs changed in their last bit is as good as the inputs are. The root mean
square change over a few random perturbations in float64, per unit of relative change, is the condition of each element.
What it costs that a call is composed of kernels which hand rounded results on to each other is told by the same call,
composed of ideal kernels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import Family, operation
from ulpscope.records.checks import OutputEvidence, Rule, ShareEvidence

ROUNDOFF_32 = DTYPES["float32"].unit_roundoff
ROUNDOFF_64 = DTYPES["float64"].unit_roundoff
# TF32 keeps 10 bits of the significand, as float16 does.
ROUNDOFF_TF32 = DTYPES["float16"].unit_roundoff

# Fewer have tails: with 2 runs, 12 of 255 sound results looked wrong.
PERTURBATIONS = 6
# One execution that rounds to nearest, and so many that round by chance.
CHANCES = 4
# Relative to the largest element: below it, nothing was handed on.
NOTHING = 1e-11
# The half width of a uniform distribution of variance 1.
UNIFORM = 12**0.5

Arrays = dict[str, NDArray[np.generic]]
Evidence = OutputEvidence | ShareEvidence


def tf32_roundoff(op: str, *, products: bool, by_cudnn: bool) -> float | None:
    """What the operands of this operation are rounded to where TF32 is allowed; none where it does not apply."""
    family = operation(op).family
    allowed = (products and family is Family.CONTRACTION) or (
        by_cudnn and family in (Family.CONVOLUTION, Family.RECURRENT)
    )
    return ROUNDOFF_TF32 if allowed else None


def squared_change(
    found: NDArray[np.generic], exact: NDArray[np.generic] | None, unit: float = 1.0
) -> NDArray[np.float64] | None:
    """Squared differences in units, 0 where they are not finite; none of what is no float or has another shape."""
    if exact is None or exact.dtype != np.float64 or found.shape != exact.shape:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        change = (found.astype(np.float64) - exact.astype(np.float64)) / unit
        return np.where(np.isfinite(change), change * change, 0.0)


def rms_changes(exact: Mapping[str, NDArray[np.generic]], moved: Iterable[Arrays], *, unit: float) -> Arrays:
    """RMS change of each element over these executions, whose inputs were all moved by that unit."""
    totals = {place: np.zeros(array.shape) for place, array in exact.items() if array.dtype == np.float64}
    count = 0
    for found in moved:
        count += 1
        for place, total in totals.items():
            square = squared_change(found[place], exact[place], unit) if place in found else None
            total += 0.0 if square is None else square
    return {place: np.sqrt(total / count) for place, total in totals.items()}


@dataclass(slots=True)
class Composition:
    """A call whose kernels each round once."""

    ordinary: Arrays = field(default_factory=dict)
    """Its results."""
    sensitivity: Arrays = field(default_factory=dict)
    """RMS change of each element per unit of relative rounding of what was handed on; absent where nothing was."""


Composed = tuple[Arrays, Arrays]
"""The results of ideal kernels, and the same before the last rounding."""


def composition_of(
    to_nearest: Callable[[], Composed],
    by_chance: Callable[[], Composed],
    exact: Mapping[str, NDArray[np.generic]],
    *,
    unit: float,
    cannot: tuple[type[Exception], ...],
) -> Composition:
    """Execute the call with ideal kernels a few times; an error that says that it cannot be ends it."""
    found = Composition()
    try:
        found.ordinary, before = to_nearest()
        apart = {place: squared_change(array, exact.get(place)) for place, array in before.items()}
        handed_on = {
            place: square for place, square in apart.items() if square is not None and _matters(square, exact[place])
        }
        if not handed_on or not unit:
            return found
        for _ in range(CHANCES):
            _, before = by_chance()
            for place, total in handed_on.items():
                square = squared_change(before[place], exact[place]) if place in before else None
                total += 0.0 if square is None else square
    except cannot:
        return found
    found.sensitivity = {place: np.sqrt(total / (CHANCES + 1)) / unit for place, total in handed_on.items()}
    return found


def _matters(square: NDArray[np.float64], exact: NDArray[np.generic]) -> bool:
    floats = exact.astype(np.float64)
    largest = float(np.abs(floats, where=np.isfinite(floats), out=np.zeros_like(floats)).max(initial=0.0))
    return bool(square.max(initial=0.0) > (NOTHING * largest) ** 2)


def unrefined(evidence: Sequence[Evidence]) -> list[OutputEvidence]:
    """What cannot be judged yet for want of the condition of its elements."""
    return [
        each
        for each in evidence
        if isinstance(each, OutputEvidence) and each.rule is Rule.ROUNDED and each.sensitivity is None
    ]


def refined(
    each: OutputEvidence,
    sensitivity: Arrays,
    reductions: Mapping[str, float],
    composed: Composition,
    *,
    place: str,
) -> OutputEvidence:
    """With all that was measured of its place."""
    if place not in sensitivity:
        return each
    return replace(
        each,
        sensitivity=sensitivity[place],
        reduction=reductions.get(place, 1.0),
        ordinary=composed.ordinary.get(place),
        intermediate_sensitivity=composed.sensitivity.get(place),
    )
