"""The modes: they see every torch function, Tensor method, property and operator that Python calls.

At level kernel a second one sees every ATen operator, with the API call that caused it as parent, in backward too. At
level module, modules of torch's own in which nothing is to be seen run without: it would cost each of their calls, and
these write into nothing and hand no memory out.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode

from ulpscope.capture.torch.watching.apis import Action, Api, ApiTable, starts_collective
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.operations.registry import Trait, is_collective, operation
from ulpscope.records.enums import Kind

# Names of one's own: an enum answers slowly for its members.
_PASS, _EXPOSE, _BACKWARD, _API = Action.PASS, Action.EXPOSE, Action.BACKWARD, Kind.API


class WatchMode(TorchFunctionMode):
    """Hands operations to the watcher; everything else passes."""

    def __init__(self, watcher: CallWatcher) -> None:
        super().__init__()
        self._apis = ApiTable()
        self._watcher = watcher

    def answer_by(self, dispatch: Callable[..., Any]) -> None:
        """Let somebody else answer; he comes back to us for what is out of the ordinary."""
        # torch wants a method of the mode's own.
        self.__torch_function__ = MethodType(dispatch, self)  # type: ignore[method-assign]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        known = len(self._apis)
        asked = self._apis.find(func, sys._getframe(1))
        if len(self._apis) > known:
            self._watcher.recorder.add_api(func, asked)
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
        if not watcher.records or torch._C._get_tracing_state() is not None:
            return function(*args, **kwargs)
        if api.action is _BACKWARD:
            if not watcher.scopes.calls or not watcher.recorder.steps.in_backward:
                watcher.guard(watcher.record_loss, api, args, kwargs)
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


_FUNCTIONS: Mapping[str, str] = {
    "Linear": "linear",
    "LayerNorm": "layer_norm",
    "RMSNorm": "rms_norm",
    "GroupNorm": "group_norm",
    "Embedding": "embedding",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "GELU": "gelu",
    "SiLU": "silu",
    "ReLU": "relu",
    "Dropout": "dropout",
}
_KNOWN = {
    getattr(nn, kind): (getattr(nn, kind).forward, name, getattr(functional, name)) for kind, name in _FUNCTIONS.items()
}
"""What a class did when torch was imported: its forward, and the one function that this calls."""


def is_bare(module: nn.Module) -> bool:
    """Whether this is such a module, and nothing of the run's own happens in it."""
    kind = type(module)
    forward, name, function = _KNOWN.get(kind, (None, "", None))
    if forward is None or kind.forward is not forward or "forward" in module.__dict__:
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    if getattr(functional, name) is not function or _has_any_global_hook():
        return False
    return not torch._C._len_torch_dispatch_stack() and _top_saved_tensors_default_hooks(True) is None


def run_without(
    mode: TorchFunctionMode, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Run a module with a mode off the stack, if it is the innermost one."""
    depth = torch._C._len_torch_function_stack()
    if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:
        return original(module, *args, **kwargs)
    _pop_mode()
    try:
        return original(module, *args, **kwargs)
    finally:
        _push_mode(mode)


class KernelMode(TorchDispatchMode):
    """Records operators below autograd."""

    def __init__(self, watcher: CallWatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watcher = watcher
        self._api_of = functools.cache(_describe)
        self._is_off = False

    def take_off(self) -> bool:
        """Leave the stack of modes; only the mode on top can."""
        top = torch._C._len_torch_dispatch_stack() - 1
        if not self._is_off and top >= 0 and torch._C._get_dispatch_stack_at(top) is self:
            self.__exit__(None, None, None)
            self._is_off = True
        return self._is_off

    def put_back(self) -> None:
        if self._is_off:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._is_off = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and _is_composite(func):
            return self._decompose(func, args, kwargs)
        # In backward the function mode is on the stack: an operator called from here is not the user's call.
        with torch._C.DisableTorchFunction():
            if not self._watcher.recorder.capturing:
                return func(*args, **kwargs)
            return self._watcher.watch_kernel(self._api_of(func), func, args, kwargs)

    def _decompose(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let a composite operator choose its parts as it would without a mode.

        In inference mode composites reach us whole, with the key excluded that tells views of parameters apart; matmul
        then folds differently, and other kernels run.
        """
        included = torch._C._dispatch_tls_local_include_set()
        excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.ADInplaceOrView)
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        if any(returned.alias_info is not None for returned in func._schema.returns):
            with torch._C.DisableTorchFunction(), self:  # with that key, it could not return views
                return func._op_dk(composite, *args, **kwargs)
        with torch._C.DisableTorchFunction(), torch._C._ForceDispatchKeyGuard(included, excluded), self:
            return func._op_dk(composite, *args, **kwargs)


def _is_composite(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or not func._can_decompose():
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _describe(func: Any) -> Api:
    name = str(func)
    schema = func._schema
    base = func._opname if hasattr(func, "_opname") else name.split(".")[1]
    writes = schema.is_mutable
    return Api(
        name,
        Action.RECORD,
        in_place=writes and base.endswith("_"),
        may_write=writes or not name.startswith("aten.") or "batch_norm" in base,
        may_draw=torch.Tag.nondeterministic_seeded in func.tags,
        uninitialized=operation(base).has(Trait.UNWRITTEN),
        computed_later=starts_collective(name),
        waits="wait_tensor" in name,
        collective=is_collective(name),
    )
