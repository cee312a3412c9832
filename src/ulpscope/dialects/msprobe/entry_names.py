"""What the names of a dump's entries say.

Functional.layer_norm.3.forward            torch.nn.functional.layer_norm.3, forward
Tensor.__add__.2.backward                  torch.Tensor.__add__.2, backward
Module.blocks.1.ln2.LayerNorm.forward.0    a LayerNorm at model.blocks.1.ln2, forward
Module.blocks.1.ln2.LayerNorm.parameters_grad.0
pre_lnf.0.debug                            saved by the user
"""

from enum import Enum
from functools import cache
from typing import NamedTuple

from ulpscope.operations.names import is_collective, is_in_place
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait

MODULE_PREFIXES = ("Module", "Cell")
ROOT = "model"
DEBUG_OP = "debug"

_TORCH_OPS = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "Distributed": "torch.distributed",
    "NPU": "torch_npu",
}
_MINDSPORE_OPS = {"Functional": "mindspore.ops", "Tensor": "mindspore.Tensor", "Mint": "mindspore.mint"}


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
        self._prefixes = _MINDSPORE_OPS if framework == "mindspore" else _TORCH_OPS
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
        if direction is not None and prefix in MODULE_PREFIXES:
            return _module(inner, last, direction)
        return EntryName(name, "0", Direction.FORWARD)

    def _op(self, api: str) -> tuple[str, bool]:
        known = self._ops.get(api)
        if known is None:
            prefix, _, rest = api.partition(".")
            op = f"{self._prefixes[prefix]}.{rest}" if prefix in self._prefixes and rest else api
            known = self._ops[api] = op or api, prefix == "Distributed"
        return known


def _module(inner: str, number: str, direction: Direction) -> EntryName:
    path, _, module_class = inner.rpartition(".")
    return EntryName(module_class, number, direction, module=f"{ROOT}.{path}" if path else ROOT)


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
