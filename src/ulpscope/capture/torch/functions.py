"""Custom autograd Functions and the autograd engine: neither passes through the function mode by itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function
from torch.overrides import _pop_mode, _push_mode

from ulpscope.capture.torch.apis import Action, Api
from ulpscope.capture.torch.mode import WatchMode, mode_depth
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.records.enums import Kind


class AutogradPatches:
    """Replaces Function.apply and the engine's entry while a capture runs."""

    def __init__(self, watcher: CallWatcher, mode: WatchMode, after_backward: Callable[[bool], None]) -> None:
        self._watcher = watcher
        self._mode = mode
        self._after_backward = after_backward
        self._apply = Function.__dict__["apply"]
        self._engine = torch.autograd.graph._engine_run_backward
        self._apis: dict[type, Api] = {}

    def install(self) -> None:
        patches = self

        def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            return patches.apply(cls, args, kwargs)

        Function.apply = classmethod(apply)  # type: ignore[assignment]
        torch.autograd._engine_run_backward = self.run_backward  # type: ignore[attr-defined]
        torch.autograd.graph._engine_run_backward = self.run_backward

    def uninstall(self) -> None:
        Function.apply = self._apply  # type: ignore[method-assign]
        torch.autograd._engine_run_backward = self._engine  # type: ignore[attr-defined]
        torch.autograd.graph._engine_run_backward = self._engine

    def apply(self, cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a custom Function; the torch calls inside it are calls of their own, with it as parent."""
        watcher = self._watcher
        original = self._apply.__get__(None, cls)  # a classmethod in Python or in C, as torch's version has it
        unwatched = not watcher.recorder.capturing or watcher.scopes.hidden or mode_depth(self._mode) is None
        traced = torch._C._get_tracing_state() is not None
        if unwatched or traced or torch._C._functorch.peek_interpreter_stack() is not None:
            return original(*args, **kwargs)
        return watcher.watch(self._api(cls), Kind.API, original, args, kwargs)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the engine with the mode on the stack (Tensor.backward takes it off), and note where backward ends."""
        watcher = self._watcher
        steps, lock = watcher.recorder.steps, watcher.recorder.lock
        begins_pass = steps.backward_pass is None
        if begins_pass:
            steps.begin_pass()
        with lock:  # no backward begins in another thread while what the last ones have left is recorded
            outer, is_outermost = steps.creates_graph, not steps.in_backward
            steps.enter_backward()
        # (tensors, gradients, keep_graph, create_graph, inputs, ...), as torch itself calls it
        keeps_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keep_graph", False))
        accumulates = bool(kwargs.get("accumulate_grad", False))
        steps.creates_graph = bool(args[3]) if len(args) > 3 else bool(kwargs.get("create_graph", False))
        wanted = watcher.recorder.capturing and not watcher.scopes.hidden
        missing = wanted and mode_depth(self._mode) is None
        is_known = wanted and is_outermost and len(args) > 1
        watcher.begin_backward(args[0] if is_known else None, args[1] if is_known else None)
        if missing:
            _push_mode(self._mode)
        try:
            return self._engine(*args, **kwargs)
        except BaseException as error:
            watcher.backward_failed(error)
            raise
        finally:
            watcher.end_backward()
            if missing:
                _pop_mode()
            steps.creates_graph = outer
            with lock:
                steps.leave_backward(accumulates=accumulates, keeps_graph=keeps_graph)
                is_last = not steps.in_backward
                if is_last or begins_pass:
                    self._after_backward(is_last)
            if begins_pass:
                steps.end_pass()

    def _api(self, cls: type[Function]) -> Api:
        api = self._apis.get(cls)
        if api is None:
            name = f"{cls.__module__}.{cls.__qualname__}"
            api = self._apis[cls] = Api(name, Action.RECORD, may_write=True, may_draw=False)
        return api
