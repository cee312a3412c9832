"""What devices bring to the host without making the run wait: rows of summary numbers, and contents to be saved."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.tensors import BATCH_ROWS, ROW_BYTES, Copies, HostRows, RowRef
from ulpscope.capture.torch.summaries import launching
from ulpscope.capture.torch.summaries.summary import summarize_cpu_into, summarize_tensor_into
from ulpscope.numerics.summaries.compiled import copy_memory
from ulpscope.numerics.summaries.constants import ROW_LENGTH

# Copies begin together: an event and a stream's wait for each small one would cost as much as the copies.
BATCH_COPIES = 64
BATCH_BYTES = 16 * 2**20

# What copies on their way may take of the device's memory; a larger content is alone on it.
DEVICE_BYTES = 256 * 2**20

POLL_SECONDS = 0.0002


class DeviceBatch:
    """Rows of values of one device and stream; they leave it by one copy that nobody waits for but the writer."""

    on_device = True

    def __init__(self, device: torch.device, reader: launching.FusedRows | None, side: Any) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        self._reader = reader
        self._side = side
        # The bits of float64 in int64: some devices have no float64.
        self._rows = torch.empty((BATCH_ROWS, ROW_LENGTH), dtype=torch.int64, device=device)
        self.address = self._rows.data_ptr() if reader is not None else 0
        self._stream = self._module.current_stream(device)
        self._waiting: list[tuple[launching.Read, torch.Tensor, int]] = []
        self._host: torch.Tensor | None = None
        self._landed: Any = None
        self.used = 0
        self.trouble: Exception | None = None
        """What kept the fused kernels from running."""

    def add(self, tensor: torch.Tensor) -> int:
        """Take a row for a tensor, which is read at the latest when the batch is settled."""
        index = self.used
        self.used += 1
        usable = self._reader is not None and self.trouble is None
        plan = launching.plan(tensor, self.address + index * ROW_BYTES) if usable else None
        if plan is not None:
            self._waiting.append((plan, tensor, index))
        else:
            summarize_tensor_into(tensor, self._rows[index])
        return index

    def row(self, index: int) -> torch.Tensor:
        return self._rows[index]

    def settle(self) -> None:
        """Have the tensors read that wait for it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        assert self._reader is not None
        try:
            self._reader.read([plan for plan, _, _ in waiting])
        except Exception as error:  # no compiler, for one: a slower way is there for everything
            for _, tensor, index in waiting:
                summarize_tensor_into(tensor, self._rows[index])
            pass_on_interruption(error)
            self.trouble = error

    def land(self) -> None:
        """Start the copy to the host, after everything that fills the rows."""
        if self._host is not None:
            return
        self.settle()
        module = self._module
        if self._reader is not None:
            self._reader.join()
        self._side.wait_stream(self._stream)
        self._host = _pinned(self.used)
        with module.stream(self._side):
            self._host.copy_(self._rows[: self.used], non_blocking=True)
            self._landed = module.Event()
            self._landed.record(self._side)

    def rows(self) -> NDArray[np.float64]:
        """The rows on the host; waits for the copy (the writer's thread does)."""
        self.land()
        assert self._host is not None
        self._landed.synchronize()
        return self._host.numpy().view(np.float64)


class RowPool(HostRows):
    """The batch that is being filled, for the host, each device and stream."""

    def __init__(self, *, fused: bool = True) -> None:
        """Without `fused` kernels where somebody else launches them."""
        super().__init__(summarize_cpu_into)
        self._fused = fused
        self._current: dict[Any, DeviceBatch] = {}
        self._readers: dict[Any, launching.FusedRows | None] = {}
        self._sides: dict[torch.device, Any] = {}
        self._unsettled: list[DeviceBatch] = []

    def summarize(self, tensor: torch.Tensor) -> RowRef:
        return self._summarize_here(tensor) if tensor.device.type == "cpu" else self._summarize_there(tensor)

    _summarize_here = HostRows.summarize

    def _summarize_there(self, tensor: torch.Tensor) -> RowRef:
        device = tensor.device
        key = _stream_key(device)
        batch = self._current.get(key)
        if batch is None:
            if key not in self._readers:
                self._readers[key] = launching.make_reader(device) if self._fused else None
            reader = self._readers[key] if self.trouble is None else None
            batch = self._current[key] = self.new_batch(device, reader)
        index = batch.add(tensor)
        self._unsettled.append(batch)
        if batch.used == BATCH_ROWS:
            batch.land()
            del self._current[key]
        return batch, index

    def new_batch(self, device: torch.device, reader: launching.FusedRows | None) -> DeviceBatch:
        if device not in self._sides:
            self._sides[device] = torch.get_device_module(device).Stream(device)
        return DeviceBatch(device, reader, self._sides[device])

    @property
    def unsettled(self) -> bool:
        return bool(self._unsettled)

    def settle(self) -> None:
        if self._unsettled:
            for batch in self._unsettled:
                batch.settle()
                self.trouble = self.trouble or batch.trouble
            self._unsettled.clear()

    def land(self) -> None:
        self.settle()
        for batch in self._current.values():
            batch.land()
        self._current.clear()
        super().land()


def _pinned(rows: int) -> torch.Tensor:
    return torch.empty((rows, ROW_LENGTH), dtype=torch.int64, pin_memory=True)


def _stream_key(device: torch.device) -> Any:
    """What tells streams apart; raises in the middle of a graph's capture, which must stay as the run records it."""
    if device.type != "cuda":
        return device, torch.get_device_module(device).current_stream(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured")
    return device, torch._C._cuda_getCurrentRawStream(device.index or 0)


@dataclass(slots=True, eq=False)
class CopyBatch:
    """Copies that begin together and land together."""

    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """On the device and their places on the host. The former must live until they have been read."""
    streams: set[Any] = field(default_factory=set)
    nbytes: int = 0
    landed: Any = None

    def wait(self) -> None:
        """Sleep until it has landed."""
        while not self.landed.query():
            time.sleep(POLL_SECONDS)
        self.copies.clear()


class DeviceCopies:
    """Contents of one device on their way to the host. `module` is torch's module for it: streams and events."""

    def __init__(self, device: torch.device, module: Any) -> None:
        self._device = device
        self._module = module
        self._side = module.Stream(device)
        self._next = CopyBatch()
        self._under_way: deque[CopyBatch] = deque()
        self._held = 0

    def begin(self, source: torch.Tensor, host: torch.Tensor) -> CopyBatch:
        """Copy aside on the device, where later writes cannot reach it, and soon to the host."""
        copy = source.clone(memory_format=torch.contiguous_format)
        nbytes = copy.numel() * copy.element_size()
        batch = self._next
        batch.copies.append((copy, host))
        batch.streams.add(self._module.current_stream(self._device))
        batch.nbytes += nbytes
        self._held += nbytes
        if batch.nbytes >= BATCH_BYTES or len(batch.copies) >= BATCH_COPIES:
            self.send()
        return batch

    def send(self) -> None:
        """Let everything that was begun go."""
        batch = self._next
        if not batch.copies:
            return
        for stream in batch.streams:
            self._side.wait_stream(stream)
        with self._module.stream(self._side):
            for copy, host in batch.copies:
                host.copy_(copy, non_blocking=True)
            batch.landed = self._module.Event()
            batch.landed.record(self._side)
        self._under_way.append(batch)
        self._next = CopyBatch()

    def make_room(self, nbytes: int) -> bool:
        """Keep to the device memory that copies may take; whether that took a wait."""
        self._drop_landed()
        waited = False
        while self._held and self._held + nbytes > DEVICE_BYTES:
            self.send()
            self._under_way[0].wait()
            self._drop_landed()
            waited = True
        return waited

    def _drop_landed(self) -> None:
        while self._under_way and self._under_way[0].landed.query():
            batch = self._under_way.popleft()
            batch.copies.clear()
            self._held -= batch.nbytes


class TorchCopies(Copies):
    """Copies of tensors wherever they are."""

    def __init__(self) -> None:
        self._devices: dict[torch.device, DeviceCopies] = {}

    def on_host(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def allocate(self, nbytes: int, *, pinned: bool) -> torch.Tensor:
        with torch.inference_mode(mode=False):  # memory from within could not be written outside of it
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)

    def bytes_of(self, memory: torch.Tensor) -> NDArray[np.uint8]:
        return memory.numpy()

    def begin(self, tensor: torch.Tensor, run: tuple[int, int] | None, memory: torch.Tensor) -> CopyBatch | None:
        source = tensor.detach()
        if run is not None:
            source = source.as_strided((run[1],), (1,), run[0])
        elif source.is_conj() or source.is_neg():
            source = source.resolve_conj().resolve_neg()
        target = memory.view(source.dtype).view(source.shape)
        if not self.on_host(source):
            return self._of(source.device).begin(source, target)
        if source.is_contiguous():  # torch's own copy takes half as long again as the C library's, and fills the caches
            copy_memory(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
        else:
            target.copy_(source)
        return None

    def make_room(self, tensor: torch.Tensor, nbytes: int) -> bool:
        return self._of(tensor.device).make_room(nbytes)

    def send(self) -> None:
        for copies in self._devices.values():
            copies.send()

    def close(self) -> None:
        self._devices.clear()

    def _of(self, device: torch.device) -> DeviceCopies:
        if device not in self._devices:
            self._devices[device] = DeviceCopies(device, torch.get_device_module(device))
        return self._devices[device]
