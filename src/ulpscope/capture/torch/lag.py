"""How far the trace on disk may be behind the run: a run that dies takes along what waits to be written.

Whenever a step or an update has ended, the run waits until that is on disk, as long as such waits have taken no more
than a small share of its time. Where writing takes longer, or a device is still at work, it waits until what had ended
before is on disk: at most one piece of work is ever under way.
"""

import threading
import time

# Of the run's time. It is below the noise of what capturing itself costs.
SHARE = 0.03

# Beyond the share, so that a run that crashes in its first steps has all of them on disk.
FREE_SECONDS = 1.0


class Lag:
    """Counts what has ended and is not on disk yet. The writer's thread calls wrote(), the run everything else."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._on_device = False
        self._began: float | None = None
        """When the first of it was on disk: until then the process that writes may have been starting."""
        self._waited = 0.0

    @property
    def affordable(self) -> bool:
        """Whether the run may wait for what it has just done."""
        return not self._on_device and self._allowed_seconds() > 0

    def add(self, *, on_device: bool) -> None:
        """Something that has ended is handed over; its numbers may still be on their way from a device."""
        with self._changed:
            self._under_way += 1
            self._on_device = on_device

    def wrote(self) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def keep_up(self) -> bool:
        """Wait until only the last is under way, and for that one as long as it is affordable; whether it must wait."""
        began = time.monotonic()
        with self._changed:
            must_wait = self._under_way > 1
            self._changed.wait_for(lambda: self._under_way <= 1)
            if self._began is None:
                self._wait_for_first()
                return must_wait
            if self.affordable:
                self._changed.wait_for(lambda: self._under_way == 0, self._allowed_seconds())
        self._waited += time.monotonic() - began
        return must_wait

    def _wait_for_first(self) -> None:
        if not self._on_device:
            self._changed.wait_for(lambda: self._under_way == 0)
        self._began = time.monotonic()

    def _allowed_seconds(self) -> float:
        elapsed = 0.0 if self._began is None else time.monotonic() - self._began
        return FREE_SECONDS + SHARE * elapsed - self._waited
