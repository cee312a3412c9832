"""Names of a dump's entries: what they say, what the calls of a step are called, and in which order a dump has them.

Functional.layer_norm.3.forward            torch.nn.functional.layer_norm.3, forward
Tensor.__add__.2.backward                  torch.Tensor.__add__.2, backward
Module.blocks.1.ln2.LayerNorm.forward.0    a LayerNorm at model.blocks.1.ln2, forward
Module.blocks.1.ln2.LayerNorm.parameters_grad.0
pre_lnf.0.debug                            saved by the user

Numbers count per name and step from 0; a backward has its forward's number. A module stands behind everything inside
it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import NamedTuple

from ulpscope.operations.registry import STARTS_BACKWARD, Trait, is_collective, is_in_place, operation
from ulpscope.records.calls import Call
from ulpscope.records.enums import Kind

MODULE_PREFIXES = ("Module", "Cell")
ROOT = "model"
DEBUG_OP = "debug"
ROOMS = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "Distributed": "torch.distributed",
    "VF": "torch._VF",
    "NPU": "torch_npu",
}
"""What a name begins with, and where torch has the function."""
_MINDSPORE_ROOMS = {"Functional": "mindspore.ops", "Tensor": "mindspore.Tensor", "Mint": "mindspore.mint"}
_OPERATOR_PREFIXES = {"aten": "Aten", "npu": "NPU"}
_FUNCTION = re.compile(r"(?:(?:linalg|fft|special)\.)?[^\W\d]\w*")
_ROOT = re.compile(rf"{ROOT}(\d*)")
# msprobe refuses paths with other characters than these.
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.:-]")
_BACKWARD_KINDS = frozenset({Kind.BACKWARD, Kind.MODULE_BACKWARD})


class Direction(Enum):
    """What of a call an entry holds."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"
    DEBUG = "debug"


_DIRECTIONS = {direction.value: direction for direction in Direction}


@cache
def _written(op: str) -> frozenset[str]:
    if is_collective(op) or is_in_place(op):
        return frozenset({"args.0", "kwargs.tensor"})
    return frozenset({"args.1", "args.2"}) if operation(op).has(Trait.RUNNING_STATS) else frozenset()


class EntryName(NamedTuple):
    """An entry's name, taken apart."""

    op: str
    number: str
    direction: Direction
    module: str | None = None
    """Of a module's entry: its path."""
    collective: bool = False

    @property
    def writes(self) -> frozenset[str]:
        """Places of arguments that the call overwrites, as its name tells."""
        return _written(self.op) if self.module is None else frozenset()

    @property
    def is_module(self) -> bool:
        return self.module is not None


class NameReader:
    """Takes names of one framework apart; ops are made once each, as thousands of calls share them."""

    def __init__(self, framework: str) -> None:
        self._rooms = _MINDSPORE_ROOMS if framework == "mindspore" else ROOMS
        self._ops: dict[str, tuple[str, bool]] = {}

    def parse(self, name: str) -> EntryName:
        head, _, last = name.rpartition(".")
        direction = _DIRECTIONS.get(last)
        if direction is not None:
            api, _, number = head.rpartition(".")
            op, collective = self._op(f"{DEBUG_OP}.{api}" if direction is Direction.DEBUG else api)
            return EntryName(op, number, direction, collective=collective)
        path, _, middle = head.rpartition(".")
        direction = _DIRECTIONS.get(middle)
        prefix, _, inner = path.partition(".")
        if direction is None or prefix not in MODULE_PREFIXES:
            return EntryName(name, "0", Direction.FORWARD)
        below, _, module_class = inner.rpartition(".")
        return EntryName(module_class, last, direction, module=f"{ROOT}.{below}" if below else ROOT)

    def _op(self, api: str) -> tuple[str, bool]:
        known = self._ops.get(api)
        if known is None:
            prefix, _, rest = api.partition(".")
            op = f"{self._rooms[prefix]}.{rest}" if prefix in self._rooms and rest else api
            known = self._ops[api] = op, prefix == "Distributed"
        return known


def forward_name(name: str) -> str:
    """The forward entry that a backward's or a gradient's entry belongs to."""
    if name.endswith(".backward"):
        return f"{name[: -len('backward')]}forward"
    head, _, number = name.rpartition(".")
    return f"{head.rpartition('.')[0]}.forward.{number}"


def backward_name(name: str) -> str:
    """The module's backward beside an entry of parameters_grad."""
    head, _, number = name.rpartition(".")
    return f"{head.rpartition('.')[0]}.backward.{number}"


def api_stem(op: str) -> str | None:
    """Functional.gelu for torch.nn.functional.gelu; None for what msprobe has no name for."""
    for prefix, room in ROOMS.items():
        rest = op.removeprefix(f"{room}.")
        if rest != op and _FUNCTION.fullmatch(rest):
            return f"{prefix}.{rest}"
    namespace, _, rest = op.partition(".")
    prefix = _OPERATOR_PREFIXES.get(namespace, "")
    return f"{prefix}.{rest.partition('.')[0]}" if prefix and rest else None


class LeftOut(str, Enum):
    """Why a call is not in the dump."""

    OPTIMIZER = "optimizer"
    ROOT = "root"
    STARTS_BACKWARD = "starts_backward"
    KERNEL = "kernel"
    NO_NAME = "no_name"
    NO_FORWARD = "no_forward"
    REPEATED = "repeated"


def _stem(call: Call) -> str | LeftOut:
    """A call's name without number and direction."""
    if call.kind is Kind.OPTIMIZER:
        return LeftOut.OPTIMIZER
    if call.kind is Kind.KERNEL:
        return LeftOut.KERNEL
    if call.op in STARTS_BACKWARD:
        return LeftOut.STARTS_BACKWARD
    if call.kind is not Kind.MODULE and (call.kind is not Kind.COMPILED or call.op != call.module_class):
        return api_stem(call.op) or LeftOut.NO_NAME
    root, _, path = (call.module or "").partition(".")
    if not path:
        return LeftOut.ROOT
    known = _ROOT.fullmatch(root)
    above = root if known is None else known[1]
    kind = (call.module_class or call.op).rpartition(".")[2]
    return _FORBIDDEN.sub("_", ".".join(["Module", *([above] if above else []), path, kind]))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of dump.json."""

    name: str
    direction: Direction
    call: Call
    parent: str | None
    """The entry of the module around it."""


@dataclass(slots=True)
class StepPlan:
    """All entries of a step in the order of the dump, and what is not among them."""

    entries: list[Entry] = field(default_factory=list)
    left_out: dict[LeftOut, list[Call]] = field(default_factory=dict)


class _Name(NamedTuple):
    """A name around its number: Functional.gelu + .forward, Module.up.Linear.forward + nothing."""

    stem: str
    number: int
    is_module: bool

    def of(self, direction: Direction) -> str:
        if self.is_module:
            return f"{self.stem}.{direction.value}.{self.number}"
        return f"{self.stem}.{self.number}.{direction.value}"


def plan_step(calls: Sequence[Call], gradients: frozenset[int]) -> StepPlan:
    """Name the calls of one step; `gradients` are the module backwards that hold gradients of parameters."""
    return _Planner(sorted(calls, key=lambda call: call.id)).plan(gradients)


class _Planner:
    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._by_id = {call.id: call for call in calls}
        self._names: dict[int, _Name] = {}
        self._reasons: dict[int, LeftOut] = {}
        self._backwards: dict[int, int] = {}
        self._numbers: Counter[str] = Counter()

    def plan(self, gradients: frozenset[int]) -> StepPlan:
        for call in self._calls:
            self._name(call)
        plan = StepPlan()
        for call in self._in_order():
            if call.id in self._reasons:
                plan.left_out.setdefault(self._reasons[call.id], []).append(call)
            else:
                plan.entries.extend(self._entries(call, gradients))
        return plan

    def _name(self, call: Call) -> None:
        if call.kind in _BACKWARD_KINDS:
            self._name_backward(call)
        elif isinstance(stem := _stem(call), LeftOut):
            self._reasons[call.id] = stem
        else:
            self._names[call.id] = _Name(stem, self._next(stem), call.kind in (Kind.MODULE, Kind.COMPILED))

    def _name_backward(self, call: Call) -> None:
        forward = call.forward
        if forward in self._reasons:
            self._reasons[call.id] = self._reasons[forward]
        elif forward not in self._names:
            self._reasons[call.id] = LeftOut.NO_FORWARD
        elif forward in self._backwards:
            self._reasons[call.id] = LeftOut.REPEATED
        else:
            self._backwards[forward] = call.id
            self._names[call.id] = self._names[forward]

    def _next(self, stem: str) -> int:
        self._numbers[stem] += 1
        return self._numbers[stem] - 1

    def _entries(self, call: Call, gradients: frozenset[int]) -> list[Entry]:
        name, around = self._names[call.id], self._around(call)
        direction = Direction.BACKWARD if call.kind in _BACKWARD_KINDS else Direction.FORWARD
        parent = None if around is None else self._names[around].of(direction)
        entries = [Entry(name.of(direction), direction, call, parent)]
        if direction is Direction.BACKWARD and name.is_module and call.id in gradients:
            stem = f"{name.stem}.{Direction.PARAMETERS_GRAD.value}"
            entries.insert(0, Entry(f"{stem}.{self._next(stem)}", Direction.PARAMETERS_GRAD, call, None))
        return entries

    def _in_order(self) -> list[Call]:
        last = {call.id: call.id for call in self._calls}
        for call in reversed(self._calls):
            around = self._around(call)
            if around is not None:
                last[around] = max(last[around], last[call.id])
        return sorted(self._calls, key=lambda call: (last[call.id], -call.id))

    def _around(self, call: Call) -> int | None:
        """The module around a call; of a backward, the backward of the module around its forward."""
        if call.kind not in _BACKWARD_KINDS:
            return self._module_around(call)
        forward = None if call.forward is None else self._by_id.get(call.forward)
        module = None if forward is None else self._module_around(forward)
        return None if module is None else self._backwards.get(module)

    def _module_around(self, call: Call) -> int | None:
        around = call.parent
        while around is not None:
            name = self._names.get(around)
            if name is not None and name.is_module:
                return around
            around = self._by_id[around].parent if around in self._by_id else None
        return None
