"""Operators of a model: counted, filtered, found by name."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from ulpscope.graph.names import sanitised
from ulpscope.records.graphs import GraphModel, Operator


@dataclass(frozen=True, slots=True)
class OperatorFilter:
    """Which operators are wanted: those that fit every pattern that is given."""

    name: str | None = None
    type: str | None = None
    fusion_pass: str | None = None
    kernel: str | None = None
    graph: str | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def __str__(self) -> str:
        words = {field.name.removeprefix("fusion_"): getattr(self, field.name) for field in fields(self)}
        return " ".join(f"--{option} {pattern}" for option, pattern in words.items() if pattern is not None)


@dataclass(frozen=True, slots=True)
class FoundOperators:
    """What a name leads to: operators of that name (one a graph), or those that it may mean."""

    operators: tuple[Operator, ...] = ()
    candidates: tuple[Operator, ...] = ()


def all_operators(model: GraphModel) -> Iterator[Operator]:
    for graph in model.graphs:
        yield from graph.operators


def type_counts(model: GraphModel) -> list[tuple[str, int]]:
    """How many operators of each type there are, the most frequent first."""
    counted = Counter(operator.type for operator in all_operators(model))
    return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))


def match_operators(model: GraphModel, wanted: OperatorFilter) -> list[Operator]:
    return [operator for operator in all_operators(model) if fits(operator, wanted)]


def find_operators(model: GraphModel, name: str) -> FoundOperators:
    """By the whole name; else by the name as files write it (fc1_Relu for fc1/Relu); else by a part of it."""
    for called in (lambda other: other == name, lambda other: sanitised(other) == sanitised(name)):
        found = tuple([operator for operator in all_operators(model) if called(operator.name)])
        if found:
            return FoundOperators(operators=found)
    partly = tuple(match_operators(model, OperatorFilter(name=name)))
    if len({operator.name for operator in partly}) == 1:
        return FoundOperators(operators=partly)
    return FoundOperators(candidates=partly)


def nearest_names(model: GraphModel, name: str) -> list[str]:
    """Names that resemble one that is not there."""
    names = dict.fromkeys(operator.name for operator in all_operators(model))
    return difflib.get_close_matches(name, names, n=3, cutoff=0.5)


def fits(operator: Operator, wanted: OperatorFilter) -> bool:
    """Whether an operator is wanted."""
    return (
        _one_fits((operator.name,), wanted.name)
        and _one_fits((operator.type,), wanted.type)
        and _one_fits(operator.passes, wanted.fusion_pass)
        and _one_fits((operator.kernel or "",), wanted.kernel)
        and _one_fits((operator.graph,), wanted.graph)
    )


def _one_fits(texts: Iterable[str], pattern: str | None) -> bool:
    """Whether a pattern stands anywhere in a text; one with * or ? must fit all of it. Case does not count."""
    if pattern is None:
        return True
    small = pattern.lower()
    if "*" in small or "?" in small:
        return any(fnmatchcase(text.lower(), small) for text in texts)
    return any(small in text.lower() for text in texts)
