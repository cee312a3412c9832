"""A capture of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ulpscope.capture.events import EventLog
from ulpscope.capture.recording import session
from ulpscope.capture.recording.environment import About, state_digest
from ulpscope.capture.recording.limits import DiskLimit
from ulpscope.capture.recording.recorder import Surroundings
from ulpscope.capture.recording.saving import ChosenSaver, Saver
from ulpscope.capture.torch.about import about_torch
from ulpscope.capture.torch.host.loading import is_built
from ulpscope.capture.torch.host.recorder import CompiledRecorder, LaterHost, can_serve
from ulpscope.capture.torch.recorder import (
    TORCH_FILES,
    TorchRecorder,
    TorchSteps,
    TorchTensors,
    optimizer_exists,
)
from ulpscope.capture.torch.repeatable import make_repeatable
from ulpscope.capture.torch.tensors import quiet
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.capture.torch.watching.functions import record_own_call
from ulpscope.capture.torch.watching.gradients import GradientPatches
from ulpscope.capture.torch.watching.patches import Patches, leave_data_workers_alone
from ulpscope.capture.watch.gradients import GradientLog
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.records.enums import Watch
from ulpscope.records.runs import CaptureSettings, Noise


class Session(session.Session):
    """Observes torch in the thread that starts it until it is closed."""

    tensors = TorchTensors()
    folders = (TORCH_FILES,)
    quiet = staticmethod(quiet)
    recorder: TorchRecorder

    def __init__(self, settings: CaptureSettings, *, events: EventLog | None = None) -> None:
        super().__init__(settings, events=events)
        self._watcher = CallWatcher(self, self.recorder)
        self._patches = self._make_patches()
        self._later_host = LaterHost(settings)
        self.noise = None if settings.noise is None else self._make_noise(settings.noise)

    def _make_patches(self) -> Patches | GradientPatches:
        if self.settings.watch is not Watch.GRADIENTS:
            return Patches(self._watcher)
        saver = self._saver if isinstance(self._saver, ChosenSaver) else None
        return GradientPatches(self, self.recorder, GradientLog(self.recorder, self.settings, saver))

    def _make_noise(self, noise: Noise) -> TorchDispatchMode:
        from ulpscope.capture.torch.noise import NoiseMode  # reads a table, for which a library is loaded

        mode = NoiseMode(noise, self.steps, self.scopes)
        self.recorder.serve_noise(mode)
        return mode

    def start(self, models: Mapping[str, nn.Module] | None = None) -> None:
        """Begin to observe; `models` get names for their paths."""
        self._name(models)
        self.steps.optimizers_exist = optimizer_exists()
        super().start()

    def resume(self, models: Mapping[str, nn.Module] | None = None) -> None:
        self._name(models)
        super().resume()

    def watch_only(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Look at the updates of no other optimizers."""
        if isinstance(self._patches, GradientPatches):
            self._patches.optimizers = tuple(optimizers)
        else:
            self._patches.optimizers.only = tuple(optimizers)

    def record(self, op: str, name: str, content: Any, *, gradients: bool) -> None:
        """A call of the user's own making: the tensors in `content` as they are now, and their gradients later."""
        if self._running and self.recorder.capturing and self.is_here():
            self.recorder.guarded(f"record {name}", record_own_call, self._watcher, op, name, content, gradients)

    def install(self) -> None:
        if self.noise is not None:
            self.noise.__enter__()
        self._patches.install()

    def uninstall(self) -> None:
        self._patches.uninstall()
        if self.noise is not None:
            self.noise.__exit__(None, None, None)

    def about(self) -> About:
        return about_torch()

    def seeds(self) -> dict[str, Any]:
        """The seed of torch's generator, and digests of every generator's state."""
        torch_state = state_digest(torch.get_rng_state().numpy().tobytes())
        return {"torch_initial_seed": str(torch.initial_seed()), "torch_state": torch_state, **super().seeds()}

    def group(self) -> tuple[int, int] | None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return None
        return torch.distributed.get_rank(), torch.distributed.get_world_size()

    def make_steps(self) -> TorchSteps:
        return TorchSteps()

    def make_saver(self, disk: DiskLimit | None) -> Saver | None:
        kept = self.settings.gradients
        is_chosen = self.settings.watch is Watch.GRADIENTS and (kept.signs or kept.bounds)
        return ChosenSaver(self.tensors, disk) if is_chosen else super().make_saver(disk)

    def make_recorder(self, around: Surroundings) -> TorchRecorder:
        """The compiled one where that is worth it and possible."""
        if self.settings.watch is Watch.GRADIENTS:  # patterns choose parameters there, not calls
            around = replace(around, settings=replace(self.settings, only=(), skip=()))
        if not can_serve(self.settings):
            return TorchRecorder(around)
        if not is_built():
            self.tell_once("host", "compiling the host part of the capture; that is done once and takes half a minute")
        try:
            return CompiledRecorder(around)
        except NotCompiledError as error:
            self.tell_once("host slow", f"{error}: calls are recorded by slower code")
            return TorchRecorder(around)

    def end_step(self) -> None:
        self._watcher.drop_pending()

    def handed_over(self) -> None:
        if self.events is not None and self._later_host.is_begun(self.recorder.counts.recorded):
            self.tell_once("host", "many calls: faster code for them is being compiled in idle time, for later runs")

    def _name(self, models: Mapping[str, nn.Module] | None) -> None:
        for name, model in (models or {}).items():
            self._patches.paths.add_root(model, name)


def start_session(settings: CaptureSettings, *, events: EventLog | None = None) -> Session:
    """Capture this process from now on."""
    make_repeatable(settings)
    session = Session(settings, events=events)
    session.start()
    leave_data_workers_alone(session.abandon)
    return session
