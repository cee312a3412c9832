"""What is known of a network upstream of a tensor of which nothing is known itself."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from ulpscope.operations.registry import Trait, operation
from ulpscope.records.graphs import NetworkPlan, PlannedOperator

Known = TypeVar("Known")
Source: TypeAlias = tuple[str, int]
"""An operator and one of its outputs."""

_MOST = 64
"""Tensors that stand for one; more of them would say no more about it."""


@dataclass(frozen=True, slots=True)
class Uncompared:
    """What an operator read and nothing was compared with."""

    operators: tuple[str, ...]
    """Those that made it, and that made what they read, as far back as nothing is known; in the order of the graph."""
    given: bool
    """Whether something else of it, such as a weight, is not known."""


@dataclass(frozen=True, slots=True)
class KnownTensors(Generic[Known]):
    """What is known of the tensors that operators read and made; it is filled before it is asked."""

    members: Mapping[str, PlannedOperator]
    made: dict[Source, Known] = field(default_factory=dict)
    read: dict[str, dict[Source, Known]] = field(default_factory=lambda: defaultdict(dict))
    """By the operator that read it, and by what it read."""
    _behind: dict[str, list[Known]] = field(default_factory=dict)
    """By operator: what is known of all that it was made of, as far as that was asked."""

    def unread(self, operator: str) -> list[tuple[int, Source]]:
        """Inputs of an operator of which nothing is known: which one, and what it is."""
        read = self.read.get(operator, {})
        inputs = enumerate(self.members[operator].inputs if operator in self.members else ())
        return [(place, each.source) for place, each in inputs if each.source is not None and each.source not in read]

    def unknown(self, operator: str) -> list[Source]:
        """Inputs of an operator of which nothing is known, neither where it read them nor where they were made."""
        return [source for _, source in self.unread(operator) if source not in self.made]

    def uncompared(self, operator: str) -> Uncompared:
        """What lies between an operator and the nearest tensors that are known."""
        makers, given = set[str](), False
        waiting, seen = [operator], {operator}
        while waiting:
            name = waiting.pop()
            for maker, _ in self.unknown(name):
                if maker not in self.members or not self.members[maker].inputs:
                    given |= name not in makers
                elif maker not in seen:
                    seen.add(maker)
                    waiting.append(maker)
                    makers |= set() if self._is_the_same(maker, operator) else {maker}
        return Uncompared(tuple(self._telling(makers)), given)

    def _is_the_same(self, maker: str, operator: str) -> bool:
        """Whether one only hands on what it read, or stands for the same originals as the other."""
        originals = self.members[maker].originals
        own = self.members[operator].originals if operator in self.members else ()
        return operation(self.members[maker].operator.type).has(Trait.VIEW) or (bool(originals) and originals == own)

    def _telling(self, names: set[str]) -> list[str]:
        """Without those that the compiler inserted, unless there are no others."""
        ordered = sorted(names, key=lambda name: self.members[name].operator.id)
        return [name for name in ordered if not self.members[name].inserted] or ordered

    def upstream(self, source: Source) -> list[Known]:
        """A tensor itself if it is known, else what is known of all that it was made of."""
        if source in self.made:
            return [self.made[source]]
        self._look_behind(source[0])
        return self._behind[source[0]]

    def _look_behind(self, operator: str) -> None:
        waiting, seen = [operator], set[str]()
        while waiting:
            name = waiting[-1]
            seen.add(name)
            makers = [source[0] for _, source in self.unread(name) if source not in self.made]
            farther = [maker for maker in makers if maker not in self._behind and maker not in seen]
            if farther and name not in self._behind:
                waiting += farther
            else:
                waiting.pop()
                self._behind.setdefault(name, self._known_of(name))

    def _known_of(self, operator: str) -> list[Known]:
        found = list(self.read.get(operator, {}).values())
        for _, source in self.unread(operator):
            found += [self.made[source]] if source in self.made else self._behind.get(source[0], [])
        return list(dict.fromkeys(found))[:_MOST]


def ancestors(members: Mapping[str, PlannedOperator], names: Iterable[str]) -> set[str]:
    """Operators of whose outputs something was made that these read; the same ones only where they are among them."""
    found, waiting = set[str](), list(names)
    while waiting:
        member = members.get(waiting.pop())
        makers = {each.source[0] for each in (() if member is None else member.inputs) if each.source is not None}
        waiting += makers - found
        found |= makers
    return found


def members_of(plan: NetworkPlan) -> dict[str, PlannedOperator]:
    """The operators of a plan by name."""
    return {member.operator.name: member for group in plan.groups for member in group.members}
