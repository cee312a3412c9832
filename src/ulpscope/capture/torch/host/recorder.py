"""The compiled recorder: C++ keeps values, uses and numbers, and answers for plain calls; what it asks of Python."""

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ulpscope.capture.events import EventLog
from ulpscope.capture.exceptions import describe_error, is_interruption, pass_on_interruption
from ulpscope.capture.recording.arguments import with_entry
from ulpscope.capture.recording.calls import OpenCall
from ulpscope.capture.recording.environment import state_digest
from ulpscope.capture.recording.output import TakenPart
from ulpscope.capture.recording.recorder import PART_CALLS, PART_SECONDS, Recorder, Surroundings
from ulpscope.capture.recording.tensors import BATCH_ROWS, ROW_BYTES, Described, Placed, RowRef
from ulpscope.capture.recording.values import ValueCounts, ValueTable
from ulpscope.capture.recording.writing_process import Taken, WritingProcess
from ulpscope.capture.torch.host.loading import build_beside, is_missed, is_wanted, load
from ulpscope.capture.torch.recorder import TorchRecorder
from ulpscope.capture.torch.summaries import launching
from ulpscope.capture.torch.summaries.device import DeviceBatch, RowPool
from ulpscope.capture.torch.summaries.kernels import PARTIAL_LENGTH, WARPS, Kernel
from ulpscope.capture.torch.summaries.summary import summarize_tensor_into
from ulpscope.capture.torch.tensors import (
    ARGUMENTS,
    READABLE_DTYPES,
    describe_opaque,
    encode_scalar,
    find_tensors,
    generator_digest,
    local_tensor,
    quiet,
    shard_of,
    unsummarizable_reason,
    word_of,
)
from ulpscope.capture.torch.watching.apis import HANDLER, Action, Asked
from ulpscope.capture.watch import overflow as watch_overflow
from ulpscope.capture.watch import training as watch_training
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS
from ulpscope.records.enums import MAKING_ROLES, Level, Phase, Save, Watch
from ulpscope.records.runs import CaptureSettings

# After so many calls of a run faster code is compiled for its successors: by then they have cost 3 to 5 seconds.
LONG_RUN_CALLS = 50_000

LIMITS = (
    BLOCK_ELEMENTS,
    WARPS,
    launching.MAX_BLOCKS,
    launching.PARTIAL_ROWS,
    PARTIAL_LENGTH,
    launching.MAX_DIMENSIONS,
    launching.MAX_STRIDED_ELEMENTS,
    launching.MAX_ELEMENTS,
    ROW_BYTES,
    BATCH_ROWS,
)

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


def _is_served(settings: CaptureSettings) -> bool:
    """Whether what is watched needs nothing that only Python's recorder has: gradients alone, data in a ring."""
    if settings.watch is Watch.OVERFLOW:
        return not settings.overflow.ring
    return settings.watch is not Watch.GRADIENTS


def _gives(settings: CaptureSettings) -> bool:
    chooses = (settings.only or settings.skip) and settings.watch is not Watch.TRAINING
    plain = settings.save is Save.STATS and not settings.verify and not chooses
    plain = plain and not settings.changes_numbers
    return plain and settings.level is not Level.KERNEL and _is_served(settings)


class CompiledRecorder(TorchRecorder):
    """Hands on to the core. What is no plain call comes to the watchers, with the same numbers and values behind it."""

    @property
    def records_modules(self) -> bool:  # type: ignore[override]
        """Which modules are chosen is asked of Python."""
        return not self._choice.only and not self._choice.skip

    def make_values(self, around: Surroundings) -> "CompiledValues":
        """Makes the core, too; raises NotCompiledError where it cannot be."""
        bridge = Bridge(self)
        core = load().Core(bridge, around.scopes, self.steps, self.stacks, LIMITS, PART_CALLS, PART_SECONDS)
        bridge.teach(core)
        if self.last_call is not None:
            core.set_last_call(self.last_call.memory)
        core.set_handler(HANDLER)
        for phase in PHASES:
            core.set_phase(phase, phase.value)
        self._core = core
        self._seen = 0
        _hand_on(self, core, _OF_THE_RECORDER)
        return CompiledValues(core, bridge)

    def start(self, events: EventLog | None) -> None:
        self._core.set_module_call(self.stacks.module_call)
        if self.settings.watch is Watch.OVERFLOW:
            self._process = WritingProcess(
                events, module=watch_overflow.__name__, arguments=(self.settings.overflow.most,)
            )
        elif self.settings.watch is Watch.TRAINING:
            like = self.settings.training.like
            self._process = WritingProcess(
                events, module=watch_training.__name__, arguments=() if like is None else (str(like),)
            )
        else:
            self._process = WritingProcess(events)

    def serve(self, mode: Any, *, records_calls: bool) -> None:
        # Of the class: the mode's own may already be the core's, when a capture is resumed.
        self._core.set_mode(MethodType(type(mode).__torch_function__, mode), records_calls)
        mode.answer_by(self._core.dispatch)

    def serve_noise(self, mode: Any) -> None:
        from ulpscope.capture.torch.host.noise import answer_for  # loads what only twins need

        answer_for(mode, self._core)

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
        taken = Taken(self._core.take())
        self.counts.seen += seen - self._seen
        self._seen = seen
        self.counts.recorded += taken.recorded
        return TakenPart(values=[], uses=[], contents=[], rechecks=[], taken=taken, **known)

    def release(self) -> None:
        """Nodes of autograd's that live on have hooks that do nothing."""
        super().release()
        self._core.close()


_OF_THE_RECORDER = (
    "next_id next_number clear_numbers begin_module end_module fail_module begin_backward end_backward finish_backward "
    "current_parent take_ran use_gradients"
).split()
_OF_VALUES = "observe settle initialized suspect expose uninitialized wrote_all forget_all lose_track".split()


def _hand_on(to: Any, core: Any, names: list[str]) -> None:
    """Bound methods of C++ in the place of Python's: nothing of Python's stands between."""
    for name in names:
        setattr(to, name, getattr(core, name))


class CompiledValues(ValueTable):
    """The values that the core keeps."""

    unsettled = True

    def __init__(self, core: Any, bridge: "Bridge") -> None:
        self._core = core
        self._bridge = bridge
        self.fresh = []
        _hand_on(self, core, _OF_VALUES)

    @property
    def counts(self) -> ValueCounts:  # type: ignore[override]
        _, values, made, reused, _ = self._core.counts()
        return ValueCounts(values, made, reused, self._bridge.unsummarized)

    @property
    def trouble(self) -> Exception | None:
        return self._bridge.trouble

    def known(self) -> list[int]:
        numbers: list[int] = np.frombuffer(self._core.known(), dtype=np.int64).tolist()
        return numbers

    def wrote(self, tensor: torch.Tensor, call: int, *, nbytes: int) -> None:
        self._core.wrote(tensor, call, nbytes)

    def clear(self) -> None:
        self._core.clear_storages()


class Bridge:
    """Methods here are called by name from C++, in whatever thread and mode the run is in."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.lock = recorder.lock
        """Held while the core works: it is called by autograd's threads, too."""
        self.postpone = recorder.postpone
        self.note_error = recorder.own_error
        self._pool = RowPool(fused=False)
        self._variants: dict[int, launching.Variant] = {}
        self.unsummarized: dict[str, int] = {}
        self.trouble: Exception | None = None

    def teach(self, core: Any) -> None:
        """Tell the core which dtypes can be read, and how the fused kernels know them."""
        for dtype in READABLE_DTYPES:
            number = core.set_readable(dtype, word_of(dtype))
            variant = launching.variant_of(dtype)
            if variant is not None:
                self._variants[number] = variant
                core.set_item(dtype, variant.item)

    def look(self, tensor: Tensor) -> tuple[str | None, Tensor | None, Any]:
        """A tensor of any sort: why it cannot be read and how it looks, or what of it is here and which shard it is."""
        with quiet():
            local = local_tensor(tensor)
            reason = unsummarizable_reason(local)
            if reason is not None:
                return reason, None, describe_opaque(local)
            return None, local, shard_of(tensor)

    def unreadable(self, tensor: Tensor) -> Described:
        self.count_opaque("unreadable")
        with quiet():
            return describe_opaque(tensor)

    def count_opaque(self, reason: str) -> None:
        self.unsummarized[reason] = self.unsummarized.get(reason, 0) + 1

    def summarize(self, tensor: Tensor) -> RowRef | None:
        """The row of a tensor that the fused kernels do not read; None if nothing can."""
        with quiet():
            try:
                return self._pool.summarize(tensor)
            except RuntimeError as error:
                pass_on_interruption(error)
                return None

    def land(self) -> None:
        with quiet():
            self._pool.land()

    def make_reader(self, tensor: Tensor) -> tuple[launching.FusedRows, int, int, int] | None:
        with quiet():
            reader = launching.make_reader(tensor.device) if self.trouble is None else None
        return None if reader is None else (reader, *reader.addresses)

    def new_batch(self, reader: launching.FusedRows) -> tuple[DeviceBatch, int]:
        with quiet():
            batch = self._pool.new_batch(reader.device, reader)
        return batch, batch.address

    def land_batch(self, batch: DeviceBatch, used: int) -> None:
        batch.used = used
        with quiet():
            batch.land()

    def read_plainly(self, tensor: Tensor, batch: DeviceBatch, index: int) -> None:
        with quiet():
            summarize_tensor_into(tensor, batch.row(index))

    def note_trouble(self, error: Exception) -> None:
        self.trouble = error

    def kernel(self, reader: launching.FusedRows, dtype: int) -> Kernel:
        with quiet():
            return reader.kernel(self._variants[dtype])

    def join(self, reader: launching.FusedRows, table: bytes) -> None:
        with quiet():
            reader.join_table(np.frombuffer(table, dtype=np.int64))

    def layout(self, flat: bytes, item: int, unit: int) -> bytes:
        """A structure of cuda/launch.h, of sizes and strides in elements."""
        numbers = np.frombuffer(flat, dtype=np.int64).reshape(-1, 2).tolist()
        dimensions = launching.counted_in_units(tuple((size, stride) for size, stride in numbers), unit // item)
        return bytes(launching.layout_of(unit, dimensions).tobytes())

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, training: bool | None
    ) -> tuple[str, tuple[str, ...]]:
        with quiet():
            placed, text = ARGUMENTS.to_text(args, kwargs or {}, training)
        return text, tuple(place for place, _ in placed)

    def generator_state(self, first: Tensor | None, kwargs: Mapping[str, Any] | None) -> str | None:
        """Digest of the state of the generator that a call would draw from."""
        with quiet():
            return generator_digest([] if first is None else [("", first)], kwargs or {})

    def find_outputs(self, result: Any) -> Placed:
        with quiet():
            return find_tensors(result, "output")

    def with_returned(self, text: str, result: Any) -> str:
        returned = encode_scalar(result)
        return text if returned is None else with_entry(text, "returned", returned)

    digest_state = staticmethod(state_digest)
    describe_error = staticmethod(describe_error)
    is_interruption = staticmethod(is_interruption)

    def flush(self) -> None:
        with quiet():
            self.recorder.flush()
