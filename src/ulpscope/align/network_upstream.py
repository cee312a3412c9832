"""What is known of a network upstream of a tensor of which nothing is known itself."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from ulpscope.records.network import NetworkPlan, PlannedOperator

Known = TypeVar("Known")
Source: TypeAlias = tuple[str, int]
"""An operator and one of its outputs."""

_MOST = 64
"""Tensors that stand for one; more of them would say no more about it."""


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


def members_of(plan: NetworkPlan) -> dict[str, PlannedOperator]:
    """The operators of a plan by name."""
    return {member.operator.name: member for group in plan.groups for member in group.members}
