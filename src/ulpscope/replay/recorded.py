"""A recorded call with the values it used: all that executing it again needs."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import polars as pl

from ulpscope.operations.registry import is_tensorflows
from ulpscope.records.calls import Call, Value
from ulpscope.records.enums import Kind, Role
from ulpscope.trace.reader import RankTrace

Places = dict[str, Value]

FEW_NUMBERS = 8
"""What says how an op of TensorFlow's works has an entry an axis, or two."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call, what went in and came out, and what its first backward did."""

    call: Call
    inputs: Places = field(default_factory=dict)
    outputs: Places = field(default_factory=dict)
    backward: int | None = None
    grad_outputs: Places = field(default_factory=dict)
    grad_inputs: Places = field(default_factory=dict)

    @property
    def repeated(self) -> dict[str, str]:
        """Places of tensors that stand in the arguments again, each with the first place of the same tensor."""
        return dict(find_repeated(self.call.arguments))

    @property
    def differentiated(self) -> tuple[str, ...]:
        """Inputs whose gradients the backward computes, keyword ones too; each tensor once."""
        if not self.grad_outputs:
            return ()
        again = self.repeated
        return tuple(
            place
            for place, value in self.inputs.items()
            if value.requires_grad and place not in again and value.dtype.startswith(("float", "bfloat", "complex"))
        )


def read_calls(rank: RankTrace, ids: Iterable[int]) -> dict[int, RecordedCall]:
    """Calls of this rank with their values, in one read."""
    wanted = list(ids)
    calls = rank.find_calls(wanted)
    backward = rank.calls().filter(pl.col("kind") == Kind.BACKWARD.value, pl.col("forward").is_in(wanted))
    first = rank.collect(backward.group_by("forward").agg(pl.col("id").min()))
    backwards: dict[int, int] = dict(first.select("forward", "id").iter_rows())
    used = rank.tensors().filter(pl.col("call").is_in([*wanted, *backwards.values()]))
    uses: dict[int, list[tuple[str, str, int]]] = {}
    for call, role, place, value in rank.collect(used.select("call", "role", "place", "value")).iter_rows():
        uses.setdefault(call, []).append((role, place, value))
    values = rank.find_values({value for places in uses.values() for _, _, value in places})

    def places(number: int | None, role: Role) -> Places:
        used = uses.get(number, ()) if number is not None else ()
        return {place: values[value] for found, place, value in used if found == role.value and value in values}

    return {
        number: RecordedCall(
            call=calls[number],
            inputs=places(number, Role.INPUT),
            outputs=places(number, Role.OUTPUT),
            backward=backwards.get(number),
            grad_outputs=places(backwards.get(number), Role.GRAD_OUTPUT),
            grad_inputs=places(backwards.get(number), Role.GRAD_INPUT),
        )
        for number in wanted
    }


def signature(recorded: RecordedCall) -> str:
    """Equal for calls that are the same test: operation, arguments, dtypes, shapes and gradients."""
    call = recorded.call
    inputs = {place: _signed_input(call.op, value) for place, value in recorded.inputs.items()}
    # Autocast that nobody recorded shows in the types of what was given.
    outputs = {place: value.dtype for place, value in recorded.outputs.items()}
    grads = {place: _signed(value) for place, value in recorded.grad_outputs.items()}
    arguments = {key: item for key, item in call.arguments.items() if key in ("args", "kwargs")}
    return json.dumps([call.op, call.autocast, arguments, inputs, outputs, grads], sort_keys=True)


def find_repeated(encoded: Any) -> Iterator[tuple[str, str]]:
    """As RecordedCall.repeated tells them."""
    if isinstance(encoded, dict) and "$tensor" in encoded:
        if "as" in encoded:
            yield encoded["$tensor"], encoded["as"]
    elif isinstance(encoded, dict | list):
        for item in encoded.values() if isinstance(encoded, dict) else encoded:
            yield from find_repeated(item)


def _signed_input(op: str, value: Value) -> list[Any]:
    """TensorFlow hands axes and shapes as small tensors: others make another test."""
    few = is_tensorflows(op) and value.dtype.startswith("int") and prod(value.shape) <= FEW_NUMBERS
    return [*_signed(value), value.digest] if few else _signed(value)


def _signed(value: Value) -> list[Any]:
    return [value.dtype, value.shape, value.requires_grad]


class CannotReplayError(Exception):
    """Its text is the reason, as a few words that many calls may share."""
