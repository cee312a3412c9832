"""Storages that capture has met: who wrote them last, and which summaries of them still hold.

A storage is known by the address of its C++ object. Holding a weak reference keeps that address from being used again
without keeping the data alive, so an address is an identity for as long as its entry stands here.
"""

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class SavedContent:
    """Data of a storage that was saved: a run of elements from `start` on, valid at one version."""

    version: int | None
    dtype: torch.dtype
    start: int
    length: int
    content: Any


@dataclass(slots=True)
class StorageState:
    """What is known about one storage."""

    number: int
    weak: Any
    trusted: bool
    """False once its memory can be changed behind torch's back."""
    values: dict[tuple[Any, ...], int] = field(default_factory=dict)
    summaries: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """Summary and saved place of each content that still holds."""
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
        self.saved.clear()


class StorageTable:
    """All storages met so far that are still alive."""

    def __init__(self) -> None:
        self._states: dict[int, StorageState] = {}
        self._numbered = 0

    def of(self, tensor: torch.Tensor) -> StorageState:
        storage = tensor.untyped_storage()
        address = storage._cdata
        state = self._states.get(address)
        if state is None:
            # Memory from outside (numpy, shared memory) cannot be resized, and can be written by its other owner.
            state = StorageState(self._numbered, storage._weak_ref(), trusted=storage.resizable())
            self._states[address] = state
            self._numbered += 1
        return state

    def forget_all(self) -> None:
        """Any storage may have changed: code ran that was not observed."""
        for state in self._states.values():
            state.forget()

    def lose_track(self) -> None:
        """Steps follow that are not observed: nothing known about a storage will hold after them."""
        for state in self._states.values():
            state.forget()
            state.writer = None
            state.unwritten = 0

    def sweep(self) -> None:
        """Drop storages that are gone."""
        gone = [address for address, state in self._states.items() if torch.UntypedStorage._expired(state.weak)]
        for address in gone:
            torch.UntypedStorage._free_weak_ref(self._states.pop(address).weak)

    def clear(self) -> None:
        for state in self._states.values():
            torch.UntypedStorage._free_weak_ref(state.weak)
        self._states.clear()
