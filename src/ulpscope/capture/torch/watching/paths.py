"""Dotted paths of modules, found from the roots that the run calls."""

import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

ROOT = "model"


class ModulePaths:
    """Knows where each module is."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._roots: list[tuple[weakref.ref[nn.Module], str]] = []
        self._parameter_names: dict[int, str] = {}
        self._named_parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        """Those that were asked for last."""

    def add_root(self, root: nn.Module, name: str | None = None) -> str:
        """Name a module and everything in it."""
        name = name or self._root_name(root)
        self._roots = [(known, path) for known, path in self._roots if path != name]
        self._roots.append((weakref.ref(root), name))
        self._named_parameters = {}
        self._walk(root, name)
        return name

    def of(self, module: nn.Module, parent: str | None, frame: FrameType) -> str:
        """The path of a module that is called from this frame, inside of the module that has the parent's path."""
        known = self._find(module)
        if known is None and parent is not None:
            for root, name in self._roots:  # modules that were added after the first call
                alive = root()
                if alive is not None:
                    self._walk(alive, name)
            known = self._find(module)
        if known is None and parent is None:
            self.add_root(_whole(module, frame))
            known = self._find(module)
        return known or f"{parent}.<{type(module).__name__}>"

    def parameter_names(self, parameters: Iterable[torch.Tensor]) -> dict[int, str]:
        """Full names of the parameters of all roots, by identity; these parameters' own are wanted."""
        named = self._named_parameters
        if not all((known := named.get(id(wanted))) is not None and known() is wanted for wanted in parameters):
            names = self._find_parameter_names()
            self._named_parameters = {id(wanted): weakref.ref(wanted) for wanted in parameters if id(wanted) in names}
            self._parameter_names = {number: names[number] for number in self._named_parameters}
        return self._parameter_names

    def _find_parameter_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for root, path in self._roots:
            alive = root()
            for prefix, module in _inside(alive) if alive is not None else ():
                for name, parameter in module._parameters.items():
                    if parameter is not None:
                        names.setdefault(id(parameter), f"{path}.{prefix}.{name}" if prefix else f"{path}.{name}")
        return names

    def _find(self, module: nn.Module) -> str | None:
        entry = self._paths.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def _walk(self, root: nn.Module, name: str) -> None:
        for path, module in _inside(root):
            self._paths[id(module)] = (weakref.ref(module), f"{name}.{path}" if path else name)

    def _root_name(self, root: nn.Module) -> str:
        self._roots = [(ref, path) for ref, path in self._roots if ref() is not None]
        inside = {id(module) for _, module in _inside(root)}
        known = [(ref(), path) for ref, path in self._roots]
        replaced = [path for module, path in known if module is not None and id(module) in inside]
        if not known or ROOT in replaced:
            return ROOT
        taken = {path for _, path in known}
        name = type(root).__name__
        number = 2
        while name in taken:
            name = f"{type(root).__name__}-{number}"
            number += 1
        return name


def _inside(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module and those inside of it, with their paths, each once: by identity, a module need not have a hash."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module
            prefix = f"{path}." if path else ""
            inner = [(f"{prefix}{name}", child) for name, child in module._modules.items() if child is not None]
            waiting.extend(reversed(inner))


def _holds(outer: nn.Module, module: nn.Module) -> bool:
    return any(inner is module for _, inner in _inside(outer))


def _whole(module: nn.Module, frame: FrameType | None) -> nn.Module:
    """The module that this one is part of, if one of that module's own methods is calling it."""
    while frame is not None:
        code = frame.f_code
        caller: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if issubclass(type(caller), nn.Module) and "_modules" in vars(caller) and _holds(caller, module):
            module = caller
        frame = frame.f_back
    return module
