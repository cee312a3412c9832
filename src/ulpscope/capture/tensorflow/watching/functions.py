"""Compiled functions (tf.function) that are called eagerly: one call each, as TensorFlow runs it, with its true inputs,
the variables that it holds, and its outputs. Nothing is changed inside of its graph.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import auto_control_deps_utils

from ulpscope.capture.exceptions import describe_error
from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import GRAD_INPUT, GRAD_OUTPUT, INPUT, OUTPUT, PARAMETER, OpenCall
from ulpscope.capture.recording.replacing import Replacement
from ulpscope.capture.recording.session import Session
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.tensorflow.recorder import NOT_LOOKED_INTO, TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import EAGER, RESOURCE
from ulpscope.capture.tensorflow.watching.graphs import GraphReader
from ulpscope.capture.tensorflow.watching.layers import LayerPaths
from ulpscope.records.enums import Kind, Role

PREFIX = "tf.function."

_NAME = re.compile(r"(?:__inference_)?__(forward|backward)_(.+?)_\d+(?:_\d+)?|__inference_(.+?)_\d+")


class _Function(NamedTuple):
    """What is known of a compiled function."""

    op: str
    goes_back: bool
    """Computes the gradients of another one."""
    places: tuple[str, ...]
    written: frozenset[int]
    """Which of its inputs are variables that it may write."""
    trainable: frozenset[int]
    """Which of its inputs are variables that a training changes."""

    @property
    def updates(self) -> bool:
        """Whether it writes trainable variables."""
        return not self.written.isdisjoint(self.trainable)


class _Given(NamedTuple):
    """What a function is given: variables with their names, and all else with its place."""

    parameters: Placed
    states: Placed
    """Variables that are neither a layer's nor trained: an optimizer's, a metric's."""
    tensors: Placed


class FunctionWatcher:
    """Stands in for calls of compiled functions."""

    def __init__(self, session: Session, recorder: TensorFlowRecorder, paths: LayerPaths, reader: GraphReader) -> None:
        self._session = session
        self._recorder = recorder
        self._scopes = session.scopes
        self._paths = paths
        self._reader = reader
        self._known: dict[int, tuple[Any, _Function]] = {}
        self._made: dict[int, tuple[OpenCall, tuple[str, ...]]] = {}
        """Calls of functions by the ids of the tensors that they gave, among which are those their gradients need."""
        self.entry = Replacement(atomic_function.AtomicFunction, "call_flat", self._watched)

    def forget_forwards(self) -> None:
        """No gradient will be asked of what was recorded until now."""
        self._made.clear()
        self._reader.forget_forwards()

    def _watched(self, entry: Replacement) -> Callable[..., Any]:
        original, scopes, steps = entry.original, self._scopes, self._recorder.steps

        def call_flat(function: Any, *args: Any) -> Any:
            is_seen = entry.is_on and not scopes.hidden and context.executing_eagerly() and self._session.is_here()
            about = self._recorder.guarded("function", self._about, function) if is_seen else None
            if about is None:
                return original(function, *args)
            if not scopes.modules and not steps.in_backward:
                self._session.begin_outermost(id(function))
            try:
                return self._run(about, original, function, args)
            finally:
                if about.updates:
                    self._session.updated_in_graph()

        return call_flat

    def _run(self, about: _Function, original: Callable[..., Any], function: Any, args: tuple[Any, ...]) -> Any:
        recorder = self._recorder
        self._reader.prepare()  # also for a step that nobody wants: graphs are prepared once
        if not recorder.capturing:
            return original(function, *args)
        call = recorder.guarded("function", self._before, about, args)
        try:
            with self._reader.reading(call, NOT_LOOKED_INTO, function.graph, args):
                result = original(function, *args)
        except BaseException as error:
            if call is not None:
                call.error = describe_error(error)
                recorder.guarded("function", recorder.close, call)
            raise
        if call is not None:
            recorder.guarded("function", self._after, about, call, args, result)
        return result

    def _about(self, function: Any) -> _Function:
        known = self._known.get(id(function))
        if known is None or known[0] is not function:
            known = self._known[id(function)] = function, self._look_at(function)
        return known[1]

    def _look_at(self, function: Any) -> _Function:
        name = function.name.decode()
        found = _NAME.fullmatch(name)
        op = PREFIX + ((found[2] or found[3]) if found else name)
        graph = function.graph
        handles = [one.dtype is RESOURCE for one in graph.inputs]
        read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
        written = frozenset(n for n, is_handle in enumerate(handles) if is_handle and n not in read_only)
        trainable = {id(variable.handle) for variable in graph.trainable_variables}
        inner = {id(tensor): number for number, tensor in enumerate(graph.inputs)}
        trained = {inner.get(id(internal)) for external, internal in graph.captures if id(external) in trainable}
        return _Function(
            op,
            found is not None and found[1] == "backward",
            tuple(f"args.{number}" for number in range(len(handles))),
            written,
            frozenset(number for number in trained if number is not None),
        )

    def _before(self, about: _Function, args: tuple[Any, ...]) -> OpenCall:
        recorder, scopes = self._recorder, self._scopes
        forward = next((self._made[one._id] for one in args if one._id in self._made), None)
        if about.goes_back and forward is not None:
            call = recorder.open_backward(Kind.BACKWARD, forward[0])
            coming = [one for one in args if one.dtype is not RESOURCE and one._id not in self._made]
            if call.wanted:
                recorder.use_all(call, GRAD_OUTPUT, [(f"output.{n}", one) for n, one in enumerate(coming)])
            return call
        call = recorder.open(Kind.COMPILED, about.op, scopes.innermost, parent=scopes.parent)
        if call.wanted:
            given = self._split(about, args)
            recorder.use_all(call, INPUT, given.tensors)
            recorder.use_all(call, PARAMETER, given.parameters)
            recorder.use_all(call, Role.STATE.value, given.states)
        return call

    def _after(self, about: _Function, call: OpenCall, args: tuple[Any, ...], result: Any) -> None:
        recorder = self._recorder
        results = result if isinstance(result, (list, tuple)) else () if result is None else (result,)
        outputs = [(f"output.{n}", one) for n, one in enumerate(results) if isinstance(one, EAGER)]
        for number, one in enumerate(results):
            made = self._reader.result(number)
            if made is not None and isinstance(one, EAGER):
                recorder.values.content_has(one, made)
        written = [args[number] for number in sorted(about.written)]
        for handle in (one for one in written if not self._reader.has_told(one)):
            recorder.values.wrote(handle, call.id)
        if call.kind is Kind.BACKWARD:
            if call.wanted:
                gradients = [(place.replace("output", "args", 1), one) for place, one in outputs]
                recorder.use_all(call, GRAD_INPUT, gradients)
            recorder.close(call)
            return
        for _, tensor in outputs:
            self._made[tensor._id] = call, about.places
        if call.wanted:
            given = self._split(about, args)
            ids = {id(handle) for handle in written}
            recorder.use_all(call, OUTPUT, [(place, one) for place, one in outputs if one.dtype is not RESOURCE])
            recorder.use_all(
                call, OUTPUT, [(place, one) for place, one in (*given.parameters, *given.states) if id(one) in ids]
            )
        told = [{"$tensor": place} for place, one in zip(about.places, args, strict=True) if one.dtype is not RESOURCE]
        recorder.close(call, to_json({"args": told}))

    def _split(self, about: _Function, args: tuple[Any, ...]) -> _Given:
        is_variable = self._recorder.values.is_variable
        held = [one for one in args if is_variable(one)]
        names = self._paths.variable_names(held)
        own = _own_names([one for one in held if id(one) not in names])
        given = _Given([], [], [])
        for number, (place, one) in enumerate(zip(about.places, args, strict=True)):
            if one.dtype is not RESOURCE:
                given.tensors.append((place, one))
            elif is_variable(one):
                is_parameter = id(one) in names or number in about.trainable
                (given.parameters if is_parameter else given.states).append((names.get(id(one)) or own[id(one)], one))
        return given


def _own_names(handles: Sequence[Any]) -> dict[int, str]:
    """What variables that no layer has are called by their owner, an optimizer or a metric, by their handles' ids: the
    end of the name, or all of it where others end alike."""
    full = {id(one): one._name.removesuffix(":0") for one in handles}
    ends = Counter(name.rpartition("/")[2] for name in full.values())
    whole = Counter(full.values())
    found: dict[int, str] = {}
    for number, (handle, name) in enumerate(full.items()):
        end = name.rpartition("/")[2]
        found[handle] = end if ends[end] == 1 else name if whole[name] == 1 else f"{name}.{number}"
    return found
