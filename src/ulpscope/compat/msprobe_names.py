"""What names of msprobe's `list` mean here: the same call by the name that a trace has for it.

Functional.conv2d.0.forward            torch.conv2d.0: torch.nn.functional.conv2d is this very function
Tensor.__add__.3.backward              torch.Tensor.add, every call: operators are counted with the method
Module.layers.0.mlp.Mlp.forward.0      layers.0.mlp and everything in it
Functional.conv2d, relu, relu.3        parts of names, as msprobe takes them
Functional_conv2d_0_forward            as ptdbg_ascend wrote it
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ROOMS = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "Distributed": "torch.distributed",
    "VF": "torch._VF",
    "NPU": "torch_npu",
    "Aten": "aten",
}
MODULES = ("Module", "Cell")
# What Python's operators are called where torch hands them to a function mode; the others keep their names.
OPERATORS = {
    "__abs__": "abs",
    "__add__": "add",
    "__radd__": "add",
    "__iadd__": "add_",
    "__sub__": "sub",
    "__isub__": "sub_",
    "__mul__": "mul",
    "__rmul__": "mul",
    "__imul__": "mul_",
    "__truediv__": "div",
    "__itruediv__": "div_",
    "__ifloordiv__": "floor_divide_",
    "__mod__": "remainder",
    "__imod__": "remainder_",
    "__rand__": "bitwise_and",
    "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
    "__matmul__": "matmul",
    "__neg__": "neg",
    "__pos__": "positive",
    "__ge__": "ge",
    "__gt__": "gt",
    "__le__": "le",
    "__lt__": "lt",
    "__ne__": "ne",
}
_DIRECTION = re.compile(r"\.(?:forward|backward)$")
_FIRST_FORM = re.compile(rf"({'|'.join(ROOMS)})_(.+)_(\d+)_(forward|backward)(?:_.*)?")
_NUMBERED = re.compile(r"(.+)\.(\d+)$")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list asks for, as patterns of a capture."""

    patterns: tuple[str, ...] = ()
    wider: tuple[str, ...] = ()
    """Names for which more is captured than they say: all calls of the operation."""


def wanted_by(names: Iterable[str]) -> Wanted:
    """Patterns for all names of a list."""
    each = [_wanted(name) for name in names]
    patterns = dict.fromkeys(pattern for wanted in each for pattern in wanted.patterns)
    return Wanted(tuple(patterns), tuple(name for wanted in each for name in wanted.wider))


def _wanted(name: str) -> Wanted:
    first = _FIRST_FORM.fullmatch(name)
    if first is not None:
        return _wanted(".".join(first.groups()))
    parts = name.split(".")
    if parts[0] in MODULES and len(parts) > 1:
        return Wanted((_module_pattern(parts),))
    bare = _DIRECTION.sub("", name)
    numbered = _NUMBERED.fullmatch(bare)
    stem, number = (numbered[1], numbered[2]) if numbered else (bare, None)
    room, _, api = stem.partition(".")
    if room not in ROOMS:
        return _part(name, stem, number)
    if not api:
        return Wanted((f"{ROOMS[room]}.*",))
    operator = OPERATORS.get(api)
    if operator is not None:
        patterns = tuple(f"torch.Tensor.{each}" for each in (api, operator))
        return Wanted(patterns, (name,) if number is not None else ())
    if room == "Aten":
        return Wanted((f"aten.{api}.*",), (name,) if number is not None else ())
    operations = _operations(room, api)
    return Wanted(operations if number is None else tuple(f"{each}.{number}" for each in operations))


def _module_pattern(parts: list[str]) -> str:
    """The path of a module, with everything in it: all between `Module` and class, direction and number."""
    if len(parts) > 4 and parts[-2] in ("forward", "backward"):
        return ".".join(parts[1:-3])
    return f"*{'.'.join(parts[1:])}*"


def _part(name: str, stem: str, number: str | None) -> Wanted:
    """A part of a name: it may stand anywhere."""
    word = OPERATORS.get(stem, stem)
    if number is None:
        return Wanted((f"*{word}*",))
    return Wanted((f"*{stem}.{number}",)) if word == stem else Wanted((f"*.{word}",), (name,))


def _operations(room: str, api: str) -> tuple[str, ...]:
    """Names that a trace may have for this function: its own, and that of the function which it is."""
    stated = f"{ROOMS[room]}.{api}"
    if room == "NPU":
        return stated, f"npu.{api}"
    function = _function(room, api)
    if function is None:
        return (stated,)
    from ulpscope.capture.torch.watching.apis import api_name

    return tuple(dict.fromkeys((stated, api_name(function))))


def _function(room: str, api: str) -> Any:
    """The function itself; none where this torch has none of this name."""
    import torch

    homes = {
        "Functional": torch.nn.functional,
        "Tensor": torch.Tensor,
        "Torch": torch,
        "Distributed": torch.distributed,
        "VF": getattr(torch, "_VF", None),
    }
    found: Any = homes.get(room)
    for word in api.split("."):
        found = getattr(found, word, None)
    return found
