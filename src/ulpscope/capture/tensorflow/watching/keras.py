"""Puts watchers into Keras when it is imported, which may be long after TensorFlow: Keras 3 and tf_keras."""

import importlib
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ulpscope.capture.recording.replacing import Replacement
from ulpscope.capture.tensorflow.watching.layers import LayerWatcher
from ulpscope.capture.tensorflow.watching.optimizers import OptimizerWatcher

PACKAGES = ("keras", "tf_keras")


class KerasWatcher:
    """Of every Keras that the script imports."""

    def __init__(self, layers: LayerWatcher, optimizers: OptimizerWatcher) -> None:
        self._layers = layers
        self._optimizers = optimizers
        self._entries: dict[str, list[Replacement]] = {}
        self._imports = _ImportWatch(PACKAGES, self._imported)
        self._is_on = False

    def install(self) -> None:
        self._is_on = True
        for package in PACKAGES:
            if package in sys.modules:
                _when_imported(sys.modules[package], package, self._imported)
        for entries in self._entries.values():
            for entry in entries:
                entry.install()
        sys.meta_path.insert(0, self._imports)

    def uninstall(self) -> None:
        self._is_on = False
        if self._imports in sys.meta_path:
            sys.meta_path.remove(self._imports)
        for entries in self._entries.values():
            for entry in entries:
                entry.uninstall()

    def _imported(self, package: str) -> None:
        if not self._is_on or package in self._entries:
            return
        self._entries[package] = list(self._make(package))
        for entry in self._entries[package]:
            entry.install()

    def _make(self, package: str) -> Iterable[Replacement]:
        if package == "keras":
            layer = _attribute("keras.src.layers.layer", "Layer")
            optimizer = _attribute("keras.src.optimizers.base_optimizer", "BaseOptimizer")
            scaler = _attribute("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer")
            step = "apply"
        else:
            layer = _attribute("tf_keras.src.engine.base_layer", "Layer")
            optimizer = _attribute("tf_keras.src.optimizers.optimizer", "_BaseOptimizer")
            scaler, step = None, "apply_gradients"
        if layer is not None:
            yield Replacement(layer, "__call__", self._layers.watched)
        if optimizer is not None:
            yield Replacement(optimizer, "__init__", self._optimizers.constructed)
            yield Replacement(optimizer, step, self._optimizers.applied)
        if scaler is not None:
            yield Replacement(scaler, "apply", self._optimizers.scaled)


def _attribute(module: str, name: str) -> Any:
    """None where this version of Keras has it elsewhere."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _when_imported(module: ModuleType, package: str, then: Callable[[str], None]) -> None:
    """Now, or as soon as it has been executed: Keras itself may be what imports TensorFlow."""
    spec = module.__spec__
    if spec is None or not getattr(spec, "_initializing", False):
        then(package)
        return
    kind: type[ModuleSpec] = type(spec)

    class Executing(kind):  # type: ignore[valid-type, misc]
        """The import system's own note of a module says when it is done."""

        def __setattr__(self, name: str, told: Any) -> None:
            super().__setattr__(name, told)
            if name == "_initializing" and not told:
                object.__setattr__(self, "__class__", kind)
                if sys.modules.get(package) is module:
                    then(package)

    object.__setattr__(spec, "__class__", Executing)


class _ImportWatch:
    """Lets the usual finders find a package, and learns when it has been executed."""

    def __init__(self, names: tuple[str, ...], imported: Callable[[str], None]) -> None:
        self._names = names
        self._imported = imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As finders do."""
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if finder is not self and find_spec else None
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            self._imported(name)

        loader.exec_module = exec_module
