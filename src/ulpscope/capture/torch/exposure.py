"""Memory that is handed out in steps that are not recorded, when no mode looks on."""

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
        self._noting = False

    def install(self) -> None:
        for name in EXPOSING:
            if name in torch.Tensor.__dict__:
                self._own[name] = torch.Tensor.__dict__[name]
            else:
                self._inherited.append(name)
            setattr(torch.Tensor, name, self._noticed(getattr(torch.Tensor, name)))

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
            if not self._noting and self._here():
                self._note(tensor)
            return method(tensor, *args, **kwargs)

        return hand_out

    def _note(self, tensor: torch.Tensor) -> None:
        self._noting = True  # to look at a storage, its tensor is asked for it
        try:
            self._watcher.expose((tensor,))
        finally:
            self._noting = False
