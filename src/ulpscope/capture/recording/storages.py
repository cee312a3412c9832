"""Storages that capture has met: who wrote them last, and which summaries of them still hold.

A storage is known by its address. A weak reference to it tells whether it is still the same one: it keeps that address
from being used again (torch's), or leads nowhere once it is gone.
"""

from dataclasses import dataclass, field
from typing import Any

from ulpscope.capture.recording.tensors import Tensors

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
    """All storages met so far that are still alive."""

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
        state = StorageState(self._numbered, *self._tensors.hold(tensor))
        self.states[address] = state
        self._numbered += 1
        return state

    def forget_all(self) -> None:
        """Any storage may have changed: code ran that was not observed."""
        self.sweep()  # many are gone by now, and need not be visited again and again
        for state in self.states.values():
            state.forget()

    def lose_track(self) -> None:
        """Steps follow that are not observed: nothing known about a storage will hold after them."""
        self.sweep()
        for state in self.states.values():
            state.forget()
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
