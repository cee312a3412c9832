"""What observers saw, as values of Python."""

import ctypes
from collections.abc import Iterator
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
    """Its summary is rows.rows()[row]."""
    data: Bytes | None
    """Its elements, if they were asked for and there was room."""

    @property
    def summary(self) -> tuple[ObservedRows, int]:
        """As the table of values wants it."""
        return self.rows, self.row


def read_records(records: NDArray[Any], dtypes: dict[int, str], data: list[Bytes | None]) -> Iterator[ObservedResult]:
    """The results behind records, in the order of their sequence."""
    order = np.argsort(records["sequence"], kind="stable")
    rows = ObservedRows(np.ascontiguousarray(records["row"]))
    columns = [records[name].tolist() for name in (*_FIELDS, "dims")]
    told = list(zip(*columns, strict=True))
    for index in order.tolist():
        sequence, time_ns, run, graph, node, slot, dtype, frame, iteration, rank, dims = told[index]
        yield ObservedResult(
            sequence,
            time_ns,
            run,
            graph,
            node,
            slot,
            dtypes[dtype],
            tuple(dims[:rank]),
            frame,
            iteration,
            rows,
            index,
            data[index],
        )


def copy_data(address: int, nbytes: int) -> Bytes | None:
    """Elements that wait at an address, as an array of our own."""
    return np.frombuffer(ctypes.string_at(address, nbytes), dtype=np.uint8) if address else None
