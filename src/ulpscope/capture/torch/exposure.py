"""Memory that is handed out while no mode looks on: in steps that are not recorded, and in optimizers."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ulpscope.capture.torch.replacing import Replacement
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.operations.registry import names_with
from ulpscope.operations.traits import Trait


class ExposurePatches:
    """Replaces the methods of Tensor that hand memory out while the function mode is off the stack."""

    def __init__(self, watcher: CallWatcher, *, here: Callable[[], bool]) -> None:
        self._watcher = watcher
        self._here = here
        self._entries = [Replacement(torch.Tensor, name, self._noticed) for name in names_with(Trait.EXPOSING)]

    @property
    def is_installed(self) -> bool:
        return self._entries[0].is_on

    def install(self) -> None:
        for entry in self._entries:
            entry.install()

    def uninstall(self) -> None:
        for entry in self._entries:
            entry.uninstall()

    def _noticed(self, entry: Replacement) -> Callable[..., Any]:
        method = entry.original

        @functools.wraps(method)
        def hand_out(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # Our own work asks for memory, too, also to note this one: it is quiet.
            if entry.is_on and not torch._C._is_torch_function_all_disabled() and self._here():
                self._watcher.expose((tensor,))
            return method(tensor, *args, **kwargs)

        return hand_out
