"""The recorder with TensorFlow's values, and steps as gradient tapes tell them."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from tensorflow.python import pywrap_tfe

from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.recorder import Recorder, Surroundings
from ulpscope.capture.recording.steps import Steps
from ulpscope.capture.tensorflow.values import TensorFlowValues
from ulpscope.records.enums import Kind

NOT_LOOKED_INTO = "inside a tf.function"

Use = tuple[int, str, str, int]
"""A call, the role and place of what it reads or makes, and the number of that content."""


class TensorFlowSteps(Steps):
    """Steps of a run of TensorFlow: a gradient may be asked of whatever a tape records."""

    @property
    def builds_graphs(self) -> bool:
        return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()

    @property
    def asks_for_graphs(self) -> bool:
        return False


class TensorFlowRecorder(Recorder):
    """Keeps rows of calls that read and make eager tensors and variables."""

    values: TensorFlowValues
    on_step: Callable[[], None]
    """Called when it may have changed whether the running step is wanted; whoever listens sets it."""

    def make_values(self, around: Surroundings) -> TensorFlowValues:
        return TensorFlowValues(around.tensors, saver=around.saver, verify=around.settings.verify)

    def _look_at_step(self) -> None:
        super()._look_at_step()
        self.on_step()

    def finish_step(self) -> None:
        super().finish_step()
        self.values.begin_step()

    def use_number(self, call: OpenCall, role: str, place: str, value: int) -> None:
        """As use, of a content whose number is known."""
        with self.lock:
            self._uses.append((call.id, role, place, value))

    @property
    def wants_all(self) -> bool:
        """Whether no pattern chooses among calls."""
        return not (self.settings.only or self.settings.skip)

    def wants(self, kind: Kind, op: str, module: str | None, name: str) -> bool:
        """Whether a call of a graph is told."""
        return self._patterns.wants(op, module, name)

    def count_of(self, phase: str, stem: str) -> int:
        """How many calls of a phase and stem there were."""
        return self._numbers.get((phase, False, stem), 0)

    def reserve(self, count: int) -> int:
        """Ids of so many calls, one after the other: the first."""
        first = self.next_id()
        self._ids = itertools.count(first + count)
        return first

    def count_all(self, stems: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """Calls are numbered, so many of each phase and stem. Gives how many there were of those that there were."""
        numbers, before = self._numbers, {}
        for stem, count in stems.items():
            key = stem[0], False, stem[1]
            known = numbers.get(key, 0)
            if known:
                before[stem] = known
            numbers[key] = known + count
        return before

    def record_all(self, calls: Sequence[OpenCall], ended: Sequence[OpenCall], uses: Sequence[Use]) -> None:
        """Calls were seen, of which these have ended."""
        with self.lock:
            if self._given_up:
                return
            self.counts.seen += len(calls)
            self.counts.filtered += sum(not call.wanted for call in calls)
            self.counts.recorded += len(ended)
            self._calls += ended
            self._uses += uses
            self.flush_if_much()
