"""Rows of summary numbers: filled on the device, brought to the host without making the run wait."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.torch.summaries.fused import launching
from ulpscope.capture.torch.summaries.summary import summarize_cpu_into, summarize_tensor_into
from ulpscope.numerics.summaries.constants import ROW_LENGTH

BATCH_ROWS = 1024
ROW_BYTES = ROW_LENGTH * 8


class HostBatch:
    """Rows of values that live in host memory."""

    on_device = False

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] = np.zeros((BATCH_ROWS, ROW_LENGTH))
        self._address: int = self._rows.ctypes.data
        self.used = 0

    def add(self, tensor: torch.Tensor) -> int:
        summarize_cpu_into(tensor, self._address + self.used * ROW_BYTES)
        self.used += 1
        return self.used - 1

    def settle(self) -> None:
        """Nothing waits: tensors are read at once."""

    def land(self) -> None:
        """Nothing to bring: the rows are here."""

    def rows(self) -> NDArray[np.float64]:
        return self._rows


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


Batch = HostBatch | DeviceBatch
RowRef = tuple[Batch, int]


class RowPool:
    """The batch that is being filled, for each device and stream."""

    def __init__(self, *, fused: bool = True) -> None:
        """Without `fused` kernels where somebody else launches them."""
        self._fused = fused
        self._host = HostBatch()
        self._current: dict[Any, DeviceBatch] = {}
        self._readers: dict[Any, launching.FusedRows | None] = {}
        self._sides: dict[torch.device, Any] = {}
        self._unsettled: list[DeviceBatch] = []
        self.trouble: Exception | None = None
        """What keeps the fused kernels from running here."""

    def summarize(self, tensor: torch.Tensor) -> RowRef:
        """Summarise a tensor's content as it is now; it must not change before settle()."""
        if tensor.device.type == "cpu":
            return self._summarize_here(tensor)
        return self._summarize_there(tensor)

    @property
    def unsettled(self) -> bool:
        """Whether tensors may still wait to be read."""
        return bool(self._unsettled)

    def settle(self) -> None:
        """Have everything read that was asked for: the run may change it after this."""
        if self._unsettled:
            for batch in self._unsettled:
                batch.settle()
                self.trouble = self.trouble or batch.trouble
            self._unsettled.clear()

    def land(self) -> None:
        """Send off what is filled; later values go to fresh rows."""
        self.settle()
        for batch in self._current.values():
            batch.land()
        self._current.clear()
        if self._host.used:
            self._host = HostBatch()

    def _summarize_here(self, tensor: torch.Tensor) -> RowRef:
        batch = self._host
        index = batch.add(tensor)
        if batch.used == BATCH_ROWS:
            self._host = HostBatch()
        return batch, index

    def _summarize_there(self, tensor: torch.Tensor) -> RowRef:
        device = tensor.device
        key = _stream_key(device)
        batch = self._current.get(key)
        if batch is None:
            batch = self._current[key] = self._new_batch(device, key)
        index = batch.add(tensor)
        self._unsettled.append(batch)
        if batch.used == BATCH_ROWS:
            batch.land()
            del self._current[key]
        return batch, index

    def _new_batch(self, device: torch.device, key: Any) -> DeviceBatch:
        if key not in self._readers:
            self._readers[key] = launching.make_reader(device) if self._fused else None
        if device not in self._sides:
            self._sides[device] = torch.get_device_module(device).Stream(device)
        reader = self._readers[key] if self.trouble is None else None
        return DeviceBatch(device, reader, self._sides[device])


def _pinned(rows: int) -> torch.Tensor:
    return torch.empty((rows, ROW_LENGTH), dtype=torch.int64, pin_memory=True)


def _stream_key(device: torch.device) -> Any:
    """What tells streams apart; raises in the middle of a graph's capture, which must stay as the run records it."""
    if device.type != "cuda":
        return device, torch.get_device_module(device).current_stream(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured")
    return device, torch._C._cuda_getCurrentRawStream(device.index or 0)


def gather(refs: list[RowRef]) -> NDArray[np.float64]:
    """The rows behind these references, in their order."""
    rows = np.empty((len(refs), ROW_LENGTH))
    places: dict[Batch, tuple[list[int], list[int]]] = {}
    for position, (batch, index) in enumerate(refs):
        positions, indices = places.setdefault(batch, ([], []))
        positions.append(position)
        indices.append(index)
    for batch, (positions, indices) in places.items():
        rows[positions] = batch.rows()[indices]
    return rows
