"""One capture of one process, from start to close."""

import functools
import json
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ulpscope.capture.events import EventLog
from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.processes import rank_and_world_size
from ulpscope.capture.recording.limits import DiskLimit
from ulpscope.capture.recording.output import Output
from ulpscope.capture.recording.recorder import Part, Recorder
from ulpscope.capture.recording.saving import Saver
from ulpscope.capture.recording.scopes import Scopes
from ulpscope.capture.recording.steps import optimizer_exists
from ulpscope.capture.recording.writing_process import WritingProcess
from ulpscope.capture.settings import settings_to_json
from ulpscope.capture.torch import environment, running
from ulpscope.capture.torch.guard import guarded
from ulpscope.capture.torch.host.loading import is_built
from ulpscope.capture.torch.host.recorder import LaterHost, can_serve, make_host
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.capture.torch.watching.functions import CustomCalls
from ulpscope.capture.torch.watching.pairing import Pairing
from ulpscope.capture.torch.watching.patches import Patches, leave_data_workers_alone
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.numerics.summaries.compiled import Found, find_compiled
from ulpscope.records.enums import Save
from ulpscope.records.runs import Coverage, RankInfo
from ulpscope.records.settings import CaptureSettings
from ulpscope.trace.writer import RankWriter, claim_rank_directory, drop_rank_directory

# The time a step takes, as `run` shows it, is the mean of so many.
PROGRESS_STEPS = 5


class Session:
    """Observes the thread that starts it until it is closed."""

    def __init__(self, settings: CaptureSettings, *, events: EventLog | None = None) -> None:
        self.settings = settings
        self._events = events
        self._run = uuid.uuid4().hex if events is None else events.run
        self._owner = os.getpid()
        self._thread = threading.get_ident()
        self._disk = None if settings.max_disk is None else DiskLimit(settings.max_disk)
        self._saver = Saver(self._disk) if settings.save is Save.TENSORS else None
        self.recorder = Recorder(
            settings,
            saver=self._saver,
            disk=self._disk,
            last_call=None if events is None else events.last_call_file(),
            on_first_call=self._note_seeds,
            hand_over=self._hand_over,
        )
        self._watcher = CallWatcher(self.recorder, Pairing(self.recorder), Scopes())
        self._patches = Patches(
            self._watcher,
            here=self._is_here,
            begin_outermost=self._begin_outermost,
            next_step=self.next_step,
            updated=self._updated,
        )
        self._output: Output | None = None
        self._waiting: list[Part] = []
        """Handed over, and not yet taken by the output."""
        self._elsewhere: WritingProcess | None = None
        self._started = _now()
        self._seeds: dict[str, Any] = {}
        self._told: set[str] = set()
        self._ended_early = ""
        self._step_times: deque[float] = deque(maxlen=PROGRESS_STEPS)
        self._custom = CustomCalls(self._watcher)
        self._later_host = LaterHost(settings)
        self._running = self._closed = self._paused = False
        self.directory: Path | None = None
        self.rank, self.world_size = rank_and_world_size(os.environ)
        self._learn_rank()
        environment.versions()  # looked for before the script's own work begins, and then known

    def start(self, models: Mapping[str, nn.Module] | None = None) -> None:
        """Begin to observe."""
        for name, model in (models or {}).items():
            self._patches.modules.paths.add_root(model, name)
        self.recorder.steps.optimizers_exist = optimizer_exists()
        running.claim(self.settings.out)
        self._prepare_kernels()
        self._prepare_host()
        self._patches.install()
        self._running = True
        os.register_at_fork(after_in_child=self._forget_in_child())
        if self.world_size > 1 and not self._wants_rank():
            self._stop_observing()

    def _forget_in_child(self) -> Callable[[], None]:
        reference = weakref.ref(self)  # at-fork handlers stay for good, a session does not

        def forget() -> None:
            session = reference()
            if session is not None and session._running:
                session.abandon()

        return forget

    def _prepare_kernels(self) -> None:
        found = find_compiled()
        if found is Found.NONE:
            self._tell_once("kernels", "no C++ compiler, no numba: summaries of CPU tensors take 100 times longer")
        elif found is Found.COMPILED:
            self._tell_once("kernels", "compiled the kernels that summarise CPU tensors")

    def _prepare_host(self) -> None:
        """Let compiled code do the host's part, where that is worth it and possible."""
        if not can_serve(self.settings):
            return
        if not is_built():
            self._tell_once("host", "compiling the host part of the capture; that is done once and takes half a minute")
        try:
            self.recorder.use_host(make_host(self.recorder, self._watcher.scopes))
            self._elsewhere = WritingProcess(self._events)
        except NotCompiledError as error:
            self._tell_once("host slow", f"{error}: calls are recorded by slower code")

    def pause(self) -> None:
        """Leave torch alone until resume(); steps are still counted by step()."""
        if self._running and not self._paused:
            self._paused = True
            guarded(self.recorder, "pause", self._watcher.drop_pending)
            self._patches.uninstall()
            self.recorder.pause()

    def resume(self, models: Mapping[str, nn.Module] | None = None) -> None:
        """Observe again; `models` get names for their paths."""
        for name, model in (models or {}).items():
            self._patches.modules.paths.add_root(model, name)
        if self._running and self._paused:
            self._paused = False
            self._patches.install()
            self.recorder.resume()

    def record(self, op: str, name: str, content: Any, *, gradients: bool) -> None:
        """A call of the user's own making: the tensors in `content` as they are now, and their gradients later."""
        if self._running and self.recorder.capturing and self._is_here():
            self._custom.record(op, name, content, gradients=gradients)

    def begin_at(self, step: int) -> None:
        """The running step has this number; from now on, only step() begins steps."""
        guarded(self.recorder, "number of a step", self.recorder.begin_at, step)

    def step(self) -> None:
        """The user's own mark: a new step begins now."""
        self.recorder.steps.manual = True
        self.next_step()

    def next_step(self) -> None:
        """Finish the running step; end the script if that was the last one wanted."""
        if not self._running:
            return
        guarded(self.recorder, "end of a step", self._finish_step)
        last = None if self.settings.steps is None else self.settings.steps.last
        if self.settings.stop and last is not None and self.recorder.steps.step > last:
            self.close(f"stopped after step {last}")
            raise SystemExit(0)

    def _finish_step(self) -> None:
        self._watcher.drop_pending()
        self._step_times.append(time.monotonic())
        self.recorder.next_step()
        self._emit_progress()

    def _updated(self) -> None:
        """An optimizer is done: the run may end here and now, and most of the step can be on disk."""
        affords = self._output is None or self._output.lag.affordable
        if affords and self._disk is None:  # every part takes room of its own
            guarded(self.recorder, "end of an update", functools.partial(self.recorder.flush, ends_work=True))

    def close(self, exit: str) -> None:
        """Write what is left."""
        if os.getpid() != self._owner or self._closed:
            return
        self._closed = True
        self._stop_observing()
        self._watcher.drop_pending()
        self.recorder.finish_step()
        self.recorder.give_up()
        if self._output is None and self.recorder.errors:
            self._open_output()
        if self._output is not None:
            self._output.drain()
            self._output.close(self._info(closed=_now(), exit=exit))
        elif self.directory is not None:
            drop_rank_directory(self.directory)
        self.recorder.values.storages.clear()
        if self.recorder.host is not None:
            self.recorder.host.close()
        if self._elsewhere is not None:
            self._elsewhere.close()
        self._emit_finished()

    def abandon(self) -> None:
        """This is a forked process: forget the capture, it belongs to the parent."""
        self.recorder.give_up()
        self._stop_observing()

    def _stop_observing(self) -> None:
        if self._running:
            self._running = False
            if not self._paused:
                self._patches.uninstall()
            running.release()

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread or self.recorder.steps.in_backward

    def _note_seeds(self) -> None:
        try:
            self._seeds = environment.seeds()
        except Exception as error:
            pass_on_interruption(error)
            self.recorder.own_error("seeds", error)

    def _begin_outermost(self, module: nn.Module) -> None:
        guarded(self.recorder, "begin of a forward", self._patches.abort_update)
        guarded(self.recorder, "begin of a forward", self._learn_rank)
        if self.recorder.steps.begins_new_step(id(module)):
            self.next_step()
        self.recorder.steps.outermost_forward(id(module))

    def _hand_over(self, part: Part) -> None:
        if os.getpid() != self._owner:
            return
        self._waiting.append(part)  # for good: what interrupts us here must not cost it
        self._learn_rank()
        if not self._wants_rank():
            self._stop_observing()
        elif self._output is None and not part.is_empty:
            self._open_output()
        while self._waiting:
            if self._output is not None:
                self._output.put(self._waiting[0])
            else:
                self._drop(self._waiting[0])
            del self._waiting[0]
        if self._events is not None and self._later_host.is_begun(self.recorder.counts.recorded):
            self._tell_once("host", "many calls: faster code for them is being compiled in idle time, for later runs")
        if self._output is not None and self._disk is not None:
            self._keep_to(self._disk, self._output)

    def _drop(self, part: Part) -> None:
        if self._saver is not None:
            for content in part.contents:
                self._saver.release(content)

    def _keep_to(self, disk: DiskLimit, output: Output) -> None:
        if self._saver is not None and self._saver.not_saved:
            self._tell_once("data", "--max-disk: data of some values is not saved, the rest is for stats")
        if self._closed or not disk.may_be_full:  # what a run leaves at its end has not ended early
            return
        output.settle()
        if disk.is_full:
            self._tell_once("tables", "--max-disk reached: capture ends")
            self._ended_early = f"--max-disk reached in step {self.recorder.steps.step}"
            self.recorder.give_up()

    def _tell_once(self, topic: str, text: str) -> None:
        if self._events is not None and topic not in self._told:
            self._told.add(topic)
            self._events.emit("message", text=f"{text} (step {self.recorder.steps.step})")

    def claim(self) -> None:
        """Take the rank's directory before anything is written; raises TraceError if another run has it."""
        RankWriter(self._claim_directory(), self._info())

    def _claim_directory(self) -> Path:
        self.directory = claim_rank_directory(self.settings.out, self.rank, run=self._run)
        return self.directory

    def _open_output(self) -> None:
        try:
            # An interruption may have come after the directory was claimed.
            self._output = Output(
                self.directory or self._claim_directory(),
                self._info(),
                saver=self._saver,
                failed=self._writing_failed,
                changed_unseen=self._changed_unseen,
                elsewhere=self._elsewhere,
                disk=self._disk,
            )
        except Exception as error:
            pass_on_interruption(error)
            self._writing_failed(error)

    def _changed_unseen(self, value: int) -> None:
        self.recorder.own_error("verify", AssertionError(f"value {value} was reused after its content had changed"))

    def _writing_failed(self, error: BaseException) -> None:
        """The trace cannot be written: stop capturing, let the run go on."""
        self.recorder.give_up()
        self.recorder.own_error("writing", error)
        if self._events is not None:
            self._events.emit("failed", text=f"capture stopped at step {self.recorder.steps.step}: {error}")

    def _wants_rank(self) -> bool:
        return self.settings.ranks is None or self.rank in self.settings.ranks

    def _learn_rank(self) -> None:
        """A process that was not started by a launcher learns its rank when it joins a group."""
        if not _initialized() or torch.distributed.get_world_size() == self.world_size:
            return
        self.world_size = torch.distributed.get_world_size()
        rank = torch.distributed.get_rank()
        moved, self.rank = rank != self.rank, rank
        if moved and self.directory is not None:
            old, new = self.directory, self._claim_directory()
            if self._output is not None:
                self._output.move(new)
            else:
                drop_rank_directory(old)

    def _emit_progress(self) -> None:
        if self._events is None:
            return
        times = self._step_times
        self._events.emit(
            "progress",
            rank=self.rank,
            step=self.recorder.steps.step,
            calls=self.recorder.counts.recorded,
            bytes=self._output.bytes_written if self._output is not None else 0,
            seconds_per_step=(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        )

    def _emit_finished(self) -> None:
        if self._events is not None:
            counts = self.recorder.counts
            steps = self.recorder.steps.step + 1
            self._events.emit("finished", rank=self.rank, steps=steps, calls=counts.seen, recorded=counts.recorded)

    def _info(self, *, closed: str | None = None, exit: str | None = None) -> RankInfo:
        return RankInfo(
            rank=self.rank,
            world_size=self.world_size,
            process=environment.process(),
            framework=environment.framework(),
            versions=environment.versions(),
            devices=environment.devices(),
            environment=environment.environment(),
            seeds=self._seeds,
            capture=json.loads(settings_to_json(self.settings)),
            started=self._started,
            closed=closed,
            exit=exit,
            coverage=self._coverage(),
            errors=tuple(self.recorder.errors),
            stepping=self.recorder.steps.stepping,
            roots=self._patches.modules.roots.roots,
        )

    def _coverage(self) -> Coverage:
        calls, values = self.recorder.counts, self.recorder.values.counts
        output, saver = self._output, self._saver
        return Coverage(
            calls_seen=calls.seen,
            calls_recorded=calls.recorded,
            calls_filtered=calls.filtered,
            calls_unobserved=dict(calls.unobserved),
            values=values.values,
            values_unsummarized=dict(values.unsummarized),
            summaries_made=values.made,
            summaries_reused=values.reused,
            summaries_verified=output.verified if output is not None else 0,
            summaries_wrong=output.wrong if output is not None else 0,
            other_threads=calls.other_threads,
            waits=(output.waits if output is not None else 0) + (saver.waits if saver is not None else 0),
            saved_bytes=saver.taken_bytes if saver is not None else 0,
            not_saved=saver.not_saved if saver is not None else 0,
            ended_early=self._ended_early,
        )


def start_session(settings: CaptureSettings, *, events: EventLog | None = None) -> Session:
    """Capture this process from now on."""
    session = Session(settings, events=events)
    session.start()
    leave_data_workers_alone(session.abandon)
    return session


def _initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
