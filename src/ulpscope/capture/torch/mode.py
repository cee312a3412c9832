"""The function mode: sees every torch function, Tensor method, property and operator that Python calls."""

import sys
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from ulpscope.capture.torch.apis import Action, ApiTable
from ulpscope.capture.torch.host.part import Host
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.records.enums import Kind

# Names of one's own: an enum answers slowly for its members.
_PASS, _EXPOSE, _BACKWARD, _API = Action.PASS, Action.EXPOSE, Action.BACKWARD, Kind.API


class WatchMode(TorchFunctionMode):
    """Hands operations to the watcher; everything else passes."""

    def __init__(self, watcher: CallWatcher) -> None:
        super().__init__()
        self._apis = ApiTable()
        self._watcher = watcher
        self._host: Host | None = None

    def use_host(self, host: Host) -> None:
        """Let the compiled host part answer; it comes back here for what is out of the ordinary."""
        if self._host is host:  # it answers already, and would come back to itself
            return
        self._host = host
        host.set_mode(self.__torch_function__, self._watcher.records_calls)
        # torch wants a method of the mode's own.
        self.__torch_function__ = MethodType(host.dispatch, self)  # type: ignore[method-assign]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        known = len(self._apis)
        asked = self._apis.find(func, sys._getframe(1))
        if self._host is not None and len(self._apis) > known:
            self._host.add_api(func, asked)
        api, function, _ = asked
        if api.action is _PASS:
            return function(*args, **kwargs) if kwargs else function(*args)
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        watcher = self._watcher
        if api.action is _EXPOSE:
            watcher.expose(args)
            return function(*args, **kwargs)
        if not watcher.recorder.capturing or watcher.scopes.hidden or torch._C._get_tracing_state() is not None:
            return function(*args, **kwargs)
        if api.action is _BACKWARD:
            if not watcher.scopes.calls or not watcher.recorder.steps.in_backward:
                watcher.record_loss(api, args, kwargs)
            return function(*args, **kwargs)
        return watcher.watch(api, _API, function, args, kwargs)


def mode_depth(mode: TorchFunctionMode) -> int | None:
    """How many modes stand below this one; None if it is not on this thread's stack."""
    for depth in range(torch._C._len_torch_function_stack()):
        if torch._C._get_function_stack_at(depth) is mode:
            return depth
    return None


def remove_mode(mode: TorchFunctionMode) -> int | None:
    """Take a mode out from between the others; gives its depth."""
    depth = mode_depth(mode)
    if depth is not None:
        above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack() - depth)]
        for other in reversed(above[:-1]):
            _push_mode(other)
    return depth


def insert_mode(mode: TorchFunctionMode, depth: int) -> None:
    """Put a mode back where it was."""
    above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack() - depth)]
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)
