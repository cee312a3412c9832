"""Turns what is observed into rows of a trace: numbers calls, gathers their uses, hands full parts over.

`Recorder` is the interface by which whoever watches a framework knows it, and keeps rows in Python's lists. A framework
may have a compiled one, which keeps rows, values and numbers elsewhere.
"""

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ulpscope.capture.events import EventLog, LastCallFile
from ulpscope.capture.exceptions import is_interruption, pass_on_interruption
from ulpscope.capture.recording.calls import (
    CallCounts,
    CallPatterns,
    ModuleScope,
    OpenCall,
    ParameterPatterns,
    Scopes,
)
from ulpscope.capture.recording.limits import DiskLimit
from ulpscope.capture.recording.output import Output, OutputElsewhere, Part
from ulpscope.capture.recording.saving import Saver
from ulpscope.capture.recording.stacks import StackTable
from ulpscope.capture.recording.steps import Steps
from ulpscope.capture.recording.tensors import Placed, Tensors
from ulpscope.capture.recording.values import ValueTable
from ulpscope.capture.recording.writing_process import StepEnd, WritingProcess
from ulpscope.records.enums import MAKING_ROLES, Kind, Phase, Watch
from ulpscope.records.runs import CaptureSettings, Coverage, RankInfo

PART_CALLS = 20_000
# Of a long step, what is older than this is on its way to disk.
PART_SECONDS = 10.0
PART_DATA_BYTES = 128 * 2**20
MAX_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a watched training is recorded; it may become another while the training runs."""

    every: int = 1
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    on: bool = True

    def wants(self, step: int) -> bool:
        return self.on and step % self.every == 0


def _ignore() -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a recorder works with."""

    settings: CaptureSettings
    tensors: Tensors
    steps: Steps
    scopes: Scopes
    stacks: StackTable
    hand_over: Callable[[Part], None]
    on_first_call: Callable[[], None] = _ignore
    quiet: Callable[[], AbstractContextManager[Any]] = nullcontext
    """How code of ours is run so that nobody sees the framework's calls in it."""
    saver: Saver | None = None
    disk: DiskLimit | None = None
    last_call: LastCallFile | None = None


class Recorder:
    """The rows of the step that is running. All methods may be called from any of the framework's threads."""

    def __init__(self, around: Surroundings) -> None:
        self.settings = around.settings
        self.steps = around.steps
        self.stacks = around.stacks
        self.last_call = around.last_call
        self.counts = CallCounts()
        self.errors: list[str] = []
        self.postponed: dict[int, BaseException] = {}
        """What interrupted backward passes that are running."""
        self._given_up = self._paused = False
        self.capturing = False
        self.on_recorded_step: Callable[[], None] = _ignore
        """Called before the first call of a recorded step; whoever installs the capture sets it."""
        self.lock = threading.RLock()
        self._quiet = around.quiet
        self._saver = around.saver
        self._disk = around.disk
        self._on_first_call = around.on_first_call
        self._hand_over = around.hand_over
        self._choice = Choice(self.settings.training.every, self.settings.only, self.settings.skip)
        self._next_choice: Choice | None = None
        """What is recorded from the next step on."""
        self._patterns = self._patterns_of(self._choice)
        self._chosen: set[int] = set()
        """Calls of this step that patterns have chosen from others."""
        self._ids = itertools.count()
        self._numbers: dict[tuple[str, bool, str], int] = {}
        self._calls: list[OpenCall] = []
        self._uses: list[tuple[int, str, str, int]] = []
        self.capturing = self._wants_step(0)
        self._step_began = time.monotonic()
        self._process: WritingProcess | None = None
        """What makes tables, where that is not done here."""
        self._flushed = math.inf  # never, which is not long ago: a first part too early would not know its rank
        self.values = self.make_values(around)

    def _patterns_of(self, choice: Choice) -> CallPatterns:
        of_modules = self.settings.watch is Watch.TRAINING
        return CallPatterns(only=choice.only, skip=choice.skip, of_modules=of_modules)

    def choose(self, choice: Choice) -> None:
        """Record this from the next step on; before the first call, at once."""
        self._next_choice = choice
        if not self.counts.seen and not self.steps.step:
            self._take_choice()
            self._look_at_step()

    def wants_parameters(self, named: Placed) -> Placed:
        """Those parameters of which an update is recorded."""
        if self.settings.watch is not Watch.TRAINING:
            return named
        return ParameterPatterns(only=self._choice.only, skip=self._choice.skip).keep(named)

    def make_values(self, around: Surroundings) -> ValueTable:
        """What knows contents of tensors."""
        return ValueTable(around.tensors, saver=around.saver, verify=around.settings.verify)

    def next_id(self) -> int:
        """The id of another call."""
        return next(self._ids)

    def next_number(self, phase: str, recompute: bool, stem: str) -> int:
        """Of a call in a phase, recomputed or not, by its stem."""
        key = (phase, recompute, stem)
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        return number

    def clear_numbers(self) -> None:
        """Calls are counted anew."""
        self._numbers.clear()

    def use(self, call: OpenCall, role: str, place: str, tensor: Any) -> None:
        """The call reads or makes this tensor's content, as it is now."""
        with self.lock:
            if self._given_up:
                return
            producer = call.id if role in MAKING_ROLES else None
            try:
                self._uses.append((call.id, role, place, self.values.observe(tensor, producer)))
            except Exception as error:
                pass_on_interruption(error)
                self.own_error(f"{place} of {call.op}", error)
            if self._much_data():  # one call of an optimizer may bring gigabytes
                self._flush(finishes_step=False)

    def use_all(self, call: OpenCall, role: str, tensors: Placed) -> None:
        """As use, of several."""
        for place, tensor in tensors:
            self.use(call, role, place, tensor)

    @property
    def has_calls(self) -> bool:
        """Whether calls were recorded since the last part."""
        return bool(self._calls)

    def make_part(self, **known: Any) -> Part:
        """Everything since the last part; `known` is what all recorders know of it."""
        uses, self._uses = self._uses, []
        return Part(
            values=self.values.take_fresh(),
            uses=uses,
            contents=self._saver.take_fresh() if self._saver is not None else [],
            rechecks=self.values.take_rechecks(),
            **known,
        )

    def start(self, events: EventLog | None) -> None:
        """The capture begins."""
        if self.settings.watch is Watch.GRADIENTS:
            self._process = WritingProcess(events, module="ulpscope.capture.watch.together")

    def make_output(self, directory: Path, info: RankInfo, **options: Any) -> Output:
        """What brings its parts to disk; the options are Output's."""
        if self._process is None:
            return Output(directory, info, **options)
        return OutputElsewhere(directory, info, self._process, **options)

    def release(self) -> None:
        """The capture has ended: let go of everything."""
        self.values.clear()
        if self._process is not None:
            self._process.close()

    def open_backward(self, kind: Kind, forward: OpenCall, *, called: str | None = None) -> OpenCall:
        """Number the backward of a call."""
        scope = ModuleScope(forward.module, forward.module_class)
        return self.open(kind, forward.op, scope, parent=None, phase=Phase.BACKWARD, forward=forward, called=called)

    def open(
        self,
        kind: Kind,
        op: str,
        scope: ModuleScope,
        *,
        parent: int | None,
        phase: Phase | None = None,
        recompute: bool = False,
        forward: OpenCall | None = None,
        called: str | None = None,
        frame: FrameType | None = None,
        stack: int | None = None,
    ) -> OpenCall:
        """Number a call in a module, by its operation or what it is `called`. close() records it, if it is wanted.

        Its stack is `stack`, or that of `frame`, beyond which the one of the module's own call is known.
        """
        with self.lock:
            phase = phase or self.steps.phase
            stem = called or op
            number = self.next_number(phase._value_, recompute, stem)  # an enum's own hash is slow
            name = f"{stem}.{number}@recompute" if recompute else f"{stem}.{number}"
            if self.counts.seen == 0:
                self._on_first_call()
            self.counts.seen += 1
            if forward is not None:
                wanted = forward.wanted
            else:
                inside = kind is Kind.KERNEL and parent in self._chosen
                wanted = self._patterns.wants(op, scope.path, name, inside=inside)
            call = OpenCall(
                self.next_id(),
                name,
                kind,
                op,
                scope.path,
                scope.class_name,
                phase,
                self.steps.step,
                self.steps.micro_step,
                parent,
                wanted,
                recompute,
                None if forward is None else forward.id,
            )
            if wanted and self._patterns.chooses:
                self._chosen.add(call.id)
            if self.last_call is not None:
                self.last_call.opened(call.step, phase._value_, name, scope.path)
            if not wanted:
                self.counts.filtered += 1
            elif forward is not None:
                call.stack = forward.stack
            elif stack is not None:
                call.stack = stack
            else:
                call.stack = self.stacks.number(frame or sys._getframe(1), scope.stack)
            return call

    def settle(self) -> None:
        """A block of our own work ends: what it wants to know of the run's tensors must not wait any longer."""
        if self.values.unsettled:
            with self.lock:
                self.values.settle()

    def close(self, call: OpenCall, arguments: str | None = None) -> None:
        """Record a wanted call."""
        if self.last_call is not None:
            self.last_call.closed()
        if not call.wanted:
            return
        if arguments is not None:
            call.arguments = arguments
        with self.lock:
            if self._given_up:
                return
            self.counts.recorded += 1
            self._calls.append(call)
            self.flush_if_much()

    def unobserved(self, reason: str, count: int = 1) -> None:
        self.counts.unobserved[reason] = self.counts.unobserved.get(reason, 0) + count

    def own_error(self, where: str, error: BaseException) -> None:
        """Something of ours failed: note it, and let the run go on."""
        text = f"{where}: {type(error).__name__}: {error}"
        if text not in self.errors and len(self.errors) < MAX_ERRORS:
            self.errors.append(text)

    def postpone(self, interruption: BaseException) -> bool:
        """Let what interrupted a hook of ours wait for the end of the backward pass, if we see that."""
        if self.steps.backward_pass is None:
            return False
        self.postponed[self.steps.backward_pass] = interruption
        return True

    def give_up(self) -> None:
        """Capture nothing from now on."""
        self.capturing = False
        self._given_up = True

    def pause(self) -> None:
        """Record nothing until resume(); the step goes on."""
        with self.lock:
            self._paused, self.capturing = True, False
            self.values.lose_track()

    def resume(self) -> None:
        with self.lock:
            self._paused = False
            self._look_at_step()

    def next_step(self) -> None:
        """Finish the running step and begin the next."""
        with self.lock:
            self.finish_step()
            self.steps.advance()
            self._take_choice()
            if self._throws_data:
                self.values.forget_all()  # data is thrown away with its step: none may use that of an earlier one
            self._look_at_step()

    def _take_choice(self) -> None:
        if self._next_choice is not None:
            self._choice, self._next_choice = self._next_choice, None
            self._patterns = self._patterns_of(self._choice)

    def begin_at(self, step: int) -> None:
        """The running step has this number; only steps that are marked by hand follow it."""
        with self.lock:
            if self.has_calls:
                self.finish_step()
            self.steps.step, self.steps.manual = step, True
            self._look_at_step()

    def _look_at_step(self) -> None:
        self.capturing = not self._paused and self._wants_step(self.steps.step)
        if self.capturing:
            self.on_recorded_step()
        else:
            self.values.lose_track()

    def finish_step(self) -> None:
        with self.lock:
            if self._wants_step(self.steps.step):
                self._flush(finishes_step=True)
            self.clear_numbers()
            self._chosen.clear()
            self._step_began = time.monotonic()

    def flush(self, *, ends_work: bool = False) -> None:
        """Hand over what there is; the step goes on."""
        with self.lock:
            self._flush(finishes_step=False, ends_work=ends_work)

    def guarded(self, where: str, work: Callable[..., Any], *args: Any) -> Any:
        """What `work` of ours gives, or None if it raised: nobody sees its calls, its errors are noted in the trace.

        Summaries that it asked for are on their way when this returns: the run may write into the tensors then. What
        interrupts it is the run's own.
        """
        try:
            with self._quiet():
                try:
                    return work(*args)
                finally:
                    self.settle()
        except BaseException as error:
            if is_interruption(error):
                self.unobserved("interrupted")
                pass_on_interruption(error)
            self.own_error(where, error)
            return None

    def guarded_in_hook(self, where: str, work: Callable[..., Any], *args: Any) -> None:
        """As guarded, in a hook of a backward pass: without us no code of Python's would run there to be interrupted.

        An exception would end the pass with half of its gradients, so it waits for the end.
        """
        try:
            self.guarded(where, work, *args)
        except BaseException as error:
            if not self.postpone(error):
                raise

    def _wants_step(self, step: int) -> bool:
        chosen = self.settings.steps is None or step in self.settings.steps
        return not self._given_up and chosen and self._choice.wants(step)

    def _step_end(self) -> StepEnd:
        throws_rows = self.settings.watch is Watch.OVERFLOW and not self._throws_data
        known = self.values.known() if throws_rows else ()
        return StepEnd(time.monotonic() - self._step_began, self.steps.skipped, known)

    @property
    def _throws_data(self) -> bool:
        """Whether data goes with the step in which it was met."""
        return self.settings.watch is Watch.OVERFLOW and self.settings.overflow.ring > 0

    def flush_if_much(self) -> None:
        """Hand over what there is, if there is much of it or it is old."""
        is_long_ago = time.monotonic() - self._flushed >= PART_SECONDS
        if is_long_ago or len(self._calls) >= PART_CALLS or self._much_data() or self._much_disk():
            self._flush(finishes_step=False)

    def _much_data(self) -> bool:
        return self._saver is not None and self._saver.fresh_bytes >= PART_DATA_BYTES

    def _much_disk(self) -> bool:
        if self._disk is None:
            return False
        self._disk.fresh_rows = len(self._calls) + len(self.values.fresh)
        return self._disk.may_be_full

    def _flush(self, *, finishes_step: bool, ends_work: bool = False) -> None:
        if self.values.trouble is not None:
            self.own_error("fused kernels, slower ones are used", self.values.trouble)
        calls, self._calls = self._calls, []
        part = self.make_part(
            step=self.steps.step,
            calls=calls,
            stacks=self.stacks.take_fresh(),
            ends_work=finishes_step or ends_work,
            end=self._step_end() if finishes_step else None,
        )
        self._flushed = time.monotonic()
        self._hand_over(part)


def coverage_of(recorder: Recorder, output: Output | None, saver: Saver | None, ended_early: str) -> Coverage:
    """What became of all that was seen."""
    calls, values = recorder.counts, recorder.values.counts
    waits = (0 if output is None else output.waits) + (0 if saver is None else saver.waits)
    return Coverage(
        calls_seen=calls.seen,
        calls_recorded=calls.recorded,
        calls_filtered=calls.filtered,
        calls_unobserved=dict(calls.unobserved),
        calls_raised=dict(calls.raised),
        values=values.values,
        values_unsummarized=dict(values.unsummarized),
        summaries_made=values.made,
        summaries_reused=values.reused,
        summaries_verified=0 if output is None else output.verified,
        summaries_wrong=0 if output is None else output.wrong,
        other_threads=calls.other_threads,
        waits=waits,
        saved_bytes=0 if saver is None else saver.taken_bytes,
        not_saved=0 if saver is None else saver.not_saved,
        ended_early=ended_early,
    )
