"""How far the trace on disk may be behind the run, and how large `--max-disk` lets it grow.

A run that dies takes along what waits to be written. Whenever a step or an update has ended, the run waits until that
is on disk, as long as such waits have taken no more than a small share of its time; where writing takes longer, until
what had ended before is on disk. What a device computes reaches the host later, and waiting for it would cost what the
device is there for: its run may be a few pieces ahead. A writer that is slower than the run holds it up sooner or later
however long the queue is, so these bounds cost a long run nothing.
"""

import math
import threading
import time
from collections.abc import Callable

# Of the run's time. It is below the noise of what capturing itself costs.
SHARE = 0.02

# Beyond the share, so that a run that crashes in its first steps has all of them on disk.
FREE_SECONDS = 1.0

# Pieces that a run may be ahead. On a device, four do not hold up six steps of 30 ms that are written in 50 ms each.
AHEAD = 1
AHEAD_ON_DEVICE = 4


# Seconds between two looks. Nothing is locked: an interruption (a signal's handler that raises) between taking a lock
# and the block it is for would leave it taken for ever.
LOOKS = 0.0005


def wait_until(happened: Callable[[], bool], seconds: float = math.inf) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(LOOKS)


class Lag:
    """Counts what has ended and is not on disk yet. The writer's thread calls wrote(), the run everything else."""

    def __init__(self) -> None:
        self._ended = 0
        self._written = 0
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
        self._ended += 1
        self._on_device |= on_device  # a piece with nothing to wait for may end a step whose numbers are on their way

    def wrote(self) -> None:
        if self._began is None:
            self._began = time.monotonic()
        self._written += 1

    def keep_up(self) -> None:
        """Wait until the run is not too far ahead of the disk, and for the last piece as long as that is affordable."""
        if self._began is None:
            if not self._on_device:
                wait_until(lambda: self._ahead <= 0)
            return
        began = time.monotonic()
        wait_until(lambda: self._ahead <= (AHEAD_ON_DEVICE if self._on_device else AHEAD))
        if self.affordable:
            wait_until(lambda: self._ahead <= 0, self._allowed_seconds())
        self._waited += time.monotonic() - began

    @property
    def _ahead(self) -> int:
        return self._ended - self._written

    def _allowed_seconds(self) -> float:
        elapsed = 0.0 if self._began is None else time.monotonic() - self._began
        return FREE_SECONDS + SHARE * elapsed - self._waited


HOLD_SECONDS = 10.0
"""How long whole steps of a long run wait for others, in a process that outlives the run; all of them but for a small
share of its time, and no longer than a call of a long step does."""

BLOCK_VALUES = 16_384
"""Values of steps that share files: 5 MB, which take a tenth of a second to write anew."""

# Tables of four small training runs have 104 to 164 bytes a row of calls and values; without rows they have 20 kB.
ROW_BYTES = 150
PART_BYTES = 20_000

# Data leaves this share to the tables of the steps that follow: they say what data of one step cannot.
TABLES_SHARE = 0.25

# Where less is left, another part is not worth its own head.
LEAST_SHARE = 0.05
LEAST_PARTS = 2


class DiskLimit:
    """Books what goes to disk, ahead of its being written. The run and the writer's thread may call it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self.data_bytes = 0
        self._table_bytes = 0
        self._parts = 0
        self._rows = 0
        self._waiting_parts = 0
        self._waiting_rows = 0
        self.fresh_rows = 0
        """Rows that nobody has handed over yet."""

    @property
    def may_be_full(self) -> bool:
        """Whether what there is fills the limit, as far as that can be told before it is written."""
        return self._spent() >= self.limit

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another part; ask when everything is written."""
        return self.limit - self._spent() < max(self.limit * LEAST_SHARE, LEAST_PARTS * PART_BYTES)

    def takes(self, nbytes: int) -> bool:
        """Book data, if there is room for it."""
        with self._lock:
            if self.data_bytes + nbytes > self.limit * (1 - TABLES_SHARE) or self._spent() + nbytes > self.limit:
                return False
            self.data_bytes += nbytes
            return True

    def handed_over(self, rows: int) -> None:
        """A part waits to be written."""
        with self._lock:
            self._waiting_parts += 1
            self._waiting_rows += rows
            self.fresh_rows = 0

    def saved(self, booked: int, nbytes: int) -> None:
        """Data is on disk, each content once: less than was booked."""
        with self._lock:
            self.data_bytes += nbytes - booked

    def wrote(self, rows: int, nbytes: int) -> None:
        """The tables of a part are on disk."""
        with self._lock:
            self._waiting_parts -= 1
            self._waiting_rows -= rows
            self._parts += 1
            self._rows += rows
            self._table_bytes += nbytes

    def _spent(self) -> float:
        parts = self._waiting_parts + (self.fresh_rows > 0)
        rows = self._waiting_rows + self.fresh_rows
        measured = (self._table_bytes - self._parts * PART_BYTES) / max(1, self._rows)
        return self.data_bytes + self._table_bytes + parts * PART_BYTES + rows * max(ROW_BYTES, measured)
