"""The compiled host part as the recorder knows it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NewType

import torch

from ulpscope.capture.recording.columns import Taken
from ulpscope.capture.recording.values import Recheck, ValueCounts, ValueRow
from ulpscope.capture.torch.arguments import Placed
from ulpscope.capture.torch.host.bridge import LIMITS, Bridge
from ulpscope.capture.torch.host.loading import build_beside, is_missed, is_wanted, load
from ulpscope.capture.torch.watching.apis import HANDLER, Action, Asked
from ulpscope.records.enums import Level, Phase, Save
from ulpscope.records.settings import CaptureSettings

if TYPE_CHECKING:
    from ulpscope.capture.recording.recorder import Recorder
    from ulpscope.capture.recording.scopes import Scopes

HostBefore = NewType("HostBefore", object)
"""What was noted before a module's call, in a capsule."""

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


def make_host(recorder: "Recorder", scopes: "Scopes") -> "Host":
    """Raises NotCompiledError where it cannot be."""
    module = load()
    bridge = Bridge(recorder)
    from ulpscope.capture.recording.recorder import PART_CALLS, PART_SECONDS

    core = module.Core(bridge, scopes, recorder.steps, recorder.stacks, LIMITS, PART_CALLS, PART_SECONDS)
    bridge.teach(core)
    core.set_module_call(recorder.stacks.module_call)
    if recorder.last_call is not None:
        core.set_last_call(recorder.last_call.memory)
    core.set_handler(HANDLER)
    for phase in PHASES:
        core.set_phase(phase, phase.value)
    return Host(core, bridge)


class Host:
    """What the recorder and the watchers call."""

    def __init__(self, core: Any, bridge: Bridge) -> None:
        self._core = core
        self._seen = 0
        self.values = HostValues(core, bridge)
        self.dispatch: Callable[..., Any] = core.dispatch
        """dispatch(mode, function, types, args, kwargs): answers as a function mode."""
        self.set_mode: Callable[[Callable[..., Any], bool], None] = core.set_mode
        """Who answers for calls that are not plain, and whether calls are recorded."""
        self.begin_module: Callable[..., tuple[int, int | None, HostBefore]] = core.begin_module
        """begin_module(class name, path, training, args, kwargs, parameters, buffers, frame): number and stack of the
        call and what end_module wants; or NotImplemented."""
        self.end_module: Callable[[HostBefore, int, Any], None] = core.end_module
        """With a number for the module and what it gave."""
        self.fail_module: Callable[[HostBefore, str], None] = core.fail_module
        self.next_id: Callable[[], int] = core.next_id
        self.next_number: Callable[[str, bool, str], int] = core.next_number
        """Of a call in a phase, recomputed or not, by its stem."""
        self.clear_numbers: Callable[[], None] = core.clear_numbers
        self.use_all: Callable[[int, str, Placed, bool], None] = core.use_all
        """A call uses tensors in a role; whether it has made them."""
        self.use_gradients: Callable[[int, str, Mapping[str, torch.Tensor | None]], None] = core.use_gradients
        """A call uses, in a role, the gradients of these parameters."""
        self.begin_backward: Callable[[Any, Any], None] = core.begin_backward
        """With the tensors that it begins from and their gradients; None for one of which nothing is known."""
        self.end_backward: Callable[[], None] = core.end_backward
        self.finish_backward: Callable[[], None] = core.finish_backward
        self.current_parent: Callable[[int], int | None] = core.current_parent
        """The backward call that is running; None if its forward call has a lower number than the given one."""
        self.take_ran: Callable[[], list[tuple[int, int]]] = core.take_ran
        """Numbers of modules whose backward has run, each with its backward call."""

    @property
    def has_calls(self) -> bool:
        """Whether calls were recorded since the last part."""
        return bool(self._core.counts()[4])

    def add_api(self, function: Callable[..., Any], asked: Asked) -> None:
        """From now on this function is known where the same code asks for it."""
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

    def take(self) -> Taken:
        """Everything since the last time; summaries are on their way to the host."""
        seen = self._core.counts()[0]
        fresh, self._seen = seen - self._seen, seen
        return Taken(self._core.take(), fresh)

    def close(self) -> None:
        """Let go of everything; nodes of autograd's that live on have hooks that do nothing."""
        self.values.freeze()
        self._core.close()


class HostValues:
    """The values, as values.ValueTable has them."""

    unsettled = True
    fresh_rows = 0
    """They are counted when a part is taken."""

    def __init__(self, core: Any, bridge: Bridge) -> None:
        self._core = core
        self._bridge = bridge
        self._frozen: ValueCounts | None = None
        self.storages = HostStorages(core)
        self.settle: Callable[[], None] = core.settle
        self.initialized: Callable[[torch.Tensor], None] = core.initialized
        self.suspect: Callable[[torch.Tensor], None] = core.suspect
        self.expose: Callable[[torch.Tensor], None] = core.expose
        self.uninitialized: Callable[[torch.Tensor], None] = core.uninitialized

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

    def wrote_all(self, tensors: Placed, call: int) -> None:
        self._core.wrote_all(tensors, call)

    def wrote(self, tensor: torch.Tensor, call: int, *, elements: int) -> None:
        self._core.wrote(tensor, call, elements * tensor.element_size())

    def take_fresh(self) -> list[ValueRow]:
        """They are in the columns."""
        return []

    def take_rechecks(self) -> list[Recheck]:
        return []

    def freeze(self) -> None:
        self._frozen = self.counts


class HostStorages:
    """All storages met so far, as storages.StorageTable has them."""

    def __init__(self, core: Any) -> None:
        self.forget_all: Callable[[], None] = core.forget_all
        self.lose_track: Callable[[], None] = core.lose_track
        self.clear: Callable[[], None] = core.clear_storages
