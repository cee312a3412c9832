"""Functions of torch that are written in Python and pass no function mode: recorded as one call, with calls inside."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ulpscope.capture.torch.apis import Action, Api
from ulpscope.capture.torch.mode import WatchMode, mode_depth
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.records.enums import Kind

NAMESPACES = ("torch.masked", "torch.signal.windows")


class NamespacePatches:
    """Replaces the public functions of these namespaces while a capture runs."""

    def __init__(self, watcher: CallWatcher, mode: WatchMode) -> None:
        self._watcher = watcher
        self._mode = mode
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []

    def install(self) -> None:
        for namespace in NAMESPACES:
            module = importlib.import_module(namespace)
            for name in module.__all__:
                function = getattr(module, name)
                if inspect.isfunction(function):
                    self._originals.append((module, name, function))
                    setattr(module, name, self._watched(f"{namespace}.{name}", function))

    def uninstall(self) -> None:
        for module, name, function in self._originals:
            setattr(module, name, function)
        self._originals.clear()

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        api = Api(name, Action.RECORD)
        watcher = self._watcher

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not watcher.recorder.capturing or watcher.scopes.hidden or mode_depth(self._mode) is None:
                return function(*args, **kwargs)
            return watcher.watch(api, Kind.API, function, args, kwargs)

        return watched
