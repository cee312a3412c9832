"""What a capture asks about a framework's tensors: answered once, it makes everything else here work on them."""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ulpscope.capture.recording.rows import HostRows
from ulpscope.numerics.dtypes import DTYPES

Key = tuple[Any, ...]
"""What tells contents of one storage apart: version, offset, shape, strides, dtype, what is still to be applied to its
elements (a negation, a conjugation), requires_grad. Offset and strides count elements."""

Shard = tuple[tuple[int, ...], str]
"""Global shape and mesh of a distributed tensor."""

Placed = list[tuple[str, Any]]
"""Tensors, each with its place among the arguments or results of a call."""


class Described(NamedTuple):
    """A tensor that cannot be read, as far as it can be told."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    layout: str
    requires_grad: bool


class Copies:
    """Brings elements of tensors in host memory into memory of ours; a framework with devices has one of its own."""

    def on_host(self, tensor: Any) -> bool:
        """Whether a tensor's elements are in host memory."""
        return True

    def allocate(self, nbytes: int, *, pinned: bool) -> Any:
        """Host memory whose slices `begin` can fill; `pinned` for what comes from a device."""
        return np.empty(nbytes, np.uint8)

    def bytes_of(self, memory: Any) -> Any:
        """Such memory as an array of bytes."""
        return memory

    @abstractmethod
    def begin(self, tensor: Any, run: tuple[int, int] | None, memory: Any) -> Any:
        """Copy a tensor's elements, in their order, or a `run` (first, length) of its storage's.

        Gives None if that is done, else something to wait() for.
        """

    def make_room(self, tensor: Any, nbytes: int) -> bool:
        """Keep to the memory that copies may take on the tensor's device; whether that took a wait."""
        return False

    def send(self) -> None:
        """Let everything that was begun go on."""

    def close(self) -> None:
        """Let go of all memory."""


class Tensors(ABC):
    """A framework's tensors. What is not abstract holds for tensors in host memory that are never split or wrapped."""

    @abstractmethod
    def address(self, tensor: Any) -> int:
        """What tells its storage from all others that are alive."""

    @abstractmethod
    def hold(self, tensor: Any) -> tuple[Any, bool]:
        """A weak reference to its storage, which keeps no elements alive; can nobody write there past the framework?"""

    @abstractmethod
    def is_gone(self, held: Any) -> bool:
        """Whether such a reference leads nowhere any more."""

    def let_go(self, held: Any) -> None:  # noqa: B027 Python's own need nothing
        """Such a reference is no longer needed."""

    def local(self, tensor: Any) -> Any:
        """What this process holds of it, as a tensor that can be read."""
        return tensor

    def shard(self, tensor: Any) -> Shard | None:
        return None

    def why_unreadable(self, tensor: Any) -> str | None:
        """One word for why its content cannot be read here; none if it can."""
        return None if self.dtype_word(self.key(tensor)[4]) in DTYPES else "dtype"

    @abstractmethod
    def key(self, tensor: Any) -> Key:
        """Of a tensor that can be read. The version is None if writes are not counted: it is then read each time."""

    @abstractmethod
    def describe(self, tensor: Any) -> Described:
        """A tensor that cannot be read."""

    @abstractmethod
    def dtype_word(self, dtype: Any) -> str:
        """As numerics.dtypes has it."""

    def device_word(self, tensor: Any) -> str:
        return "cpu"

    @abstractmethod
    def nbytes(self, tensor: Any) -> int:
        """Of its elements."""

    @abstractmethod
    def storage_bytes(self, tensor: Any) -> int:
        """Of all elements of its storage."""

    @abstractmethod
    def make_rows(self) -> HostRows:
        """What summarises tensors."""

    @abstractmethod
    def make_copies(self) -> Copies:
        """What copies them to be saved."""


@lru_cache(maxsize=4096)
def merged_dimensions(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Sizes and strides, innermost first, without dimensions of one element, those joined that continue each other.

    Views of one storage for which this is equal tell the same elements in the same order, if they begin at the same.
    """
    merged: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if merged and stride == merged[-1][0] * merged[-1][1]:
            inner, inner_stride = merged[-1]
            merged[-1] = inner * size, inner_stride
        else:
            merged.append((size, stride))
    return tuple(merged)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    merged = merged_dimensions(shape, strides)
    return not merged or 0 in shape or (len(merged) == 1 and merged[0][1] == 1)
