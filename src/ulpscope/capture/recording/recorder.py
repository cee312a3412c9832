"""Turns what is observed into rows of a trace: numbers calls, gathers their uses, hands full parts over."""

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

import torch

from ulpscope.capture.events import LastCallFile
from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.columns import Taken
from ulpscope.capture.recording.filters import CallPatterns
from ulpscope.capture.recording.limits import DiskLimit
from ulpscope.capture.recording.saving import Content, Saver
from ulpscope.capture.recording.stacks import StackTable
from ulpscope.capture.recording.steps import Steps
from ulpscope.capture.recording.values import Recheck, ValueRow, ValueTable
from ulpscope.capture.torch.arguments import Placed
from ulpscope.capture.torch.host.recorder import Host, HostValues
from ulpscope.records.calls import Frame
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.settings import CaptureSettings

PART_CALLS = 20_000
# Of a long step, what is older than this is on its way to disk.
PART_SECONDS = 10.0
PART_DATA_BYTES = 128 * 2**20
MAX_ERRORS = 100

# Words of enums, for code that runs several times a call: asking an enum for its word takes longer than a use.
INPUT, OUTPUT = Role.INPUT.value, Role.OUTPUT.value
PARAMETER, BUFFER = Role.PARAMETER.value, Role.BUFFER.value
GRAD_OUTPUT, GRAD_INPUT = Role.GRAD_OUTPUT.value, Role.GRAD_INPUT.value
MAKING = frozenset(role.value for role in (Role.OUTPUT, Role.GRAD_INPUT, Role.PARAMETER_AFTER, Role.STATE_AFTER))


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call while it runs, and after it for as long as its backward may still come."""

    id: int
    name: str
    kind: Kind
    op: str
    module: str | None
    module_class: str | None
    phase: Phase
    step: int
    micro_step: int
    parent: int | None
    wanted: bool
    recompute: bool = False
    forward: int | None = None
    stack: int | None = None
    autocast: str | None = None
    random: bool = False
    generator: str | None = None
    arguments: str = "{}"
    error: str | None = None


@dataclass(slots=True)
class Part:
    """Rows that go to disk together."""

    step: int
    calls: list[OpenCall]
    values: list[ValueRow]
    uses: list[tuple[int, str, str, int]]
    stacks: list[tuple[int, tuple[Frame, ...]]]
    contents: list[Content]
    rechecks: list[Recheck]
    finishes_step: bool
    ends_work: bool
    """A step or an update has just ended: what it did should be on disk."""
    seconds: float
    host: Taken | None = None
    """What the compiled host part has recorded."""

    @property
    def is_empty(self) -> bool:
        return not (self.recorded or self.contents)

    @property
    def recorded(self) -> int:
        """How many calls it holds."""
        return len(self.calls) + (0 if self.host is None else self.host.recorded)

    @property
    def rows(self) -> int:
        """Calls and values; of what the host part has recorded, calls."""
        return self.recorded + len(self.values)

    @property
    def waits_for_device(self) -> bool:
        """Whether its summaries may still be on their way from a device."""
        own = any(row.summary is not None and row.summary[0].on_device for row in self.values)
        return own or (self.host is not None and self.host.on_device)


@dataclass(slots=True)
class CallCounts:
    """What became of the calls."""

    seen: int = 0
    recorded: int = 0
    filtered: int = 0
    unobserved: dict[str, int] = field(default_factory=dict)
    other_threads: int = 0


class Recorder:
    """The rows of the step that is running. All methods may be called from autograd's threads."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        saver: Saver | None,
        disk: DiskLimit | None = None,
        last_call: LastCallFile | None = None,
        on_first_call: Callable[[], None],
        hand_over: Callable[[Part], None],
    ) -> None:
        self.settings = settings
        self.steps = Steps()
        self.values: ValueTable | HostValues = ValueTable(saver=saver, verify=settings.verify)
        self.host: Host | None = None
        self.counts = CallCounts()
        self.errors: list[str] = []
        self.postponed: dict[int, BaseException] = {}
        """What interrupted backward passes that are running."""
        self._given_up = self._paused = False
        self.capturing = self._wants_step(0)
        self.on_recorded_step: Callable[[], None] = _ignore
        """Called before the first call of a recorded step; whoever installs the capture sets it."""
        self.lock = threading.RLock()
        self._saver = saver
        self._disk = disk
        self.last_call = last_call
        self._on_first_call = on_first_call
        self._hand_over = hand_over
        self._patterns = CallPatterns(only=settings.only, skip=settings.skip)
        self.stacks = StackTable()
        self._ids = itertools.count()
        self._numbers: dict[tuple[str, bool, str], int] = {}
        self._chosen: set[int] = set()
        """Calls of this step that patterns have chosen from others."""
        self._calls: list[OpenCall] = []
        self._uses: list[tuple[int, str, str, int]] = []
        self._step_began = time.monotonic()
        self._flushed = math.inf  # never, which is not long ago: a first part too early would not know its rank

    def use_host(self, host: Host) -> None:
        """Let the compiled host part keep values, uses and numbers."""
        self.host = host
        self.values = host.values

    def open_backward(self, kind: Kind, forward: OpenCall, *, called: str | None = None) -> OpenCall:
        """Number the backward of a call."""
        return self.open(
            kind,
            forward.op,
            module=forward.module,
            module_class=forward.module_class,
            parent=None,
            phase=Phase.BACKWARD,
            forward=forward,
            called=called,
        )

    def open(
        self,
        kind: Kind,
        op: str,
        *,
        module: str | None,
        module_class: str | None,
        parent: int | None,
        phase: Phase | None = None,
        recompute: bool = False,
        forward: OpenCall | None = None,
        called: str | None = None,
        frame: FrameType | None = None,
        enclosing: int | None = None,
    ) -> OpenCall:
        """Number a call, by its operation or what it is `called`. It is recorded by close(), if it is wanted.

        Its stack is that of `frame`, beyond which the one of the `enclosing` module call is known.
        """
        with self.lock:
            phase = phase or self.steps.phase
            stem = called or op
            number = self._next_number(phase, recompute, stem)
            name = f"{stem}.{number}@recompute" if recompute else f"{stem}.{number}"
            if self.counts.seen == 0:
                self._on_first_call()
            self.counts.seen += 1
            if forward is not None:
                wanted = forward.wanted
            else:
                inside = kind is Kind.KERNEL and parent in self._chosen
                wanted = self._patterns.wants(op, module, name, inside=inside)
            call = OpenCall(
                next(self._ids) if self.host is None else self.host.next_id(),
                name,
                kind,
                op,
                module,
                module_class,
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
                self.last_call.opened(call.step, phase._value_, name, module)
            if wanted:
                call.stack = (
                    forward.stack if forward is not None else self.stacks.number(frame or sys._getframe(1), enclosing)
                )
            else:
                self.counts.filtered += 1
            return call

    def _next_number(self, phase: Phase, recompute: bool, stem: str) -> int:
        if self.host is not None:
            return self.host.next_number(phase._value_, recompute, stem)
        key = (phase._value_, recompute, stem)  # an enum's own hash is slow
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        return number

    def use(self, call: OpenCall, role: str, place: str, tensor: torch.Tensor) -> None:
        """The call reads or makes this tensor's content, as it is now."""
        if self.host is not None:
            self.use_all(call, role, [(place, tensor)])
            return
        with self.lock:
            if self._given_up:
                return
            producer = call.id if role in MAKING else None
            try:
                self._uses.append((call.id, role, place, self.values.observe(tensor, producer)))
            except Exception as error:
                pass_on_interruption(error)
                self.own_error(f"{place} of {call.op}", error)
            if self._much_data():  # one call of an optimizer may bring gigabytes
                self._flush(finishes_step=False)

    def use_all(self, call: OpenCall, role: str, tensors: Placed) -> None:
        if self.host is not None:
            try:
                self.host.use_all(call.id, role, tensors, role in MAKING)
            except Exception as error:
                pass_on_interruption(error)
                self.own_error(f"{role} of {call.op}", error)
            return
        for place, tensor in tensors:
            self.use(call, role, place, tensor)

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
            if len(self._calls) >= PART_CALLS or self._is_long_ago() or self._much_data() or self._much_disk():
                self._flush(finishes_step=False)

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
            self.values.storages.lose_track()

    def resume(self) -> None:
        with self.lock:
            self._paused = False
            self._look_at_step()

    def next_step(self) -> None:
        """Finish the running step and begin the next."""
        with self.lock:
            self.finish_step()
            self.steps.advance()
            self._look_at_step()

    def begin_at(self, step: int) -> None:
        """The running step has this number; only steps that are marked by hand follow it."""
        with self.lock:
            if self._calls or (self.host is not None and self.host.has_calls):
                self.finish_step()
            self.steps.step, self.steps.manual = step, True
            self._look_at_step()

    def _look_at_step(self) -> None:
        self.capturing = not self._paused and self._wants_step(self.steps.step)
        if self.capturing:
            self.on_recorded_step()
        else:
            self.values.storages.lose_track()

    def finish_step(self) -> None:
        with self.lock:
            if self._wants_step(self.steps.step):
                self._flush(finishes_step=True)
            self._numbers.clear()
            self._chosen.clear()
            if self.host is not None:
                self.host.clear_numbers()
            self._step_began = time.monotonic()

    def flush(self, *, ends_work: bool = False) -> None:
        """Hand over what there is; the step goes on."""
        with self.lock:
            self._flush(finishes_step=False, ends_work=ends_work)

    def _wants_step(self, step: int) -> bool:
        return not self._given_up and (self.settings.steps is None or step in self.settings.steps)

    def _is_long_ago(self) -> bool:
        return time.monotonic() - self._flushed >= PART_SECONDS

    def _much_disk(self) -> bool:
        if self._disk is None:
            return False
        self._disk.fresh_rows = len(self._calls) + self.values.fresh_rows
        return self._disk.may_be_full

    def _much_data(self) -> bool:
        return self._saver is not None and self._saver.fresh_bytes >= PART_DATA_BYTES

    def _flush(self, *, finishes_step: bool, ends_work: bool = False) -> None:
        if self.values.trouble is not None:
            self.own_error("fused kernels, slower ones are used", self.values.trouble)
        calls, self._calls = self._calls, []
        uses, self._uses = self._uses, []
        part = Part(
            step=self.steps.step,
            calls=calls,
            values=self.values.take_fresh(),
            uses=uses,
            stacks=self.stacks.take_fresh(),
            contents=self._saver.take_fresh() if self._saver is not None else [],
            rechecks=self.values.take_rechecks(),
            finishes_step=finishes_step,
            ends_work=finishes_step or ends_work,
            seconds=time.monotonic() - self._step_began,
            host=self._take_host(),
        )
        self._flushed = time.monotonic()
        self._hand_over(part)

    def _take_host(self) -> Taken | None:
        if self.host is None:
            return None
        columns = self.host.take()
        self.counts.seen += columns.seen
        self.counts.recorded += columns.recorded
        return columns


def _ignore() -> None:
    """Nobody wants to know."""
