"""Calls of the user's own making: variables as they are at one place of the run, and their gradients when they come."""

from collections.abc import Callable
from typing import Any

import torch

from ulpscope.capture.torch.arguments import encode_call, to_json
from ulpscope.capture.torch.guard import guarded, guarded_in_hook
from ulpscope.capture.torch.recorder import GRAD_OUTPUT, INPUT, OpenCall
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.records.enums import Kind


class CustomCalls:
    """Records what the user hands over."""

    def __init__(self, watcher: CallWatcher) -> None:
        self._watcher = watcher
        self._recorder = watcher.recorder

    def record(self, op: str, name: str, content: Any, *, gradients: bool) -> None:
        """A call `name.N` of operation `op` that reads the tensors in `content`."""
        guarded(self._recorder, f"record {name}", self._record, op, name, content, gradients)

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
                guarded_in_hook(self._recorder, f"gradient of {self._name}", self._use, place, gradient)

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
