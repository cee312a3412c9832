"""Gradient tapes: when they begin a forward, what a gradient is asked of, and the gradient of each op.

TensorFlow's tape asks one function of Python's for the gradients of an op, and hands it the attributes that the op was
executed with: the very same object tells which call that was.
"""

from collections.abc import Callable
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import backprop, context

from ulpscope.capture.recording.calls import GRAD_INPUT, GRAD_OUTPUT, OpenCall
from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.recording.session import Session
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import ARGUMENTS, EAGER
from ulpscope.capture.tensorflow.watching.graph_nodes import INSIDE_PIPELINE
from ulpscope.capture.tensorflow.watching.ops import OpWatcher
from ulpscope.capture.tensorflow.watching.traced_gradients import GRADIENT_OP, TracedGradients
from ulpscope.capture.tensorflow.watching.tracing import Tracer
from ulpscope.records.enums import Kind, Level, Phase, Role, Watch

TAPE_ROOT = 0
"""Stands for a forward that no layer begins: no object has this identity."""

UNKNOWN_FORWARD = "backward of an op that ran before the capture"


class GradientWatcher:
    """Stands in for tapes' beginning, for what asks for gradients, and for what computes them."""

    def __init__(self, session: Session, recorder: TensorFlowRecorder, ops: OpWatcher, tracer: Tracer) -> None:
        self._session = session
        self._recorder = recorder
        self._scopes = session.scopes
        self._ops = ops
        self._tracing = TracedGradients(session, recorder, tracer)
        self._entries = Replacements(
            Replacement(backprop.GradientTape, "__enter__", self._entered),
            Replacement(backprop.GradientTape, "gradient", self._asked),
            Replacement(iterator_ops.OwnedIterator, "_next_internal", self._asked_for_data),
        )
        self._gradient_function = backprop._gradient_function

    def install(self) -> None:
        self._entries.install()
        self._tracing.entries.install()
        settings = self._recorder.settings
        if settings.level is not Level.MODULE and settings.watch is not Watch.GRADIENTS:
            pywrap_tfe.TFE_Py_RegisterGradientFunction(self._differentiate)

    def uninstall(self) -> None:
        self._entries.uninstall()
        self._tracing.entries.uninstall()
        pywrap_tfe.TFE_Py_RegisterGradientFunction(self._gradient_function)

    def _entered(self, entry: Replacement) -> Callable[..., Any]:
        original, scopes, steps = entry.original, self._scopes, self._recorder.steps

        def enter(tape: Any) -> Any:
            result = original(tape)
            is_outermost = not scopes.modules and not scopes.hidden and not steps.in_backward
            if entry.is_on and is_outermost and context.executing_eagerly() and self._session.is_here():
                self._session.begin_outermost(TAPE_ROOT)
            return result

        return enter

    def _asked_for_data(self, entry: Replacement) -> Callable[..., Any]:
        original, scopes, steps = entry.original, self._scopes, self._recorder.steps

        def next_batch(iterator: Any) -> Any:
            if entry.is_on and context.executing_eagerly() and self._session.is_here():
                if not scopes.modules and steps.begins_with_data():
                    self._session.next_step()
                if self._recorder.capturing:
                    self._recorder.unobserved(INSIDE_PIPELINE)
            return original(iterator)

        return next_batch

    def _asked(self, entry: Replacement) -> Callable[..., Any]:
        original, steps = entry.original, self._recorder.steps

        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            if not (entry.is_on and self._session.is_here()):
                return original(tape, target, sources, *args, **kwargs)
            if not context.executing_eagerly():
                with self._tracing.asked(target):
                    return original(tape, target, sources, *args, **kwargs)
            if self._recorder.capturing:
                self._recorder.guarded(GRADIENT_OP, self._record_loss, target)
            steps.enter_backward()
            steps.begin_pass()
            try:
                return original(tape, target, sources, *args, **kwargs)
            finally:
                steps.end_pass()
                steps.leave_backward(accumulates=True, keeps_graph=bool(tape._persistent))

        return gradient

    def _record_loss(self, target: Any) -> None:
        recorder, scopes = self._recorder, self._scopes
        call = recorder.open(Kind.API, GRADIENT_OP, scopes.innermost, parent=scopes.parent, phase=Phase.BACKWARD)
        placed, text = ARGUMENTS.to_text((target,), {})
        if call.wanted:
            recorder.use_all(call, Role.LOSS.value, placed)
        recorder.close(call, text)

    def _differentiate(self, op_name: Any, attrs: Any, *rest: Any) -> Any:
        """In the place of the function that TensorFlow asks for an op's gradients: rest[3] came in."""
        recorder, scopes = self._recorder, self._scopes
        if not context.executing_eagerly():
            return self._tracing.differentiate(self._gradient_function, op_name, attrs, *rest)
        if not recorder.capturing or scopes.hidden:
            return self._gradient_function(op_name, attrs, *rest)
        known = self._ops.forwards.get(id(attrs))
        if known is None:
            recorder.unobserved(UNKNOWN_FORWARD)
            return self._gradient_function(op_name, attrs, *rest)
        opened = recorder.guarded("backward", self._before, known[0], rest[3])
        if opened is None:
            return self._gradient_function(op_name, attrs, *rest)
        depth = len(scopes.calls)
        scopes.calls.append(opened)
        try:
            gradients = self._gradient_function(op_name, attrs, *rest)
        finally:
            del scopes.calls[depth:]
        recorder.guarded("backward", self._after, opened, known[2], gradients)
        return gradients

    def _before(self, forward: OpenCall, coming: Any) -> OpenCall:
        call = self._recorder.open_backward(Kind.BACKWARD, forward)
        if call.wanted:
            tensors = ((f"output.{number}", gradient) for number, gradient in enumerate(coming))
            self._recorder.use_all(call, GRAD_OUTPUT, spread(tensors))
        return call

    def _after(self, call: OpenCall, places: tuple[str, ...], gradients: Any) -> None:
        if call.wanted:
            leaving = gradients if isinstance(gradients, (list, tuple)) else (gradients,)
            self._recorder.use_all(call, GRAD_INPUT, spread(zip(places, leaving, strict=False)))
        self._recorder.close(call)


def spread(gradients: Any) -> Placed:
    """Gradients as tensors: of one that tells only some rows, the rows and which they are."""
    placed: Placed = []
    for place, gradient in gradients:
        if isinstance(gradient, EAGER):
            placed.append((place, gradient))
        elif hasattr(gradient, "indices") and hasattr(gradient, "values"):
            placed += [(place, gradient.values), (f"{place}.indices", gradient.indices)]
    return [(place, tensor) for place, tensor in placed if isinstance(tensor, EAGER)]
