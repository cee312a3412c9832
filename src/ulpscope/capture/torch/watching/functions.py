"""What passes no function mode: custom autograd Functions, the autograd engine, namespaces, and the user's own calls.

Functions of the namespaces are written in Python, and recorded as one call with calls inside. The user's own calls are
variables as they are at one place of the run, and their gradients when they come.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import Function
from torch.overrides import _pop_mode, _push_mode

from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import GRAD_OUTPUT, INPUT, OpenCall
from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.torch.arguments import encode_call
from ulpscope.capture.torch.watching.apis import Action, Api
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.capture.torch.watching.mode import WatchMode, mode_depth
from ulpscope.records.enums import Kind


class AutogradPatches(Replacements):
    """Replaces Function.apply and the engine's entry while a capture runs."""

    def __init__(self, watcher: CallWatcher, mode: WatchMode, after_backward: Callable[[bool], None]) -> None:
        self._watcher = watcher
        self._mode = mode
        self._after_backward = after_backward
        self._apis: dict[type, Api] = {}
        super().__init__(
            Replacement(Function, "apply", self._watched_apply),
            Replacement(torch.autograd, "_engine_run_backward", self._watched_engine),
            Replacement(torch.autograd.graph, "_engine_run_backward", self._watched_engine),
        )

    def _watched_apply(self, entry: Replacement) -> Any:
        patches, found = self, entry.found

        def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            original = found.__get__(None, cls)  # a classmethod in Python or in C, as torch's version has it
            return patches.apply(original, cls, args, kwargs) if entry.is_on else original(*args, **kwargs)

        return classmethod(apply)

    def _watched_engine(self, entry: Replacement) -> Callable[..., Any]:
        run, engine = self.run_backward, entry.original

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            return run(engine, args, kwargs) if entry.is_on else engine(*args, **kwargs)

        return run_backward

    def apply(
        self, original: Callable[..., Any], cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a custom Function; the torch calls inside it are calls of their own, with it as parent."""
        watcher = self._watcher
        unwatched = not watcher.recorder.capturing or watcher.scopes.hidden or mode_depth(self._mode) is None
        traced = torch._C._get_tracing_state() is not None
        if unwatched or traced or torch._C._functorch.peek_interpreter_stack() is not None:
            return original(*args, **kwargs)
        return watcher.watch(self._api(cls), Kind.API, original, args, kwargs)

    def run_backward(self, engine: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the engine, and note where the pass begins and ends that it belongs to."""
        recorder = self._watcher.recorder
        steps = recorder.steps
        if steps.backward_pass is not None:
            return self._run_engine(engine, args, kwargs, begins_pass=False)
        running = steps.begin_pass()
        try:
            result = self._run_engine(engine, args, kwargs, begins_pass=True)
        finally:
            steps.end_pass()
            interruption = recorder.postponed.pop(running, None)
        if interruption is not None:
            raise interruption
        return result

    def _run_engine(
        self, engine: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, begins_pass: bool
    ) -> Any:
        """With the mode on the stack: Tensor.backward takes it off."""
        watcher = self._watcher
        steps, lock = watcher.recorder.steps, watcher.recorder.lock
        # (tensors, gradients, keep_graph, create_graph, inputs, ...), as torch itself calls it
        keeps_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keep_graph", False))
        accumulates = bool(kwargs.get("accumulate_grad", False))
        creates_graph = bool(args[3]) if len(args) > 3 else bool(kwargs.get("create_graph", False))
        missing = False
        with lock:  # no backward begins in another thread while what the last ones have left is recorded
            outer, is_outermost = steps.creates_graph, not steps.in_backward
            steps.enter_backward()
        try:
            steps.creates_graph = creates_graph
            wanted = watcher.recorder.capturing and not watcher.scopes.hidden
            is_known = wanted and is_outermost and len(args) > 1
            watcher.begin_backward(args[0] if is_known else None, args[1] if is_known else None)
            if wanted and mode_depth(self._mode) is None:
                _push_mode(self._mode)
                missing = True
            return engine(*args, **kwargs)
        except BaseException as error:
            watcher.backward_failed(error)
            raise
        finally:
            try:
                watcher.end_backward()
            finally:
                if missing:
                    _pop_mode()
                steps.creates_graph = outer
                with lock:
                    steps.leave_backward(accumulates=accumulates, keeps_graph=keeps_graph)
                    is_last = not steps.in_backward
                    if is_last or begins_pass:
                        self._after_backward(is_last)

    def _api(self, cls: type[Function]) -> Api:
        api = self._apis.get(cls)
        if api is None:
            name = f"{cls.__module__}.{cls.__qualname__}"
            api = self._apis[cls] = Api(name, Action.RECORD, may_write=True, may_draw=False)
        return api


NAMESPACES = ("torch.masked", "torch.signal.windows")


class NamespacePatches(Replacements):
    """Replaces the public functions of these namespaces while a capture runs."""

    def __init__(self, watcher: CallWatcher, mode: WatchMode) -> None:
        self._watcher = watcher
        self._mode = mode
        super().__init__()

    def install(self) -> None:
        if not self._entries:  # to look for them is to import them
            super().__init__(*(entry for namespace in NAMESPACES for entry in self._entries_of(namespace)))
        super().install()

    def _entries_of(self, namespace: str) -> Iterator[Replacement]:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield Replacement(module, name, functools.partial(self._watched, f"{namespace}.{name}"))

    def _watched(self, name: str, entry: Replacement) -> Callable[..., Any]:
        api = Api(name, Action.RECORD)
        watcher, function = self._watcher, entry.original

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            unwatched = not watcher.recorder.capturing or watcher.scopes.hidden or mode_depth(self._mode) is None
            if unwatched or not entry.is_on:
                return function(*args, **kwargs)
            return watcher.watch(api, Kind.API, function, args, kwargs)

        return watched


class CustomCalls:
    """Records what the user hands over."""

    def __init__(self, watcher: CallWatcher) -> None:
        self._watcher = watcher
        self._recorder = watcher.recorder

    def record(self, op: str, name: str, content: Any, *, gradients: bool) -> None:
        """A call `name.N` of operation `op` that reads the tensors in `content`."""
        self._recorder.guarded(f"record {name}", self._record, op, name, content, gradients)

    def _record(self, op: str, name: str, content: Any, gradients: bool) -> None:
        scopes = self._watcher.scopes
        call = self._recorder.open(
            Kind.API,
            op,
            module=scopes.module,
            module_class=scopes.module_class,
            parent=scopes.parent,
            called=name,
        )
        tensors, encoded = encode_call((content,), {})
        if call.wanted:
            self._recorder.use_all(call, INPUT, tensors)
        self._recorder.close(call, to_json(encoded))
        if gradients and call.wanted:
            see = _Gradients(self._watcher, call, name).of
            for place, tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(see(place))


class _Gradients:
    """The backward of one such call: begun by the first gradient of a backward pass."""

    def __init__(self, watcher: CallWatcher, forward: OpenCall, name: str) -> None:
        self._recorder = watcher.recorder
        self._forward = forward
        self._name = name
        self._task = -1
        self._call: OpenCall | None = None

    def of(self, place: str) -> Callable[[torch.Tensor], None]:
        def see(gradient: torch.Tensor) -> None:
            if self._recorder.capturing:
                self._recorder.guarded_in_hook(f"gradient of {self._name}", self._use, place, gradient)

        return see

    def _use(self, place: str, gradient: torch.Tensor) -> None:
        task = torch._C._current_graph_task_id()
        with self._recorder.lock:
            if self._call is None or task != self._task:
                self._task, self._call = task, self._open()
            self._recorder.use(self._call, GRAD_OUTPUT, place, gradient)

    def _open(self) -> OpenCall:
        call = self._recorder.open_backward(Kind.BACKWARD, self._forward, called=self._name)
        self._recorder.close(call)
        return call
