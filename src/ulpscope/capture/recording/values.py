"""Values: contents of tensors, each summarised once for as long as it certainly has not changed."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.saving import PendingPlace, Saver
from ulpscope.capture.recording.tensors import (
    Key,
    Placed,
    RowRef,
    Shard,
    StorageState,
    StorageTable,
    Tensors,
    merged_dimensions,
)


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
    shard: Shard | None = None


class Recheck(NamedTuple):
    """A reused summary and the one that verify mode made instead."""

    value: int
    reused: RowRef
    fresh: RowRef


@dataclass(slots=True)
class ValueCounts:
    """What a table of values did so far."""

    values: int = 0
    made: int = 0
    reused: int = 0
    unsummarized: dict[str, int] = field(default_factory=dict)


class ValueTable(StorageTable):
    """Gives each observed content a number, and summarises it if that has not been done."""

    def __init__(self, tensors: Tensors, *, saver: Saver | None, verify: bool) -> None:
        super().__init__(tensors)
        self.counts = ValueCounts()
        self.fresh: list[ValueRow] = []
        self.rechecks: list[Recheck] = []
        self._rows = tensors.make_rows()
        self._saver = saver
        self._verify = verify

    def observe(self, tensor: Any, producer: int | None = None) -> int:
        """The number of this tensor's content; `producer` is the call that has just made it."""
        local = self._tensors.local(tensor)
        reason = self._tensors.why_unreadable(local)
        if reason is not None:
            return self._add_opaque(local, producer, reason)
        key, shard = self._tensors.key(local), self._tensors.shard(tensor)
        return self._find_or_add(local, self.of(local), key, producer, shard)

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
            self.wrote(tensor, call, nbytes=self._tensors.nbytes(tensor))

    def wrote(self, tensor: Any, call: int, *, nbytes: int) -> None:
        """A call has written so much of the tensor."""
        state = self._state(tensor)
        if state is not None:
            state.forget()
            state.writer = call
            state.unwritten = max(0, state.unwritten - nbytes)

    def initialized(self, tensor: Any) -> None:
        """Somebody has written into this tensor."""
        state = self._state(tensor)
        if state is not None:
            state.forget()
            state.unwritten = 0

    def suspect(self, tensor: Any) -> None:
        """A call may have written into this tensor."""
        state = self._state(tensor)
        if state is not None:
            state.forget()

    def expose(self, tensor: Any) -> None:
        """Somebody outside of the framework holds this tensor's memory."""
        state = self._state(tensor)
        if state is not None:
            state.trusted = False
            state.forget()

    def uninitialized(self, tensor: Any) -> None:
        """This tensor's memory holds whatever was there before."""
        state = self._state(tensor)
        if state is not None:
            state.unwritten = self._tensors.storage_bytes(tensor)

    def known(self) -> list[int]:
        """The numbers that later calls may still use: of contents that hold."""
        self.sweep()
        return [number for state in self.states.values() for number in state.values.values()]

    def take_fresh(self) -> list[ValueRow]:
        """Values first seen since the last time this was asked; their summaries are on their way to the host."""
        self._rows.land()
        fresh, self.fresh = self.fresh, []
        return fresh

    def take_rechecks(self) -> list[Recheck]:
        rechecks, self.rechecks = self.rechecks, []
        return rechecks

    def _state(self, tensor: Any) -> StorageState | None:
        tensor = self._tensors.local(tensor)
        return None if self._tensors.why_unreadable(tensor) is not None else self.of(tensor)

    def _find_or_add(
        self,
        tensor: Any,
        state: StorageState,
        key: Key,
        producer: int | None,
        shard: Shard | None,
    ) -> int:
        known = state.values.get(key)
        if known is not None:
            return self._reuse(tensor, state, known)
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
        number = self._keep(
            ValueRow(
                self.counts.values,
                state.number,
                version,
                producer if producer is not None else state.writer,
                self._tensors.dtype_word(key[4]),
                tuple(key[2]),
                key[3],
                self._tensors.device_word(tensor),
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

    def _summary(self, tensor: Any, state: StorageState, key: Key, *, holds: bool) -> RowRef:
        """The row of a content; one of another view that tells the same elements in the same order will do."""
        # With offset and dtype, merged dimensions tell which elements a view shows, and in which order.
        elements = 0 if 0 in key[2] else merged_dimensions(key[2], key[3])
        sequence = (key[0], key[1], elements, key[4], key[5])
        known, row = state.summaries.get(sequence, (None, 0))
        batch = None if known is None else known()  # it lives until its rows are written
        if batch is not None:
            self.counts.reused += 1
            if self._verify:
                self.rechecks.append(Recheck(self.counts.values, (batch, row), self._rows.summarize(tensor)))
            return batch, row
        self.counts.made += 1
        summary = self._rows.summarize(tensor)
        if holds:
            # Weakly: a tensor that lives long must not keep a whole batch of rows.
            state.summaries[sequence] = ref(summary[0]), summary[1]
        return summary

    def _place(self, tensor: Any, state: StorageState, key: Key, *, holds: bool) -> PendingPlace | None:
        assert self._saver is not None
        view = key[:-1]
        place: PendingPlace | None = state.places.get(view)
        if place is None:
            place = self._saver.save(tensor, state, key)
            if holds and place is not None:
                state.places[view] = place
        return place

    def _add_opaque(self, tensor: Any, producer: int | None, reason: str) -> int:
        self.counts.unsummarized[reason] = self.counts.unsummarized.get(reason, 0) + 1
        described = self._tensors.describe(tensor)
        return self._keep(ValueRow(self.counts.values, None, None, producer, *described, True, None, None))

    def _keep(self, row: ValueRow) -> int:
        self.fresh.append(row)
        self.counts.values += 1
        return row.id

    def _reuse(self, tensor: Any, state: StorageState, known: int) -> int:
        """A content that is known by this number."""
        self.counts.reused += 1
        if self._verify and known in state.checks:
            self.rechecks.append(Recheck(known, state.checks[known], self._rows.summarize(tensor)))
        return known
