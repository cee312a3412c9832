"""Sessions of tf.compat.v1: each run is one call, with what is fed and what is fetched."""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from tensorflow.python.client import session as client
from tensorflow.python.framework import ops

from ulpscope.capture.exceptions import describe_error
from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import INPUT, OUTPUT, OpenCall
from ulpscope.capture.recording.replacing import Replacement
from ulpscope.capture.recording.session import Session
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.watching.graph_calls import SESSION_RUN
from ulpscope.capture.tensorflow.watching.graphs import GraphReader
from ulpscope.records.enums import Kind

NOT_LOOKED_INTO = "inside a session's graph"

WRITING = ("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply", "Assign", "Scatter", "ResourceScatter")
"""How types of ops begin that write variables."""


class SessionWatcher:
    """Stands in for runs of sessions."""

    def __init__(self, session: Session, recorder: TensorFlowRecorder, reader: GraphReader) -> None:
        self._session = session
        self._recorder = recorder
        self._scopes = session.scopes
        self._reader = reader
        self._updating: dict[tuple[int, tuple[str, ...]], bool] = {}
        self.entry = Replacement(client.BaseSession, "run", self._watched)

    def _watched(self, entry: Replacement) -> Callable[..., Any]:
        original, recorder = entry.original, self._recorder

        def run(running: Any, fetches: Any, feed_dict: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not (entry.is_on and self._session.is_here()) or self._scopes.hidden:
                return original(running, fetches, feed_dict, *args, **kwargs)
            names = recorder.guarded("session", _names, running.graph, fetches) or ()
            updates = recorder.guarded("session", self._updates, running.graph, names)
            self._session.begin_outermost(hash(names))
            try:
                return self._run(
                    running.graph,
                    names,
                    feed_dict,
                    lambda: original(running, fetches, feed_dict, *args, **kwargs),
                    sys._getframe(),
                )
            finally:
                if updates:
                    self._session.updated_in_graph()

        return run

    def _run(self, graph: Any, names: tuple[str, ...], feeds: Any, run: Callable[[], Any], frame: Any) -> Any:
        recorder = self._recorder
        self._reader.prepare()  # also for a step that nobody wants: graphs are prepared once
        if not recorder.capturing:
            return run()
        call = recorder.guarded("session", self._before, feeds, frame)
        try:
            with self._reader.reading(call, NOT_LOOKED_INTO, graph):
                result = run()
        except BaseException as error:
            if call is not None:
                call.error = describe_error(error)
                recorder.guarded("session", recorder.close, call)
            raise
        if call is not None:
            recorder.guarded("session", self._after, call, names, result)
        return result

    def _before(self, feeds: Any, frame: Any) -> OpenCall:
        recorder, scopes = self._recorder, self._scopes
        call = recorder.open(Kind.COMPILED, SESSION_RUN, scopes.innermost, parent=scopes.parent, frame=frame)
        if call.wanted and isinstance(feeds, Mapping):
            placed = [(_name(key), np.asarray(value)) for key, value in feeds.items() if not callable(value)]
            recorder.use_all(call, INPUT, [(place, array) for place, array in placed if array.dtype != object])
        return call

    def _after(self, call: OpenCall, names: tuple[str, ...], result: Any) -> None:
        if call.wanted:
            self._use_results(call, names, result)
        self._recorder.close(call, to_json({"args": [], "kwargs": {"fetches": list(names)}}))

    def _use_results(self, call: OpenCall, names: tuple[str, ...], result: Any) -> None:
        """What was fetched: those that a node inside has made are its results."""
        found = list(_leaves(result, "output"))
        for number, (place, one) in enumerate(found):
            made = self._reader.result(names[number]) if len(names) == len(found) else None
            if made is not None:
                self._recorder.use_number(call, OUTPUT, place, made)
            elif isinstance(one, (np.ndarray, np.generic)) and np.asarray(one).dtype != object:
                self._recorder.use(call, OUTPUT, place, np.asarray(one))

    def _updates(self, graph: Any, names: tuple[str, ...]) -> bool:
        """Whether what is fetched writes a trainable variable on its way."""
        key = (id(graph), names)
        known = self._updating.get(key)
        if known is None:
            known = self._updating[key] = _writes_trainable(graph, names)
        return known


def _name(key: Any) -> str:
    return str(getattr(key, "name", key))


def _names(graph: Any, fetches: Any) -> tuple[str, ...]:
    """Names of all that is fetched."""
    if isinstance(fetches, Mapping):
        return tuple(name for value in fetches.values() for name in _names(graph, value))
    if isinstance(fetches, (list, tuple)):
        return tuple(name for value in fetches for name in _names(graph, value))
    return (_name(fetches),)


def _writes_trainable(graph: Any, names: tuple[str, ...]) -> bool:
    trainable = {variable.op.name for variable in graph.get_collection(ops.GraphKeys.TRAINABLE_VARIABLES)}
    if not trainable:
        return False
    waiting = [op for op in (_operation(graph, name) for name in names) if op is not None]
    seen = {op.name for op in waiting}
    while waiting:
        op = waiting.pop()
        if op.type.startswith(WRITING) and any(_source(tensor) in trainable for tensor in op.inputs):
            return not _is_initializer(graph, op)
        for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
    return False


def _is_initializer(graph: Any, op: Any) -> bool:
    variables = graph.get_collection(ops.GraphKeys.GLOBAL_VARIABLES)
    return any(variable.initializer is op for variable in variables)


def _operation(graph: Any, name: str) -> Any:
    try:
        return graph.get_operation_by_name(name.partition(":")[0])
    except (KeyError, ValueError):
        return None


def _source(tensor: Any) -> str:
    """The op that holds the variable behind a reference or a handle."""
    op = tensor.op
    while op.type in ("Identity", "Enter", "RefIdentity") and op.inputs:
        op = op.inputs[0].op
    return str(op.name)


def _leaves(result: Any, place: str) -> Iterator[tuple[str, Any]]:
    """What was fetched, each with its place."""
    if isinstance(result, Mapping):
        for key, value in result.items():
            yield from _leaves(value, f"{place}.{key}")
    elif isinstance(result, (list, tuple)):
        for number, value in enumerate(result):
            yield from _leaves(value, f"{place}.{number}")
    else:
        yield (f"{place}.0" if place == "output" else place), result
