"""Which sum of a list is which: frameworks put them where gradients meet, in any order, and name them by number.

A sum is known by its terms. A run that casts between adds up in two calls what the other adds up in one: what is added
up of sums, through casts, is a sum of their terms.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import Kind
from ulpscope.records.pairs import Pair

Sender: TypeAlias = tuple[int, str | None]
"""Who made a tensor, or gave it as a gradient, and as what: a call's id, or its row."""
Term: TypeAlias = tuple[str, int, str | None]
"""A sender; whether its row is one of the reference, or of this run alone."""
Terms: TypeAlias = dict[int, frozenset[Term]]
Asking: TypeAlias = Callable[[Sequence[int]], dict[int, list[list[Sender]]]]
"""For some calls the senders of each of their operands."""

LEAST_ALIKE = 0.5
"""Share of all terms of two sums that both have, from which on they may be the same. Chosen."""


@dataclass(frozen=True)
class Sums:
    """The sums of one run, and the calls through which they may be added up."""

    rows: tuple[int, ...]
    sent: Mapping[int, list[list[Sender]]]
    """By row of a sum, or of a call that only moves numbers: the senders of its operands, by their rows."""
    shapes: Mapping[int, str | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ids: Sequence[int], ops: Sequence[str], kinds: Sequence[str], senders: Asking, shapes: Mapping[int, str]
    ) -> "Sums":
        """`shapes` are those of results, by call."""
        calls = [row for row, kind in enumerate(kinds) if kind == Kind.API.value]
        rows = tuple(row for row in calls if operation(ops[row]).has(Trait.ADDING_UP))
        if not rows:
            return cls((), {})
        through = [row for row in calls if operation(ops[row]).has(Trait.ADDING_UP, Trait.MOVING)]
        by_id = {call: row for row, call in enumerate(ids)}
        asked = senders([ids[row] for row in through])
        sent = {
            row: [[(by_id[call], place) for call, place in each if call in by_id] for each in asked.get(ids[row], ())]
            for row in through
        }
        return cls(rows, sent, {row: shapes.get(ids[row]) for row in rows})

    def terms(self, partners: Mapping[int, int]) -> Terms:
        """What those without a partner add up; `partners` are rows of the reference, by this run's."""
        found: Terms = {}
        return {row: self._terms(row, partners, found) for row in self.rows if row not in partners}

    def _terms(self, row: int, partners: Mapping[int, int], found: Terms) -> frozenset[Term]:
        if row not in found:
            found[row] = frozenset()  # of itself it is no term
            terms = [self._term(senders, partners, found) for senders in self.sent[row]]
            found[row] = frozenset().union(*terms)
        return found[row]

    def _term(self, senders: Sequence[Sender], partners: Mapping[int, int], found: Terms) -> frozenset[Term]:
        inner = next((row for row, _ in senders if row in self.rows and row not in partners), None)
        known = [("reference", partners[row], place) for row, place in senders if row in partners]
        if inner is None and not known:
            inner = next((row for row, _ in senders if row in self.sent), None)
        if inner is not None:
            return self._terms(inner, partners, found)
        return frozenset(known or [("alone", row, place) for row, place in senders[:1]])


def pair_sums(sums: Pair[Sums], partners: Mapping[int, int]) -> dict[int, int]:
    """Rows of the reference's sums, by the target's; `partners` are those of all other calls."""
    found: dict[int, int] = {}
    while True:
        own = {row: row for row in (*partners.values(), *found.values())}
        terms = Pair(sums.reference.terms(own), sums.target.terms({**partners, **found}))
        more = _equal(terms) or _most_alike(terms, sums)
        if not more:
            return found
        found |= more


def _equal(terms: Pair[Terms]) -> dict[int, int]:
    known = terms.map(_by_terms)
    both = ((rows, known.target[each]) for each, rows in known.reference.items() if each in known.target)
    return {theirs[0]: rows[0] for rows, theirs in both if len(rows) == len(theirs) == 1}


def _by_terms(terms: Terms) -> dict[frozenset[Term], list[int]]:
    found: dict[frozenset[Term], list[int]] = defaultdict(list)
    for row, each in terms.items():
        if each:
            found[each].append(row)
    return found


def _most_alike(terms: Pair[Terms], sums: Pair[Sums]) -> dict[int, int]:
    """The two that have most terms in common, if that is enough."""
    alike = (
        (len(own & other) / len(own | other), -theirs, row)
        for theirs, other in terms.target.items()
        for row, own in terms.reference.items()
        if own & other and sums.reference.shapes[row] == sums.target.shapes[theirs]
    )
    share, theirs, row = max(alike, default=(0.0, 0, 0))
    return {-theirs: row} if share >= LEAST_ALIKE else {}
