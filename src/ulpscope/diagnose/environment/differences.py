"""Sets two environments beside each other, and puts what differs in the order in which it is likely to matter."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ulpscope.diagnose.environment.rules import RULES, rule_of
from ulpscope.diagnose.limits import SETTINGS_QUOTED
from ulpscope.records.environments import Environment, EnvironmentDiff, EnvironmentDifference, Likelihood
from ulpscope.records.findings import Comparison, FindingKind, Outcome
from ulpscope.records.pairs import Pair

TOGETHER = ("parameters", "inputs", "random_calls", "seeds")
"""Parts of which differences of one kind say together as much as each."""


def differences_of(sides: Pair[Environment], rank: int = 0) -> list[EnvironmentDifference]:
    """What differs between two processes, what is most likely to matter first."""
    found: list[tuple[int, EnvironmentDifference]] = []
    for part in shared_parts(sides):
        differing = _differing(part, Pair(sides.reference.parts[part], sides.target.parts[part]), rank)
        placed = [(rule_of(part, each.name), each) for each in differing if not _is_unused(each, sides)]
        found += _together(placed) if part in TOGETHER else placed
    return [each for _, each in sorted(found, key=lambda one: (_severity(one[1]), one[0], one[1].name))]


def _severity(difference: EnvironmentDifference) -> int:
    return list(Likelihood).index(difference.likelihood)


def shared_parts(sides: Pair[Environment]) -> list[str]:
    """Parts of which both tell."""
    return [part for part in sides.reference.parts if part in sides.target.parts]


def _differing(part: str, sides: Pair[Mapping[str, Any]], rank: int) -> Iterator[EnvironmentDifference]:
    for name in {**sides.reference, **sides.target}:
        texts = Pair(_text(sides.reference.get(name)), _text(sides.target.get(name)))
        if texts.reference != texts.target:
            rule = RULES[rule_of(part, name)]
            yield EnvironmentDifference(
                part, name, texts.reference, texts.target, rule.likelihood, rule.reason, ranks=(rank,)
            )


def _text(entry: Any) -> str | None:
    if entry is None or entry == "":
        return None
    return " ".join(map(str, entry)) if isinstance(entry, list | tuple) else str(entry)


def _together(found: Sequence[tuple[int, EnvironmentDifference]]) -> list[tuple[int, EnvironmentDifference]]:
    counts = Counter(place for place, _ in found)
    first = dict(reversed(found))
    return [(place, replace(each, more=counts[place] - 1)) for place, each in first.items()]


def _is_unused(difference: EnvironmentDifference, sides: Pair[Environment]) -> bool:
    """A generator that nobody asked for a number has changed none."""
    drawn = [side.parts.get("random_calls") for side in sides]
    never = all(counts is not None and not any(counts.values()) for counts in drawn)
    return never and difference.part == "seeds" and difference.reason == "seed"


def diff_environments(sides: Sequence[tuple[int, Pair[Environment]]], *, paths: Pair[str]) -> EnvironmentDiff:
    """Of each rank that both have; what differs alike in several of them is told once."""
    merged: dict[EnvironmentDifference, EnvironmentDifference] = {}
    compared = 0
    for rank, pair in sides:
        compared += sum(len({*pair.reference.parts[part], *pair.target.parts[part]}) for part in shared_parts(pair))
        for each in differences_of(pair, rank):
            key = replace(each, ranks=())
            known = merged.get(key)
            merged[key] = each if known is None else replace(known, ranks=(*known.ranks, rank))
    pairs = [pair for _, pair in sides]
    return EnvironmentDiff(
        paths=paths,
        differences=tuple(sorted(merged.values(), key=_severity)),
        compared=compared,
        one_sided=_one_sided(pairs),
        untold=tuple(sorted({part for pair in pairs for part in _untold(pair)})),
    )


_FROM_OUTSIDE = frozenset((FindingKind.INPUT, FindingKind.PARAMETER, FindingKind.RANDOMNESS))
"""What a run was given, not what a call of it computed."""


def quoted(comparison: Comparison) -> tuple[EnvironmentDifference, ...]:
    """What is told beside a divergence that no call of the runs explains."""
    if comparison.outcome is not Outcome.DIVERGED:
        return ()
    first = comparison.findings[0] if comparison.findings else None
    if first is None or first.place.call is None:
        told = [each for each in comparison.environment if each.likelihood is not Likelihood.UNLIKELY]
    elif first.kind in _FROM_OUTSIDE:
        told = [each for each in comparison.environment if each.likelihood is Likelihood.LIKELY]
    else:
        told = []
    return tuple(told[:SETTINGS_QUOTED])


def _one_sided(pairs: Sequence[Pair[Environment]]) -> Pair[tuple[str, ...]]:
    reference = {name for pair in pairs for name in pair.reference.unread}
    target = {name for pair in pairs for name in pair.target.unread}
    return Pair(tuple(sorted(reference - target)), tuple(sorted(target - reference)))


def _untold(pair: Pair[Environment]) -> Iterator[str]:
    for part in {**pair.reference.parts, **pair.target.parts}:
        if (part in pair.reference.parts) != (part in pair.target.parts):
            yield part
