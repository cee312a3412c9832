"""Custom autograd Functions and the autograd engine: neither passes through the function mode by itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function
from torch.overrides import _pop_mode, _push_mode

from ulpscope.capture.torch.apis import Action, Api
from ulpscope.capture.torch.mode import WatchMode, mode_depth
from ulpscope.capture.torch.replacing import Replacement
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.records.enums import Kind


class AutogradPatches:
    """Replaces Function.apply and the engine's entry while a capture runs."""

    def __init__(self, watcher: CallWatcher, mode: WatchMode, after_backward: Callable[[bool], None]) -> None:
        self._watcher = watcher
        self._mode = mode
        self._after_backward = after_backward
        self._apis: dict[type, Api] = {}
        self._entries = (
            Replacement(Function, "apply", self._watched_apply),
            Replacement(torch.autograd, "_engine_run_backward", self._watched_engine),
            Replacement(torch.autograd.graph, "_engine_run_backward", self._watched_engine),
        )

    def install(self) -> None:
        for entry in self._entries:
            entry.install()

    def uninstall(self) -> None:
        for entry in self._entries:
            entry.uninstall()

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
