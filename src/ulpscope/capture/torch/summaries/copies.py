"""Contents on their way from a device to the host, beside the run's own work and without making it wait."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

# Copies begin together: an event and a stream's wait for each small one would cost as much as the copies.
BATCH_COPIES = 64
BATCH_BYTES = 16 * 2**20

# What copies on their way may take of the device's memory; a larger content is alone on it.
DEVICE_BYTES = 256 * 2**20

POLL_SECONDS = 0.0002


@dataclass(slots=True, eq=False)
class Crossing:
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


class Crossings:
    """All copies of one device. `module` is torch's module for it: streams and events."""

    def __init__(self, device: torch.device, module: Any) -> None:
        self._device = device
        self._module = module
        self._side = module.Stream(device)
        self._next = Crossing()
        self._under_way: deque[Crossing] = deque()
        self._held = 0

    def begin(self, source: torch.Tensor, host: torch.Tensor) -> Crossing:
        """Copy aside on the device, where later writes cannot reach it, and soon to the host."""
        copy = source.clone(memory_format=torch.contiguous_format)
        nbytes = copy.numel() * copy.element_size()
        crossing = self._next
        crossing.copies.append((copy, host))
        crossing.streams.add(self._module.current_stream(self._device))
        crossing.nbytes += nbytes
        self._held += nbytes
        if crossing.nbytes >= BATCH_BYTES or len(crossing.copies) >= BATCH_COPIES:
            self.send()
        return crossing

    def send(self) -> None:
        """Let everything that was begun cross."""
        crossing = self._next
        if not crossing.copies:
            return
        for stream in crossing.streams:
            self._side.wait_stream(stream)
        with self._module.stream(self._side):
            for copy, host in crossing.copies:
                host.copy_(copy, non_blocking=True)
            crossing.landed = self._module.Event()
            crossing.landed.record(self._side)
        self._under_way.append(crossing)
        self._next = Crossing()

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
            crossing = self._under_way.popleft()
            crossing.copies.clear()
            self._held -= crossing.nbytes
