"""Gradients of a long run of TensorFlow: of all that watchers tell, this recorder keeps updates, and losses with them.

What an update reads is read where Keras' optimizers are given it: eagerly as it is, inside of a graph by what observes
the graph. Variables are read before a function or an update runs; nobody has watched what came between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ulpscope.capture.recording.calls import PARAMETER, CallPatterns, OpenCall, ParameterPatterns
from ulpscope.capture.recording.output import Part
from ulpscope.capture.recording.recorder import Surroundings
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.recording.values import ValueRow
from ulpscope.capture.tensorflow.recorder import NOT_LOOKED_INTO, TensorFlowRecorder, Use
from ulpscope.capture.tensorflow.watching.traced_gradients import GRADIENT_OP
from ulpscope.capture.watch.gradients import GRADIENT, LOSS, MOST_LOSSES
from ulpscope.records.enums import Kind

_KEPT = (GRADIENT, PARAMETER)


class UpdateRecorder(TensorFlowRecorder):
    """Keeps rows of updates, and of no other call."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._parameters = ParameterPatterns(only=self.settings.only, skip=self.settings.skip)
        self._patterns = CallPatterns(only=(), skip=())  # they choose parameters here, not calls
        self._losses: list[int] = []
        """Values that were gone back from since the last update."""
        self._waiting: dict[int, ValueRow] = {}
        """Values that no update has used so far."""

    def open(self, kind: Kind, op: str, *about: Any, **options: Any) -> OpenCall:
        if kind in (Kind.OPTIMIZER, Kind.COMPILED):
            self.values.forget_all()
        call = super().open(kind, op, *about, **options)
        if not _is_of_update(kind, op):
            call.wanted = False
        return call

    def wants(self, kind: Kind, op: str, module: str | None, name: str) -> bool:
        return _is_of_update(kind, op)

    def record_all(self, calls: Sequence[OpenCall], ended: Sequence[OpenCall], uses: Sequence[Use]) -> None:
        filtered = self.counts.filtered
        super().record_all(calls, ended, uses)
        self.counts.filtered = filtered  # no pattern has left out what is no update

    def use(self, call: OpenCall, role: str, place: str, tensor: Any) -> None:
        if role == LOSS or self._keeps(call, role, place):
            with self.lock:
                self.use_number(call, role, place, self.values.observe(tensor))
        elif role == PARAMETER and call.kind is Kind.COMPILED:
            with self.lock:
                self.values.observe(tensor)  # before the function runs, which may write it

    def use_all(self, call: OpenCall, role: str, tensors: Placed) -> None:
        for place, tensor in tensors:
            self.use(call, role, place, tensor)

    def use_number(self, call: OpenCall, role: str, place: str, value: int) -> None:
        if role == LOSS:
            self._losses = [*self._losses[1 - MOST_LOSSES :], value]
        elif self._keeps(call, role, place):
            super().use_number(call, role, place, value)

    def close(self, call: OpenCall, arguments: str | None = None) -> None:
        if call.kind is not Kind.OPTIMIZER:
            return
        losses, self._losses = self._losses, []
        for number, loss in enumerate(losses):
            super().use_number(call, LOSS, f"loss.{number}", loss)
        super().close(call, arguments)

    def unobserved(self, reason: str, count: int = 1) -> None:
        if reason == NOT_LOOKED_INTO:  # what else nobody looks into is no update
            super().unobserved(reason, count)

    def make_part(self, **known: Any) -> Part:
        part = super().make_part(**known)
        self._waiting |= {row.id: row for row in part.values}
        used = {value for _, _, _, value in part.uses}
        part.values = [row for number, row in self._waiting.items() if number in used]
        still = {*self.values.known(), *self._losses} - used
        self._waiting = {number: row for number, row in self._waiting.items() if number in still}
        return part

    def _keeps(self, call: OpenCall, role: str, place: str) -> bool:
        return call.kind is Kind.OPTIMIZER and role in _KEPT and self._parameters.wants(place)


def _is_of_update(kind: Kind, op: str) -> bool:
    """Whether it is an update, may have some in it, or tells of a loss."""
    return kind in (Kind.OPTIMIZER, Kind.COMPILED) or op == GRADIENT_OP
