"""What several calls make together of given values, in float64: each when it is asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from ulpscope.operations.registry import Trait, operation
from ulpscope.records.calls import Value
from ulpscope.records.enums import Kind
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, read_calls
from ulpscope.replay.torch.running import Feed, make_recipe, raise_tensor, run_precise
from ulpscope.replay.torch.tensors import saved_tensor, to_array
from ulpscope.trace.reader import RankTrace

Given = Callable[[Value], tuple[RankTrace, Value] | None]
"""The run and value whose saved numbers a value is taken for; none: it is what its call makes."""


class Span:
    """The calls of one run that lead from what is given to what is asked for."""

    def __init__(self, rank: RankTrace, given: Given, *, most: int) -> None:
        """`most`: calls that are executed, before it is another program rather than a span."""
        self._rank, self._given, self._most = rank, given, most
        self._known: dict[int, Tensor] = {}
        self.calls: dict[int, RecordedCall] = {}
        """Those that were executed, by id."""

    def numbers(self, value: Value) -> NDArray[Any]:
        """What comes out as this value. Raises CannotReplayError."""
        return to_array(self._value(value))

    def _value(self, value: Value) -> Tensor:
        if value.id not in self._known:
            found = self._given(value)
            if found is not None:
                self._known[value.id] = raise_tensor(saved_tensor(*found))
            elif value.producer is None or value.producer < 0:
                self._known[value.id] = raise_tensor(saved_tensor(self._rank, value))
            else:
                self._execute(value.producer)
        if value.id not in self._known:
            raise CannotReplayError("it was written unseen")
        return self._known[value.id]

    def _execute(self, number: int) -> None:
        if number in self.calls or len(self.calls) >= self._most:
            raise CannotReplayError("it is made of too many calls")
        recorded = self.calls[number] = read_calls(self._rank, [number])[number]
        if (
            recorded.call.kind is not Kind.API
            or recorded.call.random
            or operation(recorded.call.op).has(Trait.DROPPING)
        ):
            raise CannotReplayError("no call of a function" if not recorded.call.random else "random")
        again = recorded.repeated
        firsts = {place: value for place, value in recorded.inputs.items() if place not in again}
        feed = Feed({place: self._value(value) for place, value in firsts.items()}, {})
        recipe = replace(make_recipe(recorded, feed, device="cpu", autocast=False), differentiated=())
        ran = run_precise(recipe, feed)
        for place, value in recorded.outputs.items():
            if place in ran.outputs:
                self._known[value.id] = ran.outputs[place].detach()
