"""How much of `--max-disk` is spent: by data, by tables, and by rows that are still to be written."""

import threading

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
        return self.data_bytes + self._table_bytes + parts * PART_BYTES + rows * self._bytes_a_row()

    def _bytes_a_row(self) -> float:
        measured = (self._table_bytes - self._parts * PART_BYTES) / max(1, self._rows)
        return max(ROW_BYTES, measured)
