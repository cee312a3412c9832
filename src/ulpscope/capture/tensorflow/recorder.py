"""The recorder with TensorFlow's values, and steps as gradient tapes tell them."""

from tensorflow.python import pywrap_tfe

from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.recorder import Recorder, Surroundings
from ulpscope.capture.recording.steps import Steps
from ulpscope.capture.tensorflow.values import TensorFlowValues

NOT_LOOKED_INTO = "inside a tf.function"


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

    def make_values(self, around: Surroundings) -> TensorFlowValues:
        return TensorFlowValues(around.tensors, saver=around.saver, verify=around.settings.verify)

    def finish_step(self) -> None:
        super().finish_step()
        self.values.begin_step()

    def use_number(self, call: OpenCall, role: str, place: str, value: int) -> None:
        """As use, of a content whose number is known."""
        with self.lock:
            self._uses.append((call.id, role, place, value))
