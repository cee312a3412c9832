"""What all runs of a graph that execute the same nodes have in common, and how one of them becomes calls.

A plan is made of the first such run (graph_calls.py). It tells calls by their places in it, and contents by numbers of
its own: from 0 on those that the graph makes known, below it what the graph is given, from the last on. A run brings
the ids and numbers that these have in the trace, and the rows.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.tensorflow.graphs.limits import PLANS, PLANS_OF_A_KIND
from ulpscope.capture.tensorflow.graphs.nodes import Source
from ulpscope.capture.tensorflow.graphs.results import ObservedResults
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import EAGER, RESOURCE
from ulpscope.capture.tensorflow.values import Read
from ulpscope.capture.tensorflow.watching.optimizers import settings_of
from ulpscope.capture.tensorflow.watching.tracing import HeldUse
from ulpscope.records.enums import Kind, Phase

ROOT = -1
"""The place of the call that the whole graph is."""


class Earlier(NamedTuple):
    """A call of an earlier graph of the step whose gradient a scope is, as far as a plan depends on it."""

    name: str
    turn: int | None
    """Of the loop that asks: gradients of a loop's turns come in the opposite order."""
    about: tuple[str, str | None, str | None, bool] | None
    """Its op, module, class, and whether it is wanted; None if there is none."""


@dataclass(slots=True, eq=False)
class PlannedCall:
    """A call of a plan. Calls are told by their places, contents by their numbers in the plan."""

    place: int
    kind: Kind
    op: str
    stem: str
    number: int
    """Among the plan's calls of this stem and phase."""
    module: str | None
    module_class: str | None
    phase: Phase
    parent: int | None = None
    wanted: bool = True
    forward: int | None = None
    stack: int | None = None
    """None: that of the graph's call."""
    random: bool = False
    arguments: str = "{}"


_FIELDS = "kind op module module_class phase parent wanted forward stack random arguments".split()


@dataclass(slots=True, eq=False)
class Closing:
    """A call of a layer, a gradient, an update, which ends when all is told."""

    call: int
    uses: list[tuple[str, str, int | None]]
    """Roles, places and contents; None of a tensor that nobody has read."""
    writes: list[HeldUse]
    arguments: str
    optimizer: Any
    """A weak reference to whoever updates."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What a run of a graph becomes."""

    calls: Sequence[PlannedCall]
    nodes: Sequence[int]
    """Places of those that are nodes, and wanted: they have ended when they are told."""
    backwards: Sequence[tuple[int, Earlier]]
    """Places of gradients of earlier calls."""
    stems: Mapping[tuple[str, str], int]
    """Of phases and stems: how many of the calls have them."""
    bases: Mapping[tuple[str, str], int]
    """How many there had been when the plan was made."""
    earlier: Sequence[Earlier]
    reads: Sequence[Read]
    given: Sequence[int]
    """Arguments of the graph whose contents are used."""
    uses: Sequence[tuple[int, str, str, int]]
    """Of nodes: calls, roles, places and contents."""
    assigned: Mapping[int, int]
    """What variables hold after it, by the graph's arguments."""
    closings: Sequence[Closing]
    unobserved: Counter[str]
    named: Mapping[str, Sequence[int]]
    """Calls of ops by their names, of which gradients may be asked later."""
    made: Mapping[tuple[int, Source], int]
    """Contents of results, by the numbers of their graphs."""

    @cached_property
    def names(self) -> list[str]:
        """Of calls, if no call of their stems comes before."""
        return [f"{call.stem}.{call.number}" for call in self.calls]

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """Of calls, without what a run brings."""
        return list(map(attrgetter(*_FIELDS), self.calls))


def is_handle(one: Any) -> bool:
    """Whether it is a variable's, or another resource's."""
    return isinstance(one, EAGER) and one.dtype is RESOURCE


def is_tensor(one: Any) -> bool:
    """Whether its content can be told."""
    return isinstance(one, EAGER) and one.dtype is not RESOURCE


class Kept:
    """What runs of graphs leave to later ones of the same step."""

    def __init__(self) -> None:
        self.updated: set[int] = set()
        """Handles of variables whose content after the run is told."""
        self._runs: list[tuple[Plan, list[OpenCall]]] = []
        self._calls: dict[str, list[OpenCall]] = {}

    def add(self, plan: Plan, calls: list[OpenCall]) -> None:
        self._runs.append((plan, calls))

    def clear(self) -> None:
        """No gradient will be asked of what there was."""
        self._runs.clear()
        self._calls.clear()

    def find(self, name: str, turn: int | None) -> OpenCall | None:
        """The call of an op."""
        for plan, calls in self._runs:
            for op, places in plan.named.items():
                self._calls.setdefault(op, []).extend(calls[place] for place in places)
        self._runs.clear()
        found = self._calls.get(name)
        if not found:
            return None
        return found[-1] if turn is None else found[max(len(found) - 1 - turn, 0)]

    def about(self, name: str, turn: int | None) -> Earlier:
        found = self.find(name, turn)
        told = None if found is None else (found.op, found.module, found.module_class, found.wanted)
        return Earlier(name, turn, told)


class Performance:
    """One run, recorded as a plan has it."""

    def __init__(self, recorder: TensorFlowRecorder, call: OpenCall, args: Sequence[Any], kept: Kept) -> None:
        self.recorder = recorder
        self.call = call
        self.args = args
        self.kept = kept

    def key(self) -> tuple[Any, ...]:
        """What plans depend on beside what is executed and what earlier graphs have left."""
        call, values = self.call, self.recorder.values
        held = (one._id if is_handle(one) and values.known_content(one) is not None else None for one in self.args)
        return (call.op, call.module, call.module_class, call.phase, *held)

    def fits(self, plan: Plan) -> bool:
        """Whether what was there before is what the plan was made for."""
        if any(self.kept.about(earlier.name, earlier.turn) != earlier for earlier in plan.earlier):
            return False
        if self.recorder.wants_all:
            return True
        return all(self.recorder.count_of(*stem) == count for stem, count in plan.bases.items())

    def record(self, plan: Plan, results: ObservedResults, order: NDArray[np.int64]) -> list[int]:
        """Gives the numbers of the plan's contents, by what the plan calls them."""
        recorder = self.recorder
        with recorder.lock:
            given: list[Any] = [None] * len(self.args)
            for argument in plan.given:
                given[argument] = self._content(self.args[argument])
            calls, first = self._calls(plan)
            numbers = recorder.values.add_read(
                plan.reads, results, order, first_call=first, saved=recorder.flush_if_much
            )
            numbers += given
            uses = [(first + call, role, place, numbers[content]) for call, role, place, content in plan.uses]
            recorder.record_all(calls, [calls[place] for place in plan.nodes], uses)
            for argument, content in plan.assigned.items():
                handle = self.args[argument]
                if id(handle) not in self.kept.updated:
                    recorder.values.holds(handle, numbers[content])
                    self.kept.updated.add(id(handle))
            for closing in plan.closings:
                self._close(closing, calls[closing.call], numbers)
            for reason, count in plan.unobserved.items():
                recorder.unobserved(reason, count)
        self.kept.add(plan, calls)
        return numbers

    def _content(self, given: Any) -> int | None:
        values = self.recorder.values
        return values.known_content(given) if is_handle(given) else values.observe(given)

    def _calls(self, plan: Plan) -> tuple[list[OpenCall], int]:
        """And the id of the first."""
        recorder, root = self.recorder, self.call.id
        step, micro_step = recorder.steps.step, recorder.steps.micro_step
        here = self.call.stack if self.call.stack is not None else recorder.stacks.number(sys._getframe(), None)
        first, names = recorder.reserve(len(plan.calls)), self._names(plan)
        calls = [
            OpenCall(
                number,
                name,
                kind,
                op,
                module,
                module_class,
                phase,
                step,
                micro_step,
                None if parent is None else root if parent == ROOT else first + parent,
                wanted,
                False,
                None if forward is None else first + forward,
                here if stack is None else stack,
                None,
                random,
                None,
                arguments,
            )
            for number, name, (
                kind,
                op,
                module,
                module_class,
                phase,
                parent,
                wanted,
                forward,
                stack,
                random,
                arguments,
            ) in zip(itertools.count(first), names, plan.rows, strict=False)
        ]
        for place, earlier in plan.backwards:
            forward = self.kept.find(earlier.name, earlier.turn)
            assert forward is not None  # or the plan would not be this one
            calls[place].forward, calls[place].stack = forward.id, forward.stack
        return calls, first

    def _names(self, plan: Plan) -> list[str]:
        before = self.recorder.count_all(plan.stems)
        if not before:
            return plan.names
        bases = (before.get((call.phase.value, call.stem), 0) for call in plan.calls)
        return [f"{call.stem}.{base + call.number}" for base, call in zip(bases, plan.calls, strict=True)]

    def _close(self, closing: Closing, call: OpenCall, numbers: Sequence[int]) -> None:
        recorder = self.recorder
        for role, place, content in closing.uses:
            recorder.use_number(call, role, place, recorder.values.unseen() if content is None else numbers[content])
        for held in closing.writes:
            recorder.values.wrote(held.handle, call.id)
        for held in closing.writes:
            recorder.use(call, held.role, held.place, held.handle)
            self.kept.updated.add(id(held.handle))
        optimizer = None if closing.optimizer is None else closing.optimizer()
        recorder.close(call, closing.arguments if optimizer is None else settings_of(optimizer))


class Plans:
    """Those of all runs that were met last."""

    def __init__(self) -> None:
        self._plans: dict[tuple[Any, ...], tuple[Plan, ...]] = {}

    def find(self, key: tuple[Any, ...], performance: Performance) -> Plan | None:
        plans = self._plans.pop(key, None)
        if plans is None:
            return None
        self._plans[key] = plans  # the last to be forgotten
        return next((plan for plan in plans if performance.fits(plan)), None)

    def keep(self, key: tuple[Any, ...], plan: Plan) -> None:
        self._plans[key] = plan, *self._plans.get(key, ())[: PLANS_OF_A_KIND - 1]
        while len(self._plans) > PLANS:
            del self._plans[next(iter(self._plans))]
