"""Memory that is handed out while no mode looks on: in steps that are not recorded, and in optimizers."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ulpscope.capture.torch.apis import EXPOSING
from ulpscope.capture.torch.watching import CallWatcher


class ExposurePatches:
    """Replaces the methods of Tensor that hand memory out while the function mode is off the stack."""

    def __init__(self, watcher: CallWatcher, *, here: Callable[[], bool]) -> None:
        self._watcher = watcher
        self._here = here
        self._inherited: list[str] = []
        self._own: dict[str, Any] = {}
        self._known: dict[str, tuple[Any, Callable[..., Any]]] = {}
        """Methods, and what stands in for them: to make these takes longer than to put them there."""

    @property
    def is_installed(self) -> bool:
        return bool(self._own or self._inherited)

    def install(self) -> None:
        for name in EXPOSING:
            if name in torch.Tensor.__dict__:
                self._own[name] = torch.Tensor.__dict__[name]
            else:
                self._inherited.append(name)
            method = getattr(torch.Tensor, name)
            known, noticed = self._known.get(name, (None, method))
            if known is not method:
                noticed = self._noticed(method)
                self._known[name] = method, noticed
            setattr(torch.Tensor, name, noticed)

    def uninstall(self) -> None:
        for name in self._inherited:
            delattr(torch.Tensor, name)
        for name, method in self._own.items():
            setattr(torch.Tensor, name, method)
        self._inherited.clear()
        self._own.clear()

    def _noticed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def hand_out(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # Our own work asks for memory, too, also to note this one: it is quiet.
            if not torch._C._is_torch_function_all_disabled() and self._here():
                self._watcher.expose((tensor,))
            return method(tensor, *args, **kwargs)

        return hand_out
