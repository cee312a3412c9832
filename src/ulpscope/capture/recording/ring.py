"""Host memory through which contents go to disk: allocated once, given out and taken back in the same order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

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
