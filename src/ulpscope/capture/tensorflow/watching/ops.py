"""Every op that is executed eagerly: TensorFlow tells of it by a callback, with converted inputs and its attributes.

Ops in a function's graph are told of when they are made, and are no calls yet: what made them is noted.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from tensorflow.core.framework import types_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes, op_callbacks, op_def_registry, ops
from tensorflow.python.framework.auto_control_deps_utils import RESOURCE_READ_OPS

from ulpscope.capture.exceptions import is_interruption
from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import INPUT, OUTPUT, OpenCall, Scopes
from ulpscope.capture.recording.replacing import Replacement
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import ARGUMENTS, RESOURCE, word_of
from ulpscope.capture.tensorflow.watching.tracing import Tracer
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import Kind, Level, Watch

PREFIX = "tf.raw_ops."
"""By these names TensorFlow lets anybody execute an op."""

KEEPING = frozenset(("VarHandleOp", "DestroyResourceOp"))
"""Ops that are given or give a handle and write nothing, beside those that TensorFlow knows as reading."""

INSIDE_OPTIMIZER = "inside an optimizer"

READ = "read of a variable"
"""Nobody computes what a variable holds; it is told where it is used, as in graphs."""

MAX_KEPT = 4096


class Signature(NamedTuple):
    """What calls of an op with the same attributes and as many inputs have in common."""

    places: tuple[str, ...]
    text: str


class OpWatcher:
    """Makes a call of each op."""

    def __init__(
        self, recorder: TensorFlowRecorder, scopes: Scopes, tracer: Tracer, *, is_here: Callable[[], bool]
    ) -> None:
        self.recorder = recorder
        self._tracer = tracer
        self.scopes = scopes
        self.forwards: dict[int, tuple[OpenCall, Any, tuple[str, ...]]] = {}
        """Calls that a tape has recorded, by the identity of their attributes, which the tape hands to gradients."""
        self._is_here = is_here
        self._records = recorder.settings.level is not Level.MODULE
        self._only_updates = recorder.settings.watch is Watch.GRADIENTS
        self._looks_into_updates = recorder.settings.level is Level.KERNEL
        self._ops: dict[Any, Op] = {}
        self._signatures: dict[tuple[Any, ...], Signature] = {}

    def __call__(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        """TensorFlow's callback. What it gives would take the place of the op's outputs."""
        if graph is None and (self._only_updates or not self.recorder.capturing):
            return
        try:
            if graph is None:
                self._executed(op_type, inputs, attrs, outputs)
            elif self._records and self._is_here():
                self._tracer.made(op_type, inputs, outputs, op_name, graph)
        except BaseException as error:
            if is_interruption(error):
                self.recorder.unobserved("interrupted")
                raise
            self.recorder.own_error(f"op {op_type}", error)

    def forget_forwards(self) -> None:
        """No gradient will be asked of what was recorded until now."""
        self.forwards.clear()

    def _executed(self, op_type: Any, inputs: Any, attrs: Any, outputs: Any) -> None:
        op = self._ops.get(op_type)
        if op is None:
            op = self._ops[op_type] = Op.of(op_type)
        if not self._is_here():
            self.recorder.counts.other_threads += 1
            return
        if op.is_function:  # it has a watcher of its own
            return
        if op.is_read and outputs and self._records and not self.scopes.hidden:
            self.recorder.values.content_is(outputs[0], inputs[0])
            self.recorder.unobserved(READ)
            return
        if self.scopes.hidden or not self._records:
            self._note_writes(op, inputs, None)
            if self._records:
                self.recorder.unobserved(INSIDE_OPTIMIZER)
            return
        self._record(op, inputs, attrs, outputs)

    def _record(self, op: "Op", inputs: Any, attrs: Any, outputs: Any) -> None:
        recorder, scopes = self.recorder, self.scopes
        call = recorder.open(Kind.API, op.name, scopes.innermost, parent=scopes.parent)
        signature = self._signature(op, inputs, attrs)
        if not pywrap_tfe.TFE_Py_TapeSetIsEmpty():
            self.forwards[id(attrs)] = call, attrs, signature.places
        if not call.wanted:
            self._note_writes(op, inputs, call.id)
            return
        call.random = op.is_random
        written: list[tuple[str, Any]] = []
        for place, tensor in zip(signature.places, inputs, strict=True):
            if tensor.dtype is not RESOURCE:
                recorder.use(call, INPUT, place, tensor)
            elif recorder.values.is_variable(tensor):
                self._use_variable(op, call, place, tensor, written)
        made = outputs or ()
        for number, tensor in enumerate(made):
            if tensor.dtype is not RESOURCE:
                recorder.use(call, OUTPUT, f"output.{number}", tensor)
        for place, tensor in written:
            recorder.use(call, OUTPUT, place, tensor)
        recorder.close(call, signature.text)

    def _use_variable(self, op: "Op", call: OpenCall, place: str, handle: Any, written: list[tuple[str, Any]]) -> None:
        """What a variable held before it was written can be told only if it was looked at then."""
        values = self.recorder.values
        if not op.writes:
            self.recorder.use(call, INPUT, place, handle)
            return
        if values.known_content(handle) is not None:
            self.recorder.use(call, INPUT, place, handle)
        values.wrote(handle, call.id)
        written.append((place, handle))

    def _note_writes(self, op: "Op", inputs: Any, call: int | None) -> None:
        if op.writes:
            for tensor in inputs:
                if tensor.dtype is RESOURCE:
                    self.recorder.values.wrote(tensor, call)

    def _signature(self, op: "Op", inputs: Any, attrs: Any) -> Signature:
        ids = [id(tensor) for tensor in inputs]
        aliases = () if len(set(ids)) == len(ids) else tuple(ids.index(one) for one in ids)
        key = (op.name, len(ids), attrs, aliases)
        try:
            known = self._signatures.get(key)
        except TypeError:  # an attribute that has no hash
            return sign(op, len(ids), attrs, aliases)
        if known is None:
            known = sign(op, len(ids), attrs, aliases)
            if len(self._signatures) >= MAX_KEPT:
                self._signatures.clear()
            self._signatures[key] = known
        return known


class Listening:
    """Has TensorFlow tell of ops: those that are executed while somebody wants them, and those of graphs at any time.

    Graphs are made once. Each op that is executed eagerly takes a tenth more if it is told of, wanted or not.
    """

    def __init__(self, watcher: OpWatcher, *, is_here: Callable[[], bool]) -> None:
        self._watcher = watcher
        self._is_here = is_here
        self._entry = Replacement(ops.Graph, "as_default", self._made)
        watcher.recorder.on_step = self._look

    def install(self) -> None:
        self._entry.install()
        self._look()

    def uninstall(self) -> None:
        self._entry.uninstall()
        self._look()

    @property
    def _is_told(self) -> bool:
        return self._watcher in context.context().op_callbacks

    def _look(self) -> None:
        """Where nothing is executed eagerly all ops are put into a graph."""
        is_wanted = self._watcher.recorder.capturing or not context.executing_eagerly()
        if (self._entry.is_on and is_wanted) == self._is_told:
            return
        if self._is_told:
            op_callbacks.remove_op_callback(self._watcher)
        else:
            op_callbacks.add_op_callback(self._watcher)

    def _made(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        def as_default(graph: Any) -> Any:
            manager = original(graph)
            needs_to_be_told = entry.is_on and self._is_here() and not self._is_told
            return self._told(manager) if needs_to_be_told else manager

        return as_default

    @contextlib.contextmanager
    def _told(self, manager: Any) -> Iterator[Any]:
        with manager as graph:
            context.context().add_op_callback(self._watcher)
            try:
                yield graph
            finally:
                if self._is_told:
                    context.context().remove_op_callback(self._watcher)


class Op(NamedTuple):
    """What is known of a type of op."""

    name: str
    is_function: bool
    is_read: bool
    writes: bool
    is_random: bool
    arguments: tuple[tuple[str, str], ...]
    """Names of its inputs, each with the attribute that counts them if they are a list."""
    dtypes: frozenset[str]
    """Attributes that are element types."""

    @classmethod
    @cache
    def of(cls, op_type: Any) -> "Op":
        word = op_type.decode() if isinstance(op_type, bytes) else str(op_type)
        name = PREFIX + word
        definition = op_def_registry.get(word)
        if definition is None:
            return cls(name, True, False, False, False, (), frozenset())
        arguments = tuple((one.name, one.number_attr or one.type_list_attr) for one in definition.input_arg)
        kinds = frozenset(one.name for one in definition.attr if one.type in ("type", "list(type)"))
        takes_handle = any(one.type == types_pb2.DT_RESOURCE for one in definition.input_arg)
        return cls(
            name,
            False,
            word == "ReadVariableOp",
            takes_handle and word not in RESOURCE_READ_OPS | KEEPING,
            operation(name).has(Trait.RANDOM, Trait.DROPPING),
            arguments,
            kinds,
        )


def sign(op: Op, count: int, attrs: Any, aliases: tuple[int, ...]) -> Signature:
    options = dict(zip(attrs[::2], attrs[1::2], strict=True)) if attrs else {}
    places, shape = _places(op, count, options)
    encoded = [
        {"$tensor": place} if not aliases or aliases[n] == n else {"$tensor": place, "as": places[aliases[n]]}
        for n, place in enumerate(places)
    ]
    arguments: list[Any] = []
    for is_list, size in shape:
        taken, encoded = encoded[:size], encoded[size:]
        arguments.append(taken if is_list else taken[0])
    told: dict[str, Any] = {"args": arguments}
    if options:
        told["kwargs"] = {name: _option(name in op.dtypes, value) for name, value in options.items()}
    return Signature(tuple(places), to_json(told))


def _places(op: Op, count: int, options: dict[str, Any]) -> tuple[list[str], list[tuple[bool, int]]]:
    """The places of an op's inputs in their order, and how many each argument takes."""
    places: list[str] = []
    shape: list[tuple[bool, int]] = []
    for number, (_, counter) in enumerate(op.arguments):
        value = options.get(counter)
        size = 1 if not counter else value if isinstance(value, int) else len(value or ())
        shape.append((bool(counter), size))
        places += [f"args.{number}.{n}" for n in range(size)] if counter else [f"args.{number}"]
    if len(places) == count:
        return places, shape
    return [f"args.{n}" for n in range(count)], [(False, 1)] * count  # counted otherwise than its definition says


def _option(is_dtype: bool, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_option(is_dtype, one) for one in value]
    if is_dtype:
        return {"$dtype": word_of(dtypes.as_dtype(value))}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return ARGUMENTS.encode_call((value,), {})[1]["args"][0]
