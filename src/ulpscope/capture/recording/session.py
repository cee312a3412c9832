"""One capture of one process, from start to close, of whatever framework."""

import functools
import json
import os
import sys
import threading
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ulpscope.capture.events import EventLog
from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.processes import rank_and_world_size
from ulpscope.capture.recording import environment
from ulpscope.capture.recording.calls import Scopes
from ulpscope.capture.recording.config_files import config_files
from ulpscope.capture.recording.control import ControlFile
from ulpscope.capture.recording.environment import About
from ulpscope.capture.recording.limits import DiskLimit
from ulpscope.capture.recording.output import Output, Part
from ulpscope.capture.recording.recorder import PART_DATA_BYTES, Recorder, Surroundings, coverage_of
from ulpscope.capture.recording.saving import Saver
from ulpscope.capture.recording.stacks import RootLog, StackTable
from ulpscope.capture.recording.steps import Steps
from ulpscope.capture.recording.tensors import Tensors
from ulpscope.capture.settings import settings_to_json
from ulpscope.numerics.summaries.compiled import Found, find_compiled
from ulpscope.records.enums import ExitCode, Save, Watch
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import CaptureSettings, RankInfo
from ulpscope.trace.writer import RankWriter, claim_rank_directory, drop_rank_directory

# The time a step takes, as `run` shows it, is the mean of so many.
PROGRESS_STEPS = 5

_TOLD_OF_KERNELS = {
    Found.NONE: "no C++ compiler, no numba: summaries of CPU tensors take 100 times longer",
    Found.COMPILED: "compiled the kernels that summarise CPU tensors",
}

_RUNNING: list[Path] = []
"""Where the running capture writes: two in one process would observe each other."""


class Session(ABC):
    """Observes the thread that starts it until it is closed.

    A framework's own session says what its tensors are, where its files lie (they are left out of stacks), what about
    it affects numbers, and how it is watched: install() and uninstall(). Whoever watches hands calls to `recorder`, and
    tells of outermost forwards by begin_outermost().
    """

    tensors: Tensors
    folders: tuple[str, ...] = ()
    """How names of the framework's own files begin."""
    quiet: Callable[[], AbstractContextManager[Any]] = staticmethod(nullcontext)
    """How code of ours is run so that nobody sees the framework's calls in it."""

    def __init__(self, settings: CaptureSettings, *, events: EventLog | None = None) -> None:
        self.settings = settings
        self.events = events
        self._job = uuid.uuid4().hex if events is None else events.run
        self._owner = os.getpid()
        self._thread = threading.get_ident()
        self._disk = None if settings.max_disk is None else DiskLimit(settings.max_disk)
        self._saver = self.make_saver(self._disk)
        self._told: set[str] = set()
        self.steps = self.make_steps()
        self.scopes = Scopes()
        found = find_compiled()
        if found in _TOLD_OF_KERNELS:
            self.tell_once("kernels", _TOLD_OF_KERNELS[found])
        self.recorder = self.make_recorder(
            Surroundings(
                settings=settings,
                tensors=self.tensors,
                steps=self.steps,
                scopes=self.scopes,
                stacks=StackTable(*self.folders),
                hand_over=self._hand_over,
                on_first_call=self._note_seeds,
                quiet=self.quiet,
                saver=self._saver,
                disk=self._disk,
                last_call=None if events is None else events.last_call_file(),
            )
        )
        self.roots = RootLog(self.recorder.stacks)
        self._output: Output | None = None
        self._waiting: list[Part] = []
        """Handed over, and not yet taken by the output."""
        self._started = _now()
        self._seeds: dict[str, Any] = {}
        self._configs = config_files(settings.configs)
        self._ended_early = ""
        self.overflows = 0
        self._say = self._print if events is None else lambda text: events.emit("message", text=text)
        self._hear: Callable[[Mapping[str, Any]], None] | None = None
        control = settings.training.control if settings.watch is Watch.TRAINING else None
        self._control = None if control is None else ControlFile(control, settings)
        self._last_step = 0
        """The last one that is watched, once a watch has found what it looks for."""
        self._step_times: deque[float] = deque(maxlen=PROGRESS_STEPS)
        self._running = self._closed = self._paused = False
        self.directory: Path | None = None
        self.rank, self.world_size = rank_and_world_size(os.environ)
        self._learn_rank()
        environment.versions(self.about().packages)  # looked for before the script's own work begins, and then known

    @abstractmethod
    def install(self) -> None:
        """Begin to watch this thread."""

    @abstractmethod
    def uninstall(self) -> None:
        """Leave the framework as it was found."""

    @abstractmethod
    def about(self) -> About:
        """What about the framework affects numbers."""

    def seeds(self) -> dict[str, Any]:
        return environment.seeds()

    def group(self) -> tuple[int, int] | None:
        """Rank and number of the processes that compute together, if the framework knows."""
        return None

    def make_steps(self) -> Steps:
        return Steps()

    def make_saver(self, disk: DiskLimit | None) -> Saver | None:
        """What saves data of values; None where no data is asked for."""
        ring = self.settings.overflow.ring if self.settings.watch is Watch.OVERFLOW else 0
        if ring:  # and as much as two parts beside it, so that the run does not wait for what is held
            return Saver(self.tensors, None, pending_bytes=ring + 2 * PART_DATA_BYTES)
        return Saver(self.tensors, disk) if self.settings.save is Save.TENSORS else None

    def make_recorder(self, around: Surroundings) -> Recorder:
        return Recorder(around)

    def output_options(self) -> dict[str, Any]:
        """What else an Output is told."""
        if self.settings.watch is Watch.TRAINING:
            from ulpscope.capture.watch.training import TrainingKeeper  # reads tables, too

            like = self.settings.training.like
            return {"make_steps": lambda writer, _: TrainingKeeper(writer, like), "found": self._anomaly}
        if self.settings.watch is not Watch.OVERFLOW:
            return {}
        from ulpscope.capture.watch.overflow import OverflowKeeper  # reads tables, as nothing else here does
        from ulpscope.capture.watch.ring import Ring

        wanted = self.settings.overflow
        options = {
            "make_steps": lambda writer, ring: OverflowKeeper(writer, wanted.most, ring),
            "found": self._overflowed,
        }
        return options | ({"make_holder": functools.partial(Ring, wanted.ring)} if wanted.ring else {})

    def _overflowed(self, found: Mapping[str, Any]) -> None:
        """The writer has found an overflow."""
        from ulpscope.capture.watch.overflow import sentence_of

        self.overflows += not found["skipped"]
        self._say(sentence_of(found))

    def _anomaly(self, found: Mapping[str, Any]) -> None:
        """The writer has found an anomaly of the training, or can look for them no longer."""
        from ulpscope.capture.watch.training import TROUBLE

        if TROUBLE in found:
            self.recorder.own_error("anomalies", RuntimeError(found[TROUBLE]))
        elif self.events is not None:
            self._emit("anomaly", found=found)
        elif self._hear is not None:
            self._hear(found)

    def hear_by(self, hear: Callable[[Mapping[str, Any]], None]) -> None:
        """Who hears of anomalies, where no `ulpscope run` does."""
        self._hear = hear

    def say_by(self, say: Callable[[str], None]) -> None:
        """Who hears of what is found, in the place of `ulpscope run` or this process's own stderr."""
        self._say = say

    def _print(self, text: str) -> None:
        print(f"ulpscope: {text}", file=sys.stderr, flush=True)

    def _look_at_overflows(self) -> None:
        """A step has ended: stop, if that is asked for."""
        wanted = self.settings.overflow
        if wanted.stop and self._output is not None:
            self._output.settle()
        if wanted.stop and self.overflows:
            self.close(f"stopped after an overflow in step {self.steps.step - 1}")
            raise SystemExit(int(ExitCode.DIFFERENCE))
        if self.overflows >= wanted.most and not self._ended_early:
            self._ended_early = f"the watch has ended: {self.overflows} overflows are kept"
            self._last_step = self.steps.step
        elif self._ended_early and self.steps.step > self._last_step:
            self.recorder.give_up()

    def _look_at_control(self) -> None:
        """Record what the user's file says now, from the next step on."""
        if self._control is not None:
            choice, trouble = self._control.read()
            if choice is not None:
                self.recorder.choose(choice)
            if trouble:
                self._say(trouble)

    def end_step(self) -> None:  # noqa: B027 a framework may have nothing to tell
        """A step ends: what is still to be told of it, is told now."""

    def start(self) -> None:
        """Begin to observe."""
        if _RUNNING:
            raise UlpscopeError(
                f"a capture into {_RUNNING[0]} is running in this process",
                expected="one capture at a time",
                next_step="end that capture first, or run this script without `ulpscope run`",
            )
        _RUNNING.append(self.settings.out)
        self._look_at_control()
        self.recorder.start(self.events)
        self.install()
        self._running = True
        os.register_at_fork(after_in_child=functools.partial(_forget_in_child, weakref.ref(self)))
        if self.world_size > 1 and not self._wants_rank():
            self._stop_observing()

    def pause(self) -> None:
        """Leave the framework alone until resume(); steps are still counted by step()."""
        if self._running and not self._paused:
            self._paused = True
            self.recorder.guarded("pause", self.end_step)
            self.uninstall()
            self.recorder.pause()

    def resume(self) -> None:
        """Observe again."""
        if self._running and self._paused:
            self._paused = False
            self.install()
            self.recorder.resume()

    def begin_at(self, step: int) -> None:
        """The running step has this number; from now on, only step() begins steps."""
        self.recorder.guarded("number of a step", self.recorder.begin_at, step)

    def step(self) -> None:
        """The user's own mark: a new step begins now."""
        self.steps.manual = True
        self.next_step()

    def next_step(self) -> None:
        """Finish the running step; end the script if that was the last one wanted."""
        if not self._running:
            return
        self.recorder.guarded("end of a step", self._finish_step)
        if self.settings.watch is Watch.OVERFLOW:
            self._look_at_overflows()
        last = None if self.settings.steps is None else self.settings.steps.last
        if self.settings.stop and last is not None and self.steps.step > last:
            self.close(f"stopped after step {last}")
            raise SystemExit(0)

    def _finish_step(self) -> None:
        self.end_step()
        self._look_at_control()
        times = self._step_times
        times.append(time.monotonic())
        self.recorder.next_step()
        self._emit(
            "progress",
            step=self.steps.step,
            calls=self.recorder.counts.recorded,
            bytes=self._output.bytes_written if self._output is not None else 0,
            seconds_per_step=(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        )

    def updated(self) -> None:
        """An optimizer is done: the run may end here and now, and most of the step can be on disk."""
        affords = self._output is None or self._output.lag.affordable
        if affords and self._disk is None:  # every part takes room of its own
            self.recorder.guarded("end of an update", functools.partial(self.recorder.flush, ends_work=True))

    def updated_in_graph(self) -> None:
        """A graph that holds an optimizer's step has run."""
        self.steps.note_update()
        if self.recorder.capturing and not self.steps.in_backward:
            self.updated()

    def close(self, exit: str) -> None:
        """Write what is left."""
        if os.getpid() != self._owner or self._closed:
            return
        self._closed = True
        self._stop_observing()
        self.end_step()
        self.recorder.finish_step()
        self.recorder.give_up()
        if self._output is None and self.recorder.errors:
            self._open_output()
        if self._output is not None:
            self._output.drain()
            self._output.close(self._info(closed=_now(), exit=exit))
        elif self.directory is not None:
            drop_rank_directory(self.directory)
        self.recorder.release()
        counts = self.recorder.counts
        self._emit("finished", steps=self.steps.step + 1, calls=counts.seen, recorded=counts.recorded)

    def abandon(self) -> None:
        """This is a forked process: forget the capture, it belongs to the parent."""
        self.recorder.give_up()
        self._stop_observing()

    def _stop_observing(self) -> None:
        if self._running:
            self._running = False
            if not self._paused:
                self.uninstall()
            _RUNNING.clear()

    @property
    def has_seen_calls(self) -> bool:
        """Whether the framework has computed anything."""
        return self.recorder.counts.seen > 0

    def is_here(self) -> bool:
        """Whether this thread is observed: the one that began, and those that a backward pass uses."""
        return threading.get_ident() == self._thread or self.steps.in_backward

    def _note_seeds(self) -> None:
        try:
            self._seeds = self.seeds()
        except Exception as error:
            pass_on_interruption(error)
            self.recorder.own_error("seeds", error)

    def begin_outermost(self, root: int) -> None:
        """A module that is called from outside of any other is about to run; `root` is its identity."""
        self.recorder.guarded("begin of a forward", self._learn_rank)
        if self.steps.begins_new_step(root):
            self.next_step()
        self.steps.outermost_forward(root)

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
            elif self._saver is not None:
                for content in self._waiting[0].contents:
                    self._saver.release(content)
            del self._waiting[0]
        self.handed_over()
        if self._output is not None and self._disk is not None:
            self._keep_to(self._disk, self._output)

    def handed_over(self) -> None:  # noqa: B027 the same
        """Something has just gone to disk."""

    def _keep_to(self, disk: DiskLimit, output: Output) -> None:
        if self._saver is not None and self._saver.not_saved:
            self.tell_once("data", "--max-disk: data of some values is not saved, the rest is for stats")
        if self._closed or not disk.may_be_full:  # what a run leaves at its end has not ended early
            return
        output.settle()
        if disk.is_full:
            self.tell_once("tables", "--max-disk reached: capture ends")
            self._ended_early = f"--max-disk reached in step {self.steps.step}"
            self.recorder.give_up()

    def tell_once(self, topic: str, text: str) -> None:
        """Say something to whoever looks at `ulpscope run`."""
        if self.events is not None and topic not in self._told:
            self._told.add(topic)
            self.events.emit("message", text=f"{text} (step {self.steps.step})")

    def claim(self) -> None:
        """Take the rank's directory before anything is written; raises TraceError if another run has it."""
        RankWriter(self._claim_directory(), self._info())

    def _claim_directory(self) -> Path:
        self.directory = claim_rank_directory(self.settings.out, self.rank, run=self._job)
        return self.directory

    def _open_output(self) -> None:
        try:
            # An interruption may have come after the directory was claimed.
            self._output = self.recorder.make_output(
                self.directory or self._claim_directory(),
                self._info(),
                saver=self._saver,
                failed=self._writing_failed,
                changed_unseen=self._changed_unseen,
                disk=self._disk,
                **self.output_options(),
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
        if self.events is not None:
            self.events.emit("failed", text=f"capture stopped at step {self.steps.step}: {error}")

    def _wants_rank(self) -> bool:
        return self.settings.ranks is None or self.rank in self.settings.ranks

    def _learn_rank(self) -> None:
        """A process that was not started by a launcher learns its rank when it joins a group."""
        group = self.group()
        if group is None or group[1] == self.world_size:
            return
        rank, self.world_size = group
        moved, self.rank = rank != self.rank, rank
        if moved and self.directory is not None:
            old, new = self.directory, self._claim_directory()
            if self._output is not None:
                self._output.move(new)
            else:
                drop_rank_directory(old)

    def _emit(self, event: str, **fields: Any) -> None:
        if self.events is not None:
            self.events.emit(event, rank=self.rank, **fields)

    def _info(self, *, closed: str | None = None, exit: str | None = None) -> RankInfo:
        about = self.about()
        return RankInfo(
            rank=self.rank,
            world_size=self.world_size,
            process=environment.process(),
            framework=about.framework,
            versions=environment.versions(about.packages),
            devices=about.devices,
            environment=environment.surroundings(about, self._configs),
            seeds=self._seeds,
            capture=json.loads(settings_to_json(self.settings)),
            started=self._started,
            closed=closed,
            exit=exit,
            coverage=coverage_of(self.recorder, self._output, self._saver, self._ended_early),
            errors=tuple(self.recorder.errors),
            stepping=self.steps.stepping,
            roots=self.roots.roots,
        )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _forget_in_child(reference: weakref.ref[Session]) -> None:
    session = reference()  # at-fork handlers stay for good, a session does not
    if session is not None and session._running:
        session.abandon()
