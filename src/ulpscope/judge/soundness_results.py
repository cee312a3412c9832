"""Results of judging, told in words and with their figures."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ulpscope.judge import soundness_words as words
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
    message = words.sentence(statistic, known)
    place = None if worst is None else tuple(map(int, np.unravel_index(worst.position, evidence.exact.shape)))
    computed, exact = (None, None) if worst is None else _values(evidence, worst.position)
    if worst is not None and verdict is not Verdict.PASS:
        message = words.with_worst(message, place=place or (), computed=computed, exact=exact, ulp=worst.ulp)
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
