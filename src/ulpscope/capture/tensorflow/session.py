"""A capture of TensorFlow."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.training import optimizer as v1_optimizer

from ulpscope.capture.events import EventLog
from ulpscope.capture.recording import session
from ulpscope.capture.recording.calls import INPUT
from ulpscope.capture.recording.environment import About
from ulpscope.capture.recording.recorder import Surroundings
from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.tensorflow.about import about_tensorflow
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder, TensorFlowSteps
from ulpscope.capture.tensorflow.repeatable import make_repeatable
from ulpscope.capture.tensorflow.tensors import ARGUMENTS, TensorFlowTensors
from ulpscope.capture.tensorflow.updates import UpdateRecorder
from ulpscope.capture.tensorflow.watching.functions import FunctionWatcher
from ulpscope.capture.tensorflow.watching.gradients import GradientWatcher
from ulpscope.capture.tensorflow.watching.graphs import GraphReader
from ulpscope.capture.tensorflow.watching.keras import PACKAGES as KERAS
from ulpscope.capture.tensorflow.watching.keras import KerasWatcher
from ulpscope.capture.tensorflow.watching.layers import LayerWatcher
from ulpscope.capture.tensorflow.watching.ops import Listening, OpWatcher
from ulpscope.capture.tensorflow.watching.optimizers import OptimizerWatcher
from ulpscope.capture.tensorflow.watching.sessions import SessionWatcher
from ulpscope.capture.tensorflow.watching.tracing import Tracer
from ulpscope.records.enums import Kind, Watch
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import CaptureSettings

_SITE = os.path.dirname(os.path.dirname(os.path.abspath(tf.__file__)))
FOLDERS = tuple(os.path.join(_SITE, name) + os.sep for name in ("tensorflow", *KERAS))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ops of ours: no callback and no gradient tape sees them."""
    thread = context.context()
    was = thread.invoking_op_callbacks
    thread.invoking_op_callbacks = True
    try:
        with record.stop_recording():
            yield
    finally:
        thread.invoking_op_callbacks = was


class Session(session.Session):
    """Observes TensorFlow in the thread that starts it until it is closed."""

    tensors = TensorFlowTensors()
    folders = FOLDERS
    quiet = staticmethod(quiet)
    recorder: TensorFlowRecorder

    def __init__(self, settings: CaptureSettings, *, events: EventLog | None = None) -> None:
        if settings.watch is Watch.GRADIENTS and (settings.gradients.signs or settings.gradients.bounds):
            raise UlpscopeError(
                "--signs and --bounds are kept of torch's gradients only",
                expected="a watch of TensorFlow's gradients without them",
                next_step="leave --signs and --bounds out",
            )
        super().__init__(settings, events=events)
        tracer = Tracer(self.recorder)
        self._ops = OpWatcher(self.recorder, self.scopes, tracer, is_here=self.is_here)
        self._listening = Listening(self._ops, is_here=self.is_here)
        self._gradients = GradientWatcher(self, self.recorder, self._ops, tracer)
        self._layers = LayerWatcher(self, self.recorder, tracer)
        paths = self._layers.paths
        optimizers = OptimizerWatcher(self, self.recorder, paths, tracer)
        self._keras = KerasWatcher(self._layers, optimizers)
        reader = GraphReader(self.recorder, self.scopes, tracer, tell=self.tell_once)
        self._functions = FunctionWatcher(self, self.recorder, paths, reader)
        self._entries = Replacements(
            self._functions.entry,
            SessionWatcher(self, self.recorder, reader).entry,
            Replacement(v1_optimizer.Optimizer, "apply_gradients", optimizers.applied_in_session),
        )

    def start(self, models: Mapping[str, Any] | None = None) -> None:
        """Begin to observe; `models` get names for their paths."""
        self._name(models)
        super().start()

    def resume(self, models: Mapping[str, Any] | None = None) -> None:
        self._name(models)
        super().resume()

    def record(self, op: str, name: str, content: Any, *, gradients: bool) -> None:
        """A call of the user's own making: the tensors in `content` as they are now. Of gradients nothing is known."""
        if self._running and self.recorder.capturing and self.is_here():
            self.recorder.guarded(f"record {name}", self._record_own_call, op, name, content)

    def _record_own_call(self, op: str, name: str, content: Any) -> None:
        call = self.recorder.open(Kind.API, op, self.scopes.innermost, parent=self.scopes.parent, called=name)
        placed, text = ARGUMENTS.to_text((content,), {})
        if call.wanted:
            self.recorder.use_all(call, INPUT, placed)
        self.recorder.close(call, text)

    def install(self) -> None:
        self._keras.install()
        self._gradients.install()
        self._entries.install()
        self._listening.install()

    def uninstall(self) -> None:
        self._listening.uninstall()
        self._entries.uninstall()
        self._gradients.uninstall()
        self._keras.uninstall()

    def about(self) -> About:
        return about_tensorflow()

    def make_steps(self) -> TensorFlowSteps:
        return TensorFlowSteps()

    def make_recorder(self, around: Surroundings) -> TensorFlowRecorder:
        return (UpdateRecorder if self.settings.watch is Watch.GRADIENTS else TensorFlowRecorder)(around)

    def end_step(self) -> None:
        self._ops.forget_forwards()
        self._functions.forget_forwards()

    def _name(self, models: Mapping[str, Any] | None) -> None:
        for name, model in (models or {}).items():
            self._layers.paths.add_root(model, name)


def start_session(settings: CaptureSettings, *, events: EventLog | None = None) -> Session:
    """Capture this process from now on."""
    make_repeatable(settings)
    session = Session(settings, events=events)
    session.start()
    return session
