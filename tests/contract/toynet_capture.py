"""Watches toynet: all that a framework has to bring for its capture. docs/extending.md tells it in words."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import toynet

from ulpscope.capture.recording.arguments import Arguments, Encodings, to_json
from ulpscope.capture.recording.arrays import ArrayTensors
from ulpscope.capture.recording.calls import GRAD_INPUT, GRAD_OUTPUT, INPUT, OUTPUT, PARAMETER, ModuleScope, OpenCall
from ulpscope.capture.recording.environment import About
from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.recording.session import Session
from ulpscope.capture.recording.tensors import Placed
from ulpscope.records.enums import Kind, Role

ARGUMENTS = Arguments(np.ndarray)
FUNCTIONS = ("add", "matmul", "relu", "mean_square")


class ToySession(Session):
    """Stands in for toynet's functions, calls of modules, the backward and the optimizer."""

    tensors = ArrayTensors()
    folders = (toynet.__file__, __file__)  # of a capture inside of ulpscope, the first is enough

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._encodings = Encodings(ARGUMENTS)
        self._paths: dict[int, str] = {}
        self._forwards: dict[int, tuple[OpenCall, Placed]] = {}
        self._entries = Replacements(
            *(Replacement(toynet, name, functools.partial(self._function, f"toynet.{name}")) for name in FUNCTIONS),
            *(Replacement(kind, "__call__", self._module) for kind in (toynet.Layer, toynet.Model)),
            Replacement(toynet, "go_back", self._go_back),
            Replacement(toynet, "backward", self._backward),
            Replacement(toynet.Descent, "step", self._update),
        )

    def install(self) -> None:
        self._entries.install()

    def uninstall(self) -> None:
        self._entries.uninstall()

    def about(self) -> About:
        return About({"name": "toynet", "version": "1"}, packages=("numpy",), devices=("cpu",))

    def _open(self, kind: Kind, op: str, args: tuple[Any, ...], scope: ModuleScope) -> tuple[OpenCall, Placed]:
        parent, frame = self.scopes.parent, sys._getframe(2)
        call = self.recorder.open(kind, op, scope, parent=parent, frame=frame)
        placed, call.arguments = self._encodings.encode(args, {})
        self.recorder.use_all(call, INPUT, placed)
        return call, placed

    def _close(self, call: OpenCall, result: Any) -> None:
        self.recorder.use_all(call, OUTPUT, ARGUMENTS.find_tensors(result, "output"))
        self.recorder.close(call)

    def _run(self, call: OpenCall, original: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.scopes.calls.append(call)
        try:
            result = original(*args)
        finally:
            self.scopes.calls.pop()
        self.recorder.guarded(call.op, self._close, call, result)
        return result

    def _function(self, op: str, entry: Replacement) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            opened = self.recorder.guarded(op, self._open, Kind.API, op, args, self.scopes.innermost)
            if opened is None:  # an error of ours: the run goes on
                return entry.original(*args)
            result = self._run(opened[0], entry.original, args)
            self._forwards[id(result)] = opened
            return result

        return run

    def _module(self, entry: Replacement) -> Callable[..., Any]:
        def run(module: Any, *args: Any) -> Any:
            if not self.scopes.modules:
                self.begin_outermost(id(module))
                self._paths = {id(module): "model"} | {id(m): f"model.layers.{n}" for n, m in enumerate(module.layers)}
            scope = ModuleScope(self._paths[id(module)], f"toynet.{type(module).__name__}")
            call, _ = self._open(Kind.MODULE, f"toynet.{type(module).__name__}", args, scope)
            self.recorder.use_all(call, PARAMETER, list(getattr(module, "parameters", {}).items()))
            self.scopes.modules.append(scope)
            try:
                return self._run(call, entry.original, (module, *args))
            finally:
                self.scopes.modules.pop()

        return run

    def _go_back(self, entry: Replacement) -> Callable[..., Any]:
        def run(done: toynet.Done, gradient: Any) -> Any:
            forward, inputs = self._forwards[id(done.output)]
            call = self.recorder.open_backward(Kind.BACKWARD, forward)
            self.recorder.use(call, GRAD_OUTPUT, "output.0", gradient)
            gradients = entry.original(done, gradient)
            for (place, _), leaving in zip(inputs, gradients, strict=True):
                self.recorder.use(call, GRAD_INPUT, place, leaving)
            self.recorder.close(call)
            return gradients

        return run

    def _backward(self, entry: Replacement) -> Callable[..., Any]:
        def run(loss: Any) -> Any:
            self.steps.enter_backward()
            try:
                return entry.original(loss)
            finally:
                self.steps.leave_backward(accumulates=True, keeps_graph=False)
                self._forwards.clear()

        return run

    def _update(self, entry: Replacement) -> Callable[..., Any]:
        def run(optimizer: toynet.Descent, gradients: dict[int, Any]) -> None:
            self.steps.enter_update(id(optimizer))
            call, _ = self._open(Kind.OPTIMIZER, "toynet.Descent", (), self.scopes.innermost)
            parameters = list(optimizer.parameters.items())
            own = [(name, gradients[id(parameter)]) for name, parameter in parameters]
            self.recorder.use_all(call, Role.GRADIENT.value, own)
            self.recorder.use_all(call, PARAMETER, parameters)
            entry.original(optimizer, gradients)
            self.recorder.values.wrote_all(parameters, call.id)
            self.recorder.use_all(call, Role.PARAMETER_AFTER.value, parameters)
            self.recorder.close(call, to_json({"args": [], "kwargs": {"rate": optimizer.rate}}))
            self.steps.leave_update()
            self.updated()

        return run
