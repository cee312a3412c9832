"""Executed operators of another tool's dump as rows of a trace's tables.

A dump tells operators in their order, with what each read and made; modules, phases and gradients it does not tell.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.trace.schema import CALLS, VALUES

Row: TypeAlias = dict[str, Any]

CALL_COLUMNS = {
    name: CALLS[name] for name in "id name kind op module module_class phase step micro_step recompute random".split()
}
VALUE_COLUMNS = {
    name: VALUES[name]
    for name in "id producer dtype shape device layout requires_grad initialized data_file data_key data_offset "
    "data_strides".split()
}


def call_row(number: int, *, name: str, op: str, operator: str, step: int, random: bool = False) -> Row:
    """An operator of the type `op`; `name` is this execution's, `Relu.0`."""
    return {
        "id": number,
        "name": name,
        "kind": Kind.API.value,
        "op": op,
        "module": operator,
        "module_class": op,
        "phase": Phase.FORWARD.value,
        "step": step,
        "micro_step": 0,
        "recompute": False,
        "random": random,
    }


def value_row(
    number: int,
    *,
    producer: int | None,
    dtype: str,
    shape: Sequence[int],
    device: str,
    layout: str = "strided",
    saved: bool = True,
) -> Row:
    """A value; of one that is saved, the source knows by its number where the data lies."""
    return {
        "id": number,
        "producer": producer,
        "dtype": dtype,
        "shape": list(shape),
        "device": device,
        "layout": layout,
        "requires_grad": False,
        "initialized": True,
        "data_file": str(number) if saved else None,
        "data_key": "" if saved else None,
        "data_offset": 0 if saved else None,
        "data_strides": [] if saved else None,
    }


def use_row(call: int, role: Role, place: str, value: int) -> Row:
    """A value that a call read or made."""
    return {"call": call, "role": role.value, "place": place, "value": value}
