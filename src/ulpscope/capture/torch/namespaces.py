"""Functions of torch that are written in Python and pass no function mode: recorded as one call, with calls inside."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ulpscope.capture.torch.apis import Action, Api
from ulpscope.capture.torch.mode import WatchMode, mode_depth
from ulpscope.capture.torch.replacing import Replacement
from ulpscope.capture.torch.watching import CallWatcher
from ulpscope.records.enums import Kind

NAMESPACES = ("torch.masked", "torch.signal.windows")


class NamespacePatches:
    """Replaces the public functions of these namespaces while a capture runs."""

    def __init__(self, watcher: CallWatcher, mode: WatchMode) -> None:
        self._watcher = watcher
        self._mode = mode
        self._entries: list[Replacement] = []

    def install(self) -> None:
        if not self._entries:
            self._entries = [entry for namespace in NAMESPACES for entry in self._entries_of(namespace)]
        for entry in self._entries:
            entry.install()

    def uninstall(self) -> None:
        for entry in self._entries:
            entry.uninstall()

    def _entries_of(self, namespace: str) -> Iterator[Replacement]:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield Replacement(module, name, functools.partial(self._watched, f"{namespace}.{name}"))

    def _watched(self, name: str, entry: Replacement) -> Callable[..., Any]:
        api = Api(name, Action.RECORD)
        watcher, function = self._watcher, entry.original

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            unwatched = not watcher.recorder.capturing or watcher.scopes.hidden or mode_depth(self._mode) is None
            if unwatched or not entry.is_on:
                return function(*args, **kwargs)
            return watcher.watch(api, Kind.API, function, args, kwargs)

        return watched
