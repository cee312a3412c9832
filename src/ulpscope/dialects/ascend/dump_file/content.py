"""Bytes of a dump that stay where they are until they are asked for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ulpscope.trace.files import Bytes, map_bytes

AnyArray: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

RANK_LIMIT = 64
"""Axes that numpy can hold; the product of millions of them would never be done."""


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of a file that are mapped when they are asked for, or bytes in memory."""

    path: Path
    start: int
    size: int
    memory: Bytes | None = field(default=None, compare=False, repr=False)
    """Of a dump that is not a file: all of its bytes."""

    def read(self) -> Bytes:
        """The bytes, read-only; mapped, so that only what is looked at is read."""
        if self.memory is not None:
            return self.memory[self.start : self.start + self.size]
        return map_bytes(self.path, start=self.start, length=self.size)
