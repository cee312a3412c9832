"""Saves data of values: each content once, a view as a look into its base."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ulpscope.capture.torch.storages import SavedContent, StorageState

# How much copied data may wait for the writer before the run has to.
PENDING_BYTES = 512 * 2**20

# A view that is not dense is saved with the gaps in it as long as these cost no more than a quarter.
SPARE_SHARE = 1.25


@dataclass(slots=True, eq=False)
class Content:
    """Elements on their way to disk: a copy that belongs to us."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    copy: Any
    landed: Any = None
    whole_value: bool = False
    """Its elements are exactly those of the value that brought it, so the value's digest is its digest."""
    file: str | None = None
    key: str | None = None

    def raw(self) -> NDArray[np.uint8]:
        """Its bytes; waits for a device's copy to arrive."""
        if self.landed is not None:
            self.landed.synchronize()
        flat: torch.Tensor = self.copy.reshape(-1)
        return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class PendingPlace:
    """A value's place in a content that is being written."""

    content: Content
    offset: int
    strides: tuple[int, ...]


class Saver:
    """Copies contents aside and keeps what waits for the writer within bounds."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._room = threading.Condition()
        self._pending = 0
        self.fresh_bytes = 0
        self._fresh: list[Content] = []
        self.taken_bytes = 0
        self.table_bytes = 0
        """What the tables take of the same budget; whoever writes them says so."""
        self.not_saved = 0
        self.waits = 0

    def save(self, tensor: torch.Tensor, state: StorageState, version: int | None) -> PendingPlace | None:
        """Where the tensor's elements will lie on disk; None once the disk budget is spent."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        first, last = _extent(tensor)
        lazy = tensor.is_conj() or tensor.is_neg()
        found = None if lazy else _covering(state, tensor.dtype, version, first, last)
        if found is not None:
            return PendingPlace(found.content, int(tensor.storage_offset()) - found.start, tensor.stride())
        dense = last - first + 1 <= tensor.numel() * SPARE_SHARE and not lazy
        nbytes = (last - first + 1 if dense else tensor.numel()) * tensor.element_size()
        if not self._take(nbytes):
            self.not_saved += 1
            return None
        if not dense:
            whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
            return PendingPlace(self._copy(whole, dtype, whole_value=True), 0, whole.stride())
        span = tensor.detach().as_strided((last - first + 1,), (1,), first)
        whole_value = tensor.is_contiguous()
        content = self._copy(span.view(tensor.shape) if whole_value else span, dtype, whole_value=whole_value)
        state.saved.append(SavedContent(version, tensor.dtype, first, last - first + 1, content))
        return PendingPlace(content, int(tensor.storage_offset()) - first, tensor.stride())

    def take_fresh(self) -> list[Content]:
        fresh, self._fresh = self._fresh, []
        self.fresh_bytes = 0
        return fresh

    def release(self, content: Content) -> None:
        """The writer is done with a content."""
        content.copy = None
        with self._room:
            self._pending -= content.nbytes
            self._room.notify()

    def _take(self, nbytes: int) -> bool:
        if self._max_bytes is not None and self.table_bytes + self.taken_bytes + nbytes > self._max_bytes:
            return False
        self.taken_bytes += int(nbytes)
        return True

    def _copy(self, tensor: torch.Tensor, dtype: str, *, whole_value: bool) -> Content:
        nbytes = tensor.numel() * tensor.element_size()
        self._wait_for_room(nbytes)
        copy, landed = (tensor.clone(), None) if tensor.device.type == "cpu" else _copy_from_device(tensor)
        content = Content(dtype, tuple(tensor.shape), nbytes, copy, landed, whole_value)
        self._fresh.append(content)
        self.fresh_bytes += nbytes
        return content

    def _wait_for_room(self, nbytes: int) -> None:
        with self._room:
            if self._pending and self._pending + nbytes > PENDING_BYTES and not self._fresh_only():
                self.waits += 1
                self._room.wait_for(lambda: self._pending + nbytes <= PENDING_BYTES or self._fresh_only())
            self._pending += nbytes

    def _fresh_only(self) -> bool:
        # What has not been handed to the writer yet cannot become less by waiting.
        return self._pending <= self.fresh_bytes


def _copy_from_device(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Copy without making the run wait: first on the device, so that later writes cannot reach it, then away."""
    module = torch.get_device_module(tensor.device)
    clone = tensor.clone()
    side = module.Stream(tensor.device)
    side.wait_stream(module.current_stream(tensor.device))
    host = torch.empty(clone.shape, dtype=clone.dtype, pin_memory=True)
    with module.stream(side):
        host.copy_(clone, non_blocking=True)
        landed = module.Event()
        landed.record(side)
    clone.record_stream(side)
    return host, landed


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last element of its storage that a tensor reaches."""
    first = int(tensor.storage_offset())
    if tensor.numel() == 0:
        return first, first - 1
    return first, first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _covering(
    state: StorageState, dtype: torch.dtype, version: int | None, first: int, last: int
) -> SavedContent | None:
    if version is None or not state.trusted:
        return None
    for saved in state.saved:
        inside = saved.start <= first and last < saved.start + saved.length
        if inside and saved.version == version and saved.dtype == dtype:
            return saved
    return None
