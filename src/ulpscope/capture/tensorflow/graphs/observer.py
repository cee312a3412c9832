"""Reads the results of TensorFlow's graphs while they run.

observer = GraphObserver.load()        # before the first graph runs; NotCompiledError says why it cannot be
observer.begin()
...                                    # calls of tf.function, Keras' fit, runs of sessions
for result in observer.drain(): ...    # at the end of the outermost call
observer.graphs()[result.graph].nodes[result.node]
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from ulpscope.capture.tensorflow.graphs.loading import load, readable_dtypes
from ulpscope.capture.tensorflow.graphs.nodes import ObservedGraph, parse_graph
from ulpscope.capture.tensorflow.graphs.results import RECORD, ObservedResults, copy_data
from ulpscope.numerics.dtypes import Bytes

_NOTHING, _ROWS, _ROWS_AND_DATA = range(3)
_PARTS = ("function", "device", "definition", "options", "left_out")


@dataclass(frozen=True, slots=True)
class Dropped:
    """Results that were made and not kept, since the process began: there was no room for them."""

    rows: int
    data: int


class GraphObserver:
    """The one observer of this process: observers stay in graphs once they are there, and do nothing unless asked."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._graphs: list[ObservedGraph] = []

    @classmethod
    def load(cls) -> "GraphObserver":
        """Graphs that TensorFlow prepares from now on can be read; raises NotCompiledError with the reason."""
        return cls(load())

    def leave_out(self, names: Iterable[str]) -> None:
        """Of graphs that TensorFlow prepares from now on, nodes of these names are not read."""
        self._library.ulpscope_leave_out("".join(f"{name}\n" for name in names).encode())

    def begin(self, *, data: bool = False) -> None:
        """Results are read from now on; `data`: their elements, too."""
        self._library.ulpscope_want(_ROWS_AND_DATA if data else _ROWS)

    def end(self) -> None:
        """Results are not read from now on; what was read can still be taken."""
        self._library.ulpscope_want(_NOTHING)

    def drain(self) -> ObservedResults:
        """What was read since the last time. Waits for kernels that are reading."""
        library = self._library
        records = np.empty(library.ulpscope_detach(), RECORD)
        library.ulpscope_copy(records.ctypes.data)
        return ObservedResults(records, readable_dtypes(), self._take_data(records))

    def _take_data(self, records: NDArray[Any]) -> list[Bytes | None] | None:
        if not records["data"].any():
            return None
        waiting = records[["data", "nbytes"]].tolist()
        data = [copy_data(address, nbytes) for address, nbytes in waiting]
        for address, nbytes in waiting:
            if address:
                self._library.ulpscope_let_go(address, nbytes)
        return data

    def graphs(self) -> list[ObservedGraph]:
        """All graphs that were prepared, by number."""
        for number in range(len(self._graphs), self._library.ulpscope_graphs()):
            parts = {name: self._part(number, place) for place, name in enumerate(_PARTS)}
            fusions = _fuses(parts["options"])
            self._graphs.append(parse_graph(number, parts, graph_pb2.GraphDef.FromString, fusions=fusions))
        return self._graphs

    def dropped(self) -> Dropped:
        return Dropped(self._library.ulpscope_dropped_rows(), self._library.ulpscope_dropped_data())

    def _part(self, number: int, place: int) -> bytes:
        size = ctypes.c_int64()
        address = self._library.ulpscope_graph(number, place, ctypes.byref(size))
        return ctypes.string_at(address, size.value)


def _fuses(options: bytes) -> bool:
    """Whether grappler's remapper, which fuses operations, was left on."""
    rewriting = config_pb2.GraphOptions.FromString(options).rewrite_options
    return not rewriting.disable_meta_optimizer and rewriting.remapping != rewriter_config_pb2.RewriterConfig.OFF
