"""Rows of summary numbers in batches, until they are written."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.summaries.constants import ROW_LENGTH

BATCH_ROWS = 1024
ROW_BYTES = ROW_LENGTH * 8


class Batch(Protocol):
    """Rows that are filled one after the other."""

    on_device: bool
    used: int

    def rows(self) -> NDArray[np.float64]:
        """Those on the host; waits until they are there (the writer's thread does)."""


RowRef = tuple[Batch, int]


class HostBatch:
    """Rows of values that live in host memory."""

    on_device = False

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] = np.zeros((BATCH_ROWS, ROW_LENGTH))
        self.address: int = self._rows.ctypes.data
        self.used = 0

    def rows(self) -> NDArray[np.float64]:
        return self._rows


class HostRows:
    """Summarises tensors in host memory, at once. A framework with devices has one of its own."""

    trouble: Exception | None = None
    """What keeps summaries from being made in the fastest way, if anything does."""

    def __init__(self, write: Callable[[Any, int], Any]) -> None:
        """`write` puts a tensor's row at an address."""
        self._write = write
        self._host = HostBatch()

    @property
    def unsettled(self) -> bool:
        """Whether tensors may still wait to be read."""
        return False

    def settle(self) -> None:
        """Have everything read that was asked for: the run may change it after this."""

    def summarize(self, tensor: Any) -> RowRef:
        """Summarise a tensor's content as it is now; it must not change before settle()."""
        batch = self._host
        index = batch.used
        self._write(tensor, batch.address + index * ROW_BYTES)
        batch.used = index + 1
        if batch.used == BATCH_ROWS:
            self._host = HostBatch()
        return batch, index

    def land(self) -> None:
        """Send off what is filled; later values go to fresh rows."""
        if self._host.used:
            self._host = HostBatch()


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
