"""What passes no function mode: custom Functions, the autograd engine, namespaces, compiled code, the user's own calls.

Functions of the namespaces are written in Python, and recorded as one call with calls inside. Compiled callables run as
compiled: capture steps aside, and records them as one call. The user's own calls are variables as they are at one place
of the run, and their gradients when they come.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd import Function
from torch.overrides import _pop_mode, _push_mode

from ulpscope.capture.exceptions import describe_error
from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import GRAD_OUTPUT, INPUT, OpenCall
from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.torch.recorder import TorchRecorder
from ulpscope.capture.torch.tensors import encode_call
from ulpscope.capture.torch.watching.apis import Action, Api
from ulpscope.capture.torch.watching.calls import Before, CallWatcher
from ulpscope.capture.torch.watching.mode import WatchMode, mode_depth
from ulpscope.records.enums import Kind


class AutogradPatches:
    """What stands for Function.apply and the engine's entry while a capture runs."""

    def __init__(self, watcher: CallWatcher, mode: WatchMode, after_backward: Callable[[bool], None]) -> None:
        self._watcher = watcher
        self._mode = mode
        self._after_backward = after_backward
        self._api_of = functools.cache(_api_of)
        self.entries = (
            Replacement(Function, "apply", self._watched_apply),
            Replacement(torch.autograd, "_engine_run_backward", self._watched_engine),
            Replacement(torch.autograd.graph, "_engine_run_backward", self._watched_engine),
        )

    def _watched_apply(self, entry: Replacement) -> Any:
        """Records a custom Function; the torch calls inside it are calls of their own, with it as parent."""
        watcher, api_of, mode, found = self._watcher, self._api_of, self._mode, entry.found

        def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            original = found.__get__(None, cls)  # a classmethod in Python or in C, as torch's version has it
            unwatched = not entry.is_on or not watcher.records or mode_depth(mode) is None
            traced = torch._C._get_tracing_state() is not None
            if unwatched or traced or torch._C._functorch.peek_interpreter_stack() is not None:
                return original(*args, **kwargs)
            return watcher.watch(api_of(cls), Kind.API, original, args, kwargs)

        return classmethod(apply)

    def _watched_engine(self, entry: Replacement) -> Callable[..., Any]:
        run, engine = self.run_backward, entry.original

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            return run(engine, args, kwargs) if entry.is_on else engine(*args, **kwargs)

        return run_backward

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
            wanted = watcher.records
            known = args[:2] if wanted and is_outermost and len(args) > 1 else (None, None)
            watcher.guard(watcher.recorder.begin_backward, *known)
            if wanted and mode_depth(self._mode) is None:
                _push_mode(self._mode)
                missing = True
            return engine(*args, **kwargs)
        except BaseException as error:
            if watcher.scopes.backward is not None:  # the call that has started this pass
                watcher.scopes.backward.error = describe_error(error)
            raise
        finally:
            try:
                watcher.guard(watcher.recorder.end_backward)
            finally:
                if missing:
                    _pop_mode()
                steps.creates_graph = outer
                with lock:
                    steps.leave_backward(accumulates=accumulates, keeps_graph=keeps_graph)
                    is_last = not steps.in_backward
                    if is_last or begins_pass:
                        self._after_backward(is_last)


def _api_of(cls: type[Function]) -> Api:
    return Api(f"{cls.__module__}.{cls.__qualname__}", Action.RECORD, may_write=True, may_draw=False)


NAMESPACES = ("torch.masked", "torch.signal.windows")


def replaced_namespaces(watcher: CallWatcher, mode: WatchMode) -> Replacements:
    """The public functions of these namespaces; to look for them is to import them."""

    def watched(name: str, entry: Replacement) -> Callable[..., Any]:
        api, function = Api(name, Action.RECORD), entry.original

        @functools.wraps(function)
        def watch(*args: Any, **kwargs: Any) -> Any:
            if not entry.is_on or not watcher.records or mode_depth(mode) is None:
                return function(*args, **kwargs)
            return watcher.watch(api, Kind.API, function, args, kwargs)

        return watch

    modules = [importlib.import_module(namespace) for namespace in NAMESPACES]
    return Replacements(
        *(
            Replacement(module, name, functools.partial(watched, f"{module.__name__}.{name}"))
            for module in modules
            for name in module.__all__
            if inspect.isfunction(getattr(module, name))
        )
    )


def record_own_call(watcher: CallWatcher, op: str, name: str, content: Any, gradients: bool) -> None:
    """A call `name.N` of operation `op` that reads the tensors in `content`, which the user hands over."""
    recorder, scopes = watcher.recorder, watcher.scopes
    call = recorder.open(Kind.API, op, scopes.innermost, parent=scopes.parent, called=name)
    tensors, encoded = encode_call((content,), {})
    if call.wanted:
        recorder.use_all(call, INPUT, tensors)
    recorder.close(call, to_json(encoded))
    if gradients and call.wanted:
        see = _Gradients(recorder, call, name).of
        for place, tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(see(place))


class _Gradients:
    """The backward of one such call: begun by the first gradient of a backward pass."""

    def __init__(self, recorder: TorchRecorder, forward: OpenCall, name: str) -> None:
        self._recorder = recorder
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
                call = self._recorder.open_backward(Kind.BACKWARD, self._forward, called=self._name)
                self._recorder.close(call)
                self._task, self._call = task, call
            self._recorder.use(self._call, GRAD_OUTPUT, place, gradient)


_DYNAMO = "torch._dynamo.eval_frame"
_WRAPPERS = ("compile_wrapper", "_fn")


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calling this module runs compiled code."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    dynamo = sys.modules.get(_DYNAMO)
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


class EagerForm:
    """Lets compiled callables run their eager form while a capture runs."""

    def __init__(self) -> None:
        self._stance: Any = None

    def install(self) -> None:
        self._stance = torch.compiler.set_stance("force_eager")

    def uninstall(self) -> None:
        self._stance.__exit__(None, None, None)


class _Running(NamedTuple):
    """A compiled function that runs."""

    frame: FrameType
    api: Api
    before: Before | None
    suspension: AbstractContextManager[None]


class CompiledFunctions:
    """Steps aside whenever a compiled function runs, however and whenever it was compiled.

    The wrapper that torch.compile makes of a function sets the frame evaluator before it runs the function, and resets
    it after; both go through one function of dynamo's. Its caller's frame tells what is being called.
    """

    def __init__(self, watcher: CallWatcher, *, steps_aside: Callable[[], bool]) -> None:
        self._watcher = watcher
        self._steps_aside = steps_aside
        self._entry = Replacement(torch, "compile", self._compiling)
        self._set_evaluator: Callable[..., Any] | None = None
        self._running: list[_Running] = []

    def install(self) -> None:
        self._entry.install()
        if _DYNAMO in sys.modules:
            self._intercept()

    def uninstall(self) -> None:
        self._entry.uninstall()
        if self._set_evaluator is not None:
            sys.modules[_DYNAMO]._maybe_set_eval_frame = self._set_evaluator  # type: ignore[attr-defined]
            self._set_evaluator = None

    def _compiling(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        @functools.wraps(original)
        def compile_unwatched(*args: Any, **kwargs: Any) -> Any:
            if not entry.is_on:
                return original(*args, **kwargs)
            import torch._dynamo.eval_frame  # noqa: F401

            self._intercept()
            # What is compiled keeps a reference to nn.Module.__call__: it must be torch's own.
            with self._watcher.suspended():
                return original(*args, **kwargs)

        return compile_unwatched

    def _intercept(self) -> None:
        dynamo: Any = sys.modules[_DYNAMO]
        if self._set_evaluator is not None:
            return
        self._set_evaluator = original = dynamo._maybe_set_eval_frame

        def set_evaluator(callback: Any) -> Any:
            frame = sys._getframe(1)
            if self._running and self._running[-1].frame is frame:
                set_back = original(callback)
                self._leave(self._running.pop())
                return set_back
            if frame.f_code.co_name in _WRAPPERS and callable(callback) and self._steps_aside():
                self._enter(frame)
            return original(callback)

        dynamo._maybe_set_eval_frame = set_evaluator

    def _enter(self, frame: FrameType) -> None:
        function, args, kwargs = (frame.f_locals.get(name) for name in ("fn", "args", "kwargs"))
        original = getattr(function, "_torchdynamo_orig_callable", function)
        name = f"{getattr(original, '__module__', '?')}.{getattr(original, '__qualname__', repr(original))}"
        api = Api(name, Action.RECORD, may_write=True)
        before = self._watcher.begin(api, Kind.COMPILED, args or (), kwargs or {}) if self._watcher.records else None
        suspension = self._watcher.suspended()
        suspension.__enter__()
        self._running.append(_Running(frame, api, before, suspension))

    def _leave(self, running: _Running) -> None:
        running.suspension.__exit__(None, None, None)
        if running.before is None:
            return
        recorder = self._watcher.recorder
        recorder.unobserved("compiled")
        recorder.values.forget_all()
        seen = running.frame.f_locals
        if "result" in seen:
            self._watcher.end(running.api, running.before, seen["args"], seen["kwargs"], seen["result"])
        else:
            self._watcher.fail(running.before, "the compiled function raised")
