"""What the compiled recorder asks of Python: everything that is rare, or done once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ulpscope.capture.exceptions import describe_error, is_interruption, pass_on_interruption
from ulpscope.capture.recording.arguments import with_entry
from ulpscope.capture.recording.environment import state_digest
from ulpscope.capture.recording.recorder import Recorder
from ulpscope.capture.recording.tensors import BATCH_ROWS, ROW_BYTES, Described, Placed, RowRef
from ulpscope.capture.torch.arguments import ARGUMENTS, encode_scalar, find_tensors, generator_digest
from ulpscope.capture.torch.summaries.device import DeviceBatch, RowPool
from ulpscope.capture.torch.summaries.fused import launching
from ulpscope.capture.torch.summaries.fused.kernels import PARTIAL_LENGTH, WARPS, Kernel
from ulpscope.capture.torch.summaries.summary import summarize_tensor_into
from ulpscope.capture.torch.tensors import (
    READABLE_DTYPES,
    describe_opaque,
    local_tensor,
    quiet,
    shard_of,
    unsummarizable_reason,
    word_of,
)
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS

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


class Bridge:
    """Methods here are called by name from C++, in whatever thread and mode the run is in."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.lock = recorder.lock
        """Held while the core works: it is called by autograd's threads, too."""
        self._pool = RowPool(fused=False)
        self._sides: dict[torch.device, Any] = {}
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
        device = reader.device
        with quiet():
            if device not in self._sides:
                self._sides[device] = torch.get_device_module(device).Stream(device)
            batch = DeviceBatch(device, reader, self._sides[device])
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

    def digest_state(self, state: bytes) -> str:
        return state_digest(state)

    def find_outputs(self, result: Any) -> Placed:
        with quiet():
            return find_tensors(result, "output")

    def with_returned(self, text: str, result: Any) -> str:
        returned = encode_scalar(result)
        return text if returned is None else with_entry(text, "returned", returned)

    def describe_error(self, error: BaseException) -> str:
        return describe_error(error)

    def is_interruption(self, error: BaseException) -> bool:
        return is_interruption(error)

    def postpone(self, error: BaseException) -> bool:
        return self.recorder.postpone(error)

    def note_error(self, where: str, error: BaseException) -> None:
        self.recorder.own_error(where, error)

    def flush(self) -> None:
        with quiet():
            self.recorder.flush()
