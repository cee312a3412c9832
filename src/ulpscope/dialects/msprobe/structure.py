"""Which calls a step has, in which order and phase, and what is inside of what.

dump.json has a module behind everything inside it, construct.json says who is inside of whom. Calls are put in the
order in which they began: a module before what is inside it.

Phases are told from the order, as msprobe does not write them. A forward entry behind the last backward of its step
belongs to the update, unless a module runs there again. One between backwards begins a new micro-step (gradient
accumulation), or is run again by activation checkpointing: its stack tells which. Without a stack it counts as
recomputed if a forward from before it still waits for its backward.

stack.json tells where in the source each forward entry was called. It has two forms:
`{"0": [[entries], [frames]], ...}`, and in older dumps `{entry: [frames]}`. Frames are texts, innermost first:
`File /home/user/model.py, line 54, in forward, \n x = self.tok(ids)`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.dialects.msprobe.forms import Found
from ulpscope.dialects.msprobe.json_files import bad_field
from ulpscope.dialects.msprobe.names import Direction, EntryName, NameReader, backward_name, forward_name
from ulpscope.records.enums import Kind, Phase
from ulpscope.trace.schema import CALLS, STACKS

_FRAME = re.compile(r"File (.+?), line (\d{1,9}), in (.+?),?\s*(?:\n|$)", re.DOTALL)
_FRAMEWORK = re.compile(r"/(?:site|dist)-packages/(?:torch|torch_npu|mindspore|mindtorch|msprobe)/")
# Recomputation runs a forward from inside a backward: torch's checkpoint in a hook of a saved tensor or in its own
# backward, Megatron's in the backward of tensor_parallel/random.py.
_RECOMPUTING = re.compile(r"in (?:unpack_hook|recompute_fn)\b|(?:checkpoint|random)\w*\.py, line \d+, in backward\b")
_IN_BACKWARD = re.compile(r"in _engine_run_backward\b|/torch/[^,]*, line \d+, in backward\b")


@dataclass(frozen=True, slots=True)
class Stack:
    """A call stack of one dump."""

    id: int
    in_backward: bool
    recompute: bool


@dataclass(slots=True)
class StackTable:
    """The stacks of a rank, each once over all of its steps."""

    _known: dict[tuple[str, ...], Stack] = field(default_factory=dict)
    _new: list[tuple[int, int, str, int, str]] = field(default_factory=list)

    def read(self, path: Path, content: dict[str, Any]) -> dict[str, Stack]:
        """The stack of each entry that has one."""
        found: dict[str, Stack] = {}
        for key, item in content.items():
            if not isinstance(item, list):
                raise bad_field(path, key, item, "a list")
            shared = len(item) == 2 and isinstance(item[0], list)
            names, frames = item if shared else ([key], item)
            if not isinstance(frames, list) or not all(isinstance(text, str) for text in [*names, *frames]):
                raise bad_field(path, key, item, "a list of entries and one of frames, all texts")
            stack = self._stack(tuple(frames))
            found.update(dict.fromkeys(names, stack))
        return found

    def take_new(self) -> pl.DataFrame:
        """Rows of the stacks that were first seen since this was last asked for."""
        rows, self._new = self._new, []
        return pl.DataFrame(rows, schema=dict(STACKS), orient="row")

    def _stack(self, frames: tuple[str, ...]) -> Stack:
        known = self._known.get(frames)
        if known is None:
            recompute = any(_RECOMPUTING.search(text) for text in frames)
            in_backward = recompute or any(_IN_BACKWARD.search(text) for text in frames)
            known = self._known[frames] = Stack(len(self._known), in_backward, recompute)
            own = [text for text in frames if not _FRAMEWORK.search(text)] or frames
            self._new += [(known.id, depth, *_frame(text)) for depth, text in enumerate(own)]
        return known


def _frame(text: str) -> tuple[str, int, str]:
    match = _FRAME.match(text)
    return (match[1], int(match[2]), match[3]) if match else (text, 0, "unknown")


MICRO_STEPS = "megatron_micro_step_number"


@dataclass(slots=True)
class PlannedCall:
    """A call: what its entry's name and its neighbours say, and in the end its arguments."""

    entry: str
    parsed: EntryName
    is_backward: bool
    stack: Stack | None
    """Of a backward, that of its forward."""
    id: int = 0
    forward: "PlannedCall | None" = None
    parent: "PlannedCall | None" = None
    module: str | None = None
    module_class: str | None = None
    phase: Phase = Phase.FORWARD
    micro_step: int = 0
    recompute: bool = False
    arguments: str | None = None
    given: Found = field(default_factory=list)
    """Tensors among the arguments."""

    @property
    def kind(self) -> Kind:
        if self.parsed.is_module:
            return Kind.MODULE_BACKWARD if self.is_backward else Kind.MODULE
        if self.is_backward:
            return Kind.BACKWARD
        return Kind.COLLECTIVE if self.parsed.collective else Kind.API


@dataclass(frozen=True, slots=True)
class Parents:
    """construct.json: the entry around an entry, and the micro-step where Megatron said it."""

    around: Mapping[str, str | None]
    micro_steps: Mapping[str, int]


def read_parents(path: Path, content: dict[str, Any]) -> Parents:
    around: dict[str, str | None] = {}
    micro_steps: dict[str, int] = {}
    for entry, parent in content.items():
        if entry == MICRO_STEPS:
            continue
        if isinstance(parent, list) and len(parent) == 2 and type(parent[1]) is int:
            parent, micro_steps[entry] = parent
        if parent is not None and not isinstance(parent, str):
            raise bad_field(path, entry, parent, "the name of an entry")
        around[entry] = parent
    return Parents(around, micro_steps)


def plan_calls(
    entries: Sequence[str], *, first: int, names: NameReader, parents: Parents, stacks: Mapping[str, Stack]
) -> dict[str, PlannedCall]:
    """The calls of a step by their entry, in the order in which they began; ids count from `first` on."""
    planned: dict[str, PlannedCall] = {}
    for entry, parsed in _calls(entries, names).items():
        is_backward = parsed.direction is Direction.BACKWARD
        source = forward_name(entry) if is_backward else entry
        planned[entry] = PlannedCall(entry, parsed, is_backward, stacks.get(source))
    for call in planned.values():
        call.forward = planned.get(forward_name(call.entry)) if call.is_backward else None
        _place(call, planned, names=names, around=parents.around)
    ordered = _parents_first(planned)
    _tell_phases(list(ordered.values()))
    for place, call in enumerate(ordered.values()):
        call.id = first + place
        call.micro_step = parents.micro_steps.get(call.entry, call.micro_step)
        if call.forward is not None:
            call.micro_step = call.forward.micro_step
            call.module = call.module or call.forward.module
            call.module_class = call.module_class or call.forward.module_class
    return ordered


def _calls(entries: Sequence[str], names: NameReader) -> dict[str, EntryName]:
    """Entries that are calls; gradients of parameters belong to their module's backward, if there is one."""
    parsed = {entry: names.parse(entry) for entry in entries}
    found: dict[str, EntryName] = {}
    for entry, name in parsed.items():
        if name.direction is not Direction.PARAMETERS_GRAD:
            found[entry] = name
        elif (alone := backward_name(entry)) not in parsed:
            found[alone] = names.parse(alone)
    return found


def _place(
    call: PlannedCall, planned: Mapping[str, PlannedCall], *, names: NameReader, around: Mapping[str, str | None]
) -> None:
    """Find the call around this one, and the module: also one that the dump leaves out."""
    if call.parsed.is_module:
        call.module, call.module_class = call.parsed.module, call.parsed.op
    above, seen = around.get(call.entry), {call.entry}
    while above is not None and above not in seen:
        seen.add(above)
        if call.module is None and (parsed := names.parse(above)).is_module:
            call.module, call.module_class = parsed.module, parsed.op
        if above in planned:
            call.parent = planned[above]
            return
        above = around.get(above)


def _parents_first(planned: Mapping[str, PlannedCall]) -> dict[str, PlannedCall]:
    ordered: dict[str, PlannedCall] = {}
    for entry in planned:
        chain: dict[str, PlannedCall] = {}
        above: PlannedCall | None = planned[entry]
        while above is not None and above.entry not in ordered and above.entry not in chain:
            chain[above.entry] = above
            above = above.parent
        for call in reversed(chain.values()):
            ordered[call.entry] = call
            # In a file that was tampered with, calls may stand inside of each other.
            if call.parent is not None and call.parent.entry not in ordered:
                call.parent = None
    return ordered


def _tell_phases(calls: Sequence[PlannedCall]) -> None:
    backwards = [place for place, call in enumerate(calls) if call.is_backward]
    last = backwards[-1] if backwards else len(calls)
    waiting = _earliest_waiting(calls)
    micro_step, segment, after_backward, runs_again = 0, 0, False, False
    for place, call in enumerate(calls):
        if call.is_backward:
            call.phase, after_backward, segment = Phase.BACKWARD, True, place + 1
        elif call.parsed.direction is Direction.DEBUG:
            call.phase = Phase.OTHER
        elif place > last and not (runs_again := runs_again or call.parsed.is_module):
            call.phase = Phase.UPDATE
        elif place < last and _is_inside_backward(call, waits=waiting[place] < segment):
            call.phase = Phase.BACKWARD
        else:
            micro_step += after_backward
            after_backward = False
        call.micro_step = micro_step


def _is_inside_backward(call: PlannedCall, *, waits: bool) -> bool:
    call.recompute = waits if call.stack is None else call.stack.recompute
    return call.recompute or (call.stack is not None and call.stack.in_backward)


def _earliest_waiting(calls: Sequence[PlannedCall]) -> list[int]:
    """For each place: the first forward whose backward comes later than this place."""
    places = {call.entry: place for place, call in enumerate(calls)}
    waiting, earliest = [0] * len(calls), len(calls)
    for place in range(len(calls) - 1, -1, -1):
        waiting[place] = earliest
        if (forward := calls[place].forward) is not None:
            earliest = min(earliest, places[forward.entry])
    return waiting


_AS_THEY_ARE = ("id", "module", "module_class", "micro_step", "recompute", "arguments")


def calls_frame(step: int, calls: Sequence[PlannedCall]) -> pl.DataFrame:
    """One row a call of a step."""
    columns: dict[str, Any] = {
        "name": _names(calls),
        "kind": [call.kind.value for call in calls],
        "op": [call.parsed.op for call in calls],
        "phase": [call.phase.value for call in calls],
        **{name: [getattr(call, name) for call in calls] for name in _AS_THEY_ARE},
        **{name: [_id(getattr(call, name)) for call in calls] for name in ("parent", "forward", "stack")},
    }
    frame = pl.DataFrame(columns, schema={name: CALLS[name] for name in columns})
    return frame.with_columns(step=pl.lit(step, dtype=pl.Int64), random=pl.lit(False))


def _id(item: PlannedCall | Stack | None) -> int | None:
    return None if item is None else item.id


def _names(calls: Sequence[PlannedCall]) -> list[str]:
    """APIs keep msprobe's number; modules, which it numbers by path, are counted by class."""
    counts: Counter[tuple[str, str]] = Counter()
    names = []
    for call in calls:
        number, key = call.parsed.number, (call.parsed.op, call.phase.value)
        if call.parsed.is_module:
            number = str(counts[key])
            counts[key] += 1
        names.append(f"{call.parsed.op}.{number}{'@recompute' if call.recompute else ''}")
    return names
