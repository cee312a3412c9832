"""What msprobe calls the calls of a step, and in which order its dump has them.

    torch.nn.functional.layer_norm        ->  Functional.layer_norm.3.forward, Functional.layer_norm.3.backward
    model.blocks.1.norm1 (a LayerNorm)    ->  Module.blocks.1.norm1.LayerNorm.forward.0

Numbers count per name and step from 0; a backward has its forward's number. A module stands behind everything inside
it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ulpscope.operations.names import STARTS_BACKWARD
from ulpscope.records.calls import Call
from ulpscope.records.enums import Kind
from ulpscope.records.values import Use

PREFIXES = (
    ("torch.nn.functional.", "Functional"),
    ("torch.Tensor.", "Tensor"),
    ("torch.distributed.", "Distributed"),
    ("torch._VF.", "VF"),
    ("torch_npu.", "NPU"),
    ("torch.linalg.", "Torch.linalg"),
    ("torch.fft.", "Torch.fft"),
    ("torch.special.", "Torch.special"),
    ("torch.", "Torch"),
)
OPERATOR_PREFIXES = {"aten": "Aten", "npu": "NPU"}
BACKWARD_KINDS = frozenset({Kind.BACKWARD, Kind.MODULE_BACKWARD})

_ROOT = re.compile(r"model(\d*)")
# msprobe refuses paths with other characters than these.
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.:-]")


class LeftOut(str, Enum):
    """Why a call is not in the dump."""

    OPTIMIZER = "optimizer"
    ROOT = "root"
    STARTS_BACKWARD = "starts_backward"
    KERNEL = "kernel"
    NO_NAME = "no_name"
    NO_FORWARD = "no_forward"
    REPEATED = "repeated"


class Part(Enum):
    """What of a call an entry holds."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of dump.json."""

    name: str
    part: Part
    call: Call
    parent: str | None
    """The entry of the module around it."""


@dataclass(slots=True)
class StepPlan:
    """All entries of a step in the order of the dump, and what is not among them."""

    entries: list[Entry] = field(default_factory=list)
    left_out: dict[LeftOut, list[Call]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Name:
    """A name around its number: Functional.gelu + .forward, Module.up.Linear.forward + nothing."""

    stem: str
    number: int
    is_module: bool

    def of(self, part: Part) -> str:
        if self.is_module:
            return f"{self.stem}.{part.value}.{self.number}"
        return f"{self.stem}.{self.number}.{part.value}"


def plan_step(calls: Sequence[Call], gradients: frozenset[int]) -> StepPlan:
    """Name the calls of one step; `gradients` are the module backwards that hold gradients of parameters."""
    return _Planner(sorted(calls, key=lambda call: call.id)).plan(gradients)


def module_gradients(uses: Sequence[Use]) -> frozenset[int]:
    """Calls with gradients of parameters among their uses."""
    return frozenset(use.call for use in uses if use.role.value == "gradient")


class _Planner:
    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._by_id = {call.id: call for call in calls}
        self._names: dict[int, _Name] = {}
        self._reasons: dict[int, LeftOut] = {}
        self._backwards: dict[int, int] = {}
        self._numbers: dict[str, int] = {}

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
        if call.kind in BACKWARD_KINDS:
            self._name_backward(call)
        elif (stem := _stem(call)) is None or isinstance(stem, LeftOut):
            self._reasons[call.id] = stem or LeftOut.NO_NAME
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
        number = self._numbers.get(stem, 0)
        self._numbers[stem] = number + 1
        return number

    def _entries(self, call: Call, gradients: frozenset[int]) -> list[Entry]:
        name = self._names[call.id]
        part = Part.BACKWARD if call.kind in BACKWARD_KINDS else Part.FORWARD
        entries = [Entry(name.of(part), part, call, self._parent(call))]
        if part is Part.BACKWARD and name.is_module and call.id in gradients:
            stem = f"{name.stem}.{Part.PARAMETERS_GRAD.value}"
            entries.insert(0, Entry(f"{stem}.{self._next(stem)}", Part.PARAMETERS_GRAD, call, None))
        return entries

    def _parent(self, call: Call) -> str | None:
        if call.kind not in BACKWARD_KINDS:
            module = self._module_around(call)
            return None if module is None else self._names[module].of(Part.FORWARD)
        module = self._module_around(self._by_id[call.forward]) if call.forward is not None else None
        return self._names[module].of(Part.BACKWARD) if module in self._backwards else None

    def _module_around(self, call: Call) -> int | None:
        around = call.parent
        while around is not None:
            name = self._names.get(around)
            if name is not None and name.is_module:
                return around
            around = self._by_id[around].parent if around in self._by_id else None
        return None

    def _in_order(self) -> list[Call]:
        last = {call.id: call.id for call in self._calls}
        for call in reversed(self._calls):
            around = self._container(call)
            if around is not None:
                last[around] = max(last[around], last[call.id])
        return sorted(self._calls, key=lambda call: (last[call.id], -call.id))

    def _container(self, call: Call) -> int | None:
        if call.kind in BACKWARD_KINDS:
            forward = self._by_id.get(call.forward) if call.forward is not None else None
            module = None if forward is None else self._module_around(forward)
            return None if module is None else self._backwards.get(module)
        return self._module_around(call)


def _stem(call: Call) -> str | LeftOut | None:
    if call.kind is Kind.OPTIMIZER:
        return LeftOut.OPTIMIZER
    if call.kind is Kind.KERNEL:
        return LeftOut.KERNEL
    if call.op in STARTS_BACKWARD:
        return LeftOut.STARTS_BACKWARD
    if call.kind is Kind.MODULE or (call.kind is Kind.COMPILED and call.op == call.module_class):
        return _module_stem(call)
    return api_stem(call.op)


def _module_stem(call: Call) -> str | LeftOut:
    root, _, path = (call.module or "").partition(".")
    if not path:
        return LeftOut.ROOT
    known = _ROOT.fullmatch(root)
    above = root if known is None else known[1]
    kind = (call.module_class or call.op).rpartition(".")[2]
    return _FORBIDDEN.sub("_", ".".join(["Module", *([above] if above else []), path, kind]))


def api_stem(op: str) -> str | None:
    """Functional.gelu for torch.nn.functional.gelu; None for what msprobe has no name for."""
    for beginning, prefix in PREFIXES:
        rest = op.removeprefix(beginning)
        if rest != op and rest.isidentifier():
            return f"{prefix}.{rest}"
    namespace, _, rest = op.partition(".")
    prefix = OPERATOR_PREFIXES.get(namespace, "")
    return f"{prefix}.{rest.partition('.')[0]}" if prefix and rest else None
