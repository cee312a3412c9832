"""Gradients that are put into a graph while it is made: by tapes inside of functions, by tf.gradients in sessions, and
where TensorFlow makes the backward of a function. Each knows the op that it is the gradient of.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.eager import context, execute
from tensorflow.python.ops import gradients_util

from ulpscope.capture.recording.calls import GRAD_INPUT, GRAD_OUTPUT
from ulpscope.capture.recording.recorder import Recorder
from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.recording.session import Session
from ulpscope.capture.tensorflow.tensors import SYMBOLIC_ARGUMENTS
from ulpscope.capture.tensorflow.watching.ops import PREFIX, Op, sign
from ulpscope.capture.tensorflow.watching.tracing import Scope, Tracer, placed_gradients, symbols
from ulpscope.records.enums import Kind, Phase, Role

GRADIENT_OP = "tf.GradientTape.gradient"


class TracedGradients:
    """Stands in for what asks for gradients of a graph's tensors, and for what makes them."""

    def __init__(self, session: Session, recorder: Recorder, tracer: Tracer) -> None:
        self._session = session
        self._recorder = recorder
        self._tracer = tracer
        self._forwards: dict[int, tuple[Any, str]] = {}
        """Names of ops by the identity of the attributes that a tape hands to gradients."""
        self._last: tuple[Any, Scope] | None = None
        self.entries = Replacements(
            Replacement(execute, "record_gradient", self._recorded),
            Replacement(gradients_util, "_GradientsHelper", self._asked_of_graph),
            Replacement(gradients_util, "_MaybeCompile", self._differentiated),
            Replacement(gradients_util, "_LogOpGradients", self._made),
        )

    @contextlib.contextmanager
    def asked(self, target: Any) -> Iterator[None]:
        """Gradients are asked of a tape while a graph is made."""
        scope = self._recorder.guarded(GRADIENT_OP, self._question, target)
        with self._tracer.inside(scope):
            yield
        self._forwards.clear()

    def differentiate(self, compute: Callable[..., Any], op_name: str, attrs: Any, *rest: Any) -> Any:
        """What a tape asks for the gradients of an op: rest[0] inputs, rest[3] came in."""
        known = self._forwards.get(id(attrs))
        scope = None
        if known is not None:
            scope = self._recorder.guarded("backward", self._scope, op_name, known[1])
        with self._tracer.inside(scope):
            gradients = compute(op_name, attrs, *rest)
        if scope is not None:
            self._recorder.guarded("backward", self._note, scope, op_name, rest[3], gradients)
        return gradients

    def _recorded(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        def record_gradient(op_name: Any, inputs: Any, attrs: Any, outputs: Any) -> Any:
            if entry.is_on and outputs and not context.executing_eagerly() and self._session.is_here():
                self._recorder.guarded("backward", self._remember, attrs, outputs[0])
            return original(op_name, inputs, attrs, outputs)

        return record_gradient

    def _remember(self, attrs: Any, output: Any) -> None:
        self._forwards[id(attrs)] = attrs, output.op.name

    def _asked_of_graph(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        def gradients_of(ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not entry.is_on or not self._session.is_here():
                return original(ys, xs, grad_ys, *args, **kwargs)
            asked = self._recorder.guarded(GRADIENT_OP, self._question, ys if grad_ys is None else None)
            with self._tracer.inside(asked):
                return original(ys, xs, grad_ys, *args, **kwargs)

        return gradients_of

    def _differentiated(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        def compute(grad_scope: Any, op: Any, *rest: Any) -> Any:
            if not entry.is_on or not self._session.is_here():
                return original(grad_scope, op, *rest)
            scope = self._recorder.guarded("backward", self._scope, op.type, op.name)
            with self._tracer.inside(scope):
                gradients = original(grad_scope, op, *rest)
            self._last = None if scope is None else (op, scope)
            return gradients

        return compute

    def _made(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        def log(op: Any, out_grads: Any, in_grads: Any) -> Any:
            last, self._last = self._last, None
            if entry.is_on and last is not None and last[0] is op:
                self._recorder.guarded("backward", self._note, last[1], op.type, out_grads, in_grads)
            return original(op, out_grads, in_grads)

        return log

    def _question(self, target: Any) -> Scope:
        scope = self._tracer.open(Kind.API, GRADIENT_OP, phase=Phase.BACKWARD, module=None, module_class=None)
        scope.holds = False
        placed, scope.arguments = SYMBOLIC_ARGUMENTS.to_text((target,), {})
        scope.symbols += symbols(Role.LOSS.value, placed)
        return scope

    def _scope(self, op_name: str, forward: str) -> Scope:
        made = self._tracer.latest(forward)
        inside = None if made is None else made.scope
        return self._tracer.open(
            Kind.BACKWARD,
            PREFIX + op_name,
            phase=Phase.BACKWARD,
            forward=forward,
            module=None if inside is None else inside.module,
            module_class=None if inside is None else inside.module_class,
        )

    def _note(self, scope: Scope, op_name: str, coming: Any, leaving: Any) -> None:
        leaving = leaving if isinstance(leaving, (list, tuple)) else (leaving,)
        outputs = (f"output.{number}" for number in range(len(coming)))
        scope.symbols += symbols(GRAD_OUTPUT, placed_gradients(outputs, coming))
        places = sign(Op.of(op_name), len(leaving), None, ()).places
        scope.symbols += symbols(GRAD_INPUT, placed_gradients(places, leaving))
