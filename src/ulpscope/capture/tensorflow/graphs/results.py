"""What observers saw, as values of Python."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ulpscope.capture.tensorflow.graphs.limits import MAX_DIMS
from ulpscope.numerics.dtypes import Bytes, Floats
from ulpscope.numerics.summaries.constants import ROW_LENGTH

_FIELDS = "sequence time_ns run graph node slot dtype frame iteration rank".split()

RECORD = np.dtype(
    [
        *((name, "i8") for name in _FIELDS),
        ("dims", "i8", (MAX_DIMS,)),
        ("data", "i8"),
        ("nbytes", "i8"),
        ("row", "f8", (ROW_LENGTH,)),
    ]
)
"""As `Record` in cpp/records.h has it."""


class ObservedRows:
    """Summary rows of one taking: what the table of values calls a batch."""

    on_device = False

    def __init__(self, rows: Floats) -> None:
        self._rows = rows
        self.used = len(rows)

    def rows(self) -> Floats:
        return self._rows


class ObservedResult(NamedTuple):
    """One result of one node, when it was made."""

    sequence: int
    """Rises in the order in which results were read: each after all that it was made of."""
    time_ns: int
    """Since 1970."""
    run: int
    """The same for all that a graph made when it ran once: TensorFlow's step id. A function that a node calls, and that
    was not inlined, is a graph with runs of its own; its results come before the node's."""
    graph: int
    node: int
    """Number of the graph, and of the node among those of the graph."""
    slot: int
    dtype: str
    shape: tuple[int, ...]
    frame: int
    iteration: int
    """Which loop, 0 outside of any, and how often it had begun anew."""
    rows: ObservedRows
    row: int
    """Its summary is rows.rows()[row], and this its place among the records."""
    data: Bytes | None
    """Its elements, if they were asked for and there was room."""

    @property
    def summary(self) -> tuple[ObservedRows, int]:
        """As the table of values wants it."""
        return self.rows, self.row


Order = tuple[NDArray[np.int64], bytes]
"""Places of records in an order that is the same for the same executions, and what tells that they are the same."""


class ObservedResults:
    """What was read of one outermost call."""

    def __init__(self, records: NDArray[Any], dtypes: Mapping[int, str], data: Sequence[Bytes | None] | None) -> None:
        """`data` is None if nothing's elements were kept."""
        self._records = records
        self._dtypes = dtypes
        self._data = data
        self._in_sequence = np.argsort(records["sequence"], kind="stable")
        self.rows = ObservedRows(np.ascontiguousarray(records["row"]))

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ObservedResult]:
        """In the order of their sequence."""
        records, index = self._records, self._in_sequence.tolist()
        told = zip(*(records[name].tolist() for name in _FIELDS), strict=True)
        shapes, data = self.shapes(np.arange(len(records))), self.data(np.arange(len(records)))
        found = [
            ObservedResult(
                sequence,
                time_ns,
                run,
                graph,
                node,
                slot,
                self._dtypes[dtype],
                shape,
                frame,
                iteration,
                self.rows,
                row,
                elements,
            )
            for row, ((sequence, time_ns, run, graph, node, slot, dtype, frame, iteration, _), shape, elements) in (
                enumerate(zip(told, shapes, data, strict=True))
            )
        ]
        return (found[place] for place in index)

    @property
    def graphs(self) -> list[int]:
        """Numbers of the graphs that have run, the outermost last: functions that it calls end before it does."""
        outermost = int(self._records["graph"][self._in_sequence[-1]])
        return [*(number for number in np.unique(self._records["graph"]).tolist() if number != outermost), outermost]

    def order(self, *, in_sequence: bool) -> Order:
        """By run, node and turn; or `in_sequence`, as they were read."""
        records = self._records
        columns = [_numbered(records["run"], self._in_sequence)]
        columns += [records[name] for name in ("graph", "node", "frame", "iteration", "slot")]
        order = self._in_sequence if in_sequence else np.lexsort(columns[::-1])
        return order, np.stack(columns)[:, order].tobytes()

    def dtypes(self, places: NDArray[np.int64]) -> list[str]:
        return [self._dtypes[number] for number in self._records["dtype"][places].tolist()]

    def shapes(self, places: NDArray[np.int64]) -> list[tuple[int, ...]]:
        dims, ranks = self._records["dims"][places].tolist(), self._records["rank"][places].tolist()
        return [tuple(sizes[:rank]) for sizes, rank in zip(dims, ranks, strict=True)]

    def data(self, places: NDArray[np.int64]) -> list[Bytes | None]:
        data = self._data
        return [None] * len(places) if data is None else [data[place] for place in places.tolist()]


def _numbered(runs: NDArray[np.int64], in_sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """Runs by the order in which they began to give results: their own numbers are others each time."""
    if (runs == runs[:1]).all():
        return np.zeros_like(runs)
    _, first, which = np.unique(runs[in_sequence], return_index=True, return_inverse=True)
    numbers = np.empty_like(runs)
    numbers[in_sequence] = np.argsort(np.argsort(first))[which]
    return numbers


def copy_data(address: int, nbytes: int) -> Bytes | None:
    """Elements that wait at an address, as an array of our own."""
    return np.frombuffer(ctypes.string_at(address, nbytes), dtype=np.uint8) if address else None
