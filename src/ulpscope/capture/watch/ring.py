"""Data of the last calls in host memory, as much of it as a ring holds: written where a step is kept, else let go."""

from collections import deque
from collections.abc import Sequence

import polars as pl

from ulpscope.capture.recording.saving import Content, PendingPlace, Saver
from ulpscope.capture.recording.values import ValueRow
from ulpscope.trace.data import DataPacker
from ulpscope.trace.schema import VALUE_DATA


class Ring:
    """Holds contents until it is known whether their step is kept; the oldest go first."""

    def __init__(self, limit: int, saver: Saver, packer: DataPacker) -> None:
        self._limit = limit
        self._saver = saver
        self._packer = packer
        self._held: deque[Content] = deque()
        self._bytes = 0
        self._places: dict[int, PendingPlace] = {}
        """By value."""

    def hold(self, values: Sequence[ValueRow], contents: Sequence[Content]) -> None:
        """Take over contents, and the values that lie in them."""
        self._places.update((row.id, row.place) for row in values if row.place is not None)
        for content in contents:
            self._held.append(content)
            self._bytes += content.nbytes
        while self._bytes > self._limit:
            self._let_go()

    def drop(self) -> None:
        """The step is not kept."""
        while self._held:
            self._let_go()
        self._places.clear()

    def pack(self, step: int, values: pl.DataFrame) -> pl.DataFrame:
        """Write what is held; gives the values of a step with their places in it."""
        for content in self._held:
            content.file, content.key = self._packer.add(
                step, raw=content.raw(), dtype=content.dtype, shape=content.shape, digest=None
            )
        self._packer.flush(step)
        rows = [
            (value, place.content.file, place.content.key, place.offset, place.strides)
            for value, place in self._places.items()
            if place.content.file is not None
        ]
        self.drop()
        places = pl.DataFrame(rows, schema={"id": pl.Int64, **VALUE_DATA}, orient="row")
        columns = values.columns
        return values.drop(*VALUE_DATA).join(places, on="id", how="left", maintain_order="left").select(columns)

    def _let_go(self) -> None:
        content = self._held.popleft()
        self._bytes -= content.nbytes
        self._saver.release(content)
