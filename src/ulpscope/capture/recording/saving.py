"""Saves data of values: each content once, a view as a look into its base."""

import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from ulpscope.capture.recording.limits import DiskLimit
from ulpscope.capture.recording.ring import Ring, Room
from ulpscope.capture.recording.storages import SavedContent, StorageState
from ulpscope.capture.torch.summaries.copies import Crossing, Crossings
from ulpscope.numerics.copying import copy_memory, prepare_copies

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
    room: Room | None
    """None once the writer is done with it."""
    crossing: Crossing | None
    """How it comes from its device, if it does."""
    whole_value: bool
    """Its elements are exactly those of the value that brought it, so the value's digest is its digest."""
    file: str | None = None
    key: str | None = None

    def raw(self) -> NDArray[np.uint8]:
        """Its bytes; waits for a device's copy to arrive."""
        assert self.room is not None
        if self.crossing is not None:
            self.crossing.wait()
        return self.room.bytes.numpy()


@dataclass(frozen=True, slots=True)
class PendingPlace:
    """A value's place in a content that is being written."""

    content: Content
    offset: int
    strides: tuple[int, ...]


class Saver:
    """Copies contents aside and keeps what waits for the writer within bounds."""

    def __init__(self, disk: DiskLimit | None) -> None:
        prepare_copies()
        self._disk = disk
        self._released = threading.Condition()
        self._pending = 0
        self._rings: dict[bool, Ring] = {}
        self._crossings: dict[torch.device, Crossings] = {}
        self.fresh_bytes = 0
        self._fresh: list[Content] = []
        self.taken_bytes = 0
        self.not_saved = 0
        self.waits = 0

    def save(self, tensor: torch.Tensor, state: StorageState, version: int | None) -> PendingPlace | None:
        """Where the tensor's elements will lie on disk; None once the disk budget is spent."""
        first, length = _extent(tensor)
        lazy = tensor.is_conj() or tensor.is_neg()
        found = None if lazy else _covering(state, tensor.dtype, version, first, length)
        if found is not None:
            return PendingPlace(found.content, int(tensor.storage_offset()) - found.start, tensor.stride())
        dense = length <= tensor.numel() * SPARE_SHARE and not lazy
        if not self._take((length if dense else tensor.numel()) * tensor.element_size()):
            self.not_saved += 1
            return None
        if not dense:
            whole = tensor.detach().resolve_conj().resolve_neg()
            return PendingPlace(self._copy(whole, whole_value=True), 0, _contiguous_strides(whole.shape))
        if tensor.is_contiguous():
            content = self._copy(tensor.detach(), whole_value=True)
        else:
            content = self._copy(tensor.detach().as_strided((length,), (1,), first), whole_value=False)
        state.saved.append(SavedContent(version, tensor.dtype, first, length, content))
        return PendingPlace(content, int(tensor.storage_offset()) - first, tensor.stride())

    def take_fresh(self) -> list[Content]:
        """Contents for the writer, all of them on their way to the host."""
        for crossings in self._crossings.values():
            crossings.send()
        fresh, self._fresh = self._fresh, []
        self.fresh_bytes = 0
        return fresh

    def release(self, content: Content) -> None:
        """The writer is done with a content."""
        with self._released:
            if content.room is not None:
                content.room.give_back()
                content.room = content.crossing = None
                self._pending -= content.nbytes
                self._released.notify()

    def close(self) -> None:
        """Let go of all memory; everything has been written."""
        self._rings.clear()
        self._crossings.clear()

    def _take(self, nbytes: int) -> bool:
        if self._disk is not None and not self._disk.takes(nbytes):
            return False
        self.taken_bytes += int(nbytes)
        return True

    def _copy(self, source: torch.Tensor, *, whole_value: bool) -> Content:
        nbytes = source.numel() * source.element_size()
        on_host = _is_on_host(source)
        room = self._claim(nbytes, pinned=not on_host)
        host = room.bytes.view(source.dtype).view(source.shape)
        content = Content(_word(source.dtype), tuple(source.shape), nbytes, room, None, whole_value)
        try:
            if on_host:
                _copy_on_host(source, host)
            else:
                content.crossing = self._cross(source, host, nbytes)
        except BaseException:  # a device without memory for the copy: the room must not be lost
            self.release(content)
            raise
        self._fresh.append(content)
        self.fresh_bytes += nbytes
        return content

    def _cross(self, source: torch.Tensor, host: torch.Tensor, nbytes: int) -> Crossing:
        crossings = self._crossings.get(source.device)
        if crossings is None:
            module = torch.get_device_module(source.device)
            crossings = self._crossings[source.device] = Crossings(source.device, module)
        self.waits += crossings.make_room(nbytes)
        return crossings.begin(source, host)

    def _claim(self, nbytes: int, *, pinned: bool) -> Room:
        with self._released:
            room = self._room_within_bounds(nbytes, pinned=pinned)
            if room is None and not self._only_fresh():
                self.waits += 1
                while room is None and not self._only_fresh():
                    self._released.wait()
                    room = self._room_within_bounds(nbytes, pinned=pinned)
            self._pending += nbytes
        return room or Room(_allocate(nbytes, pinned=pinned))

    def _room_within_bounds(self, nbytes: int, *, pinned: bool) -> Room | None:
        if self._pending + nbytes > PENDING_BYTES:
            return None
        if pinned not in self._rings:
            self._rings[pinned] = Ring(_allocate(PENDING_BYTES, pinned=pinned))
        return self._rings[pinned].claim(nbytes)

    def _only_fresh(self) -> bool:
        # What has not been handed to the writer yet cannot become less by waiting.
        return self._pending <= self.fresh_bytes


def _copy_on_host(source: torch.Tensor, target: torch.Tensor) -> None:
    """Torch's own copy takes half as long again as the C library's, and fills the caches."""
    if source.is_contiguous():
        copy_memory(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
    else:
        target.copy_(source)


def _is_on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _allocate(nbytes: int, *, pinned: bool) -> torch.Tensor:
    with torch.inference_mode(mode=False):  # memory from within could not be written outside of it
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first element of its storage that a tensor reaches, and how many there are up to the last."""
    first = int(tensor.storage_offset())
    if tensor.is_contiguous():
        return first, tensor.numel()
    if tensor.numel() == 0:
        return first, 0
    return first, 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _contiguous_strides(shape: torch.Size) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def _covering(
    state: StorageState, dtype: torch.dtype, version: int | None, first: int, length: int
) -> SavedContent | None:
    if version is None or not state.trusted:
        return None
    for saved in state.saved:
        inside = saved.start <= first and first + length <= saved.start + saved.length
        if inside and saved.version == version and saved.dtype == dtype:
            return saved
    return None


@lru_cache(maxsize=64)
def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
