"""Optimizer steps: one call a parameter group, with gradients, parameters before and after, and state."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ulpscope.capture.torch.arguments import encode_call
from ulpscope.capture.torch.guard import guarded
from ulpscope.capture.torch.recorder import OpenCall, Recorder
from ulpscope.capture.torch.scopes import Scopes
from ulpscope.records.enums import Kind, Role


class OptimizerWatcher:
    """Hooks every optimizer's step, and GradScaler's, which may skip it."""

    def __init__(
        self,
        recorder: Recorder,
        scopes: Scopes,
        *,
        parameter_names: Callable[[], dict[int, str]],
        next_step: Callable[[], None],
    ) -> None:
        self._recorder = recorder
        self._scopes = scopes
        self._parameter_names = parameter_names
        self._next_step = next_step
        self._open: list[list[tuple[OpenCall, dict[str, Any], dict[str, Any]]]] = []
        self._frames: list[FrameType] = []
        """The frames that run the open steps."""
        self._handles: list[Any] = []
        self._scaler_step = torch.amp.GradScaler.step
        self._init = Optimizer.__init__

    def add_hooks(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def abort(self) -> None:
        """Close steps that were begun and are no longer running: they have raised."""
        while self._open and not _is_running(self._frames[-1]):
            self._frames.pop()
            self._scopes.hidden = max(0, self._scopes.hidden - 1)
            for call, _, encoded in self._open.pop():
                if self._scopes.calls and self._scopes.calls[-1] is call:
                    self._scopes.calls.pop()
                call.error = "the optimizer's step raised"
                self._recorder.close(call, encoded)
            self._recorder.steps.leave_update()
            self._recorder.values.storages.forget_all()

    def install(self) -> None:
        self.add_hooks()
        watcher, scaler_step, init = self, self._scaler_step, self._init

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return scaler_step(scaler, optimizer, *args, **kwargs)
            finally:
                watcher._recorder.steps.note_update()

        def construct(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            watcher._recorder.steps.optimizers_exist = True
            init(optimizer, *args, **kwargs)

        torch.amp.GradScaler.step = step  # type: ignore[method-assign,assignment]
        Optimizer.__init__ = construct  # type: ignore[method-assign,assignment]

    def uninstall(self) -> None:
        self.remove_hooks()
        torch.amp.GradScaler.step = self._scaler_step  # type: ignore[method-assign]
        Optimizer.__init__ = self._init  # type: ignore[method-assign]

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watched = self._with_watched_closure(args, kwargs)
        if watched is not None and self._recorder.steps.begins_with_closure():
            self._next_step()
        self._recorder.steps.enter_update()
        opened = self._guarded(self._open_groups, optimizer) if self._recorder.capturing else None
        self._open.append(opened or [])
        self._frames.append(sys._getframe(1))
        self._scopes.calls.extend(call for call, _, _ in self._open[-1][:1])
        self._scopes.hidden += 1
        return watched

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._open:
            return
        self._scopes.hidden -= 1
        opened = self._open.pop()
        self._frames.pop()
        if opened:
            self._scopes.calls.pop()
            self._guarded(self._close_groups, optimizer, opened)
        self._recorder.steps.leave_update()

    def _with_watched_closure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A closure runs forward and backward inside the optimizer: those calls are wanted."""
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._watched(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._watched(kwargs["closure"])}
        return None

    def _watched(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            hidden, self._scopes.hidden = self._scopes.hidden, 0
            updating = self._recorder.steps.enter_closure()
            try:
                return closure(*args, **kwargs)
            finally:
                self._scopes.hidden = hidden
                self._recorder.steps.leave_closure(updating)

        return run

    def _open_groups(self, optimizer: Optimizer) -> list[tuple[OpenCall, dict[str, Any], dict[str, Any]]]:
        names = self._parameter_names()
        kind = type(optimizer)
        opened = []
        for number, group in enumerate(optimizer.param_groups):
            call = self._recorder.open(
                Kind.OPTIMIZER,
                f"{kind.__module__}.{kind.__qualname__}",
                module=self._scopes.module,
                module_class=self._scopes.module_class,
                parent=self._scopes.parent,
            )
            if call.wanted:
                for place, parameter in _parameters(group, names):
                    if parameter.grad is not None:
                        self._recorder.use(call, Role.GRADIENT, place, parameter.grad)
                    self._recorder.use(call, Role.PARAMETER, place, parameter)
                    self._use_state(call, Role.STATE, place, optimizer.state.get(parameter))
            options = {key: option for key, option in group.items() if key != "params"}
            encoded = encode_call((), options)[1] | {"group_number": number}
            opened.append((call, group, encoded))
        return opened

    def _close_groups(
        self, optimizer: Optimizer, opened: list[tuple[OpenCall, dict[str, Any], dict[str, Any]]]
    ) -> None:
        names = self._parameter_names()
        values = self._recorder.values
        values.storages.forget_all()  # an optimizer may write anything: master weights, averages, through .data
        for call, group, encoded in opened:
            for place, parameter in _parameters(group, names):
                state = optimizer.state.get(parameter)
                values.wrote(parameter, call.id, elements=parameter.numel())
                for _, tensor in _state_tensors(state):
                    values.wrote(tensor, call.id, elements=tensor.numel())
                if parameter.grad is not None:
                    values.suspect(parameter.grad)
                if call.wanted:
                    self._recorder.use(call, Role.PARAMETER_AFTER, place, parameter)
                    self._use_state(call, Role.STATE_AFTER, place, state)
            self._recorder.close(call, encoded)

    def _use_state(self, call: OpenCall, role: Role, place: str, state: Any) -> None:
        for name, tensor in _state_tensors(state):
            self._recorder.use(call, role, f"{place}.{name}", tensor)

    def _guarded(self, work: Callable[..., Any], *args: Any) -> Any:
        return guarded(self._recorder, f"optimizer {type(args[0]).__name__}", work, *args)


def _is_running(wanted: FrameType) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


def _parameters(group: dict[str, Any], names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for index, parameter in enumerate(group["params"]):
        yield names.get(id(parameter), f"params.{index}"), parameter


def _state_tensors(state: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in (state or {}).items():
        if isinstance(tensor, torch.Tensor):
            yield str(name), tensor
