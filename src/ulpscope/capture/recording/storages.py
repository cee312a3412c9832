"""Storages that capture has met: who wrote them last, and which summaries of them still hold.

A storage is known by the address of its C++ object. Holding a weak reference keeps that address from being used again
without keeping the data alive, so an address is an identity for as long as its entry stands here.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

SWEEP_EVERY = 4096


@dataclass(slots=True)
class SavedContent:
    """Data of a storage that was saved: a run of elements from `start` on, valid at one version."""

    version: int | None
    dtype: torch.dtype
    start: int
    length: int
    content: Any


@dataclass(slots=True, eq=False)
class StorageState:
    """What is known about one storage."""

    number: int
    weak: Any
    trusted: bool
    """False once its memory can be changed behind torch's back."""
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
    """Bytes of a torch.empty nobody has written yet."""

    def forget(self) -> None:
        """Its content may have changed."""
        self.values.clear()
        self.summaries.clear()
        self.places.clear()
        self.checks.clear()
        self.saved.clear()


class StorageTable:
    """All storages met so far that are still alive."""

    def __init__(self) -> None:
        self.states: dict[int, StorageState] = {}
        """By address."""
        self._numbered = 0
        self._until_sweep = SWEEP_EVERY

    def of(self, tensor: torch.Tensor) -> StorageState:
        storage = tensor.untyped_storage()
        state = self.states.get(storage._cdata)
        return self._add(storage) if state is None else state

    def _add(self, storage: torch.UntypedStorage) -> StorageState:
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self.sweep()
        # Memory from outside (numpy, shared memory) cannot be resized, and can be written by its other owner.
        state = StorageState(self._numbered, storage._weak_ref(), storage.resizable())
        self.states[storage._cdata] = state
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
        expired = torch.UntypedStorage._expired
        gone = [address for address, state in self.states.items() if expired(state.weak)]
        for address in gone:
            torch.UntypedStorage._free_weak_ref(self.states.pop(address).weak)

    def clear(self) -> None:
        for state in self.states.values():
            torch.UntypedStorage._free_weak_ref(state.weak)
        self.states.clear()
