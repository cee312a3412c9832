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

from ulpscope.dialects.msprobe.names import MODULE_PREFIXES, ROOMS
from ulpscope.operations.registry import is_in_place, operation_name

_ROOMS = ROOMS | {"Aten": "aten"}
_METHODS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "pos": "positive",
}
_HANDED_OVER = (
    "abs add radd iadd sub isub mul rmul imul truediv itruediv ifloordiv mod imod rand ror rxor matmul neg pos "
    "ge gt le lt ne"
)
# What Python's operators are called where torch hands them to a function mode; the others keep their names.
OPERATORS = {
    name: _METHODS.get(operation_name(name), operation_name(name)) + ("_" if is_in_place(name) else "")
    for name in (f"__{word}__" for word in _HANDED_OVER.split())
}
_DIRECTION = re.compile(r"\.(?:forward|backward)$")
_FIRST_FORM = re.compile(rf"({'|'.join(_ROOMS)})_(.+)_(\d+)_(forward|backward)(?:_.*)?")
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
    if parts[0] in MODULE_PREFIXES and len(parts) > 1:
        return Wanted((_module_pattern(parts),))
    bare = _DIRECTION.sub("", name)
    numbered = _NUMBERED.fullmatch(bare)
    stem, number = (numbered[1], numbered[2]) if numbered else (bare, None)
    room, _, api = stem.partition(".")
    if room not in _ROOMS:
        return _part(name, stem, number)
    if not api:
        return Wanted((f"{_ROOMS[room]}.*",))
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
    stated = f"{_ROOMS[room]}.{api}"
    if room == "NPU":
        return stated, f"npu.{api}"
    import torch

    function: Any = torch
    for word in stated.split(".")[1:]:
        function = getattr(function, word, None)
    if function is None:
        return (stated,)
    from ulpscope.capture.torch.watching.apis import api_name

    return tuple(dict.fromkeys((stated, api_name(function))))
