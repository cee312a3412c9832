"""Everything that a capture puts into torch, and how it steps aside.

Warnings that would point at our own code are told where the run would have given them without us: a warning's place is
a frame so many levels above the code that warns, and while a call is recorded our frames are among them. Python also
remembers by place what it has told already.
"""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from ulpscope.capture.recording.replacing import Replacement, Replacements
from ulpscope.capture.recording.stacks import is_ours
from ulpscope.capture.torch.watching.apis import HANDLER
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.capture.torch.watching.functions import AutogradPatches, CompiledFunctions, EagerForm, replaced_namespaces
from ulpscope.capture.torch.watching.mode import KernelMode, WatchMode, insert_mode, remove_mode
from ulpscope.capture.torch.watching.modules import ModuleWatcher
from ulpscope.capture.torch.watching.optimizers import OptimizerWatcher
from ulpscope.operations.registry import Trait, names_with
from ulpscope.records.enums import Compiled, Level


def replaced_exposure(watcher: CallWatcher) -> Replacements:
    """The methods of Tensor that hand memory out, while the function mode is off the stack."""

    def noticed(entry: Replacement) -> Callable[..., Any]:
        method, here = entry.original, watcher.session.is_here

        @functools.wraps(method)
        def hand_out(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # Our own work asks for memory, too, also to note this one: it is quiet.
            if entry.is_on and not torch._C._is_torch_function_all_disabled() and here():
                watcher.expose((tensor,))
            return method(tensor, *args, **kwargs)

        return hand_out

    return Replacements(*(Replacement(torch.Tensor, name, noticed) for name in names_with(Trait.EXPOSING)))


class _Unwatched:
    """Takes the mode off the stack: calls are not recorded, and cost nothing. What hands memory out is noticed."""

    def __init__(self, mode: WatchMode, exposure: Replacements) -> None:
        self._mode = mode
        self._exposure = exposure
        self._depth: int | None = None
        """Where in the stack of modes ours stood, while it is off."""

    @property
    def is_entered(self) -> bool:
        return self._depth is not None

    def __enter__(self) -> None:
        self._depth = remove_mode(self._mode)
        if self._depth is not None:  # else a function of torch is calling back, and holds our mode aside
            self._exposure.install()

    def __exit__(self, *_: object) -> None:
        if self._depth is not None:
            self._exposure.uninstall()
            insert_mode(self._mode, min(self._depth, torch._C._len_torch_function_stack()))
            self._depth = None


class Patches:
    """The mode, the patched entry points and the optimizer hooks of one capture."""

    def __init__(self, watcher: CallWatcher) -> None:
        self._watcher = watcher
        self._session = watcher.session
        self._recorder = watcher.recorder
        watcher.suspended = self.suspended
        self._recorder.on_recorded_step = self._put_back
        self._mode = WatchMode(watcher)
        self.modules = ModuleWatcher(watcher, self._mode, begin_outermost=self._begin_forward)
        self.paths = self.modules.paths
        self._exposure = replaced_exposure(watcher)
        self.optimizers = OptimizerWatcher(
            watcher,
            parameter_names=self.paths.parameter_names,
            unwatched=lambda: _Unwatched(self._mode, self._exposure),
        )
        eager = self._recorder.settings.compiled is Compiled.EAGER
        self._compiled: CompiledFunctions | EagerForm = (
            EagerForm() if eager else CompiledFunctions(watcher, steps_aside=self._steps_aside)
        )
        self._kernels = KernelMode(watcher) if self._recorder.settings.level is Level.KERNEL else None
        self._namespaces: Replacements | None = None
        loading = torch.utils.data.dataloader
        self._others = Replacements(
            Replacement(loading._SingleProcessDataLoaderIter, "_next_index", self._noted_batch),
            Replacement(loading._MultiProcessingDataLoaderIter, "_next_data", self._noted_batch),
            Replacement(warnings, "_showwarnmsg", _placed),
        )
        entries = [*AutogradPatches(watcher, self._mode, self._after_backward).entries]
        entries.append(Replacement(nn.Module, "__call__", self._watched_call))
        if torch.distributed.is_available():
            entries.append(Replacement(torch.distributed.Work, "wait", self._watched_wait))
        self._entries = Replacements(*entries)
        """What is taken away whenever code runs that must not find us."""
        self._suspensions = 0
        self._was_exposed = False
        """Before the first suspension."""
        self._idle = _Unwatched(self._mode, self._exposure)
        """While steps run that are not recorded."""

    def install(self) -> None:
        """Start observing this thread."""
        self._recorder.serve(self._mode, records_calls=self._watcher.records_calls)
        self._entries.install()
        self.optimizers.install()
        self._namespaces = self._namespaces or replaced_namespaces(self._watcher, self._mode)
        self._namespaces.install()
        self._others.install()
        self._compiled.install()
        _push_mode(self._mode)
        if self._kernels is not None:
            self._kernels.__enter__()  # type: ignore[no-untyped-call]
        self._take_off_if_idle()

    def uninstall(self) -> None:
        """Leave torch as it was found."""
        self._put_back()
        self.optimizers.uninstall()  # which may put the mode back, too
        if self._kernels is not None:
            self._kernels.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        remove_mode(self._mode)
        self._compiled.uninstall()
        if self._namespaces is not None:
            self._namespaces.uninstall()
        self._others.uninstall()
        self._entries.uninstall()

    def _begin_forward(self, module: nn.Module) -> None:
        self._recorder.guarded("begin of a forward", self.optimizers.abort)
        self._session.begin_outermost(id(module))
        self._take_off_if_idle()

    def _take_off_if_idle(self) -> None:
        """Take the modes off the stacks while steps run that are not recorded: calls cost nothing then."""
        if self._recorder.capturing or self._idle.is_entered or self._suspensions:
            return
        if self._kernels is not None and not self._kernels.take_off():
            return
        self._idle.__enter__()

    def _put_back(self) -> None:
        """A step begins that is recorded."""
        self._idle.__exit__()
        if self._kernels is not None:
            self._kernels.put_back()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Run code as if no capture existed."""
        depth = remove_mode(self._mode)
        self._suspensions += 1
        if self._suspensions == 1:
            self._entries.uninstall()
            self.optimizers.remove_hooks()
            self._was_exposed = self._exposure.are_on
            if self._was_exposed:
                self._exposure.uninstall()
        try:
            if self._kernels is not None:
                with _disable_current_modes():
                    yield
            else:
                yield
        finally:
            self._suspensions -= 1
            if self._suspensions == 0:
                self._entries.install()
                self.optimizers.add_hooks()
                if self._was_exposed:
                    self._exposure.install()
            if depth is not None:
                insert_mode(self._mode, depth)

    def _watched_call(self, entry: Replacement) -> Callable[..., Any]:
        watch, here, original, recorder = self.modules.call, self._session.is_here, entry.original, self._recorder

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # torch.profiler looks for a local named self
            # Whoever traces this (export, a compiler that was not seen coming) must find torch's own call.
            if not entry.is_on or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
                return original(self, *args, **kwargs)
            if not here():
                recorder.counts.other_threads += 1
                return original(self, *args, **kwargs)
            return watch(original, self, args, kwargs)

        return call

    def _noted_batch(self, entry: Replacement) -> Callable[..., Any]:
        """A batch that is asked for after an update belongs to the next step, and so does what makes it."""
        session, steps, original = self._session, self._recorder.steps, entry.original

        def get(iterator: Any) -> Any:
            found = original(iterator)  # raises where there is none left
            if entry.is_on and session.is_here() and steps.begins_with_data():
                session.next_step()
            return found

        return get

    def _watched_wait(self, entry: Replacement) -> Callable[..., Any]:
        original, finish = entry.original, self._watcher.finish_collective

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            if entry.is_on:
                finish(work)
            return result

        return wait

    def _steps_aside(self) -> bool:
        """Whether a compiled function that begins now must not find us."""
        return not self._suspensions and self._session.is_here()

    def _after_backward(self, is_last: bool) -> None:
        """A pass has ended; the last one if no other thread runs one."""
        if self._recorder.capturing:
            if is_last:
                self._watcher.finish_backward()
            self.modules.record_parameter_gradients()


def leave_data_workers_alone(abandon: Callable[[], None]) -> None:
    """A DataLoader's worker that was spawned is a process of its own: it is not part of the run's numbers."""
    worker = torch.utils.data._utils.worker
    original = worker._worker_loop

    @functools.wraps(original)  # by its name, or a DataLoader could not send it to the processes it spawns
    def loop(*args: Any, **kwargs: Any) -> Any:
        abandon()
        return original(*args, **kwargs)

    worker._worker_loop = loop


_REGISTRY = "__warningregistry__"


def _placed(entry: Replacement) -> Callable[[warnings.WarningMessage], None]:
    """What stands between Python's filters and whoever shows or collects warnings."""
    show = entry.original

    def place(message: warnings.WarningMessage) -> None:
        warning = sys._getframe(1)
        is_placed = warning.f_code is place.__code__
        pointed, meant = (None, None) if is_placed or not entry.is_on else _frames(warning, message)
        if pointed is None or meant is None or pointed is meant:
            show(message)
            return
        _forget(message, pointed.f_globals.get(_REGISTRY, {}))
        warnings.warn_explicit(
            message.message,
            message.category,
            meant.f_code.co_filename,
            meant.f_lineno,
            meant.f_globals.get("__name__"),
            meant.f_globals.setdefault(_REGISTRY, {}),
            None,
            message.source,
        )

    return place


def _forget(message: warnings.WarningMessage, told: dict[Any, Any]) -> None:
    """That this was told at the place that is not meant, whichever of Python's filters has noted it."""
    text = str(message.message)
    for line in (message.lineno, 0):
        told.pop((text, message.category, line), None)
    warnings.onceregistry.pop((text, message.category), None)  # type: ignore[attr-defined]


def _frames(first: FrameType, message: warnings.WarningMessage) -> tuple[FrameType | None, FrameType | None]:
    """What a warning points at, and what is as many levels above the code that warns if only the run's frames count."""
    levels, pointed = 0, first
    while (pointed.f_code.co_filename, pointed.f_lineno) != (message.filename, message.lineno):
        if pointed.f_back is None:
            return None, None
        levels, pointed = levels + 1, pointed.f_back
    meant = _runs_own(first)
    for _ in range(levels):
        meant = None if meant is None else _runs_own(meant.f_back)
    return pointed, meant


def _runs_own(frame: FrameType | None) -> FrameType | None:
    """The frame that would be there without us, and without torch's asking, which calls the same function once more."""
    while frame is not None and (is_ours(frame.f_code) or frame.f_code is HANDLER):
        asker = frame.f_back if frame.f_code is HANDLER else frame
        frame = None if asker is None else asker.f_back
    return frame
