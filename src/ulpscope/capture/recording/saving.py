"""Saves data of values: each content once, a view as a look into its base.

It goes to disk through host memory that is allocated once, given out and taken back in the same order.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.capture.recording.limits import DiskLimit
from ulpscope.capture.recording.tensors import Copies, Key, SavedContent, StorageState, Tensors, is_contiguous
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.compiled import prepare_copies

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
    copies: Copies
    landing: Any
    """What tells when it has come from its device, if it does."""
    whole_value: bool
    """Its elements are exactly those of the value that brought it, so the value's digest is its digest."""
    file: str | None = None
    key: str | None = None

    def raw(self) -> NDArray[np.uint8]:
        """Its bytes; waits for a device's copy to arrive."""
        assert self.room is not None
        if self.landing is not None:
            self.landing.wait()
        found: NDArray[np.uint8] = self.copies.bytes_of(self.room.bytes)
        return found


@dataclass(frozen=True, slots=True)
class PendingPlace:
    """A value's place in a content that is being written."""

    content: Content
    offset: int
    strides: tuple[int, ...]


class Saver:
    """Copies contents aside and keeps what waits for the writer within bounds."""

    def __init__(self, tensors: Tensors, disk: DiskLimit | None, *, pending_bytes: int | None = None) -> None:
        """`pending_bytes` may wait for the writer."""
        prepare_copies()
        self._pending_bytes = pending_bytes or PENDING_BYTES
        self._tensors = tensors
        self._copies = tensors.make_copies()
        self._disk = disk
        self._released = threading.Condition()
        self._pending = 0
        self._rings: dict[bool, Ring] = {}
        self.fresh_bytes = 0
        self._fresh: list[Content] = []
        self.taken_bytes = 0
        self.not_saved = 0
        self.waits = 0

    def save(self, tensor: Any, state: StorageState, key: Key) -> PendingPlace | None:
        """Where the tensor's elements will lie on disk; None once the disk budget is spent."""
        version, first, shape, strides, dtype, lazy, _ = key
        word, count, length = self._tensors.dtype_word(dtype), math.prod(shape), _extent(shape, strides)
        is_lazy = lazy is not False and lazy != (False, False)
        found = None if is_lazy else _covering(state, dtype, version, first, length)
        if found is not None:
            return PendingPlace(found.content, first - found.start, strides)
        dense = length <= count * SPARE_SHARE and not is_lazy
        nbytes = (length if dense else count) * DTYPES[word].item_size
        if self._disk is not None and not self._disk.takes(nbytes):
            self.not_saved += 1
            return None
        self.taken_bytes += int(nbytes)
        if dense and not is_contiguous(shape, strides):
            content = self._copy(tensor, (first, length), word, (length,), nbytes)
        else:
            content = self._copy(tensor, None, word, tuple(shape), nbytes)
        if not dense:
            return PendingPlace(content, 0, _contiguous_strides(shape))
        state.saved.append(SavedContent(version, dtype, first, length, content))
        return PendingPlace(content, 0, strides)

    def take_fresh(self) -> list[Content]:
        """Contents for the writer, all of them on their way to the host."""
        self._copies.send()
        fresh, self._fresh = self._fresh, []
        self.fresh_bytes = 0
        return fresh

    def release(self, content: Content) -> None:
        """The writer is done with a content."""
        with self._released:
            if content.room is not None:
                content.room.give_back()
                content.room = content.landing = None
                self._pending -= content.nbytes
                self._released.notify()

    def close(self) -> None:
        """Let go of all memory; everything has been written."""
        self._rings.clear()
        self._copies.close()

    def _copy(
        self, tensor: Any, run: tuple[int, int] | None, dtype: str, shape: tuple[int, ...], nbytes: int
    ) -> Content:
        """Of all elements of a tensor, or of a run of its storage's."""
        copies = self._copies
        on_host = copies.on_host(tensor)
        room = self._claim(nbytes, pinned=not on_host)
        content = Content(dtype, shape, nbytes, room, copies, None, whole_value=run is None)
        try:
            if not on_host:
                self.waits += copies.make_room(tensor, nbytes)
            content.landing = copies.begin(tensor, run, room.bytes)
        except BaseException:  # a device without memory for the copy: the room must not be lost
            self.release(content)
            raise
        self._fresh.append(content)
        self.fresh_bytes += nbytes
        return content

    def _claim(self, nbytes: int, *, pinned: bool) -> Room:
        with self._released:
            room = self._room_within_bounds(nbytes, pinned=pinned)
            # What has not been handed to the writer yet cannot become less by waiting.
            self.waits += room is None and self._pending > self.fresh_bytes
            while room is None and self._pending > self.fresh_bytes:
                self._released.wait()
                room = self._room_within_bounds(nbytes, pinned=pinned)
            self._pending += nbytes
        return room or Room(self._copies.allocate(nbytes, pinned=pinned))

    def _room_within_bounds(self, nbytes: int, *, pinned: bool) -> Room | None:
        if self._pending + nbytes > self._pending_bytes:
            return None
        if pinned not in self._rings:
            self._rings[pinned] = Ring(self._copies.allocate(self._pending_bytes, pinned=pinned))
        return self._rings[pinned].claim(nbytes)


class ChosenSaver(Saver):
    """Saves only what it is told to."""

    _saves = False

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """What is met meanwhile is saved."""
        self._saves = True
        try:
            yield
        finally:
            self._saves = False

    def save(self, tensor: Any, state: StorageState, key: Key) -> PendingPlace | None:
        return super().save(tensor, state, key) if self._saves else None


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements of its storage there are from the first to the last that a tensor reaches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def _covering(state: StorageState, dtype: Any, version: int | None, first: int, length: int) -> SavedContent | None:
    if version is None or not state.trusted:
        return None
    for saved in state.saved:
        inside = saved.start <= first and first + length <= saved.start + saved.length
        if inside and saved.version == version and saved.dtype == dtype:
            return saved
    return None


# A cache line; and a multiple of every element's size, so that a room can be seen as any dtype.
ALIGNMENT = 64


@dataclass(slots=True, eq=False)
class Room:
    """A stretch of host memory that is in use."""

    bytes: Any
    ring: Ring | None = None
    """None for memory beside every ring."""
    start: int = 0
    stop: int = 0
    free: bool = False

    def give_back(self) -> None:
        self.free = True
        if self.ring is not None:
            self.ring.advance()


class Ring:
    """One piece of memory. Rooms may come back in any order, but one is used again only after all before it."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._capacity = len(memory)
        self._used: deque[Room] = deque()

    def claim(self, nbytes: int) -> Room | None:
        """Room for this many bytes; None while there is none."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        start = self._start_of(size)
        if start is None:
            return None
        room = Room(self._memory[start : start + nbytes], self, start, start + size)
        self._used.append(room)
        return room

    def advance(self) -> None:
        """Let go of the oldest rooms that came back."""
        while self._used and self._used[0].free:
            self._used.popleft()

    def _start_of(self, size: int) -> int | None:
        if not self._used:
            return 0 if size <= self._capacity else None
        oldest, end = self._used[0].start, self._used[-1].stop
        if end <= oldest:
            return end if size <= oldest - end else None
        # Memory that was never touched is three times as slow as what came back: begin anew before the end is reached.
        if size <= oldest and oldest >= self._capacity // 4:
            return 0
        if size <= self._capacity - end:
            return end
        return 0 if size <= oldest else None
