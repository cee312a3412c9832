"""Values: contents of tensors, each summarised once for as long as it certainly has not changed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ulpscope.capture.torch.rows import RowPool, RowRef
from ulpscope.capture.torch.saving import PendingPlace, Saver
from ulpscope.capture.torch.storages import StorageState, StorageTable
from ulpscope.capture.torch.summary import unsummarizable_reason

SWEEP_EVERY = 4096


@dataclass(slots=True)
class ValueRow:
    """A value as it goes to the values table; its summary is behind `summary`."""

    id: int
    storage: int | None
    version: int | None
    producer: int | None
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    layout: str
    requires_grad: bool
    initialized: bool
    summary: RowRef | None
    place: PendingPlace | None
    shard: tuple[tuple[int, ...], str] | None = None


class Recheck(NamedTuple):
    """A reused summary and the one that verify mode made instead."""

    value: int
    reused: RowRef
    fresh: RowRef


@dataclass(slots=True)
class ValueCounts:
    """What the table did so far."""

    values: int = 0
    made: int = 0
    reused: int = 0
    unsummarized: dict[str, int] = field(default_factory=dict)


class ValueTable:
    """Gives each observed content a number, and summarises it if that has not been done."""

    def __init__(self, *, saver: Saver | None, verify: bool) -> None:
        self.storages = StorageTable()
        self.counts = ValueCounts()
        self.fresh: list[ValueRow] = []
        self.rechecks: list[Recheck] = []
        self._rows = RowPool()
        self._saver = saver
        self._verify = verify
        self._summaries: dict[int, RowRef] = {}
        self._until_sweep = SWEEP_EVERY

    def observe(self, tensor: torch.Tensor, producer: int | None = None) -> int:
        """The number of this tensor's content; `producer` is the call that has just made it."""
        shard = _shard_of(tensor)
        tensor = _local(tensor)
        reason = unsummarizable_reason(tensor)
        if reason is not None:
            return self._add_opaque(tensor, producer, reason)
        state = self.storages.of(tensor)
        version = None if tensor.is_inference() else tensor._version
        lazy = (tensor.is_conj(), tensor.is_neg())
        key = (version, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, lazy)
        known = state.values.get((key, tensor.requires_grad))
        if known is not None:
            self._count_reuse(tensor, known)
            return known
        return self._add(tensor, state, key, producer, shard)

    def wrote(self, tensor: torch.Tensor, call: int, *, elements: int) -> None:
        """A call has written this many elements of the tensor."""
        state = self._state(tensor)
        if state is not None:
            state.forget()
            state.writer = call
            state.unwritten = max(0, state.unwritten - elements * tensor.element_size())

    def initialized(self, tensor: torch.Tensor) -> None:
        """Somebody has written into this tensor."""
        state = self._state(tensor)
        if state is not None:
            state.forget()
            state.unwritten = 0

    def suspect(self, tensor: torch.Tensor) -> None:
        """A call may have written into this tensor."""
        state = self._state(tensor)
        if state is not None:
            state.forget()

    def expose(self, tensor: torch.Tensor) -> None:
        """Somebody outside of torch holds this tensor's memory."""
        state = self._state(tensor)
        if state is not None:
            state.trusted = False
            state.forget()

    def uninitialized(self, tensor: torch.Tensor) -> None:
        """This tensor's memory holds whatever was there before."""
        state = self._state(tensor)
        if state is not None:
            state.unwritten = tensor.untyped_storage().nbytes()

    def take_fresh(self) -> list[ValueRow]:
        """Values first seen since the last time this was asked; their summaries are on their way to the host."""
        self._rows.land()
        fresh, self.fresh = self.fresh, []
        return fresh

    def take_rechecks(self) -> list[Recheck]:
        rechecks, self.rechecks = self.rechecks, []
        return rechecks

    def _state(self, tensor: torch.Tensor) -> StorageState | None:
        tensor = _local(tensor)
        return None if unsummarizable_reason(tensor) is not None else self.storages.of(tensor)

    def _add(
        self,
        tensor: torch.Tensor,
        state: StorageState,
        key: tuple[Any, ...],
        producer: int | None,
        shard: tuple[tuple[int, ...], str] | None,
    ) -> int:
        version = key[0]
        if producer is not None and not state.met:
            state.writer = producer
        state.met = True
        row = _describe(tensor, self.counts.values)
        row.storage, row.version, row.shard = state.number, version, shard
        row.producer = producer if producer is not None else state.writer
        row.initialized = state.unwritten == 0
        if row.initialized:
            try:
                row.summary, row.place = state.summaries.get(key) or self._summarize(tensor, state, version)
            except RuntimeError:  # a tensor of a transform that hides that it has no memory
                return self._add_opaque(tensor, producer, "unreadable")
        self._keep(row)
        if version is not None and state.trusted and row.initialized:
            state.values[key, row.requires_grad] = row.id
            state.summaries[key] = row.summary, row.place
            if self._verify and row.summary is not None:
                self._summaries[row.id] = row.summary
        return row.id

    def _summarize(
        self, tensor: torch.Tensor, state: StorageState, version: int | None
    ) -> tuple[RowRef, PendingPlace | None]:
        self.counts.made += 1
        place = self._saver.save(tensor, state, version) if self._saver is not None else None
        return self._rows.summarize(tensor), place

    def _add_opaque(self, tensor: torch.Tensor, producer: int | None, reason: str) -> int:
        self.counts.unsummarized[reason] = self.counts.unsummarized.get(reason, 0) + 1
        row = _describe(tensor, self.counts.values)
        row.producer = producer
        self._keep(row)
        return row.id

    def _keep(self, row: ValueRow) -> None:
        self.fresh.append(row)
        self.counts.values += 1
        self._until_sweep -= 1
        if self._until_sweep == 0:
            self._until_sweep = SWEEP_EVERY
            self.storages.sweep()

    def _count_reuse(self, tensor: torch.Tensor, known: int) -> None:
        self.counts.reused += 1
        if self._verify and known in self._summaries:
            self.rechecks.append(Recheck(known, self._summaries[known], self._rows.summarize(tensor)))


def _describe(tensor: torch.Tensor, number: int) -> ValueRow:
    return ValueRow(
        id=number,
        storage=None,
        version=None,
        producer=None,
        dtype=_word(tensor.dtype),
        shape=_plain(lambda: tensor.shape),
        strides=_plain(tensor.stride) if tensor.layout == torch.strided else (),
        device=_word(tensor.device),
        layout=_word(tensor.layout),
        requires_grad=tensor.requires_grad,
        initialized=True,
        summary=None,
        place=None,
    )


@lru_cache(maxsize=1024)
def _word(thing: torch.dtype | torch.device | torch.layout) -> str:
    return str(thing).removeprefix("torch.")


def _plain(sizes: Callable[[], Any]) -> tuple[int, ...]:
    """Sizes as numbers; (-1,) where a tensor has none that are numbers (nested, symbolic)."""
    try:
        return tuple(int(size) for size in sizes())
    except Exception:
        return (-1,)


def _shard_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], str] | None:
    """Global shape and mesh of a distributed tensor, None for any other."""
    distributed: Any = tensor
    if type(tensor) in _ORDINARY or not hasattr(tensor, "_local_tensor"):
        return None
    return _plain(lambda: tensor.shape), f"{distributed.device_mesh} {distributed.placements}"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a distributed tensor; of another class, a plain tensor whose methods are torch's."""
    kind = type(tensor)
    if kind in _ORDINARY:
        return tensor
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        return local
    overrides_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return tensor if overrides_dispatch else torch._C.TensorBase.as_subclass(tensor, torch.Tensor)


_ORDINARY = (torch.Tensor, torch.nn.Parameter)
