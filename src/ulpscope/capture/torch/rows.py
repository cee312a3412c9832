"""Rows of summary numbers: filled on the device, brought to the host without making the run wait."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ulpscope.capture.torch.summary import summarize_cpu_into, summarize_tensor_into
from ulpscope.numerics.constants import ROW_LENGTH

BATCH_ROWS = 1024


class HostBatch:
    """Rows of values that live in host memory."""

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] = np.zeros((BATCH_ROWS, ROW_LENGTH))
        self.used = 0

    def add(self, tensor: torch.Tensor) -> int:
        summarize_cpu_into(tensor, self._rows[self.used])
        self.used += 1
        return self.used - 1

    def land(self) -> None:
        """Nothing to bring: the rows are here."""

    def rows(self) -> NDArray[np.float64]:
        return self._rows


class DeviceBatch:
    """Rows of values of one device; they leave it by one copy that nobody waits for but the writer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        # The bits of float64 in int64: some devices have no float64.
        self._rows = torch.zeros((BATCH_ROWS, ROW_LENGTH), dtype=torch.int64, device=device)
        self._streams = {self._module.current_stream(device)}
        self._host: torch.Tensor | None = None
        self._landed: Any = None
        self.used = 0

    def add(self, tensor: torch.Tensor) -> int:
        self._streams.add(self._module.current_stream(self._device))
        summarize_tensor_into(tensor, self._rows[self.used])
        self.used += 1
        return self.used - 1

    def land(self) -> None:
        """Start the copy to the host, after everything that fills the rows."""
        if self._host is not None:
            return
        module = self._module
        side = module.Stream(self._device)
        for stream in self._streams:
            side.wait_stream(stream)
        self._host = torch.empty(self._rows.shape, dtype=self._rows.dtype, pin_memory=True)
        with module.stream(side):
            self._host.copy_(self._rows, non_blocking=True)
            self._landed = module.Event()
            self._landed.record(side)

    def rows(self) -> NDArray[np.float64]:
        """The rows on the host; waits for the copy (the writer's thread does)."""
        self.land()
        assert self._host is not None
        self._landed.synchronize()
        return self._host.numpy().view(np.float64)


Batch = HostBatch | DeviceBatch
RowRef = tuple[Batch, int]


class RowPool:
    """The batch that is being filled, for each device."""

    def __init__(self) -> None:
        self._current: dict[torch.device, Batch] = {}

    def summarize(self, tensor: torch.Tensor) -> RowRef:
        """Summarise a tensor's content as it is now."""
        device = tensor.device
        batch = self._current.get(device)
        if batch is None:
            batch = self._current[device] = HostBatch() if device.type == "cpu" else DeviceBatch(device)
        index = batch.add(tensor)
        if batch.used == BATCH_ROWS:
            batch.land()
            del self._current[device]
        return batch, index

    def land(self) -> None:
        """Send off what is filled; later values go to fresh rows."""
        for batch in self._current.values():
            batch.land()
        self._current.clear()


def gather(refs: list[RowRef]) -> NDArray[np.float64]:
    """The rows behind these references, in their order."""
    rows = np.empty((len(refs), ROW_LENGTH))
    for position, (batch, index) in enumerate(refs):
        rows[position] = batch.rows()[index]
    return rows
