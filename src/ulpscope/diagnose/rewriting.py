"""Whether two runs that write something otherwise compute the same: tried, where their data was saved.

What one run computes with calls of its own, or with other arguments, has inner values that no value of the other run is
meant to be. So the calls of both runs are executed in float64 from the same inputs, up to the first values behind at
which both give the same: then they are one function, and if each of their calls is within rounding of its own inputs,
none of them is wrong.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.diagnose.arguments import differing_arguments
from ulpscope.diagnose.findings import JudgedRank
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.states import IDENTICAL, ROUNDING, Birth, Cause, State
from ulpscope.diagnose.flow.unpaired import GapFinder
from ulpscope.diagnose.ledger import SUSPICIOUS, verdicts_of
from ulpscope.diagnose.limits import SAME_FUNCTION, SPAN_CALLS, SPAN_VALUES, SPANS_TRIED
from ulpscope.records.calls import Value
from ulpscope.records.enums import BACKWARD_PHASE, OPTIMIZER_KIND, UPDATE_PHASE
from ulpscope.records.findings import FindingKind
from ulpscope.records.pairs import Pair
from ulpscope.replay.frameworks import Framework, framework_of
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.trace.reader import RankTrace

if TYPE_CHECKING:
    from ulpscope.replay.torch.spans import Span

AFTER_FORWARD = (BACKWARD_PHASE, UPDATE_PHASE)
Ids = tuple[int, int]
"""Of a value in reference and target."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A span that each run computes in its own way."""

    rows: frozenset[int]
    """Pairs of values inside of it, or at its end."""
    calls: frozenset[int]
    """The target's."""


class Rewriting:
    """Tries the spans of one rank, each once."""

    def __init__(self, evidence: RankEvidence) -> None:
        self._evidence = evidence
        self._readers = _Readers(evidence)
        self._tried: dict[int, Rewritten | None] = {}

    @property
    def calls(self) -> set[int]:
        """The target's calls in all spans that were found to compute the same."""
        return {call for span in self._tried.values() if span is not None for call in span.calls}

    def acquitted(self, rank: JudgedRank) -> list[Birth]:
        """Differences inside of spans that compute the same in both runs, and those of their gradients."""
        births = [birth for birth, answer in rank.named if answer.kind is FindingKind.COMPUTATION]
        spans = [self._span_of(birth, rank.flow.states) for birth in births if self._is_written_otherwise(birth)]
        return [birth for birth in births if any(self._is_inside(birth, span) for span in spans if span is not None)]

    def _is_written_otherwise(self, birth: Birth) -> bool:
        evidence, pair, gap = self._evidence, birth.slot.pair, birth.gap
        if evidence.calls["phase"][pair] in AFTER_FORWARD or evidence.calls["kind"][pair] == OPTIMIZER_KIND:
            return False
        if gap is not None:
            return birth.cause is Cause.GAP and bool(gap.calls) and not gap.outside
        return bool(differing_arguments(evidence, pair) or evidence.calls["replaced"][pair])

    def _is_inside(self, birth: Birth, span: Rewritten) -> bool:
        evidence, slot = self._evidence, birth.slot
        return slot.values in span.rows or evidence.calls["forward"][slot.pair] in span.calls

    def _span_of(self, birth: Birth, states: Sequence[State]) -> Rewritten | None:
        row = birth.slot.values
        if row not in self._tried:
            enough = len(self._tried) >= SPANS_TRIED
            self._tried[row] = None if enough else _Search(self._evidence, self._readers, states).span(birth)
        return self._tried[row]


class _Readers:
    """Who reads the values of either run."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence
        self.runs = GapFinder(evidence).runs
        self.ids: Pair[list[int]] = evidence.sides.map(lambda side: side.id.tolist())

    @cached_property
    def rows_of(self) -> Pair[dict[int, list[int]]]:
        """Rows of the pairs of values that each value is in."""

        def rows(ids: list[int]) -> dict[int, list[int]]:
            found: dict[int, list[int]] = defaultdict(list)
            for row, value in enumerate(ids):
                found[value].append(row)
            return found

        return self.ids.map(rows)

    @cached_property
    def _made_of(self) -> Pair[dict[int, list[int]]]:
        """Values that calls have made of each value."""

        def made(side: int) -> dict[int, list[int]]:
            run = tuple(self.runs)[side]
            found: dict[int, list[int]] = defaultdict(list)
            for call, outputs in run.outputs.items():
                for value in run.inputs.get(call, ()):
                    found[value] += [output for output in outputs if output != value]
            return found

        return Pair(made(0), made(1))

    def behind(self, ids: Ids) -> list[int] | None:
        """Rows of what is made of two values, or stands in the place of one; none if one is made of either and not
        found in any pair."""
        found: list[int] = []
        for value, rows, made in zip(ids, self.rows_of, self._made_of, strict=True):
            shared, outputs = rows.get(value, []), made.get(value, [])
            if not outputs:
                return None
            found += [*shared, *(row for output in outputs for row in rows.get(output, []))]
        return list(dict.fromkeys(found))


class _Search:
    """For the end of one span."""

    def __init__(self, evidence: RankEvidence, readers: _Readers, states: Sequence[State]) -> None:
        self._evidence, self._readers, self._states = evidence, readers, states
        self._open: set[int] = set()
        """Rows of values that are not the same thing in both runs, or not known to be."""

    def span(self, birth: Birth) -> Rewritten | None:
        """Follows what is made of a difference, until all of it is the same function of the same inputs."""
        ends: list[Pair[Span]] = []
        proven: set[int] = set()
        waiting = [birth.slot.values]
        self._open.add(birth.slot.values)
        try:
            while waiting:
                if len(self._open) > SPAN_VALUES:
                    return None
                row = waiting.pop(0)
                tried = self._both_ways(row)
                if tried is not None:
                    ends.append(tried)
                    proven.add(row)
                    continue
                behind = self._readers.behind((self._readers.ids.reference[row], self._readers.ids.target[row]))
                if behind is None:
                    return None
                fresh = [each for each in behind if each not in self._open]
                self._open.update(fresh)
                waiting += fresh
            if not ends or not all(_is_sound(each, self._evidence.plan.traces) for each in ends):
                return None
        except (CannotReplayError, RuntimeError, TypeError, ValueError):
            return None  # what cannot be executed is acquitted of nothing
        calls = frozenset(call for each in ends for call in each.target.calls)
        return Rewritten(frozenset(self._open), calls)

    def _both_ways(self, row: int) -> "Pair[Span] | None":
        """How each run computes a pair of values, if both compute the same."""
        traces = self._evidence.plan.traces
        if framework_of(traces.target) is not Framework.TORCH:
            return None  # spans of other frameworks' calls are not executed
        from ulpscope.replay.torch.spans import Span

        reference = Span(traces.reference, self._given_to_reference, most=SPAN_CALLS)
        target = Span(traces.target, self._given_to_target, most=SPAN_CALLS)
        try:
            one = reference.numbers(traces.reference.value(self._readers.ids.reference[row]))
            other = target.numbers(traces.target.value(self._readers.ids.target[row]))
        except CannotReplayError:
            return None
        executed = bool(reference.calls) and bool(target.calls)
        return Pair(reference, target) if executed and _is_same(one, other) else None

    def _given_to_reference(self, value: Value) -> tuple[RankTrace, Value] | None:
        return self._shared(self._readers.rows_of.reference.get(value.id, []))

    def _given_to_target(self, value: Value) -> tuple[RankTrace, Value] | None:
        return self._shared(self._readers.rows_of.target.get(value.id, []))

    def _shared(self, rows: Sequence[int]) -> tuple[RankTrace, Value] | None:
        """The target's value, of one that is the same thing in both runs."""
        same = (row for row in rows if row not in self._open and self._states[row] in (IDENTICAL, ROUNDING))
        row = next(same, None)
        if row is None:
            return None
        target = self._evidence.plan.traces.target
        return target, target.value(self._readers.ids.target[row])


def _is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    return float(np.linalg.norm(one - other)) <= SAME_FUNCTION * float(np.linalg.norm(other))


def _is_sound(spans: "Pair[Span]", traces: Pair[RankTrace]) -> bool:
    """Whether every call of either run gave what its own inputs make, within rounding."""
    from ulpscope.replay.torch.ledger import ReplayedCall

    replayed: Iterator[ReplayedCall] = (
        ReplayedCall(recorded, trace)
        for span, trace in zip(spans, traces, strict=True)
        for recorded in span.calls.values()
    )
    return not any(each.verdict in SUSPICIOUS for call in replayed for each in verdicts_of(call).values())
