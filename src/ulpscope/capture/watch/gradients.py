"""Gradients of every update of a long run: one call a parameter group, and nothing else of the step.

A call has the losses that were gone back from, the gradients that the update reads, and the parameters as they were
when these were computed: two runs whose parameters, batches and random numbers agree have the same gradients. Places of
what is kept beside a gradient are its parameter's name and what it is.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import FrameType

from ulpscope.capture.recording.calls import OUTSIDE, PARAMETER, ParameterPatterns
from ulpscope.capture.recording.recorder import Recorder
from ulpscope.capture.recording.saving import ChosenSaver
from ulpscope.capture.recording.tensors import Placed
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.runs import CaptureSettings

GRADIENT, LOSS = Role.GRADIENT.value, Role.LOSS.value

MOST_LOSSES = 1024
"""Of one update: a run that goes back without ever updating must not fill the memory."""


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Parameters that are updated with the same options, as an update finds them."""

    arguments: str
    gradients: Placed
    parameters: Placed
    kept: Placed
    """What is kept of the gradients element by element, beside their stats."""


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of an update beside its tensors."""

    generator: str | None
    precision: str | None
    """The coarsest type in which the run's forward holds numbers."""
    error: str | None
    """Why it was not made."""


class GradientLog:
    """Records updates. A framework says when one begins, and computes what is kept beside gradients."""

    def __init__(self, recorder: Recorder, settings: CaptureSettings, saver: ChosenSaver | None) -> None:
        self._recorder = recorder
        self.wanted = ParameterPatterns(only=settings.only, skip=settings.skip).keep
        """Those parameters that --only and --skip leave."""
        self._saver = saver

    def record(
        self,
        op: str,
        groups: Iterable[UpdateGroup],
        *,
        losses: Sequence[object],
        around: Around,
        frame: FrameType,
    ) -> None:
        """An update by `op`. The first group has the losses."""
        recorder = self._recorder
        # Nobody has watched what ran since the last update.
        recorder.values.forget_all()
        for number, group in enumerate(groups):
            call = recorder.open(Kind.OPTIMIZER, op, OUTSIDE, parent=None, phase=Phase.UPDATE, frame=frame)
            call.generator, call.autocast, call.error = around.generator, around.precision, around.error
            if number == 0:
                recorder.use_all(call, LOSS, [(f"loss.{place}", loss) for place, loss in enumerate(losses)])
            recorder.use_all(call, GRADIENT, group.gradients)
            recorder.use_all(call, PARAMETER, group.parameters)
            with nullcontext() if self._saver is None else self._saver.saving():
                recorder.use_all(call, GRADIENT, group.kept)
            recorder.close(call, group.arguments)
