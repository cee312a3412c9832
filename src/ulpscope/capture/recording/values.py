"""Values: contents of tensors, each summarised once for as long as it certainly has not changed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import ref

import torch

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.saving import PendingPlace, Saver
from ulpscope.capture.recording.storages import StorageState, StorageTable
from ulpscope.capture.torch.arguments import Placed
from ulpscope.capture.torch.summaries.device import Batch, RowPool, RowRef
from ulpscope.capture.torch.tensors import merged_dimensions, unsummarizable_reason, version_of

Key = tuple[Any, ...]
"""What tells contents of one storage apart: version, offset, shape, strides, dtype, pending negation and conjugation,
requires_grad."""


class ValueRow(NamedTuple):
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

    def observe(self, tensor: torch.Tensor, producer: int | None = None) -> int:
        """The number of this tensor's content; `producer` is the call that has just made it."""
        if type(tensor) not in _ORDINARY or torch.is_inference_mode_enabled():
            return self._look_closer(local_tensor(tensor), producer, shard_of(tensor))
        # Most tensors were met before. Whatever cannot be read has no entry to be found, but for memory that was freed
        # under its tensor.
        try:
            state = self.storages.states.get(tensor.untyped_storage()._cdata)
            dtype = tensor.dtype
            lazy = tensor.is_neg() if dtype not in _COMPLEX else (tensor.is_neg(), tensor.is_conj())
            offset, shape, strides = tensor.storage_offset(), tensor.shape, tensor.stride()
            key = (tensor._version, offset, shape, strides, dtype, lazy, tensor.requires_grad)
        except RuntimeError as error:  # it has no storage, no version or no sizes
            pass_on_interruption(error)
            return self._look_closer(tensor, producer, None)
        if state is not None:
            known = state.values.get(key)
            if known is not None and tensor.data_ptr():
                self.counts.reused += 1
                if self._verify:
                    self._recheck(tensor, state, known)
                return known
        reason = unsummarizable_reason(tensor)
        if reason is not None:
            return self._add_opaque(tensor, producer, reason)
        return self._find_or_add(tensor, state or self.storages.of(tensor), key, producer, None)

    @property
    def trouble(self) -> Exception | None:
        """What keeps summaries from being made in the fastest way, if anything does."""
        return self._rows.trouble

    @property
    def unsettled(self) -> bool:
        """Whether summaries were asked for that may still wait for their tensors to be read."""
        return self._rows.unsettled

    def settle(self) -> None:
        """Send off the summaries that were asked for: after this, the run may write into the tensors."""
        self._rows.settle()

    def wrote_all(self, tensors: Placed, call: int) -> None:
        """A call has written every element of these."""
        for _, tensor in tensors:
            self.wrote(tensor, call, elements=tensor.numel())

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

    @property
    def fresh_rows(self) -> int:
        return len(self.fresh)

    def take_fresh(self) -> list[ValueRow]:
        """Values first seen since the last time this was asked; their summaries are on their way to the host."""
        self._rows.land()
        fresh, self.fresh = self.fresh, []
        return fresh

    def take_rechecks(self) -> list[Recheck]:
        rechecks, self.rechecks = self.rechecks, []
        return rechecks

    def _state(self, tensor: torch.Tensor) -> StorageState | None:
        tensor = local_tensor(tensor)
        return None if unsummarizable_reason(tensor) is not None else self.storages.of(tensor)

    def _look_closer(
        self, tensor: torch.Tensor, producer: int | None, shard: tuple[tuple[int, ...], str] | None
    ) -> int:
        """Observe a tensor that may be of any sort."""
        reason = unsummarizable_reason(tensor)
        if reason is not None:
            return self._add_opaque(tensor, producer, reason)
        dtype = tensor.dtype
        lazy = tensor.is_neg() if dtype not in _COMPLEX else (tensor.is_neg(), tensor.is_conj())
        where = tensor.storage_offset(), tensor.shape, tensor.stride()
        key = (version_of(tensor), *where, dtype, lazy, tensor.requires_grad)
        return self._find_or_add(tensor, self.storages.of(tensor), key, producer, shard)

    def _find_or_add(
        self,
        tensor: torch.Tensor,
        state: StorageState,
        key: Key,
        producer: int | None,
        shard: tuple[tuple[int, ...], str] | None,
    ) -> int:
        known = state.values.get(key)
        if known is not None:
            self.counts.reused += 1
            if self._verify:
                self._recheck(tensor, state, known)
            return known
        return self._add(tensor, state, key, producer, shard)

    def _add(
        self,
        tensor: torch.Tensor,
        state: StorageState,
        key: Key,
        producer: int | None,
        shard: tuple[tuple[int, ...], str] | None,
    ) -> int:
        if producer is not None and not state.met:
            state.writer = producer
        state.met = True
        version = key[0]
        initialized = state.unwritten == 0
        holds = version is not None and state.trusted and initialized
        summary = place = None
        if initialized:
            try:
                summary = self._summary(tensor, state, key, holds=holds)
            except RuntimeError as error:  # a tensor of a transform that hides that it has no memory
                pass_on_interruption(error)
                return self._add_opaque(tensor, producer, "unreadable")
            place = self._place(tensor, state, key, holds=holds) if self._saver is not None else None
        number = self.counts.values
        self._keep(
            ValueRow(
                number,
                state.number,
                version,
                producer if producer is not None else state.writer,
                word_of(key[4]),
                tuple(key[2]),
                key[3],
                word_of(tensor.device),
                "strided",
                key[-1],
                initialized,
                summary,
                place,
                shard,
            )
        )
        if holds:
            state.values[key] = number
            if self._verify and summary is not None:
                state.checks[number] = summary
        return number

    def _summary(self, tensor: torch.Tensor, state: StorageState, key: Key, *, holds: bool) -> RowRef:
        """The row of a content; one of another view that tells the same elements in the same order will do."""
        sequence = (key[0], key[1], _sequence(tensor, key), key[4], key[5])
        known = _alive(state.summaries.get(sequence))
        if known is not None:
            self.counts.reused += 1
            if self._verify:
                self.rechecks.append(Recheck(self.counts.values, known, self._rows.summarize(tensor)))
            return known
        self.counts.made += 1
        summary = self._rows.summarize(tensor)
        if holds:
            # Weakly: a tensor that lives long must not keep a whole batch of rows.
            state.summaries[sequence] = ref(summary[0]), summary[1]
        return summary

    def _place(self, tensor: torch.Tensor, state: StorageState, key: Key, *, holds: bool) -> PendingPlace | None:
        assert self._saver is not None
        view = key[:-1]
        place: PendingPlace | None = state.places.get(view)
        if place is None:
            place = self._saver.save(tensor, state, key[0])
            if holds and place is not None:
                state.places[view] = place
        return place

    def _add_opaque(self, tensor: torch.Tensor, producer: int | None, reason: str) -> int:
        self.counts.unsummarized[reason] = self.counts.unsummarized.get(reason, 0) + 1
        number = self.counts.values
        described = describe_opaque(tensor)._asdict()
        self._keep(
            ValueRow(
                id=number,
                storage=None,
                version=None,
                producer=producer,
                **described,
                initialized=True,
                summary=None,
                place=None,
            )
        )
        return number

    def _keep(self, row: ValueRow) -> None:
        self.fresh.append(row)
        self.counts.values += 1

    def _recheck(self, tensor: torch.Tensor, state: StorageState, known: int) -> None:
        if known in state.checks:
            self.rechecks.append(Recheck(known, state.checks[known], self._rows.summarize(tensor)))


def _alive(known: tuple[ref[Batch], int] | None) -> RowRef | None:
    """A row that is still there: its batch lives until its rows are written."""
    if known is None:
        return None
    batch = known[0]()
    return None if batch is None else (batch, known[1])


def _sequence(tensor: torch.Tensor, key: Key) -> Any:
    """What tells, with offset and dtype, which elements a view shows, and in which order."""
    return tensor.numel() if tensor.is_contiguous() else merged_dimensions(key[2], key[3])


class Described(NamedTuple):
    """A tensor that cannot be read, as far as it can be told."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    layout: str
    requires_grad: bool


def describe_opaque(tensor: torch.Tensor) -> Described:
    return Described(
        dtype=word_of(tensor.dtype),
        shape=_plain(lambda: tensor.shape),
        strides=_plain(tensor.stride) if tensor.layout == torch.strided else (),
        device=word_of(tensor.device),
        layout=word_of(tensor.layout),
        requires_grad=tensor.requires_grad,
    )


@lru_cache(maxsize=1024)
def word_of(thing: torch.dtype | torch.device | torch.layout) -> str:
    return str(thing).removeprefix("torch.")


def _plain(sizes: Callable[[], Any]) -> tuple[int, ...]:
    """Sizes as numbers; (-1,) where a tensor has none that are numbers (nested, symbolic)."""
    try:
        return tuple(int(size) for size in sizes())
    except Exception as error:
        pass_on_interruption(error)
        return (-1,)


def shard_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], str] | None:
    """Global shape and mesh of a distributed tensor, None for any other."""
    distributed: Any = tensor
    if type(tensor) in _ORDINARY or not hasattr(tensor, "_local_tensor"):
        return None
    return _plain(lambda: tensor.shape), f"{distributed.device_mesh} {distributed.placements}"


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a distributed tensor; of another class, a plain tensor whose methods are torch's."""
    kind = type(tensor)
    if kind in _ORDINARY:
        return tensor
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        return local
    overrides_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return tensor if overrides_dispatch else torch._C.TensorBase.as_subclass(tensor, torch.Tensor)


_COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})
_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
