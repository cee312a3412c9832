"""Calls of Keras layers: their dotted paths, variables, inputs and outputs. Keras 3 and tf_keras."""

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
from tensorflow.python.eager import context

from ulpscope.capture.exceptions import describe_error
from ulpscope.capture.recording.arguments import Encodings
from ulpscope.capture.recording.calls import BUFFER, INPUT, OUTPUT, PARAMETER, ModuleScope, OpenCall
from ulpscope.capture.recording.replacing import Replacement
from ulpscope.capture.recording.session import Session
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import ARGUMENTS, SYMBOLIC_ARGUMENTS
from ulpscope.capture.tensorflow.watching.tracing import HeldUse, Scope, Tracer, symbols
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.enums import Kind

ROOT = "model"


class LayerWatcher:
    """Stands in for the call of every layer."""

    def __init__(self, session: Session, recorder: TensorFlowRecorder, tracer: Tracer) -> None:
        self.paths = LayerPaths()
        self._tracer = tracer
        self._session = session
        self._recorder = recorder
        self._scopes = session.scopes
        self._encodings = Encodings(ARGUMENTS)

    def watched(self, entry: Replacement) -> Callable[..., Any]:
        """What stands in for `Layer.__call__`."""
        original, recorder, scopes = entry.original, self._recorder, self._scopes

        def call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if not entry.is_on or scopes.hidden or not self._session.is_here():
                return original(layer, *args, **kwargs)
            if _is_symbolic(args, kwargs) or not context.executing_eagerly():
                return self._trace(original, layer, args, kwargs)
            if not scopes.modules and not recorder.steps.in_backward:
                self._session.begin_outermost(id(layer))
            if not recorder.capturing:
                return original(layer, *args, **kwargs)
            opened = recorder.guarded("layer", self._before, layer, args, kwargs, sys._getframe(1))
            if opened is None:
                return original(layer, *args, **kwargs)
            return self._run(opened, original, layer, args, kwargs)

        recorder.stacks.module_call = call_layer.__code__
        return call_layer

    def _trace(self, original: Callable[..., Any], layer: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """A layer is called while a graph is made, or only to learn the shapes of what it gives."""
        tracer, guarded = self._tracer, self._recorder.guarded
        if tracer.hidden or _is_symbolic(args, kwargs):
            with tracer.unseen():
                return original(layer, *args, **kwargs)
        scope = guarded("layer", self._scope_of, layer, args, kwargs)
        with tracer.inside(scope):
            result = original(layer, *args, **kwargs)
        if scope is not None:
            guarded("layer", self._note_results, scope, layer, result)
        return result

    def _scope_of(self, layer: Any, args: tuple[Any, ...], kwargs: Any) -> Scope:
        kind = type(layer)
        class_name = f"{kind.__module__}.{kind.__qualname__}"
        path = self.paths.of(layer, self._tracer.module)
        scope = self._tracer.open(Kind.MODULE, class_name, module=path, module_class=class_name)
        training = kwargs.get("training")
        placed, scope.arguments = SYMBOLIC_ARGUMENTS.to_text(
            args, kwargs, training if training in (True, False) else None
        )
        scope.symbols += symbols(INPUT, placed)
        return scope

    def _note_results(self, scope: Scope, layer: Any, result: Any) -> None:
        scope.symbols += symbols(OUTPUT, SYMBOLIC_ARGUMENTS.find_tensors(result, "output"))
        for role, trainable in ((PARAMETER, True), (BUFFER, False)):
            scope.held += [HeldUse(role, *named) for named in own_variables(layer, trainable=trainable)]

    def _run(
        self,
        opened: tuple[OpenCall, ModuleScope, Placed, str],
        original: Callable[..., Any],
        layer: Any,
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        call, scope, parameters, arguments = opened
        scopes, recorder = self._scopes, self._recorder
        modules, calls = len(scopes.modules), len(scopes.calls)
        scopes.modules.append(scope)
        scopes.calls.append(call)
        try:
            result = original(layer, *args, **kwargs)
        except BaseException as error:
            call.error = describe_error(error)
            recorder.guarded("layer", recorder.close, call, arguments)
            raise
        finally:
            del scopes.modules[modules:], scopes.calls[calls:]
        recorder.guarded("layer", self._after, layer, call, parameters, arguments, result)
        if not scopes.modules and scope.path:
            recorder.guarded("root", self._session.roots.note, layer, scope.path, sys._getframe(1))
        return result

    def _before(
        self, layer: Any, args: tuple[Any, ...], kwargs: Any, frame: FrameType
    ) -> tuple[OpenCall, ModuleScope, Placed, str]:
        recorder, scopes = self._recorder, self._scopes
        outer, kind = scopes.innermost, type(layer)
        class_name = f"{kind.__module__}.{kind.__qualname__}"
        scope = ModuleScope(self.paths.of(layer, outer.path), class_name, outer.stack)
        call = recorder.open(Kind.MODULE, class_name, scope, parent=scopes.parent, frame=frame)
        scope.stack = call.stack
        training = kwargs.get("training")
        placed, text = self._encodings.encode(args, kwargs, training=training if isinstance(training, bool) else None)
        parameters: Placed = []
        if call.wanted:
            recorder.use_all(call, INPUT, [*placed, *_arrays(args)])
            parameters = own_variables(layer, trainable=True)
            recorder.use_all(call, PARAMETER, parameters)
            recorder.use_all(call, BUFFER, own_variables(layer, trainable=False))
        return call, scope, parameters, text

    def _after(self, layer: Any, call: OpenCall, before: Placed, arguments: str, result: Any) -> None:
        if call.wanted:
            if not before:  # a layer that had to be built first has made its variables in this call
                self._recorder.use_all(call, PARAMETER, own_variables(layer, trainable=True))
            self._recorder.use_all(call, OUTPUT, ARGUMENTS.find_tensors(result, "output"))
        self._recorder.close(call, arguments)


def _arrays(args: tuple[Any, ...]) -> Placed:
    """Arrays of numpy's among a layer's arguments, of which it makes tensors itself."""
    arrays = ((f"args.{number}", one) for number, one in enumerate(args) if isinstance(one, np.ndarray))
    return [(place, array) for place, array in arrays if str(array.dtype) in DTYPES]


def _is_symbolic(args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether a layer is only being put into a model: nothing is computed then."""
    first = next(itertools.chain(args, kwargs.values()), None)
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, dict):
        first = next(iter(first.values()), None)
    return "KerasTensor" in type(first).__name__


def own_variables(layer: Any, *, trainable: bool) -> Placed:
    """A layer's own variables, not those of layers inside of it: names and handles."""
    names = ("_trainable_variables", "_trainable_weights") if trainable else (
        "_non_trainable_variables",
        "_non_trainable_weights",
    )  # fmt: skip
    known = next((getattr(layer, name) for name in names if hasattr(layer, name)), ())
    found: dict[str, Any] = {}
    for variable in known:
        handle = handle_of(variable)
        if handle is not None:
            found.setdefault(_own_name(variable), handle)
    return list(found.items())


def handle_of(variable: Any) -> Any:
    """The handle of the variable behind a Keras or TensorFlow variable; None before it is initialised."""
    inner = getattr(variable, "_value", variable)
    return getattr(inner, "_handle", None) if inner is not None else None


def _own_name(variable: Any) -> str:
    return str(variable.name).rpartition("/")[2].partition(":")[0]


class LayerPaths:
    """Knows where each layer is: by the attributes that hold it, or its name in a model made of a list."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._roots: list[tuple[weakref.ref[Any], str]] = []
        self._names: dict[int, str] = {}
        self._asked: set[int] = set()

    def add_root(self, root: Any, name: str | None = None) -> None:
        """Name a layer and everything in it."""
        name = name or self._root_name(root)
        self._roots = [(known, path) for known, path in self._roots if path != name]
        self._roots.append((weakref.ref(root), name))
        self._walk(root, name)

    def of(self, layer: Any, parent: str | None) -> str:
        """The path of a layer that is called inside of the one that has the parent's path."""
        known = self._find(layer)
        if known is None and parent is not None:
            for root, name in list(self._roots):  # layers that were added after the first call
                alive = root()
                if alive is not None:
                    self._walk(alive, name)
            known = self._find(layer)
        if known is None and parent is None:
            self.add_root(layer)
            known = self._find(layer)
        return known or f"{parent}.<{type(layer).__name__}>"

    def variable_names(self, handles: Iterable[Any]) -> dict[int, str]:
        """Full names of the variables of all roots, by the identity of their handles; these are looked for.

        All layers are gone through again for a handle that was not asked for before; its `_id` no other ever has.
        """
        asked = {handle._id for handle in handles}
        if not asked <= self._asked:
            self._asked |= asked
            self._names = self._find_names()
        return self._names

    def _find_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for root, path in self._roots:
            alive = root()
            for prefix, layer in inside(alive) if alive is not None else ():
                for trainable in (True, False):
                    for name, handle in own_variables(layer, trainable=trainable):
                        names.setdefault(id(handle), ".".join(part for part in (path, prefix, name) if part))
        return names

    def _find(self, layer: Any) -> str | None:
        entry = self._paths.get(id(layer))
        return entry[1] if entry is not None and entry[0]() is layer else None

    def _walk(self, root: Any, name: str) -> None:
        self._asked.clear()
        for path, layer in inside(root):
            self._paths[id(layer)] = (weakref.ref(layer), f"{name}.{path}" if path else name)

    def _root_name(self, root: Any) -> str:
        self._roots = [(ref, path) for ref, path in self._roots if ref() is not None]
        within = {id(layer) for _, layer in inside(root)}
        replaced = [path for ref, path in self._roots if id(ref()) in within]
        if not self._roots or ROOT in replaced:
            return ROOT
        taken, kind = {path for _, path in self._roots}, type(root).__name__
        names = itertools.chain([kind], (f"{kind}-{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in taken)


def inside(root: Any) -> Iterator[tuple[str, Any]]:
    """A layer and those inside of it, with their paths, each once."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield path, layer
        prefix = f"{path}." if path else ""
        waiting.extend((f"{prefix}{name}", child) for name, child in reversed(list(_children(layer))))


def _children(layer: Any) -> Iterator[tuple[str, Any]]:
    children = {id(child): child for child in layer._flatten_layers(include_self=False, recursive=False)}
    named: dict[int, str] = {}
    for name, held in vars(layer).items():
        if id(held) in children:
            named.setdefault(id(held), name.strip("_"))
        elif not name.startswith("_") and isinstance(held, (list, tuple)):
            for number, item in enumerate(held):
                if id(item) in children:
                    named.setdefault(id(item), f"{name}.{number}")
    for number, child in children.items():
        yield named.get(number, str(child.name)), child
