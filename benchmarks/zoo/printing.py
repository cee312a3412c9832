"""The zoo's tables and score lines."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.captures import Case
from zoo.expectations import Fault
from zoo.measuring import Effect
from zoo.scoring import BAR, Score, total


def expected(case: Case) -> str:
    subject = case.subject
    if not isinstance(subject, Fault):
        return "no finding"
    text = " or ".join(str(answer) for answer in subject.answers)
    step = "" if subject.step is None else f" step {subject.step}"
    return text + step + ("" if len(subject.ranks) > 1 else f" rank {subject.ranks[0]}")


def judged(score: Score) -> str:
    word = "right" if score.is_right else "WRONG"
    return f"{word} (below noise)" if score.is_below_noise else word


def print_cases(cases: Sequence[Case]) -> None:
    for case in cases:
        print(f"{case.subject.name:34} {case.variant:6} {expected(case)}")


def print_effects(cases: Sequence[Case], effects: dict[str, Effect]) -> None:
    """Relative distance at the faulty call, and under autocast what the precision alone makes of it."""
    print(f"{'fault':34} {'variant':7} {'distance':>9} {'noise':>9} {'ratio':>8}")
    for case in cases:
        if not isinstance(case.subject, Fault):
            continue
        effect = effects.get(case.name)
        if effect is None:
            print(f"{case.subject.name:34} {case.variant:7} {'-':>9}")
        elif case.baseline is None:
            print(f"{case.subject.name:34} {case.variant:7} {effect.fault:9.2g}")
        else:
            below = "  below noise" if effect.is_below_noise else ""
            numbers = f"{effect.fault:9.2g} {effect.noise:9.2g} {effect.ratio:8.3g}"
            print(f"{case.subject.name:34} {case.variant:7} {numbers}{below}")


def print_scores(scores: Sequence[Score], *, save: str) -> None:
    for score in scores:
        print(f"{score.case.subject.name:34} {score.case.variant:6} {judged(score):19} got {score.said}")
        if not score.is_right:
            print(f"{'':61} expected {expected(score.case)}")
    sums = total(scores)
    print(f"\nsave {save}")
    print(f"  faults named          {sums.right} of {sums.faults} ({sums.share:.1%}), bar {BAR:.0%}")
    print(f"  below noise, named    {sums.below_right} of {sums.below} (scored apart)")
    print(f"  false alarms          {sums.alarms} of {sums.clean} clean pairs, bar 0")
