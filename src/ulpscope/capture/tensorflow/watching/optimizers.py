"""Updates: one call an optimizer, with gradients, parameters before and after, and state."""

import sys
import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context

from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import PARAMETER, OpenCall
from ulpscope.capture.recording.replacing import Replacement
from ulpscope.capture.recording.session import Session
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import ARGUMENTS
from ulpscope.capture.tensorflow.watching.gradients import spread
from ulpscope.capture.tensorflow.watching.layers import LayerPaths, handle_of
from ulpscope.capture.tensorflow.watching.tracing import HeldUse, Scope, Tracer, placed_gradients, symbols
from ulpscope.records.enums import Kind, Level, Phase, Role

GRADIENT, STATE = Role.GRADIENT.value, Role.STATE.value
PARAMETER_AFTER, STATE_AFTER = Role.PARAMETER_AFTER.value, Role.STATE_AFTER.value

_NO_SETTINGS = frozenset(("name",))
_PLAIN = (bool, int, float, str)


class OptimizerWatcher:
    """Stands in for the step of Keras' optimizers."""

    def __init__(self, session: Session, recorder: TensorFlowRecorder, paths: LayerPaths, tracer: Tracer) -> None:
        self._session = session
        self._tracer = tracer
        self._recorder = recorder
        self._scopes = session.scopes
        self._paths = paths

    def constructed(self, entry: Replacement) -> Callable[..., Any]:
        """What stands in for `Optimizer.__init__`."""
        original, steps = entry.original, self._recorder.steps

        def construct(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            steps.optimizers_exist = True
            original(optimizer, *args, **kwargs)

        return construct

    def scaled(self, entry: Replacement) -> Callable[..., Any]:
        """What stands in for a loss scaler's step, which may skip the update."""
        original, steps = entry.original, self._recorder.steps

        def apply(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if entry.is_on and context.executing_eagerly() and self._session.is_here():
                steps.note_update()
            return result

        return apply

    def applied(self, entry: Replacement) -> Callable[..., Any]:
        """What stands in for `Optimizer.apply`."""
        original, recorder, scopes = entry.original, self._recorder, self._scopes

        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None, **kwargs: Any) -> Any:
            if not entry.is_on or not self._session.is_here() or scopes.hidden:
                return original(optimizer, grads, trainable_variables, **kwargs)
            grads = list(grads)
            variables = None if trainable_variables is None else list(trainable_variables)
            if not context.executing_eagerly():
                return self._trace(optimizer, grads, variables, lambda: original(optimizer, grads, variables, **kwargs))
            recorder.steps.enter_update(id(optimizer))
            try:
                return self._run(optimizer, grads, variables, lambda: original(optimizer, grads, variables, **kwargs))
            finally:
                recorder.steps.leave_update()
                if recorder.capturing and not recorder.steps.in_backward:
                    self._session.updated()

        return apply

    def applied_in_session(self, entry: Replacement) -> Callable[..., Any]:
        """What stands in for `apply_gradients` of optimizers of tf.compat.v1."""
        original = entry.original

        def apply_gradients(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            if not entry.is_on or context.executing_eagerly() or not self._session.is_here():
                return original(optimizer, pairs, *args, **kwargs)
            scope = self._recorder.guarded("optimizer", self._scope_of, optimizer)
            if scope is not None:
                names = [str(variable.op.name) for _, variable in pairs]
                scope.held += [HeldUse(PARAMETER, name, name) for name in names]
                scope.symbols += symbols(GRADIENT, placed_gradients(names, (gradient for gradient, _ in pairs)))
            with self._tracer.inside(scope):
                return original(optimizer, pairs, *args, **kwargs)

        return apply_gradients

    def _trace(self, optimizer: Any, grads: list[Any], variables: Any, update: Callable[[], Any]) -> Any:
        """An optimizer is asked for its step while a graph is made."""
        scope = self._recorder.guarded("optimizer", self._scope_of, optimizer)
        with self._tracer.inside(scope):
            result = update()
        if scope is not None:
            self._recorder.guarded("optimizer", self._note_uses, scope, optimizer, grads, variables)
        return result

    def _scope_of(self, optimizer: Any) -> Scope:
        scope = self._tracer.open(Kind.OPTIMIZER, _op(optimizer), phase=Phase.UPDATE)
        if hasattr(optimizer, "get_config"):  # whose settings may be variables, which a graph's making must not read
            scope.optimizer = weakref.ref(optimizer)
        else:
            scope.arguments = settings_of(optimizer)
        return scope

    def _note_uses(self, scope: Scope, optimizer: Any, grads: list[Any], variables: Any) -> None:
        known = list(optimizer._trainable_variables if variables is None else variables)
        parameters, states = self._named(known), self._states(optimizer)
        scope.symbols += symbols(GRADIENT, placed_gradients((place for place, _ in parameters), grads))
        roles = (PARAMETER, parameters), (STATE, states), (PARAMETER_AFTER, parameters), (STATE_AFTER, states)
        scope.held += [HeldUse(role, *named) for role, placed in roles for named in placed]

    def _run(self, optimizer: Any, grads: list[Any], variables: Any, update: Callable[[], Any]) -> Any:
        recorder, scopes = self._recorder, self._scopes
        if not recorder.capturing:
            return update()
        opened = recorder.guarded("optimizer", self._before, optimizer, grads, variables)
        is_hidden = recorder.settings.level is not Level.KERNEL
        depth = len(scopes.calls)
        scopes.hidden += is_hidden
        if opened is not None:
            scopes.calls.append(opened[0])
        try:
            result = update()
        finally:
            del scopes.calls[depth:]
            scopes.hidden -= is_hidden
        if opened is not None:
            recorder.guarded("optimizer", self._after, optimizer, *opened)
        return result

    def _before(self, optimizer: Any, grads: list[Any], variables: Any) -> tuple[OpenCall, Placed, str]:
        recorder = self._recorder
        call = recorder.open(
            Kind.OPTIMIZER, _op(optimizer), self._scopes.innermost, parent=self._scopes.parent, frame=sys._getframe(2)
        )
        known = list(optimizer._trainable_variables if variables is None else variables)
        parameters = self._named(known)
        if call.wanted:
            named = ((place, gradient) for (place, _), gradient in zip(parameters, grads, strict=False))
            recorder.use_all(call, GRADIENT, spread(named))
            recorder.use_all(call, PARAMETER, parameters)
            recorder.use_all(call, STATE, self._states(optimizer))
        return call, parameters, settings_of(optimizer)

    def _after(self, optimizer: Any, call: OpenCall, parameters: Placed, text: str) -> None:
        recorder = self._recorder
        states = self._states(optimizer)
        recorder.values.wrote_all(parameters + states, call.id)
        if call.wanted:
            recorder.use_all(call, PARAMETER_AFTER, parameters)
            recorder.use_all(call, STATE_AFTER, states)
        recorder.close(call, text)

    def _named(self, variables: list[Any]) -> Placed:
        handles = [handle_of(variable) for variable in variables]
        names = self._paths.variable_names(handle for handle in handles if handle is not None)
        return [
            (names.get(id(handle), f"params.{number}"), handle)
            for number, handle in enumerate(handles)
            if handle is not None
        ]

    def _states(self, optimizer: Any) -> Placed:
        """What an optimizer keeps of parameters, each named after its parameter and the list that holds it."""
        names = [place for place, _ in self._named(list(optimizer._trainable_variables))]
        states: Placed = []
        for attribute, held in vars(optimizer).items():
            if attribute in ("_trainable_variables", "_variables") or not isinstance(held, list):
                continue
            if len(held) == len(names):
                word = attribute.strip("_")
                found = ((f"{name}.{word}", handle_of(one)) for name, one in zip(names, held, strict=True))
                states += [(place, handle) for place, handle in found if handle is not None]
        return states


def _op(optimizer: Any) -> str:
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def settings_of(optimizer: Any) -> str:
    """An optimizer's settings, as a call's arguments."""
    if hasattr(optimizer, "get_config"):
        told = {name: value for name, value in optimizer.get_config().items() if name not in _NO_SETTINGS}
    else:  # of tf.compat.v1, whose settings are its attributes
        plain = {name.strip("_"): value for name, value in vars(optimizer).items() if isinstance(value, _PLAIN)}
        told = {name: value for name, value in plain.items() if name not in _NO_SETTINGS}
    return to_json(ARGUMENTS.encode_call((), told)[1])
