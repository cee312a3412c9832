"""Kernel level: every ATen operator, with the API call that caused it as parent, in backward too."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ulpscope.capture.torch.apis import Action, Api, starts_collective
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait


class KernelMode(TorchDispatchMode):
    """Records operators below autograd."""

    def __init__(self, watcher: CallWatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watcher = watcher
        self._apis: dict[Any, Api] = {}
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
            return self._watcher.watch_kernel(self._api(func), func, args, kwargs)

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

    def _api(self, func: Any) -> Api:
        api = self._apis.get(func)
        if api is None:
            api = self._apis[func] = _describe(func)
        return api


def _is_composite(func: Any) -> bool:
    return (
        isinstance(func, torch._ops.OpOverload)
        and func._can_decompose()
        and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


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
        collective=name.startswith(("c10d.", "_c10d_functional.")),
    )
