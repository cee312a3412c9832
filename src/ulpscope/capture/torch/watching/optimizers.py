"""Optimizer steps: one call a parameter group, with gradients, parameters before and after, and state."""

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import OUTSIDE, PARAMETER, OpenCall
from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.torch.tensors import encode_call
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.records.enums import Kind, Phase, Role, Watch
from ulpscope.trace.watched import SCALE, SCALER_OP

GRADIENT, STATE = Role.GRADIENT.value, Role.STATE.value
PARAMETER_AFTER, STATE_AFTER = Role.PARAMETER_AFTER.value, Role.STATE_AFTER.value


class _OpenGroup(NamedTuple):
    """A parameter group whose step is running."""

    call: OpenCall
    arguments: str
    parameters: Placed


class _OpenStep(NamedTuple):
    """An optimizer's step that is running: nobody looks at single calls there."""

    groups: list[_OpenGroup]
    frame: FrameType
    aside: AbstractContextManager[None]
    """Ends when the step does."""


class _OpenSteps(threading.local):
    """Those of the current thread, outermost first."""

    def __init__(self) -> None:
        self.steps: list[_OpenStep] = []


class OptimizerWatcher:
    """Hooks every optimizer's step, and GradScaler's, which may skip it."""

    def __init__(
        self,
        watcher: CallWatcher,
        *,
        parameter_names: Callable[[list[torch.Tensor]], dict[int, str]],
        unwatched: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`unwatched` is for code whose calls nobody records: they cost nothing there."""
        self._session = watcher.session
        self._recorder = watcher.recorder
        self._scopes = watcher.scopes
        self._parameter_names = parameter_names
        self._unwatched = unwatched
        self.only: tuple[Optimizer, ...] = ()
        """Those that are watched; all if there is none."""
        self._open = _OpenSteps()
        self._begun = 0
        """Optimizers' steps so far."""
        self._handles: list[Any] = []
        self._entries = Replacements(
            Replacement(torch.amp.GradScaler, "step", self._noted_step),
            Replacement(Optimizer, "__init__", self._noted_init),
            Replacement(Optimizer, "zero_grad", self._unwatched_zero_grad),
        )

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
        opened = self._open.steps
        while opened and not is_running(opened[-1].frame):
            step = opened.pop()
            step.aside.__exit__(None, None, None)
            self._scopes.hidden = max(0, self._scopes.hidden - 1)
            for group in step.groups:
                if self._scopes.calls and self._scopes.calls[-1] is group.call:
                    self._scopes.calls.pop()
                group.call.error = "the optimizer's step raised"
                self._recorder.close(group.call, group.arguments)
            self._recorder.steps.leave_update()
            self._recorder.values.forget_all()

    def install(self) -> None:
        self.add_hooks()
        self._entries.install()

    def uninstall(self) -> None:
        while self._open.steps:
            self._open.steps.pop().aside.__exit__(None, None, None)
        self.remove_hooks()
        self._entries.uninstall()

    def _noted_step(self, entry: Replacement) -> Callable[..., Any]:
        steps, original = self._recorder.steps, entry.original

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._begun
            if entry.is_on and self._recorder.capturing and self._recorder.settings.watch is Watch.TRAINING:
                self._recorder.guarded("loss scale", self._record_scale, scaler)
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                if entry.is_on:
                    steps.skipped |= self._begun == before
                    steps.note_update()

        return step

    def _record_scale(self, scaler: Any) -> None:
        """What the loss was multiplied by: gradients of this step's backwards are so many times too large."""
        scale = getattr(scaler, "_scale", None)
        if scale is not None:
            call = self._recorder.open(Kind.API, SCALER_OP, OUTSIDE, parent=None, phase=Phase.UPDATE)
            self._recorder.use(call, Role.STATE.value, SCALE, scale)
            self._recorder.close(call)

    def _noted_init(self, entry: Replacement) -> Callable[..., Any]:
        steps, original = self._recorder.steps, entry.original

        def construct(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            steps.optimizers_exist = True
            original(optimizer, *args, **kwargs)

        return construct

    def _unwatched_zero_grad(self, entry: Replacement) -> Callable[..., Any]:
        unwatched, original = self._unwatched, entry.original

        def forget_gradients(optimizer: Any, set_to_none: bool = True) -> None:
            # Gradients that are let go are no calls; those that become zeros are.
            if not entry.is_on or not set_to_none or torch.compiler.is_compiling():
                original(optimizer, set_to_none)
                return
            with unwatched():
                original(optimizer)

        return forget_gradients

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        groups: list[_OpenGroup] = []
        watched = self._with_watched_closure(optimizer, groups, args, kwargs)
        if watched is not None and self._recorder.steps.begins_with_closure():
            self._session.next_step()
        self._recorder.steps.enter_update(id(optimizer))
        self._begun += 1
        if watched is None:
            try:
                self._begin(optimizer, groups)
            except BaseException:  # an interruption: the optimizer will not run
                self._recorder.steps.drop_update()
                raise
        aside = contextlib.nullcontext() if watched is not None else self._unwatched()
        self._open.steps.append(_OpenStep(groups, sys._getframe(1), aside))
        self._scopes.hidden += 1
        aside.__enter__()
        return watched

    def _begin(self, optimizer: Optimizer, groups: list[_OpenGroup]) -> None:
        """The update begins: what it reads is there."""
        is_wanted = not self.only or any(optimizer is one for one in self.only)
        if self._recorder.capturing and is_wanted and not groups:
            groups += self._guarded(self._open_groups, optimizer) or []
            self._scopes.calls.extend(group.call for group in groups[:1])

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._open.steps:
            return
        step = self._open.steps.pop()
        step.aside.__exit__(None, None, None)
        self._scopes.hidden -= 1
        try:
            if step.groups:
                self._scopes.calls.pop()
                self._guarded(self._close_groups, optimizer, step.groups)
        finally:
            self._recorder.steps.leave_update()
        if step.groups and not self._open.steps and not self._recorder.steps.in_backward:
            self._session.updated()

    def _with_watched_closure(
        self, optimizer: Optimizer, groups: list[_OpenGroup], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A closure runs forward and backward inside the optimizer: calls that are wanted, before the update."""

        def watched(closure: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                hidden, self._scopes.hidden = self._scopes.hidden, 0
                updating = self._recorder.steps.enter_closure()
                try:
                    result = closure(*args, **kwargs)
                finally:
                    self._scopes.hidden = hidden
                    self._recorder.steps.leave_closure(updating)
                self._begin(optimizer, groups)
                return result

            return run

        if len(args) > 1 and callable(args[1]):
            return (args[0], watched(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": watched(kwargs["closure"])}
        return None

    def _open_groups(self, optimizer: Optimizer) -> list[_OpenGroup]:
        names = self._parameter_names([one for group in optimizer.param_groups for one in group["params"]])
        op = op_of(optimizer)
        opened: list[_OpenGroup] = []
        for number, group in enumerate(optimizer.param_groups):
            call = self._recorder.open(Kind.OPTIMIZER, op, self._scopes.innermost, parent=self._scopes.parent)
            parameters = self._recorder.wants_parameters(named_parameters(group, names))
            if call.wanted:
                gradients = [(place, parameter.grad) for place, parameter in parameters if parameter.grad is not None]
                self._recorder.use_all(call, GRADIENT, gradients)
                self._recorder.use_all(call, PARAMETER, parameters)
                self._recorder.use_all(call, STATE, _states(optimizer, parameters))
            opened.append(_OpenGroup(call, options_text(group, number), parameters))
        return opened

    def _close_groups(self, optimizer: Optimizer, groups: list[_OpenGroup]) -> None:
        values = self._recorder.values
        values.forget_all()  # an optimizer may write anything: master weights, averages, through .data
        for call, arguments, parameters in groups:
            states = _states(optimizer, parameters)
            values.wrote_all(parameters + states, call.id)
            if call.wanted:
                self._recorder.use_all(call, PARAMETER_AFTER, parameters)
                self._recorder.use_all(call, STATE_AFTER, states)
            self._recorder.close(call, arguments)

    def _guarded(self, work: Callable[..., Any], *args: Any) -> Any:
        return self._recorder.guarded(f"optimizer {type(args[0]).__name__}", work, *args)


def op_of(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def named_parameters(group: Mapping[str, Any], names: Mapping[int, str]) -> Placed:
    """The parameters of a group; one of no known module is named by its place."""
    return [(names.get(id(parameter), f"params.{index}"), parameter) for index, parameter in enumerate(group["params"])]


def options_text(group: Mapping[str, Any], number: int) -> str:
    """The options of a group, as arguments of its call."""
    options = {key: option for key, option in group.items() if key != "params"}
    return to_json(encode_call((), options)[1] | {"group_number": number})


def is_running(wanted: FrameType) -> bool:
    """Whether a frame is one of those that have led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


def _states(optimizer: Optimizer, parameters: Placed) -> Placed:
    """What the optimizer keeps of parameters, each named after its parameter."""
    # To look parameters up there one by one is slow: each is hashed by Python code.
    states = {id(parameter): state for parameter, state in optimizer.state.items()}
    return [
        (f"{place}.{name}", tensor)
        for place, parameter in parameters
        for name, tensor in (states.get(id(parameter)) or {}).items()
        if isinstance(tensor, torch.Tensor)
    ]
