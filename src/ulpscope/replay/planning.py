"""Chooses which calls of a trace are executed again, and with which data: as recorded, or with longer sums.

Calls that made inf or nan out of finite numbers are told by the stats of their values, where there are any.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import polars as pl

from ulpscope.numerics.dtypes import FLOATING, Shape
from ulpscope.operations.registry import ASKS_FOR_GRADIENTS, Family, Trait, is_collective, only_writes, operation
from ulpscope.records.calls import Value
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import CaseId, DataSource, Direction, Variant
from ulpscope.records.enums import Kind
from ulpscope.records.overflows import NotFinite
from ulpscope.replay.recorded import Places, RecordedCall, read_calls, signature
from ulpscope.trace.reader import RankTrace


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


def plan_cases(rank: RankTrace, choice: CheckOptions) -> CasePlan:
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
    if call.kind is Kind.COLLECTIVE or is_collective(call.op):
        return "a collective needs its process group"
    if operation(call.op).has(Trait.WITHOUT_RESULT):
        return "its result is not defined by its arguments"
    if call.error is not None:
        return "it raised in the run" if not recorded.outputs else "it was not observed fully"
    values = [*recorded.inputs.values(), *recorded.grad_outputs.values()]
    layouts = {value.layout for value in values} - {"strided", ""}
    if layouts:
        return f"an input is {sorted(layouts)[0]}"
    if any(not value.initialized and not only_writes(call.op, place) for place, value in recorded.inputs.items()):
        return "it reads uninitialized memory"
    return None


def _wanted(row: dict[str, Any], choice: CheckOptions) -> bool:
    name, op = row["name"], row["op"]
    if row["recompute"] or op in ASKS_FOR_GRADIENTS or (choice.steps is not None and row["step"] not in choice.steps):
        return False
    if choice.only and not matches(choice.only, name, op):
        return False
    return not (choice.skip and matches(choice.skip, name, op))


def _cases(process: str, recorded: RecordedCall, choice: CheckOptions, *, stressed: bool) -> Iterable[CaseId]:
    call = recorded.call
    source = choice.source or (DataSource.REAL if has_data(recorded) else DataSource.RANDOM)
    case = CaseId(process, call.id, name=call.name, op=call.op, variant=Variant.RECORDED, source=source)
    yield case
    for variant in operation(call.op).stress if stressed else ():
        if variant is not Variant.LONG or can_be_longer(recorded):
            yield replace(case, variant=variant, source=DataSource.RANDOM)


def has_data(recorded: RecordedCall) -> bool:
    values = [*recorded.inputs.values(), *recorded.grad_outputs.values()]
    return bool(values) and all(value.data is not None for value in values if value.initialized)


LONG = 4096
"""How long sums become, if they are not longer already."""
# Rows and columns of a product, and rows of what is summed by itself: enough elements for a judgement, a few
# milliseconds even where a CPU has only slow kernels for float16.
SIDE = 24
ROWS = 16


def can_be_longer(recorded: RecordedCall) -> bool:
    """Whether the summed axis is known: the last one, and no shape stands in the arguments."""
    operands = ("args.0", "args.1") if _is_product(recorded) else ("args.0",)
    stressed = Variant.LONG in operation(recorded.call.op).stress
    if not stressed or recorded.repeated or any(place not in recorded.inputs for place in operands):
        return False
    shapes = [recorded.inputs[place].shape for place in operands]
    if any(len(shape) < 2 or 0 in shape for shape in shapes):
        return False
    return not _is_transposed(recorded) if _is_product(recorded) else _sums_last(recorded)


def _is_transposed(recorded: RecordedCall) -> bool:
    """Whether the summed axis is another one because an option says so."""
    options = recorded.call.arguments.get("kwargs", {})
    return any(options.get(name) is True for name in ("transpose_a", "transpose_b", "adj_x", "adj_y"))


def _is_product(recorded: RecordedCall) -> bool:
    return operation(recorded.call.op).family is Family.CONTRACTION


def longer(recorded: RecordedCall) -> tuple[Places, Places]:
    """Inputs and gradients of the call with longer sums."""
    if not _is_product(recorded):
        return _longer_sum(recorded)
    is_linear = operation(recorded.call.op).name == "linear"
    left, right = recorded.inputs["args.0"], recorded.inputs["args.1"]
    length = max(LONG, left.shape[-1])
    columns = min(right.shape[0 if is_linear else -1], SIDE)
    inputs = {
        **{place: _resized(value, (columns,)) for place, value in recorded.inputs.items() if len(value.shape) == 1},
        "args.0": _resized(left, (*_rows(left.shape[:-1], SIDE), length)),
        "args.1": _resized(
            right, (columns, length) if is_linear else (*(1 for _ in right.shape[:-2]), length, columns)
        ),
    }
    grads = {
        place: _resized(value, (*_rows(value.shape[:-1], SIDE), columns))
        for place, value in recorded.grad_outputs.items()
    }
    return {**recorded.inputs, **inputs}, grads


def _longer_sum(recorded: RecordedCall) -> tuple[Places, Places]:
    value = recorded.inputs["args.0"]
    rows, length = _rows(value.shape[:-1], ROWS), max(LONG, value.shape[-1])
    same_shape = operation(recorded.call.op).has(Trait.SHAPE_KEPT)

    def resized(grad: Value) -> Value:
        kept = len(grad.shape) == len(value.shape)
        return _resized(grad, (*rows, length if same_shape else 1) if kept else rows if grad.shape else ())

    grads = {place: resized(grad) for place, grad in recorded.grad_outputs.items()}
    return {**recorded.inputs, "args.0": _resized(value, (*rows, length))}, grads


def _rows(shape: Shape, most: int) -> Shape:
    """The last axis cut, those before it gone: size 1 goes with whatever they are combined with."""
    return (*(1 for _ in shape[:-1]), min(shape[-1], most)) if shape else ()


def _sums_last(recorded: RecordedCall) -> bool:
    arguments = recorded.call.arguments
    args, kwargs = arguments.get("args", []), arguments.get("kwargs", {})
    given = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    rank = len(recorded.inputs["args.0"].shape)
    if given is None:
        return operation(recorded.call.op).name in ("sum", "mean")
    last = [-1], [rank - 1]
    return given in (-1, rank - 1, *last, *({"$tuple": each} for each in last))


def _resized(value: Value, shape: Shape) -> Value:
    return replace(value, shape=shape, strides=())


@dataclass(frozen=True, slots=True)
class Births:
    """How many calls of a trace gave what is not finite."""

    born: tuple[int, ...]
    """Ids of calls whose inputs were finite, those of gradients by their forward."""
    inherited: int
    """Calls whose inputs were not finite already."""
    untold: tuple[int, ...] = ()
    """Ids of calls of which nobody recorded whether what they gave is finite."""


def counted(value: Value) -> NotFinite:
    """What of a value is not finite; nothing where its stats do not tell."""
    stats = value.stats
    return NotFinite() if stats is None else NotFinite(stats.nan, stats.pos_inf, stats.neg_inf)


def born_here(recorded: RecordedCall) -> dict[Direction, Places]:
    """Results that are not finite though everything they were made of is."""
    sent = {**recorded.inputs, **{f"grad.{place}": value for place, value in recorded.grad_outputs.items()}}
    found = {
        Direction.FORWARD: _broken(recorded.outputs) if _all_finite(recorded.inputs) else {},
        Direction.BACKWARD: _broken(recorded.grad_inputs) if _all_finite(sent) else {},
    }
    return {direction: places for direction, places in found.items() if places}


def untold_here(recorded: RecordedCall) -> tuple[Direction, ...]:
    """Directions whose results are not recorded, or without a number that tells whether they are finite."""
    results = {Direction.FORWARD: recorded.outputs}
    if recorded.backward is not None:
        results[Direction.BACKWARD] = recorded.grad_inputs
    # What was made of inf or nan has inherited it, whatever it is.
    finite = _all_finite(recorded.inputs) and _all_finite(recorded.grad_outputs)
    return tuple(
        way for way, places in results.items() if finite and not (places and all(map(_is_told, places.values())))
    )


def births(recorded: Mapping[int, RecordedCall]) -> Births:
    """Calls to look into."""
    born = {number: each for number, each in recorded.items() if born_here(each)}
    broken = [each for each in recorded.values() if _broken(each.outputs) or _broken(each.grad_inputs)]
    results = {
        number: {Direction.FORWARD: each.outputs, Direction.BACKWARD: each.grad_inputs}
        for number, each in recorded.items()
    }
    # Directions of which no call has a result: elsewhere, a call without one gave no tensor.
    silent = {way for way in Direction if not any(found[way] for found in results.values())}
    untold = [
        number
        for number, each in recorded.items()
        if number not in born and any(results[number][way] or way in silent for way in untold_here(each))
    ]
    return Births(tuple(born), len(broken) - len(born), tuple(untold))


def _is_told(value: Value) -> bool:
    return value.stats is not None or not value.initialized or 0 in value.shape or value.dtype not in FLOATING


def _broken(places: Places) -> Places:
    return {place: value for place, value in places.items() if value.initialized and counted(value).total}


def _all_finite(places: Places) -> bool:
    return all(counted(value).total == 0 for value in places.values())
