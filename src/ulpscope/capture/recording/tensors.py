"""What a capture asks about a framework's tensors: answered once, it makes everything else here work on them.

With what tensors in host memory need for an answer: rows of summary numbers, in batches until they are written, and
copies of elements. And the storages that capture has met: who wrote them last, and which summaries of them still hold.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.constants import ROW_LENGTH

BATCH_ROWS = 1024
ROW_BYTES = ROW_LENGTH * 8

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


class Batch(Protocol):
    """Rows that are filled one after the other."""

    on_device: bool
    used: int

    def rows(self) -> NDArray[np.float64]:
        """Those on the host; waits until they are there (the writer's thread does)."""


RowRef = tuple[Batch, int]


class HostBatch:
    """Rows of values that live in host memory."""

    on_device = False

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] = np.zeros((BATCH_ROWS, ROW_LENGTH))
        self.address: int = self._rows.ctypes.data
        self.used = 0

    def rows(self) -> NDArray[np.float64]:
        return self._rows


class HostRows:
    """Summarises tensors in host memory, at once. A framework with devices has one of its own."""

    trouble: Exception | None = None
    """What keeps summaries from being made in the fastest way, if anything does."""

    def __init__(self, write: Callable[[Any, int], Any]) -> None:
        """`write` puts a tensor's row at an address."""
        self._write = write
        self._host = HostBatch()

    @property
    def unsettled(self) -> bool:
        """Whether tensors may still wait to be read."""
        return False

    def settle(self) -> None:
        """Have everything read that was asked for: the run may change it after this."""

    def summarize(self, tensor: Any) -> RowRef:
        """Summarise a tensor's content as it is now; it must not change before settle()."""
        batch = self._host
        index = batch.used
        self._write(tensor, batch.address + index * ROW_BYTES)
        batch.used = index + 1
        if batch.used == BATCH_ROWS:
            self._host = HostBatch()
        return batch, index

    def land(self) -> None:
        """Send off what is filled; later values go to fresh rows."""
        if self._host.used:
            self._host = HostBatch()


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


def gather(refs: list[RowRef]) -> NDArray[np.float64]:
    """The rows behind these references, in their order."""
    rows = np.empty((len(refs), ROW_LENGTH))
    places: dict[Batch, tuple[list[int], list[int]]] = {}
    for position, (batch, index) in enumerate(refs):
        positions, indices = places.setdefault(batch, ([], []))
        positions.append(position)
        indices.append(index)
    for batch, (positions, indices) in places.items():
        rows[positions] = batch.rows()[indices]
    return rows


SWEEP_EVERY = 4096


@dataclass(slots=True)
class SavedContent:
    """Data of a storage that was saved: a run of elements from `start` on, valid at one version."""

    version: int | None
    dtype: Any
    start: int
    length: int
    content: Any


@dataclass(slots=True, eq=False)
class StorageState:
    """What is known about one storage."""

    number: int
    weak: Any
    trusted: bool
    """False once its memory can be changed behind the framework's back."""
    values: dict[tuple[Any, ...], int] = field(default_factory=dict)
    """Numbers of the contents that still hold, by version and view."""
    summaries: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """Rows of contents that still hold, by version and sequence of elements: views that tell the same share one.

    Each a weak reference to the batch, and the number of the row in it.
    """
    places: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """Where contents that still hold were saved, by version and view."""
    checks: dict[int, Any] = field(default_factory=dict)
    """Rows of contents that still hold, by number; in verify mode only, for they keep whole batches."""
    saved: list[SavedContent] = field(default_factory=list)
    met: bool = False
    """Whether a content of it was seen before: a view's call did not make what was there already."""
    writer: int | None = None
    unwritten: int = 0
    """Bytes of an empty tensor nobody has written yet."""

    def forget(self) -> None:
        """Its content may have changed."""
        self.values.clear()
        self.summaries.clear()
        self.places.clear()
        self.checks.clear()
        self.saved.clear()


class StorageTable:
    """All storages met so far that are still alive.

    A storage is known by its address. A weak reference to it tells whether it is still the same one: it keeps that
    address from being used again (torch's), or leads nowhere once it is gone.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.states: dict[int, StorageState] = {}
        """By address."""
        self._tensors = tensors
        self._numbered = 0
        self._until_sweep = SWEEP_EVERY

    def of(self, tensor: Any) -> StorageState:
        address = self._tensors.address(tensor)
        state = self.states.get(address)
        return self.add(tensor, address) if state is None or self._tensors.is_gone(state.weak) else state

    def add(self, tensor: Any, address: int) -> StorageState:
        """A storage that is met for the first time."""
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self.sweep()
        state = self.states[address] = StorageState(self._numbered, *self._tensors.hold(tensor))
        self._numbered += 1
        return state

    def forget_all(self) -> None:
        """Any storage may have changed: code ran that was not observed."""
        self.sweep()  # many are gone by now, and need not be visited again and again
        for state in self.states.values():
            state.forget()

    def lose_track(self) -> None:
        """Steps follow that are not observed: nothing known about a storage will hold after them."""
        self.forget_all()
        for state in self.states.values():
            state.writer = None
            state.unwritten = 0

    def sweep(self) -> None:
        """Drop storages that are gone."""
        is_gone = self._tensors.is_gone
        for address in [address for address, state in self.states.items() if is_gone(state.weak)]:
            self._tensors.let_go(self.states.pop(address).weak)

    def clear(self) -> None:
        for state in self.states.values():
            self._tensors.let_go(state.weak)
        self.states.clear()
