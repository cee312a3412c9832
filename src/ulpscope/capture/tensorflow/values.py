"""Which content an eager tensor or a variable has, and whether its summary is known already.

Eager tensors need no watching: what is known of one holds for good. It is forgotten when a step has not met it, which
costs at most another summary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tensorflow.python.framework.dtypes import as_dtype

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.saving import PendingPlace
from ulpscope.capture.recording.tensors import Placed, RowRef, StorageState
from ulpscope.capture.recording.values import Recheck, ValueRow, ValueTable
from ulpscope.capture.tensorflow.graphs.results import ObservedResults
from ulpscope.capture.tensorflow.tensors import (
    RESOURCE,
    Array,
    array_of,
    contiguous_strides,
    describe,
    device_word,
    is_readable,
    read_variable,
    variable_dtype,
    word_of,
)
from ulpscope.numerics.dtypes import Bytes


@dataclass(slots=True, eq=False)
class _Variable:
    """A variable, by its handle."""

    storage: int
    dtype: Any
    writes: int = 0
    value: int | None = None
    """The number of its content, if that is known."""
    writer: int | None = None


class Read(NamedTuple):
    """A content that a graph makes known whenever it runs."""

    record: int
    """Its place in the order of the results; -1 if nobody has read it."""
    producer: int | None = None
    """The place of the call that makes it, among the graph's."""
    variable: str | None = None
    """The session's variable that holds it."""
    constant: Array | None = None
    """What the graph's text tells, of what nobody has read."""


class TensorFlowValues(ValueTable):
    """Values of eager tensors and variables."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._met: dict[int, int] = {}
        """Numbers of contents by the tensor's id: those that this step has met."""
        self._met_before: dict[int, int] = {}
        self._summaries_met: dict[int, RowRef] = {}
        self._variables: dict[int, _Variable] = {}
        self._held: dict[str, _Variable] = {}
        """Variables of sessions, by their names."""
        self._storages = 0
        self._device_words: dict[str, str] = {}

    def begin_step(self) -> None:
        """What neither this step nor the one before it has met is forgotten."""
        self._met_before, self._met = self._met, {}
        if self._summaries_met:
            alive = set(self._met_before.values())
            self._summaries_met = {number: row for number, row in self._summaries_met.items() if number in alive}

    def observe(self, tensor: Any, producer: int | None = None) -> int:
        if isinstance(tensor, np.ndarray):  # of a session, which is given and gives arrays
            return self._add_array(tensor, str(tensor.dtype), producer, self._new_storage(), 0, "cpu")
        number = self._met.get(tensor._id)
        if number is not None:
            return self._met_again(tensor, number)
        number = self._met_before.get(tensor._id)
        if number is not None:
            self._met[tensor._id] = number
            return self._met_again(tensor, number)
        if tensor.dtype is RESOURCE:
            variable = self._variable(tensor)
            if variable is not None:
                return self._observe_variable(tensor, variable, producer)
        number = self._met[tensor._id] = self._add(tensor, producer, self._new_storage(), 0)
        return number

    def content_is(self, tensor: Any, handle: Any) -> None:
        """A tensor was read from a variable that nobody has written since."""
        variable = self._variable(handle)
        if variable is None:
            return
        if variable.value is None:
            variable.value = self._add(tensor, variable.writer, variable.storage, variable.writes)
        self._met[tensor._id] = variable.value

    def content_has(self, tensor: Any, number: int) -> None:
        """A tensor is a content that has a number already."""
        self._met[tensor._id] = number

    def unseen(self) -> int:
        """The number of a tensor of a graph that nobody has read."""
        self.counts.unsummarized["unseen"] = self.counts.unsummarized.get("unseen", 0) + 1
        described = ("float32", (), (), "cpu", "strided", False)
        return self._keep(ValueRow(self.counts.values, None, None, None, *described, True, None, None))

    def holds(self, handle: Any, number: int) -> None:
        """A variable was given a content that has a number already."""
        variable = self._variable(handle)
        if variable is not None:
            variable.writes += 1
            variable.value = number

    def known_content(self, handle: Any) -> int | None:
        """The number of what a variable held at the last time that it was looked at, if nobody has written it since."""
        variable = self._variable(handle)
        return None if variable is None else variable.value

    def is_variable(self, handle: Any) -> bool:
        """Whether a handle is a variable's."""
        return self._variable(handle) is not None

    def wrote(self, tensor: Any, call: int | None, *, nbytes: int = 0) -> None:
        """A call has written a variable."""
        variable = self._variable(tensor)
        if variable is not None:
            variable.value = None
            variable.writes += 1
            variable.writer = call

    def wrote_all(self, tensors: Placed, call: int) -> None:
        for _, tensor in tensors:
            self.wrote(tensor, call)

    def suspect(self, tensor: Any) -> None:
        self.wrote(tensor, None)

    def known(self) -> list[int]:
        held = (variable.value for variable in self._variables.values())
        numbers = {*self._met.values(), *self._met_before.values(), *held}
        return [number for number in numbers if number is not None]

    def forget_all(self) -> None:
        """Any variable may have been written."""
        super().forget_all()
        for variable in self._variables.values():
            variable.value = None
            variable.writes += 1
            variable.writer = None

    def lose_track(self) -> None:
        self.forget_all()
        self._met.clear()
        self._met_before.clear()

    def clear(self) -> None:
        super().clear()
        self._variables.clear()

    def _new_storage(self) -> int:
        self._storages += 1
        return self._storages

    def _variable(self, handle: Any) -> _Variable | None:
        known = self._variables.get(handle._id)
        if known is not None:
            return known
        dtype = variable_dtype(handle)
        if dtype is None:
            return None
        known = self._variables[handle._id] = _Variable(self._new_storage(), dtype)
        return known

    def _observe_variable(self, handle: Any, variable: _Variable, producer: int | None) -> int:
        if variable.value is None:
            if producer is not None:
                variable.writer = producer
            try:
                content = read_variable(handle, variable.dtype)
            except Exception as error:  # a variable that nobody has initialised
                pass_on_interruption(error)
                return self._add_opaque(handle, producer, "uninitialized")
            variable.value = self._add(content, variable.writer, variable.storage, variable.writes)
        else:
            self.counts.reused += 1
        return variable.value

    def _add(self, tensor: Any, producer: int | None, storage: int, version: int) -> int:
        """The number of a content that was not met before."""
        dtype = tensor.dtype
        if not is_readable(dtype):
            return self._add_opaque(tensor, producer, "dtype")
        return self._add_array(array_of(tensor), word_of(dtype), producer, storage, version, self._device_of(tensor))

    def _add_array(
        self, array: Array, dtype: str, producer: int | None, storage: int, version: int, device: str
    ) -> int:
        size = array.itemsize
        strides = tuple(stride // size for stride in array.strides)
        summary, place = self._rows.summarize(array), None
        if self._saver is not None:
            key = (version, 0, array.shape, strides, array.dtype, False, False)
            place = self._saver.save(array, StorageState(storage, None, True), key)
        number = self.counts.values
        self.counts.made += 1
        if self._verify:
            self._summaries_met[number] = summary
        return self._keep(
            ValueRow(
                number,
                storage,
                version,
                producer,
                dtype,
                array.shape,
                strides,
                device,
                "strided",
                False,
                True,
                summary,
                place,
            )
        )

    def add_read(
        self,
        reads: Sequence[Read],
        results: ObservedResults,
        order: NDArray[np.int64],
        *,
        first_call: int,
        saved: Callable[[], None],
    ) -> list[int]:
        """Numbers of contents that were read, and summarised, inside of a graph; `saved` hears when one was saved."""
        first, batch = self.counts.values, results.rows
        records = order[[read.record for read in reads]] if reads else order[:0]
        dtypes, shapes, data = results.dtypes(records), results.shapes(records), results.data(records)
        for read, record, dtype, shape, elements in zip(reads, records.tolist(), dtypes, shapes, data, strict=True):
            if read.record < 0:
                self.unseen() if read.constant is None else self.observe(read.constant)
                continue
            storage, version = self._held_in(read.variable) if read.variable else (self._new_storage(), 0)
            strides = contiguous_strides(shape)
            place = None if elements is None else self._saved(storage, elements, dtype, shape)
            self._keep(
                ValueRow(
                    self.counts.values,
                    storage,
                    version,
                    None if read.producer is None else first_call + read.producer,
                    dtype,
                    shape,
                    strides,
                    "cpu",
                    "strided",
                    False,
                    True,
                    (batch, record),
                    place,
                )
            )
            self.counts.made += 1
            if place is not None:
                saved()
        return list(range(first, self.counts.values))

    def _saved(self, storage: int, elements: Bytes, dtype: str, shape: tuple[int, ...]) -> PendingPlace | None:
        if self._saver is None:
            return None
        array = elements.view(as_dtype(dtype).as_numpy_dtype).reshape(shape)
        key = (0, 0, shape, contiguous_strides(shape), array.dtype, False, False)
        return self._saver.save(array, StorageState(storage, None, True), key)

    def _held_in(self, name: str) -> tuple[int, int]:
        """The storage and version of what a session's variable holds, as a graph has read it."""
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = _Variable(self._new_storage(), None)
        held.writes += 1
        return held.storage, held.writes

    def _add_opaque(self, local: Any, producer: int | None, reason: str) -> int:
        self.counts.unsummarized[reason] = self.counts.unsummarized.get(reason, 0) + 1
        return self._keep(ValueRow(self.counts.values, None, None, producer, *describe(local), True, None, None))

    def _device_of(self, tensor: Any) -> str:
        name = tensor.device
        known = self._device_words.get(name)
        if known is None:
            known = self._device_words[name] = device_word(tensor)
        return known

    def _met_again(self, tensor: Any, number: int) -> int:
        self.counts.reused += 1
        if self._verify and number in self._summaries_met:
            fresh = self._rows.summarize(array_of(tensor))
            self.rechecks.append(Recheck(number, self._summaries_met[number], fresh))
        return number
