"""What lies between the last agreeing tensors and one whose makers are no partners.

Operands that nothing was compared with: what comes with them is not known.
"""

import math
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import polars as pl

from ulpscope.align.tensors import GRADIENT_ROLES, KEPT_ROLES, OWNED_ROLES
from ulpscope.diagnose.arguments import reads_objects, tensor_places
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.reads import RunReads
from ulpscope.diagnose.limits import LAST_BITS, LONGEST_GAP
from ulpscope.judge.rounding.measuring import NO_SUMMARY
from ulpscope.operations.registry import LEAVES_GRADIENTS, STARTS_BACKWARD, Operation
from ulpscope.records.enums import (
    BACKWARD_PHASE,
    COMPILED_KIND,
    FORWARD_PHASE,
    GRAD_INPUT_ROLE,
    GRAD_OUTPUT_ROLE,
    GRADIENT_ROLE,
    INPUT_ROLE,
    LOSS_ROLE,
    MODULE_BACKWARD_KIND,
    MODULE_KIND,
    OPTIMIZER_KIND,
    OUTPUT_ROLE,
    PARAMETER_AFTER_ROLE,
    PARAMETER_ROLE,
    UPDATE_PHASE,
    Kind,
)
from ulpscope.records.pairs import Pair


class Sent(NamedTuple):
    """A gradient that a consumer of a value gave it."""

    row: int
    """Of its pair of values."""
    consumer: int
    """Ids of the target's calls: the forward's, and its backward's."""
    backward: int


Gradients = dict[int, list[Sent]]


@dataclass(frozen=True, slots=True)
class Gap:
    """Calls without partners through which a value came, and the values that went into them."""

    sources: tuple[int, ...]
    """Rows of pairs of values."""
    only_reference: tuple[int, ...]
    """Ids of calls."""
    only_target: tuple[int, ...]
    outside: bool
    """Neither run shows where the value came from."""
    adds: bool = False
    """The engine's own sum of gradients."""
    written: bool = False
    """A call wrote it unseen, as batch norm writes its running stats."""
    half_seen: bool = False
    """Of one run nobody knows which call made it: the engine, which adds gradients up."""

    @property
    def calls(self) -> tuple[int, ...]:
        return (*self.only_reference, *self.only_target)

    @property
    def one_sided(self) -> bool:
        """Only one run has calls here: if they are harmless, they change nothing."""
        return not self.half_seen and not (self.only_reference and self.only_target)


def _is_entry(place: str) -> bool:
    """Whether it is a place in a list: args.0.7."""
    return place.count(".") > 1


class GapFinder:
    """Walks back from a value through calls without partners."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence
        self._operands: dict[int, list[int]] = {}

    def operands_of(self, pair: int) -> list[int]:
        """Values that an output of these calls may depend on; of a backward its forward's, too."""
        if pair not in self._operands:
            self._operands[pair] = list(dict.fromkeys(self._find_operands(pair)))
        return self._operands[pair]

    def operands_for(self, slot: Slot) -> list[int]:
        """Those of them that one output may depend on: a call on lists of tensors makes each of its own entries."""
        pair, entry = slot.pair, slot.place.rpartition(".")[2]
        if not self.evidence.operations[pair].name.startswith("foreach_"):
            return self.operands_of(pair)
        read = [each for each in self.evidence.slots_of[pair] if not each.makes]
        own = [each.values for each in read if not _is_entry(each.place) or each.place.endswith(f".{entry}")]
        return list(dict.fromkeys(own)) or self.operands_of(pair)

    def _find_operands(self, pair: int) -> list[int]:
        evidence = self.evidence
        values = evidence.given(pair)
        forward, kind = evidence.forwards[pair], evidence.calls["kind"][pair]
        if forward >= 0:
            values += [slot.values for slot in evidence.slots_of[forward]]
        if kind in (MODULE_KIND, COMPILED_KIND, Kind.API.value):
            values += evidence.inner_outputs.get(pair, [])
        if not values and reads_objects(evidence.calls["arguments"][pair]):
            # What Python, or another library, made of what is known in the module around (an assignment of boxes).
            values += self._known_around(pair) or self._looked_at(pair)
        if kind == MODULE_BACKWARD_KIND:
            values += [row for slot in evidence.made(pair) for row in self.gradient_sources(slot)]
        return values

    def find(self, slot: Slot) -> Gap:
        """The gap before a value that appears first as the input of a call."""
        made = self._producers(slot)
        (reference, only_reference), (target, only_target) = map(self._walk, self.runs, made)
        # Where a way is too long to be followed, nobody knows what it leads to.
        known = () if reference is None or target is None else tuple(dict.fromkeys([*reference, *target]))
        half_seen = min(made) < 0 <= max(made)
        between = Gap(known, only_reference, only_target, outside=False, half_seen=half_seen)
        is_gradient = slot.role in GRADIENT_ROLES or self.evidence.storage(slot) in self.gradient_storages
        if is_gradient and min(made) >= 0 and not between.calls:
            # Made by calls that are no partners: what was added up before they came to it, nobody sees.
            return replace(between, sources=())
        if is_gradient and min(made) < 0:
            sources = self.gradient_sources(slot)
            if (sources and self.has_other_summands(slot)) or (half_seen and not sources):
                # What the engine has added up in one run, nobody sees.
                return replace(between, sources=())
            if sources:
                walked = (row for row in between.sources if row in self.evidence.gradients)
                together = tuple(dict.fromkeys((*sources, *walked, *self._kept_gradient(slot))))
                whole = self._may_add_up_to(slot, together)
                return replace(between, sources=together if whole else (), adds=whole)
        if slot.role in KEPT_ROLES or self.is_parameter(slot):
            earlier = self.same_storage_before(slot)
            if earlier:
                return replace(between, sources=tuple(earlier), written=True)
        return between if max(made) >= 0 else self._uncaptured(slot)

    def has_other_summands(self, slot: Slot) -> bool:
        """Whether calls without partners send a part of this gradient, in a run that does not show which call made it:
        what a call has made is no sum of the engine."""
        rows = self.is_gradient_of(slot)
        sides = zip(self.evidence.sides, self.runs, strict=True)
        if slot.role == GRADIENT_ROLE:
            return any(int(side.storage[row]) in run.storages_of_strangers for side, run in sides for row in rows)
        return any(
            int(side.producer[slot.values]) < 0 and int(side.id[row]) in run.read_by_strangers
            for side, run in sides
            for row in rows
        )

    def _may_add_up_to(self, slot: Slot, summands: Sequence[int]) -> bool:
        """Whether a gradient is no larger than these together; else there are others that nobody has seen."""
        operands = self.evidence.operands
        known = all(self.evidence.values.compared[row] for row in summands)
        most = math.fsum(operands[row].norm for row in summands)
        rounded = max(LAST_BITS, self.evidence.precision.roundoffs[slot.values])
        return not known or operands[slot.values].norm <= most * (1.0 + rounded)

    def is_gradient_of(self, slot: Slot) -> list[int]:
        """Rows of the values that a gradient is of: a parameter, or what the forward read or made."""
        at_place, forward = self.evidence.at_place, self.evidence.forwards[slot.pair]
        if slot.role == GRADIENT_ROLE:
            places = [(pair, PARAMETER_ROLE, slot.place) for pair in (slot.pair, forward)]
        else:
            places = [(forward, OUTPUT_ROLE if slot.role == GRAD_OUTPUT_ROLE else INPUT_ROLE, slot.place)]
        return next(([each.values for each in found] for place in places if (found := at_place.get(place))), [])

    def _producers(self, slot: Slot) -> Pair[int]:
        """The call of either run that made a value; -1 if nobody knows."""
        return self.evidence.sides.map(lambda side: int(side.producer[slot.values]))

    def _kept_gradient(self, slot: Slot) -> list[int]:
        """What was in a parameter's gradient when the step began, to which the step's own are added."""
        storage, step = self.evidence.storage(slot), self.evidence.calls["step"]
        shown = reversed(self.gradient_storages.get(storage, []))
        earlier = next((other for other in shown if step[other.pair] < step[slot.pair]), None)
        return [] if earlier is None else [earlier.values]

    def origins(self, gap: Gap) -> list[int]:
        """Rows of the values that the calls of a gap read, where one run alone has such calls."""
        run = self.runs.target if gap.only_target else self.runs.reference
        read = dict.fromkeys(value for call in gap.calls for value in run.inputs.get(call, ()))
        rows = (run.row_of(value) for value in read)
        return list(dict.fromkeys(row for row in rows if row is not None and not self.evidence.values.discrete[row]))

    @cached_property
    def updates(self) -> frozenset[int]:
        """Steps of optimizers without a partner, of either run."""
        unmatched = self.evidence.plan.unmatched
        return frozenset(call for frame in unmatched for call in frame.filter(pl.col("kind") == OPTIMIZER_KIND)["id"])

    def passed_through(self, slot: Slot) -> bool:
        """Whether an output was made by other calls than the one that returned it."""
        calls, made = self.evidence.calls, self._producers(slot)
        if calls["kind"][slot.pair] == MODULE_BACKWARD_KIND and max(made) < 0:
            return bool(self.gradient_sources(slot))
        return made != Pair(calls["reference_id"][slot.pair], calls["id"][slot.pair]) and max(made) >= 0

    def behind_operands(self, pair: int) -> Gap | None:
        """What lies before a pair of calls of which each reads something that the other does not: one computes what
        calls before the other do. None where no more is known than of what both read."""
        ids = Pair(self.evidence.calls["reference_id"][pair], self.evidence.calls["id"][pair])
        both_read = self.evidence.given(pair)
        for run, side, call in zip(self.runs, self.evidence.sides, ids, strict=True):
            if {int(side.id[row]) for row in both_read}.issuperset(run.inputs.get(call, ())):
                return None
        sides = zip(self.runs, ids, strict=True)
        (reference, only_reference), (target, only_target) = (self._walk(*side, through=True) for side in sides)
        if reference is None or target is None or not (only_reference or only_target):
            return None
        return Gap(tuple(dict.fromkeys([*reference, *target])), only_reference, only_target, outside=False)

    def _walk(self, run: RunReads, start: int, *, through: bool = False) -> tuple[list[int] | None, tuple[int, ...]]:
        """Values with a partner that lead into `start` through calls without one, and those calls; no values if there
        are too many calls. `through` a start that has a partner, too."""
        if start < 0:
            return [], ()
        found: list[int] = []
        seen, waiting = {start}, [start]
        while waiting and len(seen) < LONGEST_GAP:
            call = waiting.pop()
            if call in run.partners and not (through and call == start):
                found += self.operands_of(run.partners[call])
                continue
            found += self._gradients_into(run, call)
            # A backward reads what its forward has read and made.
            forward = run.forwards.get(call, -1)
            for value in (*run.inputs.get(call, ()), *run.inputs.get(forward, ()), *run.outputs.get(forward, ())):
                if value in run.rows:
                    found.append(run.rows[value])
                elif (producer := run.producers.get(value, -1)) >= 0 and producer not in seen:
                    seen.add(producer)
                    waiting.append(producer)
        calls = tuple(sorted(call for call in seen if call not in run.partners))
        return (None if waiting else found), calls

    def _gradients_into(self, run: RunReads, call: int) -> list[int]:
        """Of a backward without a partner: the gradients that were added up for it."""
        of_value = self._gradients_of_value
        gradients = of_value.reference if run is self.runs.reference else of_value.target
        made = run.outputs.get(run.forwards.get(call, -1), ())
        return [sent.row for value in made for sent in gradients.get(value, ())]

    @cached_property
    def read(self) -> set[int]:
        """Rows of values that calls of either run read, partners or not."""
        return self._rows_read(lambda run, call, given: True)

    @cached_property
    def used(self) -> set[int]:
        """Those of them that something else was made of."""
        return self._rows_read(lambda run, call, given: not set(run.outputs.get(call, ())) <= set(given))

    def _rows_read(self, by: Callable[[RunReads, int, list[int]], bool]) -> set[int]:
        found: set[int] = set()
        for run in self.runs:
            used = {value for call, given in run.inputs.items() if by(run, call, given) for value in given}
            found |= {row for row, value in enumerate(run.values.id.tolist()) if value in used}
        return found

    @cached_property
    def runs(self) -> Pair[RunReads]:
        """What the calls of either run read and made."""
        plan, partners = self.evidence.plan, Pair(self.evidence.pair_of_reference, self.evidence.pair_of_target)
        sides = zip(plan.traces, plan.calls, partners, self.evidence.sides, strict=True)
        return Pair(*(RunReads(plan.steps, *side) for side in sides))

    @cached_property
    def _gradients_of_value(self) -> Pair[Gradients]:
        """For a forward value of either side: the gradients that its consumers gave it."""
        evidence, calls = self.evidence, self.evidence.calls["id"]
        inputs = {(slot.pair, slot.place): slot.values for slot in evidence.by_role.get(INPUT_ROLE, [])}
        ids = [side.id.tolist() for side in evidence.sides]
        found: tuple[Gradients, Gradients] = (defaultdict(list), defaultdict(list))
        for slot in evidence.by_role.get(GRAD_INPUT_ROLE, []):
            forward = evidence.forwards[slot.pair]
            row = inputs.get((forward, slot.place))
            if forward >= 0 and row is not None:
                for of_run, known in zip(found, ids, strict=True):
                    of_run[known[row]].append(Sent(slot.values, calls[forward], calls[slot.pair]))
        return Pair(*found)

    @cached_property
    def _gradients_of_storage(self) -> dict[tuple[int, object], list[int]]:
        """Gradients by the storage of what they are of, and the step that made them."""
        evidence = self.evidence
        storages = dict(zip(evidence.sides.target.id.tolist(), evidence.sides.target.storage.tolist(), strict=True))
        steps = {slot.values: evidence.calls["step"][slot.pair] for slot in evidence.slots if slot.makes}
        found: dict[tuple[int, object], list[int]] = defaultdict(list)
        for value, rows in self._gradients_of_value.target.items():
            for sent in rows:
                found[storages[value], steps.get(sent.row)].append(sent.row)
        return found

    @cached_property
    def gradient_storages(self) -> dict[int, list[Slot]]:
        """Where parameters' gradients lie: the slots that show them, by storage of the target."""
        shown = grouped(self.evidence.by_role.get(GRADIENT_ROLE, []), self.evidence.storage)
        return {storage: slots for storage, slots in shown.items() if storage >= 0}

    def gradient_sources(self, slot: Slot) -> list[int]:
        """Gradients whose sum this one is."""
        evidence = self.evidence
        if slot.role == GRADIENT_ROLE:
            return self._parameter_gradients(slot)
        if slot.role not in (GRAD_OUTPUT_ROLE, GRAD_INPUT_ROLE):
            shown = self.gradient_storages.get(evidence.storage(slot), [])
            return [row for other in shown for row in self._parameter_gradients(other)]
        forward = evidence.forwards[slot.pair]
        if forward < 0:
            return []
        values = self.is_gradient_of(slot)
        # In one run a cast may stand between, which the other does not need.
        sides = zip(evidence.sides, self._gradients_of_value, strict=True)
        given = (of_run.get(int(side.id[row]), []) for side, of_run in sides for row in values)
        began = self._backward_began(slot)
        found = list(dict.fromkeys(sent for all_sent in given for sent in all_sent if sent.backward >= began))
        if slot.role == GRAD_INPUT_ROLE:
            module = evidence.calls["id"][forward]
            inside = range(module + 1, evidence.forward_ends.get(module, module) + 1)
            found = [sent for sent in found if sent.consumer in inside]
        return list(dict.fromkeys(sent.row for sent in found if sent.row != slot.values))

    def _backward_began(self, slot: Slot) -> int:
        """Id of the target's call that began the backward that this is in: what was sent before is no part of it."""
        before = bisect_right(self._backward_starts, self.evidence.calls["id"][slot.pair])
        return self._backward_starts[before - 1] if before else 0

    @cached_property
    def _backward_starts(self) -> list[int]:
        calls = self.evidence.plan.calls.target
        return sorted(calls.filter(pl.col("op").is_in(list(STARTS_BACKWARD)))["id"])

    def _parameter_gradients(self, slot: Slot) -> list[int]:
        """Gradients that the step's backwards gave to this parameter."""
        step, storages = self.evidence.calls["step"][slot.pair], self.evidence.sides.target.storage
        owned = self.is_gradient_of(slot)[:1]
        return [row for each in owned for row in self._gradients_of_storage.get((int(storages[each]), step), [])]

    def is_parameter(self, slot: Slot) -> bool:
        return self.evidence.storage(slot) in self.parameter_storages

    @cached_property
    def parameter_storages(self) -> set[int]:
        return self.evidence.storages_of(*OWNED_ROLES, PARAMETER_AFTER_ROLE)

    @cached_property
    def _storage_history(self) -> dict[int, list[Slot]]:
        """For each storage of the target: the slots that showed it, in order."""
        storages = self.evidence.sides.target.storage.tolist()
        return grouped(self.evidence.slots, lambda slot: storages[slot.values])

    def users_before(self, slot: Slot) -> list[int]:
        """Pairs of calls that had the same memory at hand before, in order."""
        storage = self.evidence.storage(slot)
        history = self._storage_history[storage] if storage >= 0 else []
        return [other.pair for other in history[: first_from(history, slot.row)]]

    def same_storage_before(self, slot: Slot) -> list[int]:
        """The last content of the same memory that was compared before, and what the calls that used it had at hand.

        Such a call may have written it unseen, as batch norm writes its running stats.
        """
        storage = self.evidence.storage(slot)
        if storage < 0:
            return []
        history, compared = self._storage_history[storage], self.evidence.values.compared
        earlier = range(first_from(history, slot.row) - 1, -1, -1)
        usable = (history[at].values for at in earlier if history[at].values != slot.values)
        last = next((values for values in usable if compared[values]), None)
        if last is None:
            return []
        users = [other for other in self._slots_of_value[last] if other.row < slot.row]
        operands = [row for other in users for row in self.operands_of(other.pair)]
        return [last, *(row for row in operands if row != slot.values and self._was_made_before(row, slot.pair))]

    def _was_made_before(self, row: int, pair: int) -> bool:
        """Whether neither run made a value only in these calls, or later: what is made later explains nothing."""
        calls = Pair(self.evidence.calls["reference_id"][pair], self.evidence.calls["id"][pair])
        return all(side.producer[row] < call for side, call in zip(self.evidence.sides, calls, strict=True))

    @cached_property
    def _slots_of_value(self) -> dict[int, list[Slot]]:
        """For each pair of values the slots that showed it, in order."""
        return grouped(self.evidence.slots, lambda slot: slot.values)

    def _may_come_from_outside(self, slot: Slot) -> bool:
        """Losses and gradients do not, nor do the operands of an update that another tool has recorded call by call."""
        is_parameters_gradient = self.evidence.storage(slot) in self.gradient_storages
        if is_parameters_gradient or slot.role in (GRAD_OUTPUT_ROLE, GRADIENT_ROLE, LOSS_ROLE):
            return False
        calls = self.evidence.calls
        if slot.role == INPUT_ROLE and calls["id"][slot.pair] > self._unseen.get(calls["step"][slot.pair], sys.maxsize):
            return False
        late = self.evidence.calls["phase"][slot.pair] in (UPDATE_PHASE, BACKWARD_PHASE)
        return self.evidence.complete or not late

    @cached_property
    def _unseen(self) -> dict[int, int]:
        """By step: the first call that made something of which nothing is known: in torch.func, or in the engine."""
        calls, reasons = self.evidence.calls, self.evidence.values.reason
        made = {slot.pair for slot in self.evidence.slots if slot.makes and reasons[slot.values] == NO_SUMMARY}
        made |= {pair for pair, op in enumerate(calls["op"]) if op in STARTS_BACKWARD - LEAVES_GRADIENTS}
        return {calls["step"][pair]: calls["id"][pair] for pair in sorted(made, reverse=True)}

    def _uncaptured(self, slot: Slot) -> Gap:
        """A value that no recorded call made: at level module, what the parent computed from what is known in it."""
        evidence = self.evidence
        parent = evidence.calls["parent"][slot.pair]
        pair = evidence.pair_of_target.get(parent, -1) if isinstance(parent, int) else -1
        if pair < 0 or slot.role not in (INPUT_ROLE, GRAD_OUTPUT_ROLE) or self.is_parameter(slot):
            return Gap((), (), (), outside=self._may_come_from_outside(slot))
        handed_on = next((s for s in evidence.slots_of[pair] if not s.makes and s.values == slot.values), None)
        if handed_on is not None:
            return self.find(handed_on)
        return Gap(tuple(self._known_around(slot.pair)), (), (), outside=False)

    def _known_around(self, pair: int) -> list[int]:
        """What the call around these calls was given, and what was made in it before them."""
        evidence, parent = self.evidence, self.evidence.calls["parent"][pair]
        around = evidence.pair_of_target.get(parent, -1) if isinstance(parent, int) else -1
        if around < 0:
            return []
        inner = evidence.inner_outputs.get(around, [])
        return evidence.given(around) + [row for row in inner if self._was_made_before(row, pair)]

    def _looked_at(self, pair: int) -> list[int]:
        """What Python alone may have looked at before these calls, in the same forward: results that no call goes on
        with. What is read between two steps are data."""
        calls = self.evidence.calls
        if calls["phase"][pair] != FORWARD_PHASE:
            return []
        return [
            slot.values
            for slot in self._loose_ends
            if calls["step"][slot.pair] == calls["step"][pair] and calls["id"][slot.pair] < calls["id"][pair]
        ]

    @cached_property
    def _loose_ends(self) -> list[Slot]:
        """Results of forwards that no call makes anything of."""
        evidence, phases = self.evidence, self.evidence.calls["phase"]
        made = (slot for slot in evidence.by_role.get(OUTPUT_ROLE, []) if slot.values not in self.used)
        return [
            slot for slot in made if phases[slot.pair] == FORWARD_PHASE and not evidence.values.discrete[slot.values]
        ]


def first_from(slots: list[Slot], row: int) -> int:
    """Where in slots, which are in order, those from this row on begin."""
    return bisect_left(slots, row, key=attrgetter("row"))


def calls_in(evidence: RankEvidence, gap: Gap) -> Pair[pl.DataFrame]:
    """The calls of a gap, as rows of either trace."""
    return calls_of(evidence, Pair(list(gap.only_reference), list(gap.only_target)))


def calls_of(evidence: RankEvidence, ids: Pair[list[int]]) -> Pair[pl.DataFrame]:
    """Calls of either run as rows of its trace."""
    sides = zip(evidence.plan.calls, ids, strict=True)
    return Pair(*(calls.filter(pl.col("id").is_in(chosen)) for calls, chosen in sides))


def operations_in(evidence: RankEvidence, gap: Gap) -> list[Operation]:
    """What the calls of a gap execute."""
    reference = [evidence.executed.reference[call] for call in gap.only_reference]
    return reference + [evidence.executed.target[call] for call in gap.only_target]


def made_roundoff(evidence: RankEvidence, gap: Gap) -> float:
    """The coarsest unit roundoff of what the calls of a gap make on the way."""
    known = evidence.precision.made_roundoffs
    reference = (known.reference.get(call, 0.0) for call in gap.only_reference)
    return max((*reference, *(known.target.get(call, 0.0) for call in gap.only_target)), default=0.0)


def rounds_inside(evidence: RankEvidence, gap: Gap) -> bool:
    """Whether a call of a gap may round inside to the type that autocast gives it."""
    known = evidence.rounding_inside
    return not (known.reference.isdisjoint(gap.only_reference) and known.target.isdisjoint(gap.only_target))


def has_unknown_operand(evidence: RankEvidence, pair: int) -> bool:
    """Whether a pair of calls, or its forward, is given a tensor that was not compared, or that one run lacks."""
    calls, compared, forward = evidence.calls, evidence.values.compared, evidence.forwards[pair]
    return any(
        not all(compared[row] for row in evidence.given(each))
        or tensor_places(calls["reference_arguments"][each]) != tensor_places(calls["arguments"][each])
        for each in ([pair] if forward < 0 else [pair, forward])
    )
