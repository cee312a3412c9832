"""A measured network as two runs that make the same calls: what the judging of any comparison is built for.

The reference has no operators like the device's. It gets a call for each of those that were compared, which reads and
makes the originals' tensors. Edges are those of the graph: an input that was not dumped, or has no original, stands for
what is known upstream of it. An output that was compared only where it was read is that of the operator that made it.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from numpy.typing import NDArray

from ulpscope.align.network.pairs import NetworkRow
from ulpscope.align.network.planning import makes_integers
from ulpscope.align.network.upstream import KnownTensors, Source, members_of
from ulpscope.align.plan import RankPlan
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.tables import (
    ASCEND,
    call_row,
    foreign_rank,
    frame_of_rows,
    operator_frames,
    use_row,
    value_row,
)
from ulpscope.judge.rounding.measuring import Measurement, RowOutcome, Shape
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.calls import Value
from ulpscope.records.enums import Role
from ulpscope.records.graphs import NetworkPlan, Operator
from ulpscope.records.pairs import Pair
from ulpscope.trace.frames import FrameRank, StepFrames
from ulpscope.trace.reader import RankTrace

_WEIGHT = 1
"""Which input of a convolution its weight is."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When and where a network ran."""

    reference: Path
    target: Path
    device: int
    step: int


class _Use(NamedTuple):
    role: Role
    place: str
    value: int


class _Call(NamedTuple):
    operator: Operator
    name: str
    uses: list[_Use]
    random: bool


@dataclass(frozen=True, slots=True)
class NetworkRun:
    """Both sides as one plan, and the measured pairs by value."""

    plan: RankPlan
    measured: Mapping[int, Measurement]
    """By the id that a value has on both sides."""
    dequantised: frozenset[int]
    """Values that were integers just before."""
    filters: Mapping[int, Shape]
    """Weights of convolutions: how many filters, and how many numbers each of them has."""
    known: KnownTensors[int]
    """By the same ids."""
    seen: Mapping[Source, str]
    """Outputs that were compared only where another operator read them, or handed them on: that tensor's id."""


def network_run(
    plan: NetworkPlan,
    rows: Sequence[NetworkRow],
    outcomes: Mapping[int, RowOutcome],
    *,
    moment: Moment,
    names: Mapping[str, str],
    chosen: Collection[str],
) -> NetworkRun:
    """The calls of the chosen operators in the order in which they ran; `names` has those of the dumped ones."""
    builder = _Builder(plan, rows, outcomes, first_step=moment.step == 0)
    calls = builder.calls(names, chosen)
    ranks: Pair[RankTrace] = Pair("reference", "target").map(lambda side: builder.rank(side, calls, moment))
    steps, numbers = (moment.step,), list(range(len(calls)))
    pairs = pl.DataFrame(
        {"step": [moment.step] * len(calls), "reference": numbers, "target": numbers},
        schema={"step": pl.Int64, "reference": pl.Int64, "target": pl.Int64},
    ).with_columns(pl.lit(False).alias("replaced"))
    shared = frozenset(call.operator.name for call in calls)
    frames = ranks.map(lambda rank: rank.collect(rank.calls(steps)).sort("id"))
    plan_of_rank = RankPlan(moment.device, ranks, steps, pairs, frames, {}, Pair(shared, shared))
    measured = {value: found for value, (_, found) in builder.values.items()}
    dequantised = frozenset(filter(builder.is_dequantised, measured))
    return NetworkRun(plan_of_rank, measured, dequantised, builder.filters(calls), builder.known, builder.seen)


class _Builder:
    """Which value each tensor is, and which calls use it."""

    def __init__(
        self, plan: NetworkPlan, rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome], *, first_step: bool
    ) -> None:
        self._members = members_of(plan)
        self._rows = rows
        self._first_step = first_step
        self.values: dict[int, tuple[NetworkRow, Measurement]] = {}
        self.known: KnownTensors[int] = KnownTensors(self._members)
        self.seen: dict[Source, str] = {}
        self._makers: dict[int, str] = {}
        """Of values that inserted operators handed on: who made them."""
        self._read: dict[str, dict[int, int]] = defaultdict(dict)
        """By place, as dumps have them."""
        self._made: dict[str, dict[int, int]] = defaultdict(dict)
        self._number(outcomes)
        self._take_from_readers()
        self._take_from_inserted()

    def _number(self, outcomes: Mapping[int, RowOutcome]) -> None:
        known: dict[int, int] = {}
        # A copy is the value of the output that it is a copy of, which may stand in a later row.
        for number in sorted(outcomes, key=lambda number: (outcomes[number].twin is not None, number)):
            row, outcome = self._rows[number], outcomes[number]
            if outcome.measurement is not None:
                known[number] = len(self.values)
                self.values[len(self.values)] = row, outcome.measurement
            elif outcome.twin in known:
                known[number] = known[outcome.twin]
            else:
                continue
            self._place(row, known[number])

    def _place(self, row: NetworkRow, value: int) -> None:
        assert row.tensor is not None
        name, position = row.operator.name, row.tensor.position
        if row.tensor.side is Side.OUTPUT:
            self._made[name][position] = self.known.made[name, position] = value
            return
        self._read[name][position] = value
        if row.planned.source is not None:
            self.known.read[name][row.planned.source] = value

    def _take_from_readers(self) -> None:
        for row in self._rows:
            source, tensor_id = row.planned.source, row.tensor_id
            read = self.known.read.get(row.operator.name, {})
            if source is not None and source in read and tensor_id is not None:
                self._take(source, read[source], tensor_id)

    def _take_from_inserted(self) -> None:
        """What they handed on is what they read, where that is not known itself."""
        inserted = [
            member
            for member in self._members.values()
            if member.inserted and operation(member.operator.type).has(Trait.CASTING)
        ]
        for member in sorted(inserted, key=lambda member: -member.operator.id):
            name, unknown = member.operator.name, self.known.unknown(member.operator.name)
            for place, value in self._made.get(name, {}).items():
                source = member.inputs[place].source if place < len(member.inputs) else None
                shown = self.seen.get((name, place), f"{name}:output:{place}")
                if source in unknown and self._take(source, value, shown):
                    self._makers[value] = source[0]

    def _take(self, source: Source | None, value: int, tensor_id: str) -> bool:
        """Count a value as the output that it is; what enters a network, no operator made."""
        maker = None if source is None else self._members.get(source[0])
        if source is None or source in self.known.made or maker is None or maker.quantised:
            return False
        self.known.made[source] = value
        if maker.inputs:
            self._made[source[0]][source[1]] = value
            self.seen[source] = tensor_id
        return bool(maker.inputs)

    def calls(self, names: Mapping[str, str], chosen: Collection[str]) -> list[_Call]:
        """Compared operators, and those that made what was compared where it was read."""
        times = self._times()
        compared = {name for row, _ in self.values.values() for name in (row.operator.name, _maker(row))}
        compared |= set(self._read) | {name for name, _ in self.seen}
        calls = []
        for name in sorted(compared & times.keys() & set(chosen), key=lambda name: times[name]):
            uses = self._uses(name) if not self._members[name].quantised else []
            if self._is_compared(name, uses):
                calls.append(_Call(self._members[name].operator, names.get(name, name), uses, self._draws(name)))
        return calls

    def _is_compared(self, name: str, uses: Sequence[_Use]) -> bool:
        """Whether more is known of an operator than what others showed of its outputs."""
        own = any((name, place) not in self.seen for place in self._made.get(name, {}))
        return own or any(use.role is not Role.OUTPUT for use in uses)

    def _draws(self, name: str) -> bool:
        """Whether an operator's numbers are random: drawn here, or masked by bits that were (dropout)."""
        if operation(self._members[name].operator.type).has(Trait.RANDOM):
            return True
        unknown = [source[0] for source in self._sources(name) if source not in self.known.made]
        return any(
            maker in self._members and operation(self._members[maker].operator.type).has(Trait.RANDOM)
            for maker in unknown
        )

    def is_dequantised(self, value: int) -> bool:
        """Whether a value was made of integers that are not compared."""
        maker = _maker(self.values[value][0])
        read = [] if maker not in self._members else [source for source, _ in self._sources(maker)]
        known = [self._members[name] for name in read if name in self._members]
        return any(member.quantised or makes_integers(member.operator) for member in known)

    def filters(self, calls: Iterable[_Call]) -> dict[int, Shape]:
        """The shape of each convolution's weight with its filters first, wherever the network has that axis."""
        found = {}
        for call in calls:
            if operation(call.operator.type).has(Trait.FILTERING) and len(call.uses) > _WEIGHT:
                value = call.uses[_WEIGHT].value
                # Each channel has a filter of its own in a depthwise one.
                axes = "NC" if call.operator.type.startswith("Depthwise") else "N"
                shape = self._filters(value, axes)
                if shape is not None:
                    found[value] = shape
        return found

    def _filters(self, value: int, axes: str) -> Shape | None:
        row, measured = self.values[value]
        shape, layout = measured.shapes.target, None if row.original is None else row.original.layout
        if layout is None or len(layout) != len(shape) or not set(axes) <= set(layout):
            return None
        if axes == "N" and layout.startswith("N"):
            return None
        count = math.prod(shape[layout.index(axis)] for axis in axes)
        return count, math.prod(shape) // max(count, 1)

    def _sources(self, name: str) -> list[tuple[str, int]]:
        return [tensor.source for tensor in self._members[name].inputs if tensor.source is not None]

    def _times(self) -> dict[str, tuple[int, int]]:
        """When each operator ran, but never before what it read: clocks of streams differ, not all are dumped."""
        stamps = {row.operator.name: row.tensor.operation.name.timestamp for row in self._rows if row.tensor}
        times: dict[str, tuple[int, int]] = {}
        for name in sorted(self._members, key=lambda name: self._members[name].operator.id):
            before = [times[maker][0] for maker, _ in self._sources(name) if maker in times]
            times[name] = max([stamps.get(name, 0), *before]), self._members[name].operator.id
        return times

    def _uses(self, name: str) -> list[_Use]:
        uses = [(place, _Use(*self._role(value, place), value)) for place, value in self._read.get(name, {}).items()]
        for place, source in self.known.unread(name):
            uses += [(place, use) for use in self._stand_ins(source, place, [use for _, use in uses])]
        made = sorted(self._made.get(name, {}).items())
        ordered = [use for _, use in sorted(uses, key=lambda use: use[0])]
        return ordered + [_Use(Role.OUTPUT, f"output.{place}", value) for place, value in made]

    def _role(self, value: int, place: int) -> tuple[Role, str]:
        """Parameters by their name, so that one that differs is called that.

        Not at a later step, where weights that differ by what their cast rounds would pass for trained differently.
        """
        original = self.values[value][0].original
        owner = self._members.get(original.operator) if original is not None else None
        if self._first_step and owner is not None and operation(owner.operator.type).has(Trait.STORED):
            return Role.PARAMETER, owner.operator.name
        return Role.INPUT, f"args.{place}"

    def _stand_ins(self, source: tuple[str, int], place: int, others: Sequence[_Use]) -> Iterator[_Use]:
        """What is known upstream of an input that was not compared itself."""
        known, places = {use.value for use in others}, {use.place for use in others}
        found = [value for value in self.known.upstream(source) if value not in known]
        own = f"args.{place}"
        for number, value in enumerate(found):
            alone = len(found) == 1 and own not in places
            yield _Use(Role.INPUT, own if alone else f"{own}.{number}", value)

    def rank(self, side: str, calls: Sequence[_Call], moment: Moment) -> FrameRank:
        """One side."""
        device, ids = moment.device, {call.operator.name: number for number, call in enumerate(calls)}
        uses = [use_row(number, *use) for number, call in enumerate(calls) for use in call.uses]
        values = [
            value_row(
                value,
                producer=ids.get(self._makers.get(value) or _maker(row)),
                dtype=getattr(found.dtypes, side),
                shape=getattr(found.shapes, side),
                device=f"npu:{device}" if side == "target" else "unknown",
                saved=False,
            )
            for value, (row, found) in self.values.items()
        ]
        measured = [found for _, found in self.values.values()]
        summaries = frame_of_rows(
            [getattr(found.summaries, side) for found in measured],
            dtypes=[getattr(found.dtypes, side) for found in measured],
            shapes=[getattr(found.shapes, side) for found in measured],
        )
        made = [
            call_row(number, name=name, op=made.type, operator=made.name, step=moment.step, random=random)
            for number, (made, name, _, random) in enumerate(calls)
        ]
        source = _Frames(operator_frames(calls=made, values=values, uses=uses, summaries=summaries))
        info = foreign_rank(tool=ASCEND, rank=device, world_size=device + 1, devices=(f"npu:{device}",))
        path: Path = getattr(moment, side)
        return FrameRank(path, name=f"device{device}", info=info, steps=[moment.step], source=source)


def _maker(row: NetworkRow) -> str:
    """The operator that made a row's tensor; empty if the graph does not say."""
    assert row.tensor is not None
    if row.tensor.side is Side.OUTPUT:
        return row.operator.name
    return "" if row.planned.source is None else row.planned.source[0]


class _Frames:
    """A source of frames that are there already."""

    summary_id = SUMMARY_ID
    missing: tuple[str, ...] = ()

    def __init__(self, frames: StepFrames) -> None:
        self._frames = frames

    def load(self, step: int) -> StepFrames:
        return self._frames

    def data(self, value: Value) -> NDArray[Any] | None:
        return None
