"""Results of judging with their figures, and what they say: a sentence a statistic."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ulpscope.records.checks import OutputEvidence, OutputResult, Verdict

Facts = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that shows an error best."""

    position: int
    """In the flat output."""
    ulp: float
    """Its error, in distances of neighbouring numbers."""


def result_of(
    evidence: OutputEvidence, verdict: Verdict, statistic: str, facts: Facts, *, worst: Worst | None = None
) -> OutputResult:
    known = {"elements": evidence.exact.size, **facts}
    message = sentence(statistic, known)
    place = None if worst is None else tuple(map(int, np.unravel_index(worst.position, evidence.exact.shape)))
    computed, exact = (None, None) if worst is None else _values(evidence, worst.position)
    if worst is not None and verdict is not Verdict.PASS:
        message = with_worst(message, place=place or (), computed=computed, exact=exact, ulp=worst.ulp)
    return OutputResult(
        place=evidence.place,
        direction=evidence.direction,
        verdict=verdict,
        statistic=statistic,
        message=message,
        dtype=evidence.dtype,
        shape=tuple(evidence.exact.shape),
        worst=place,
        worst_computed=computed,
        worst_exact=exact,
        metrics=_metrics(known, worst),
    )


def _values(evidence: OutputEvidence, position: int) -> tuple[float, float]:
    return float(evidence.computed.flat[position]), float(evidence.exact.flat[position])


def _metrics(facts: Facts, worst: Worst | None) -> tuple[tuple[str, float], ...]:
    figures = {name: float(fact) for name, fact in facts.items() if not isinstance(fact, str)}
    if worst is not None:
        figures["max_ulp"] = worst.ulp
    return tuple(figures.items())


SENTENCES: Mapping[str, str] = {
    "identical": "all {elements} elements are the correctly rounded truth",
    "rounded": "all {elements} elements are within half an ulp of the truth",
    "sound": "the errors are those of a sound kernel: at most {noise:.2f} of the expected rms in any binade",
    "violation": "{violation}",
    "shape": "the output has the shape {computed_shape}, expected {exact_shape}",
    "not_finite": "{mismatched} of {elements} elements are inf or nan where the truth is not, or the other way round",
    "flushed": "{flushed} of {elements} elements too small for a normal number are flushed to zero",
    "underflow": (
        "underflow: the numbers lie below the normal ones of this dtype, and {lost:.2g} of their norm is lost"
    ),
    "unequal": "{unequal} of {elements} elements differ from the truth, which this operation gives exactly",
    "outlier": "outlier: a single error is {outlier:.3g} times what rounding can make it",
    "near": "outlier: a single error is {near:.3g} times what one stored intermediate result explains",
    "noise": "noise: the rms error is {noise:.3g} times the expected (limit {noise_limit:.2g}) near 2^{binade:g}",
    "bias": (
        "bias: {one_sided:.0%} of the inexact elements are {side}"
        " (mean error {bias:.2g} of the expected rms, limit {bias_limit:.2g})"
    ),
    "structure": (
        "structure: the errors of index {structure_index:g} of axis {structure_axis:g} have much in common"
        " ({structure:.2g} times what chance allows)"
    ),
    "norm": "norm: the error is {norm:.3g} times sqrt(n) roundoffs of the whole (limit {norm_limit:g})",
    "share": (
        "share: {successes} of {trials} ({observed:.4g}), expected {probability:g}: {z:.1f} standard deviations"
        " (limit {z_limit:g})"
    ),
    "empty": "the output is empty: there was nothing to judge",
    "all_not_finite": "every element is inf or nan, as it should be: there was nothing to judge",
    "saturated": "every element is constant or saturated: no other input would have given another output",
    "few_trials": "{trials} trials at probability {probability:g} are too few to tell a wrong share",
}
TOWARDS_ZERO, AWAY_FROM_ZERO = "off towards zero", "off away from zero"
WORST = "{message}; worst element [{place}]: {computed:.9g}, exact {exact:.9g}, {ulp:.3g} ulp"


def sentence(statistic: str, facts: Mapping[str, object]) -> str:
    return SENTENCES[statistic].format(**facts)


def with_worst(message: str, *, place: tuple[int, ...], computed: float | None, exact: float | None, ulp: float) -> str:
    shown = ", ".join(map(str, place))
    return WORST.format(message=message, place=shown, computed=computed, exact=exact, ulp=ulp)
