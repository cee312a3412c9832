"""The compiled recorder: C++ keeps values, uses and numbers, and answers for calls that are plain."""

from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import torch

from ulpscope.capture.events import EventLog
from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.output import OutputElsewhere, TakenPart
from ulpscope.capture.recording.recorder import PART_CALLS, PART_SECONDS, Surroundings
from ulpscope.capture.recording.scopes import Scopes
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.recording.values import ValueCounts
from ulpscope.capture.recording.writing_process import Taken, WritingProcess
from ulpscope.capture.torch.host.bridge import LIMITS, Bridge
from ulpscope.capture.torch.host.loading import build_beside, is_missed, is_wanted, load
from ulpscope.capture.torch.recorder import TorchRecorder
from ulpscope.capture.torch.watching.apis import HANDLER, Action, Asked
from ulpscope.records.enums import MAKING_ROLES, Level, Phase, Save
from ulpscope.records.runs import RankInfo
from ulpscope.records.settings import CaptureSettings

# After so many calls of a run faster code is compiled for its successors: by then they have cost 3 to 5 seconds.
LONG_RUN_CALLS = 50_000

# In other phases more is to be known about a call than the host part looks at.
PHASES = (Phase.SETUP, Phase.FORWARD, Phase.UPDATE)


def can_serve(settings: CaptureSettings) -> bool:
    """Whether it gives everything that is asked for, and is wanted here."""
    return _gives(settings) and is_wanted()


class LaterHost:
    """Has it compiled for later runs, when one without it turns out to be long."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._is_missed = _gives(settings) and is_missed()

    def is_begun(self, recorded: int) -> bool:
        """Whether compiling has begun just now, with so many calls recorded."""
        if not self._is_missed or recorded < LONG_RUN_CALLS:
            return False
        self._is_missed = False
        return build_beside()


def _gives(settings: CaptureSettings) -> bool:
    plain = settings.save is Save.STATS and not settings.verify and not settings.only and not settings.skip
    return plain and settings.level is not Level.KERNEL


class CompiledRecorder(TorchRecorder):
    """Hands on to the core. What is no plain call comes to the watchers, with the same numbers and values behind it."""

    records_modules = True
    values: "CompiledValues"

    def __init__(self, around: Surroundings, scopes: Scopes) -> None:
        """Raises NotCompiledError where it cannot be."""
        module = load()
        super().__init__(around)
        bridge = Bridge(self)
        core = module.Core(bridge, scopes, self.steps, self.stacks, LIMITS, PART_CALLS, PART_SECONDS)
        bridge.teach(core)
        if self.last_call is not None:
            core.set_last_call(self.last_call.memory)
        core.set_handler(HANDLER)
        for phase in PHASES:
            core.set_phase(phase, phase.value)
        self._core = core
        self._seen = 0
        self._process: WritingProcess | None = None
        self.values = CompiledValues(core, bridge)
        for name in _OF_THE_CORE:  # bound methods of C++: nothing of Python's stands between
            setattr(self, name, getattr(core, name))

    def start(self, events: EventLog | None) -> None:
        self._core.set_module_call(self.stacks.module_call)
        self._process = WritingProcess(events)

    def next_id(self) -> int:
        number: int = self._core.next_id()
        return number

    def next_number(self, phase: str, recompute: bool, stem: str) -> int:
        number: int = self._core.next_number(phase, recompute, stem)
        return number

    def clear_numbers(self) -> None:
        self._core.clear_numbers()

    def serve(self, mode: Any, *, records_calls: bool) -> None:
        # Of the class: the mode's own may already be the core's, when a capture is resumed.
        self._core.set_mode(MethodType(type(mode).__torch_function__, mode), records_calls)
        mode.answer_by(self._core.dispatch)

    def use(self, call: OpenCall, role: str, place: str, tensor: torch.Tensor) -> None:
        self.use_all(call, role, [(place, tensor)])

    def use_all(self, call: OpenCall, role: str, tensors: Placed) -> None:
        try:
            self._core.use_all(call.id, role, tensors, role in MAKING_ROLES)
        except Exception as error:
            pass_on_interruption(error)
            self.own_error(f"{role} of {call.op}", error)

    @property
    def has_calls(self) -> bool:
        return bool(self._calls) or bool(self._core.counts()[4])

    def add_api(self, function: Callable[..., Any], asked: Asked) -> None:
        api = asked.api
        passes, is_recorded = api.action is Action.PASS, api.action is Action.RECORD
        self._core.add_api(
            function,
            asked.function,
            asked.asker,
            api.name,
            passes,
            is_recorded and api.is_plain,
            api.functional,
            api.may_draw,
        )

    def make_part(self, **known: Any) -> TakenPart:
        seen = self._core.counts()[0]
        taken = Taken(self._core.take(), seen - self._seen)
        self._seen = seen
        self.counts.seen += taken.seen
        self.counts.recorded += taken.recorded
        return TakenPart(values=[], uses=[], contents=[], rechecks=[], taken=taken, **known)

    def make_output(self, directory: Path, info: RankInfo, **options: Any) -> OutputElsewhere:
        assert self._process is not None
        return OutputElsewhere(directory, info, self._process, **options)

    def release(self) -> None:
        """Nodes of autograd's that live on have hooks that do nothing."""
        super().release()
        self.values.freeze()
        self._core.close()
        if self._process is not None:
            self._process.close()


_OF_THE_CORE = (
    "begin_module end_module fail_module begin_backward end_backward finish_backward "
    "current_parent take_ran use_gradients"
).split()


class CompiledValues:
    """The values, as ValueTable has them."""

    unsettled = True

    def __init__(self, core: Any, bridge: Bridge) -> None:
        self._core = core
        self._bridge = bridge
        self._frozen: ValueCounts | None = None
        self.storages = CompiledStorages(core)
        self.settle: Callable[[], None] = core.settle
        self.initialized: Callable[[torch.Tensor], None] = core.initialized
        self.suspect: Callable[[torch.Tensor], None] = core.suspect
        self.expose: Callable[[torch.Tensor], None] = core.expose
        self.uninitialized: Callable[[torch.Tensor], None] = core.uninitialized
        self.wrote_all: Callable[[Placed, int], None] = core.wrote_all

    @property
    def counts(self) -> ValueCounts:
        if self._frozen is not None:
            return self._frozen
        _, values, made, reused, _ = self._core.counts()
        return ValueCounts(values, made, reused, self._bridge.unsummarized)

    @property
    def trouble(self) -> Exception | None:
        return self._bridge.trouble

    def observe(self, tensor: torch.Tensor, producer: int | None = None) -> int:
        number: int = self._core.observe(tensor, producer)
        return number

    def wrote(self, tensor: torch.Tensor, call: int, *, nbytes: int) -> None:
        self._core.wrote(tensor, call, nbytes)

    def freeze(self) -> None:
        self._frozen = self.counts


class CompiledStorages:
    """All storages met so far, as StorageTable has them."""

    def __init__(self, core: Any) -> None:
        self.forget_all: Callable[[], None] = core.forget_all
        self.lose_track: Callable[[], None] = core.lose_track
        self.clear: Callable[[], None] = core.clear_storages
