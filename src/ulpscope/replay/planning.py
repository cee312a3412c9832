"""Chooses which calls of a trace are executed again, and with which data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import polars as pl

from ulpscope.operations.names import STARTS_BACKWARD
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait
from ulpscope.records.calls import Call
from ulpscope.records.checks import CaseId, DataSource, Variant
from ulpscope.records.enums import Kind
from ulpscope.records.settings import IntRanges
from ulpscope.replay.recorded import RecordedCall, read_calls, signature
from ulpscope.replay.stress import can_be_longer
from ulpscope.trace.reader import RankTrace


@dataclass(frozen=True, slots=True)
class Choice:
    """Which calls are wanted."""

    steps: IntRanges | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    every: bool = False
    """Also calls that are the same test as an earlier one."""
    stress: bool = True
    source: DataSource | None = None
    """None: saved data where there is some."""


@dataclass(frozen=True, slots=True)
class LeftCall:
    """A call that is not executed."""

    call: int
    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class CasePlan:
    """The tests of one rank, in execution order."""

    cases: tuple[CaseId, ...]
    left: tuple[LeftCall, ...]
    repeated: int
    """Calls that are the same test as an earlier one, and are not executed again."""


def plan_cases(rank: RankTrace, choice: Choice) -> CasePlan:
    """Cases of the rank's API calls."""
    frame = rank.collect(rank.calls().filter(pl.col("kind").is_in([Kind.API.value, Kind.COLLECTIVE.value])))
    frame = frame.select("id", "name", "op", "step", "recompute").sort("id")
    wanted = [row["id"] for row in frame.iter_rows(named=True) if _wanted(row, choice)]
    recorded = read_calls(rank, wanted)
    cases: list[CaseId] = []
    left: list[LeftCall] = []
    seen: set[str] = set()
    repeated = 0
    for number in wanted:
        each = recorded[number]
        reason = why_left(each)
        if reason is not None:
            left.append(LeftCall(number, each.call.name, each.call.op, reason))
            continue
        signed = signature(each)
        if signed in seen and not choice.every:
            repeated += 1
            continue
        cases += _cases(rank.name, each, choice, stressed=choice.stress and signed not in seen)
        seen.add(signed)
    return CasePlan(tuple(cases), tuple(left), repeated)


def matches(patterns: Sequence[str], call_name: str, op: str) -> bool:
    """Whether a pattern fits the name or op; one without `*` may stand anywhere in it."""
    words = [pattern if set("*?") & set(pattern) else f"*{pattern}*" for pattern in patterns]
    return any(fnmatchcase(text.lower(), word.lower()) for word in words for text in (call_name, op))


def why_left(recorded: RecordedCall) -> str | None:
    """Why a call is not worth or not capable of being executed again."""
    call = recorded.call
    if call.kind is Kind.COLLECTIVE or call.op.startswith(("torch.distributed.", "c10d.", "_c10d_functional.")):
        return "a collective needs its process group"
    if operation(call.op).has(Trait.WITHOUT_RESULT):
        return "its result is not defined by its arguments"
    if call.error is not None:
        return "it raised in the run" if not recorded.outputs else "it was not observed fully"
    return _unusable(recorded)


def _unusable(recorded: RecordedCall) -> str | None:
    values = [*recorded.inputs.values(), *recorded.grad_outputs.values()]
    layouts = {value.layout for value in values} - {"strided", ""}
    if layouts:
        return f"an input is {sorted(layouts)[0]}"
    if any(
        not value.initialized and not only_written(recorded.call.op, place) for place, value in recorded.inputs.items()
    ):
        return "it reads uninitialized memory"
    return None


def _wanted(row: dict[str, Any], choice: Choice) -> bool:
    name, op = row["name"], row["op"]
    if row["recompute"] or op in STARTS_BACKWARD or (choice.steps is not None and row["step"] not in choice.steps):
        return False
    if choice.only and not matches(choice.only, name, op):
        return False
    return not (choice.skip and matches(choice.skip, name, op))


def _cases(process: str, recorded: RecordedCall, choice: Choice, *, stressed: bool) -> Iterable[CaseId]:
    call = recorded.call
    source = choice.source or (DataSource.REAL if has_data(recorded) else DataSource.RANDOM)
    yield _case(process, call, Variant.RECORDED, source)
    if not stressed:
        return
    for variant in operation(call.op).stress:
        if variant is not Variant.LONG or can_be_longer(recorded):
            yield _case(process, call, variant, DataSource.RANDOM)


def _case(process: str, call: Call, variant: Variant, source: DataSource) -> CaseId:
    return CaseId(process=process, call=call.id, name=call.name, op=call.op, variant=variant, source=source)


def has_data(recorded: RecordedCall) -> bool:
    values = [*recorded.inputs.values(), *recorded.grad_outputs.values()]
    return bool(values) and all(value.data is not None for value in values if value.initialized)


def only_written(op: str, place: str) -> bool:
    """Whether a call reads nothing of what it finds there."""
    return place.startswith("kwargs.out") or (place == "args.0" and operation(op).has(Trait.OVERWRITING))
