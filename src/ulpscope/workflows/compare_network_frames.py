"""A measured network as two runs that make the same calls: what the judging of any comparison is built for.

The reference has no operators like the device's. It gets a call for each of those that were compared, which reads and
makes the originals' tensors. Edges are those of the graph: an input that was not dumped, or has no original, stands for
what is known upstream of it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.align.network_pairs import NetworkRow
from ulpscope.align.plan import RankPlan
from ulpscope.align.scans import calls_of
from ulpscope.dialects.ascend.dump_records import Side
from ulpscope.dialects.summaries import frame_of_rows
from ulpscope.judge.network_outcomes import Measurement, RowOutcome
from ulpscope.numerics.constants import SUMMARY_ID
from ulpscope.records.enums import Kind, Level, Phase, Role, Save
from ulpscope.records.graphs import Operator
from ulpscope.records.network import NetworkPlan
from ulpscope.records.pairs import Pair
from ulpscope.records.runs import RankInfo
from ulpscope.records.values import Value
from ulpscope.trace.frames import FrameRank, StepFrames
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES

_FARTHEST = 400
"""Operators that are looked through for what is known upstream of one."""
_PARAMETERS = frozenset(("Variable", "VariableV2", "Const", "Constant", "RefData"))


@dataclass(frozen=True, slots=True)
class Moment:
    """When and where a network ran."""

    reference: Path
    target: Path
    device: int
    step: int


@dataclass(frozen=True, slots=True)
class _Use:
    role: str
    place: str
    value: int


@dataclass(frozen=True, slots=True)
class _Call:
    operator: Operator
    name: str
    uses: list[_Use]


@dataclass(frozen=True, slots=True)
class NetworkRun:
    """Both sides as one plan, and the measured pairs by value."""

    plan: RankPlan
    measured: Mapping[int, Measurement]
    """By the id that a value has on both sides."""


def network_run(
    plan: NetworkPlan,
    rows: Sequence[NetworkRow],
    outcomes: Mapping[int, RowOutcome],
    *,
    moment: Moment,
    names: Mapping[str, str],
) -> NetworkRun:
    """The calls of a network in the order in which they ran; `names` has those of the dumped operators."""
    builder = _Builder(plan, rows, outcomes, first_step=moment.step == 0)
    calls = builder.calls(names)
    reference = _rank(builder.frames("reference", calls, moment), moment, moment.reference)
    target = _rank(builder.frames("target", calls, moment), moment, moment.target)
    steps, numbers = (moment.step,), list(range(len(calls)))
    pairs = pl.DataFrame(
        {"step": [moment.step] * len(calls), "reference": numbers, "target": numbers},
        schema={"step": pl.Int64, "reference": pl.Int64, "target": pl.Int64},
    ).with_columns(pl.lit(False).alias("replaced"))
    shared = frozenset(call.operator.name for call in calls)
    frames = Pair(calls_of(reference, steps), calls_of(target, steps))
    rank = RankPlan(moment.device, Pair(reference, target), steps, pairs, frames, {}, Pair(shared, shared))
    return NetworkRun(rank, {value: found for value, (_, found) in builder.values.items()})


class _Builder:
    """Which value each tensor is, and which calls use it."""

    def __init__(
        self, plan: NetworkPlan, rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome], *, first_step: bool
    ) -> None:
        self._members = {
            member.operator.name: member for group in plan.groups for member in group.members if not member.quantised
        }
        self._rows = rows
        self._first_step = first_step
        self.values: dict[int, tuple[NetworkRow, Measurement]] = {}
        self._read: dict[str, dict[int, int]] = defaultdict(dict)
        self._made: dict[str, dict[int, int]] = defaultdict(dict)
        self._number(outcomes)

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
            assert row.tensor is not None
            side = self._read if row.tensor.side is Side.INPUT else self._made
            side[row.operator.name][row.tensor.position] = known[number]

    def calls(self, names: Mapping[str, str]) -> list[_Call]:
        """Compared operators, and those in between of which nothing was compared but something upstream is known."""
        times = self._times()
        calls = []
        for name in sorted(times, key=lambda name: times[name]):
            uses = self._uses(name)
            if uses:
                calls.append(_Call(self._members[name].operator, names.get(name, name), uses))
        return calls

    def _times(self) -> dict[str, tuple[int, int]]:
        """When each operator ran: of one that was not dumped, right after what it read."""
        stamps = {row.operator.name: row.tensor.operation.name.timestamp for row in self._rows if row.tensor}
        times: dict[str, tuple[int, int]] = {}
        for name in sorted(self._members, key=lambda name: self._members[name].operator.id):
            before = [
                times[tensor.source[0]][0]
                for tensor in self._members[name].inputs
                if tensor.source is not None and tensor.source[0] in times
            ]
            times[name] = stamps.get(name, max(before, default=0)), self._members[name].operator.id
        return times

    def _uses(self, name: str) -> list[_Use]:
        read, planned = self._read.get(name, {}), self._members[name].inputs
        uses = []
        for place in range(max([*read, len(planned) - 1], default=-1) + 1):
            if place in read:
                uses.append(_Use(*self._role(read[place], place), read[place]))
            elif (source := planned[place].source if place < len(planned) else None) is not None:
                uses += self._stand_ins(source, place, {use.value for use in uses} | set(read.values()))
        made = sorted(self._made.get(name, {}).items())
        return uses + [_Use(Role.OUTPUT.value, f"output.{place}", value) for place, value in made]

    def _role(self, value: int, place: int) -> tuple[str, str]:
        """Parameters by their name, so that one that differs is called that.

        Not at a later step, where weights that differ by what their cast rounds would pass for trained differently.
        """
        original = self.values[value][0].original
        owner = self._members.get(original.operator) if original is not None else None
        if self._first_step and owner is not None and owner.operator.type in _PARAMETERS:
            return Role.PARAMETER.value, owner.operator.name
        return Role.INPUT.value, f"args.{place}"

    def _stand_ins(self, source: tuple[str, int], place: int, known: set[int]) -> Iterator[_Use]:
        """What is known upstream of an input that was not compared itself."""
        found = [value for value in self._upstream(source, set()) if value not in known]
        for number, value in enumerate(found):
            yield _Use(Role.INPUT.value, f"args.{place}" if len(found) == 1 else f"args.{place}.{number}", value)

    def _upstream(self, source: tuple[str, int], seen: set[str]) -> list[int]:
        found: list[int] = []
        waiting = [source]
        while waiting and len(seen) < _FARTHEST:
            name, output = waiting.pop()
            own = self._made.get(name, {}).get(output)
            if own is not None:
                found.append(own)
            elif name not in seen and name in self._members:
                seen.add(name)
                read = self._read.get(name, {})
                found += read.values()
                planned = enumerate(self._members[name].inputs)
                waiting += [each.source for place, each in planned if place not in read and each.source is not None]
        return list(dict.fromkeys(found))

    def frames(self, side: str, calls: Sequence[_Call], moment: Moment) -> StepFrames:
        """The tables of one side."""
        ids = {call.operator.name: number for number, call in enumerate(calls)}
        uses = [
            {"call": number, "role": use.role, "place": use.place, "value": use.value}
            for number, call in enumerate(calls)
            for use in call.uses
        ]
        values = [self._value_row(value, side, ids, moment.device) for value in self.values]
        measured = [found for _, found in self.values.values()]
        summaries = frame_of_rows(
            [getattr(found.summaries, side) for found in measured],
            dtypes=[getattr(found.dtypes, side) for found in measured],
            shapes=[getattr(found.shapes, side) for found in measured],
        )
        return StepFrames(
            calls=_calls_frame(calls, moment.step),
            values=pl.DataFrame(values, schema={name: VALUES[name] for name in _VALUE_COLUMNS}).hstack(summaries),
            tensors=pl.DataFrame(uses, schema=dict(TENSORS)),
            stacks=pl.DataFrame(schema=dict(STACKS)),
        )

    def _value_row(self, value: int, side: str, ids: Mapping[str, int], device: int) -> dict[str, Any]:
        row, found = self.values[value]
        assert row.tensor is not None
        maker = row.operator.name if row.tensor.side is Side.OUTPUT else (row.planned.source or (None,))[0]
        return {
            "id": value,
            "producer": None if maker is None else ids.get(maker),
            "dtype": getattr(found.dtypes, side),
            "shape": list(getattr(found.shapes, side)),
            "device": f"npu:{device}" if side == "target" else "unknown",
            "layout": "strided",
            "requires_grad": False,
            "initialized": True,
        }


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


def _rank(frames: StepFrames, moment: Moment, path: Path) -> FrameRank:
    info = RankInfo(
        rank=moment.device,
        world_size=moment.device + 1,
        process={},
        framework={},
        versions={},
        devices=(f"npu:{moment.device}",),
        environment={},
        seeds={},
        capture={"level": Level.API.value, "save": Save.TENSORS.value, "tool": "ascend"},
        started="unknown",
        closed="unknown",
    )
    return FrameRank(path, name=f"device{moment.device}", info=info, steps=[moment.step], source=_Frames(frames))


_VALUE_COLUMNS = ("id", "producer", "dtype", "shape", "device", "layout", "requires_grad", "initialized")
_CALL_COLUMNS = (
    "id", "name", "kind", "op", "module", "module_class", "phase", "step", "micro_step", "recompute", "random",
)  # fmt: skip


def _calls_frame(calls: Sequence[_Call], step: int) -> pl.DataFrame:
    rows = [
        {
            "id": number,
            "name": call.name,
            "kind": Kind.API.value,
            "op": call.operator.type,
            "module": call.operator.name,
            "module_class": call.operator.type,
            "phase": Phase.FORWARD.value,
            "step": step,
            "micro_step": 0,
            "recompute": False,
            "random": False,
        }
        for number, call in enumerate(calls)
    ]
    return pl.DataFrame(rows, schema={name: CALLS[name] for name in _CALL_COLUMNS})
