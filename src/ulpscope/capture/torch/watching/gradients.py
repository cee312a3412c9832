"""Gradients of a long run: hooks of the optimizers' steps and of the engine, and nothing else of torch is touched.

A step begins when an optimizer updates that has updated in this one already: several optimizers that take turns share a
step. What GradScaler skips is recorded as it is left, with why it was not used.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.recording.session import Session
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.torch.recorder import TorchRecorder
from ulpscope.capture.torch.tensors import generator_digest, is_transformed, local_tensor, unsummarizable_reason
from ulpscope.capture.torch.watching.graph_types import coarsest_in_graph
from ulpscope.capture.torch.watching.modules import ModulePaths
from ulpscope.capture.torch.watching.optimizers import is_running, named_parameters, op_of, options_text
from ulpscope.capture.watch.gradients import MOST_LOSSES, Around, GradientLog, UpdateGroup
from ulpscope.trace.watched import AT_MOST, POSITIVE, kept_place

SKIPPED = "GradScaler skipped this update: its gradients are not finite"


class _Open(NamedTuple):
    """An optimizer's step that is running."""

    optimizer: Optimizer
    frame: FrameType
    has_closure: bool


class GradientPatches:
    """What a watch of gradients puts into torch."""

    def __init__(self, session: Session, recorder: TorchRecorder, log: GradientLog) -> None:
        self.paths = ModulePaths()
        self.optimizers: tuple[Optimizer, ...] = ()
        """Those that are watched; all if there is none."""
        self._session = session
        self._recorder = recorder
        self._log = log
        self._updated: set[int] = set()
        """Optimizers that have updated in this step, by identity."""
        self._updates = 0
        self._open: list[_Open] = []
        self._losses: deque[torch.Tensor] = deque(maxlen=MOST_LOSSES)
        self._is_typed = False
        self._precision: str | None = None
        """The coarsest type of the forward that the first losses came of, once that was asked."""
        self._searched: set[int] = set()
        """Optimizers whose parameters were looked for in all modules."""
        self._handles: list[Any] = []
        self._entries = Replacements(
            Replacement(torch.amp.GradScaler, "step", self._noted_step),
            Replacement(torch.autograd, "_engine_run_backward", self._noted_backward),
            Replacement(torch.autograd.graph, "_engine_run_backward", self._noted_backward),
        )

    def install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        self._entries.install()

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._open.clear()
        self._entries.uninstall()

    def _noted_backward(self, entry: Replacement) -> Callable[..., Any]:
        """Notes the numbers that are gone back from into parameters: the losses."""
        engine, here = entry.original, self._session.is_here

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            # Inside of a pass, a part of a model that is computed again goes back from what it gave.
            if entry.is_on and args and here() and torch._C._current_graph_task_id() < 0:
                self._recorder.guarded("backward", self._note_losses, args[0])
            return engine(*args, **kwargs)

        return run_backward

    def _note_losses(self, roots: Any) -> None:
        # A pass may also begin at edges of the graph; tensors of vmap and grad are none outside of these.
        tensors = (root for root in (roots if isinstance(roots, tuple | list) else (roots,)) if torch.is_tensor(root))
        losses = [root for root in tensors if not is_transformed(root) and root.numel() == 1]
        if losses and not self._is_typed and self._recorder.capturing:
            self._is_typed, self._precision = True, coarsest_in_graph(losses[0])
        self._losses.extend(loss.detach() for loss in losses)

    def _noted_step(self, entry: Replacement) -> Callable[..., Any]:
        original = entry.original

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._updates
            result = original(scaler, optimizer, *args, **kwargs)
            if entry.is_on and self._updates == before and self._is_watched(optimizer):
                self._begin(optimizer, SKIPPED)
                self._end()
            return result

        return step

    def _is_watched(self, optimizer: Optimizer) -> bool:
        is_wanted = not self.optimizers or any(optimizer is one for one in self.optimizers)
        return is_wanted and self._session.is_here() and not torch.compiler.is_compiling()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_watched(optimizer):
            return
        while self._open and not is_running(self._open[-1].frame):
            self._open.pop()  # its step has raised
        has_closure = len(args) > 1 or kwargs.get("closure") is not None
        self._open.append(_Open(optimizer, sys._getframe(1), has_closure))
        # One that calls another one, as wrappers do, is one update.
        if len(self._open) == 1 and not has_closure:
            self._begin(optimizer, None)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._open or self._open[-1].optimizer is not optimizer:
            return
        ended = self._open.pop()
        if not self._open:
            if ended.has_closure:  # which has made the gradients
                self._begin(optimizer, None)
            self._end()

    def _begin(self, optimizer: Optimizer, error: str | None) -> None:
        """Record an update, in the step that it belongs to."""
        self._updates += 1
        if id(optimizer) in self._updated and not self._recorder.steps.manual:
            self._session.next_step()
            self._updated.clear()
        self._updated.add(id(optimizer))
        self._recorder.steps.enter_update(id(optimizer))
        if self._recorder.capturing:
            where = f"optimizer {type(optimizer).__name__}"
            self._recorder.guarded(where, self._record, optimizer, error, sys._getframe(1))
        self._losses.clear()

    def _end(self) -> None:
        self._recorder.steps.leave_update()
        if self._recorder.capturing:
            self._session.updated()

    def _record(self, optimizer: Optimizer, error: str | None, frame: FrameType) -> None:
        groups = [self._group(optimizer, number) for number in range(len(optimizer.param_groups))]
        around = Around(_generators(optimizer), self._precision, error)
        self._log.record(op_of(optimizer), groups, losses=list(self._losses), around=around, frame=frame)

    def _group(self, optimizer: Optimizer, number: int) -> UpdateGroup:
        group = optimizer.param_groups[number]
        parameters = self._log.wanted(named_parameters(group, self._names(optimizer)))
        gradients = [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]
        kept = [each for name, gradient in gradients for each in self._kept(name, local_tensor(gradient).detach())]
        return UpdateGroup(options_text(group, number), gradients, parameters, kept)

    def _kept(self, name: str, gradient: torch.Tensor) -> Placed:
        watch, kept = self._recorder.settings.gradients, []
        if (watch.signs or watch.bounds) and unsummarizable_reason(gradient) is None:
            if watch.signs:
                kept.append((kept_place(name, POSITIVE), _packed(gradient > 0)))
            if watch.bounds:
                kept.append((kept_place(name, AT_MOST), _counts(gradient, watch.bounds)))
        return kept

    def _names(self, optimizer: Optimizer) -> dict[int, str]:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        names = self.paths.parameter_names(parameters)
        if len(names) < len(parameters) and id(optimizer) not in self._searched:
            self._searched.add(id(optimizer))
            for root in _roots_of({id(parameter) for parameter in parameters if id(parameter) not in names}):
                self.paths.add_root(root)
            names = self.paths.parameter_names(parameters)
        return names


def _generators(optimizer: Optimizer) -> str:
    """Digests of the states of the generators that a step draws from: the processor's and its parameters' devices'."""
    used = [group["params"][0] for group in optimizer.param_groups if group["params"]]
    devices = sorted({parameter.device.type for parameter in used} | {"cpu"})
    found = (generator_digest([], {"device": device}) for device in devices)
    return " ".join(digest for digest in found if digest is not None)


def _packed(bits: torch.Tensor) -> torch.Tensor:
    """Eight bits a byte, the first in the lowest."""
    flat = bits.reshape(-1).to(torch.uint8)
    whole = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    shifts = torch.arange(8, dtype=torch.uint8, device=flat.device)
    return torch.bitwise_left_shift(whole, shifts).sum(1, dtype=torch.uint8)


def _counts(gradient: torch.Tensor, bounds: Iterable[float]) -> torch.Tensor:
    """How many elements are no larger than each of the bounds."""
    return torch.stack([torch.count_nonzero(gradient <= bound) for bound in bounds])


def _roots_of(wanted: set[int]) -> Iterator[nn.Module]:
    """The modules of the run that hold these parameters and are inside of no other one, the largest first."""
    kinds = {kind for kind in set(map(type, gc.get_objects())) if issubclass(kind, nn.Module)}
    modules = [found for found in gc.get_objects() if type(found) in kinds and "_modules" in found.__dict__]
    inner = {id(child) for module in modules for child in module._modules.values()}
    held = [(len(wanted & {id(one) for one in root.parameters()}), root) for root in modules if id(root) not in inner]
    yield from (root for count, root in sorted(held, key=lambda each: -each[0]) if count)
