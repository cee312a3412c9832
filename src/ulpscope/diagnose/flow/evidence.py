"""Everything that is known of one rank's pairs, as columns: what the flow of errors is judged on."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.align.plan import RankPlan
from ulpscope.align.tensors import OWNED_ROLES
from ulpscope.diagnose.arguments import NO_NUMBERS, asks_for_more, numbers_differ
from ulpscope.diagnose.flow.loss_scale import without_loss_scale
from ulpscope.diagnose.flow.precision import Precision
from ulpscope.judge.rounding.choices import numbers_alike
from ulpscope.judge.rounding.families import Operand
from ulpscope.judge.rounding.measuring import LOST, SHAPE_DIFFERS, UNINITIALIZED, ValuePairs
from ulpscope.judge.rounding.values import Values
from ulpscope.operations.registry import Family, Operation, Trait, only_writes, operation
from ulpscope.records.enums import (
    BACKWARD_KIND,
    GRAD_INPUT_ROLE,
    GRAD_OUTPUT_ROLE,
    MAKING_ROLES,
    MODULE_BACKWARD_KIND,
    MODULE_KIND,
    OPTIMIZER_KIND,
    OTHER_PHASE,
    UPDATE_PHASE,
    Kind,
)
from ulpscope.records.errors import TraceError
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace

if TYPE_CHECKING:
    from ulpscope.diagnose.flow.states import State


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a pair of calls."""

    row: int
    pair: int
    role: str
    place: str
    values: int
    """Row of its pair of values."""
    makes: bool
    """Whether the call made it; else it was read or shown."""


@dataclass(frozen=True)
class RankEvidence:
    """Pairs of calls and values of one rank, indexed by row; calls are those of the target unless said otherwise."""

    plan: RankPlan
    slots: list[Slot]
    values: ValuePairs
    calls: dict[str, list[Any]]
    """Columns of the plan's pairs: target's call columns, and `reference_*` for those of the reference."""
    moved: dict[int, int]
    """Rows of slots whose reference belongs to another call than the pair's, with that call."""
    scales: dict[int, float]
    """Loss scale of the target by step, where there is one; the pairs of values are without it."""
    unscaled: Mapping[int, float]
    """Rows of pairs of values that a loss scale was taken out of, with that scale."""

    @property
    def sides(self) -> Pair[Values]:
        """Columns of the values of either run, a row a pair of values."""
        return self.values.sides

    def storage(self, slot: Slot) -> int:
        """Where a tensor lies in the target's memory; -1 if nobody knows."""
        return int(self.sides.target.storage[slot.values])

    def storages_of(self, *roles: str) -> set[int]:
        """Where tensors lie that calls have in these roles."""
        return {self.storage(slot) for role in roles for slot in self.by_role.get(role, [])} - {-1}

    def arrays(self, slot: Slot) -> Pair[NDArray[Any]] | None:
        """The elements of a tensor in both runs, in the shape that the target has; none if they are not at hand."""
        if not all(side.has_data[slot.values] for side in self.sides):
            return None
        traces = self.plan.traces
        try:
            values = [trace.value(int(side.id[slot.values])) for trace, side in zip(traces, self.sides, strict=True)]
            found = [trace.data(value) for trace, value in zip(traces, values, strict=True)]
        except TraceError:
            return None
        return numbers_alike(Pair(*found), Pair(*(value.dtype for value in values)))

    def error(self, slot: Slot) -> float:
        """Of a tensor."""
        return self.operands[slot.values].error

    def worst_error(self, rows: Iterable[int]) -> float:
        """The largest error among pairs of values; 0 if there are none."""
        return max((self.operands[row].error for row in rows), default=0.0)

    def given(self, pair: int) -> list[int]:
        """Rows of the values that a pair of calls was given, and reads."""
        return [slot.values for slot in self.slots_of[pair] if not slot.makes and not self.only_writes(slot)]

    def only_writes(self, slot: Slot) -> bool:
        """Whether a call writes the whole of this and reads nothing of it."""
        return only_writes(self.calls["op"][slot.pair], slot.place)

    def is_outermost_module(self, pair: int) -> bool:
        """Whether it is the call of a module that no other call is around: of a whole model."""
        return self.calls["kind"][pair] == MODULE_KIND and self.calls["parent"][pair] is None

    def addends(self, pair: int) -> set[int]:
        """Rows of the values that a pair of calls only adds to its result, as a bias is."""
        places = self.operations[pair].added
        given = self.slots_of[pair] if places else ()
        return {slot.values for slot in given if not slot.makes and slot.place in places}

    def made(self, pair: int) -> list[Slot]:
        """What a pair of calls made."""
        return [slot for slot in self.slots_of[pair] if slot.makes]

    def known_state(self, values: int) -> "State | None":
        """What is known of a pair of values from more than this evidence: then no difference of it began here."""
        return None

    @cached_property
    def complete(self) -> bool:
        """Whether both traces hold every call; other tools leave some out."""
        return all("tool" not in trace.info.capture for trace in self.plan.traces)

    @cached_property
    def has_compiled(self) -> bool:
        """Whether a run has compiled regions, inside of which no modules are seen."""
        return any((frame["kind"] == Kind.COMPILED.value).any() for frame in self.plan.calls)

    @cached_property
    def has_optimizer(self) -> bool:
        """Whether updates of parameters were seen, as steps of an optimizer or as the calls that make them."""
        return OPTIMIZER_KIND in self.calls["kind"] or UPDATE_PHASE in self.calls["phase"]

    @cached_property
    def source_lines(self) -> Pair[dict[int, str]]:
        """For each stack the innermost line of the user's code, as path:line."""

        def lines(trace: RankTrace) -> dict[int, str]:
            frames = trace.collect(trace.stacks().filter(pl.col("depth") == 0).select("stack", "file", "line"))
            return {stack: f"{file}:{line}" for stack, file, line in frames.iter_rows()}

        return self.plan.traces.map(lines)

    @cached_property
    def operations(self) -> list[Operation]:
        """What each pair of calls executes."""
        return [operation(op) for op in self.calls["op"]]

    @cached_property
    def executed(self) -> Pair[dict[int, Operation]]:
        """What every call of either side executes, by id."""
        return self.plan.calls.map(lambda calls: {call: operation(op) for call, op in calls.select("id", "op").rows()})

    @cached_property
    def rounding_inside(self) -> Pair[set[int]]:
        """Ids of the calls of either run that may round inside: in a call of the run's own, nobody sees that."""

        def rounding(calls: pl.DataFrame) -> set[int]:
            own = (op for op in calls["op"].unique() if not op.startswith(("torch.", "aten.")))
            known = (op for op in calls["op"].unique() if operation(op).has(Trait.ROUNDING_INSIDE))
            ops = {*own, *known}
            return set(calls.filter(pl.col("op").is_in(list(ops)))["id"])

        return self.plan.calls.map(rounding)

    @cached_property
    def unpaired_operations(self) -> set[Operation]:
        """What calls without partners execute, in either run."""
        return {operation(op) for frame in self.plan.unmatched for op in frame["op"].unique()}

    @cached_property
    def precision(self) -> Precision:
        """In which types the runs hold and compute numbers."""
        owned = [slot.values for role in OWNED_ROLES for slot in self.by_role.get(role, [])]
        return Precision(self.plan, self.values, self.calls, self.forwards, owned, self.complete)

    @cached_property
    def operands(self) -> list[Operand]:
        """Each pair of values as an operand, with the reference's size."""
        stats, shapes = self.sides.reference.summaries, self.sides.target.shapes()
        errors = self._with_carried(np.nan_to_num(self.values.error, nan=0.0, posinf=np.inf))
        columns = errors.tolist(), np.nan_to_num(stats.norm).tolist(), stats.elements.tolist(), shapes
        scores = self.values.score_errors
        return [Operand(*column, scores.get(row)) for row, column in enumerate(zip(*columns, strict=True))]

    def _with_carried(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Errors, where those that cannot be told are as large as that of what they were made of."""
        untold = self.untold
        for pair in self.order if any(untold) else ():
            given = [row for row in self.given(pair) if not self.values.discrete[row]]
            for slot in self.made(pair):
                if untold[slot.values] and self.makers[slot.values] == pair:
                    errors[slot.values] = errors[given].max(initial=0.0)
        return errors

    @cached_property
    def untold(self) -> list[bool]:
        """Real numbers of which nobody knows how far apart they are: not compared, or unresolved."""
        values = self.values
        apart = [reason in (SHAPE_DIFFERS, UNINITIALIZED, LOST) for reason in values.reason]
        return list((values.unresolved | (~values.compared & ~values.discrete & ~np.array(apart, np.bool_))).tolist())

    @cached_property
    def differing_freely(self) -> list[bool]:
        """Shapes, integers or masks that differ, and inf or nan: nothing can be said of what is made of them."""
        values = self.values
        integers = values.discrete & values.compared & (values.error != 0.0)
        return list((values.pattern | (values.reason == SHAPE_DIFFERS) | integers).tolist())

    @cached_property
    def contents(self) -> list[tuple[int, int] | None]:
        """The digests of both sides, where both are known and the numbers are compared."""
        known = self.sides.reference.has_digest & self.sides.target.has_digest & self.values.compared
        digests = zip(*(side.digest.tolist() for side in self.sides), strict=True)
        return [pair if both else None for both, pair in zip(known.tolist(), digests, strict=True)]

    @cached_property
    def slots_of(self) -> list[list[Slot]]:
        by_pair = grouped(self.slots, lambda slot: slot.pair)
        return [by_pair.get(pair, []) for pair in range(len(self.calls["id"]))]

    def in_role(self, pair: int, role: str) -> list[Slot]:
        """The tensors that a pair of calls has in one role: an optimizer's call has thousands."""
        return self._roles.get((pair, role), [])

    @cached_property
    def _roles(self) -> dict[tuple[int, str], list[Slot]]:
        return grouped(self.slots, lambda slot: (slot.pair, slot.role))

    @cached_property
    def by_role(self) -> dict[str, list[Slot]]:
        """All tensors that the calls have in each role, in order."""
        return grouped(self.slots, lambda slot: slot.role)

    @cached_property
    def gradients(self) -> set[int]:
        """Rows of values that backwards were given or have made."""
        return {slot.values for role in (GRAD_OUTPUT_ROLE, GRAD_INPUT_ROLE) for slot in self.by_role.get(role, [])}

    @cached_property
    def at_place(self) -> dict[tuple[int, str, str], list[Slot]]:
        """The tensors by pair of calls, role and place."""
        return grouped(self.slots, lambda slot: (slot.pair, slot.role, slot.place))

    @cached_property
    def pair_of_target(self) -> dict[int, int]:
        return {call: pair for pair, call in enumerate(self.calls["id"])}

    @cached_property
    def pair_of_reference(self) -> dict[int, int]:
        return {call: pair for pair, call in enumerate(self.calls["reference_id"])}

    @cached_property
    def makers(self) -> list[int]:
        """The pair of calls that made each pair of values; -1 if the two were not made by partners."""
        producers = zip(*(side.producer.tolist() for side in self.sides), strict=True)
        pairs = ((self.pair_of_reference.get(one), self.pair_of_target.get(other, -1)) for one, other in producers)
        return [target if target == reference else -1 for reference, target in pairs]

    @cached_property
    def other_numbers(self) -> set[int]:
        """Pairs of calls among whose arguments a number differs."""
        calls = self.calls
        return {
            pair
            for pair in self.reworded
            if numbers_differ(calls["reference_arguments"][pair], calls["arguments"][pair])
        }

    @cached_property
    def reworded(self) -> list[int]:
        """Pairs of calls whose arguments are not the same text, where these may say something about numbers."""
        texts = zip(self.calls["reference_arguments"], self.calls["arguments"], strict=True)
        differing = (pair for pair, (reference, target) in enumerate(texts) if reference != target)
        return [pair for pair in differing if not self.operations[pair].has(*NO_NUMBERS)]

    @cached_property
    def asked_for_more(self) -> set[int]:
        """Pairs of calls that are asked for other mathematics, whatever is seen of it."""
        return {pair for pair in self.reworded if asks_for_more(self, pair)}

    @cached_property
    def regrouped(self) -> dict[int, tuple[str | None, str | None]]:
        """Slots of parameters in another group of the optimizer: settings of the group in reference and target."""
        arguments = dict(self.plan.calls.reference.select("id", "arguments").iter_rows()) if self.moved else {}
        return {
            row: (arguments.get(call), self.calls["arguments"][self.slots[row].pair])
            for row, call in self.moved.items()
        }

    @cached_property
    def forwards(self) -> list[int]:
        """For each backward the pair of its forward; -1 for the rest."""
        return [self.pair_of_target.get(call, -1) if call is not None else -1 for call in self.calls["forward"]]

    @cached_property
    def forward_ends(self) -> dict[int, int]:
        parents = self.plan.calls.target.select("id", "parent").rows()
        ends = {call: call for call, _ in parents}
        for call, parent in reversed(parents):
            if parent in ends:
                ends[parent] = max(ends[parent], ends[call])
        return ends

    @cached_property
    def ends(self) -> list[int]:
        """When a call was over: the largest id inside it."""
        return [max(self.forward_ends[call], self._backward_ends.get(call, 0)) for call in self.calls["id"]]

    @cached_property
    def _backward_ends(self) -> dict[int, int]:
        """For the backward of a module the last backward of what ran inside of it."""
        calls = self.plan.calls.target
        inner = calls.filter(pl.col("kind") == BACKWARD_KIND).select("forward", "id").drop_nulls().sort("forward")
        outer = calls.filter(pl.col("kind") == MODULE_BACKWARD_KIND).select("id", "forward").drop_nulls()
        forwards = inner["forward"].to_numpy()
        ids = np.array([self.forward_ends[call] for call in inner["id"].to_list()], dtype=np.int64)
        found = {}
        for call, forward in outer.iter_rows():
            first, last = np.searchsorted(forwards, [forward, self.forward_ends.get(forward, forward) + 1])
            if last > first:
                found[call] = int(ids[first:last].max())
        return found

    @cached_property
    def order(self) -> list[int]:
        """Pairs in the order in which the target finished them, inner ones first."""
        # A module's backward is recorded when its gradients are whole; an inner one of the same time comes first.
        columns = zip(self.ends, self.calls["kind"], self.calls["id"], strict=True)
        keys = [(end, kind == MODULE_BACKWARD_KIND, -call) for end, kind, call in columns]
        return sorted(range(len(keys)), key=keys.__getitem__)

    @cached_property
    def positions(self) -> dict[int, int]:
        """For each pair its place in the order."""
        return {pair: position for position, pair in enumerate(self.order)}

    @cached_property
    def backward_of(self) -> dict[int, int]:
        """For each pair of forward calls the pair of their first backwards."""
        found: dict[int, int] = {}
        for pair, forward in enumerate(self.forwards):
            if forward >= 0 and self.calls["kind"][pair] == BACKWARD_KIND:
                found.setdefault(forward, pair)
        return found

    @cached_property
    def moments(self) -> list[tuple[int, bool]]:
        """Pairs as the target began (true) and finished (false) them: a call reads before what is inside of it runs."""
        begins = [(call, 0, pair) for pair, call in enumerate(self.calls["id"])]
        finishes = [(self.ends[pair], 1 + place, pair) for place, pair in enumerate(self.order)]
        return [(pair, place == 0) for _, place, pair in sorted([*begins, *finishes])]

    @cached_property
    def parameter_owners(self) -> dict[int, tuple[str, str]]:
        """For the storage of each parameter and buffer: the module that owns it, and its name there."""
        storages = self.sides.target.storage.tolist()
        modules = self.calls["module"]
        shown = [slot for slot in self.slots if slot.role in OWNED_ROLES and modules[slot.pair] is not None]
        owners = {storages[slot.values]: (str(modules[slot.pair]), slot.place) for slot in reversed(shown)}
        owners.pop(-1, None)  # other tools do not tell storages
        return owners

    @cached_property
    def backwards_of(self) -> dict[tuple[int, str], list[int]]:
        """Pairs of backwards by step and module."""
        kinds, modules, steps = (self.calls[name] for name in ("kind", "module", "step"))
        backwards = [pair for pair, kind in enumerate(kinds) if kind == BACKWARD_KIND and modules[pair] is not None]
        return grouped(backwards, lambda pair: (steps[pair], modules[pair]))

    @cached_property
    def inner_outputs(self) -> dict[int, list[int]]:
        """For each pair of modules, and of functions of the run's own, the values that the pairs directly inside of it
        made; kernels are no part of it, but what it is."""
        parents = [self.pair_of_target.get(parent, -1) if parent is not None else -1 for parent in self.calls["parent"]]
        found: dict[int, list[int]] = defaultdict(list)
        for slot in self.slots:
            if slot.makes and parents[slot.pair] >= 0 and self.calls["kind"][slot.pair] != Kind.KERNEL.value:
                found[parents[slot.pair]].append(slot.values)
        return found


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by what they have in common, in order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


CALL_FIELDS = (
    "id", "name", "kind", "op", "module", "module_class", "phase", "step", "parent", "forward", "stack", "recompute",
    "random", "generator", "arguments", "autocast",
)  # fmt: skip
REFERENCE_FIELDS = ("id", "name", "op", "module", "random", "generator", "arguments", "autocast")


def gather(plan: RankPlan, slots: pl.DataFrame, rows: np.ndarray, values: ValuePairs) -> RankEvidence:
    """Put plan, slots and measured values together; `rows` gives each slot its row of values."""
    target = plan.pairs.select(id="target").join(plan.calls.target, on="id", how="left", maintain_order="left")
    reference = plan.pairs.select(id="reference").join(plan.calls.reference, on="id", how="left", maintain_order="left")
    calls = {name: target[name].to_list() for name in CALL_FIELDS}
    calls |= {f"reference_{name}": reference[name].to_list() for name in REFERENCE_FIELDS}
    calls["replaced"] = plan.pairs["replaced"].to_list()
    columns = zip(slots.select("pair", "role", "place").iter_rows(), rows.tolist(), strict=True)
    listed = [
        Slot(row, pair, role, place, value, role in MAKING_ROLES)
        for row, ((pair, role, place), value) in enumerate(columns)
    ]
    beside = pl.col("phase").is_in([OTHER_PHASE, UPDATE_PHASE])
    alone = {operation(op) for frame in plan.unmatched for op in frame.filter(beside)["op"].unique()}
    divides = any(each.family in (Family.DIVISION, Family.PRODUCT) for each in alone)
    ops = plan.calls.target["op"].unique()
    without, scales, unscaled = without_loss_scale(listed, calls, values, ops, divides=divides)
    owners = zip(listed, slots["reference_call"].to_list(), strict=True)
    moved = {slot.row: call for slot, call in owners if calls["reference_id"][slot.pair] != call}
    return RankEvidence(plan, listed, without, calls, moved, scales, unscaled)
