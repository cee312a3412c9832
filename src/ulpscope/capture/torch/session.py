"""A capture of torch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ulpscope.capture.events import EventLog
from ulpscope.capture.recording import session
from ulpscope.capture.recording.environment import About
from ulpscope.capture.recording.recorder import Surroundings
from ulpscope.capture.torch import environment
from ulpscope.capture.torch.host.loading import is_built
from ulpscope.capture.torch.host.recorder import CompiledRecorder, LaterHost, can_serve
from ulpscope.capture.torch.recorder import (
    TORCH_FILES,
    PythonTorchRecorder,
    TorchRecorder,
    TorchSteps,
    TorchTensors,
    optimizer_exists,
)
from ulpscope.capture.torch.tensors import quiet
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.capture.torch.watching.functions import CustomCalls
from ulpscope.capture.torch.watching.pairing import Pairing
from ulpscope.capture.torch.watching.patches import Patches, leave_data_workers_alone
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.records.settings import CaptureSettings, Noise


class Session(session.Session):
    """Observes torch in the thread that starts it until it is closed."""

    tensors = TorchTensors()
    folders = (TORCH_FILES,)
    quiet = staticmethod(quiet)
    recorder: TorchRecorder

    def __init__(self, settings: CaptureSettings, *, events: EventLog | None = None) -> None:
        super().__init__(settings, events=events)
        self._watcher = CallWatcher(self.recorder, Pairing(self.recorder), self.scopes)
        self._patches = Patches(
            self._watcher,
            roots=self.roots,
            here=self.is_here,
            begin_outermost=self._begin_forward,
            next_step=self.next_step,
            updated=self.updated,
        )
        self._custom = CustomCalls(self._watcher)
        self._later_host = LaterHost(settings)
        self._noise = None if settings.noise is None else self._make_noise(settings.noise)

    def _make_noise(self, noise: Noise) -> TorchDispatchMode:
        from ulpscope.capture.torch.noise import NoiseMode  # reads a table, for which a library is loaded

        return NoiseMode(noise, self.steps, self.scopes)

    def start(self, models: Mapping[str, nn.Module] | None = None) -> None:
        """Begin to observe; `models` get names for their paths."""
        self._name(models)
        self.steps.optimizers_exist = optimizer_exists()
        super().start()

    def resume(self, models: Mapping[str, nn.Module] | None = None) -> None:
        self._name(models)
        super().resume()

    def record(self, op: str, name: str, content: Any, *, gradients: bool) -> None:
        """A call of the user's own making: the tensors in `content` as they are now, and their gradients later."""
        if self._running and self.recorder.capturing and self.is_here():
            self._custom.record(op, name, content, gradients=gradients)

    def install(self) -> None:
        if self._noise is not None:
            self._noise.__enter__()
        self._patches.install()

    def uninstall(self) -> None:
        self._patches.uninstall()
        if self._noise is not None:
            self._noise.__exit__(None, None, None)

    def about(self) -> About:
        return environment.about()

    def seeds(self) -> dict[str, Any]:
        return environment.seeds()

    def group(self) -> tuple[int, int] | None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return None
        return torch.distributed.get_rank(), torch.distributed.get_world_size()

    def make_steps(self) -> TorchSteps:
        return TorchSteps()

    def make_recorder(self, around: Surroundings) -> TorchRecorder:
        """The compiled one where that is worth it and possible."""
        if not can_serve(self.settings):
            return PythonTorchRecorder(around)
        if not is_built():
            self.tell_once("host", "compiling the host part of the capture; that is done once and takes half a minute")
        try:
            return CompiledRecorder(around, self.scopes)
        except NotCompiledError as error:
            self.tell_once("host slow", f"{error}: calls are recorded by slower code")
            return PythonTorchRecorder(around)

    def end_step(self) -> None:
        self._watcher.drop_pending()

    def handed_over(self) -> None:
        if self.events is not None and self._later_host.is_begun(self.recorder.counts.recorded):
            self.tell_once("host", "many calls: faster code for them is being compiled in idle time, for later runs")

    def _begin_forward(self, module: nn.Module) -> None:
        self.recorder.guarded("begin of a forward", self._patches.abort_update)
        self.begin_outermost(id(module))

    def _name(self, models: Mapping[str, nn.Module] | None) -> None:
        for name, model in (models or {}).items():
            self._patches.modules.paths.add_root(model, name)


def start_session(settings: CaptureSettings, *, events: EventLog | None = None) -> Session:
    """Capture this process from now on."""
    session = Session(settings, events=events)
    session.start()
    leave_data_workers_alone(session.abandon)
    return session
