"""Traces written by hand that saved their tensors, and the results of comparing two of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.unit.handmade import Content, HandmadeRun

from ulpscope.trace.data import DataPacker
from ulpscope.trace.writer import RankWriter
from ulpscope.workflows.compare.command import compare
from ulpscope.workflows.report.serving import ReportServer, open_server
from ulpscope.workflows.results import prepare_result


class SavedRun(HandmadeRun):
    """A run whose values are saved, but for those that `unsaved` names."""

    def __init__(self, *, unsaved: bool = False) -> None:
        super().__init__()
        self.arrays: dict[int, NDArray[Any]] = {}
        self.unsaved = unsaved

    def value(self, content: Content, *, dtype: str = "float32", **changes: Any) -> int:
        number = super().value(content, dtype=dtype, **changes)
        self.arrays[number] = np.asarray(content, dtype=dtype, order="C")
        return number

    def _write_step(self, writer: RankWriter, step: int) -> None:
        packer = DataPacker(writer.directory)
        for number, row in self.values.items():
            if self.value_steps[number] == step and not self.unsaved:
                self._pack(packer, step, number, row)
        packer.flush(step)
        super()._write_step(writer, step)

    def _pack(self, packer: DataPacker, step: int, number: int, row: dict[str, Any]) -> None:
        array = self.arrays[number]
        raw = np.frombuffer(array.tobytes(), np.uint8)
        file, key = packer.add(step, raw=raw, dtype=row["dtype"], shape=array.shape, digest=row["digest"])
        strides = [stride // array.itemsize for stride in array.strides]
        row |= {"data_file": file, "data_key": key, "data_offset": 0, "data_strides": strides}


def write_runs(folder: Path, arrays: dict[str, tuple[Any, Any]], *, unsaved: bool = False) -> None:
    """Two traces, ref and target, with a call for each pair of arrays: its name and what both runs made there."""
    for side, name in enumerate(("ref", "target")):
        run = SavedRun(unsaved=unsaved)
        read = run.value(np.arange(6.0).reshape(2, 3))
        for op, contents in arrays.items():
            run.call(op, reads={"args.0": read}, makes={"output.0": np.asarray(contents[side])}, module="model.layer")
        run.write(folder / name, capture={"level": "api", "save": "stats" if unsaved else "tensors"})


def write_result(folder: Path, arrays: dict[str, tuple[Any, Any]], *, unsaved: bool = False) -> Path:
    """The traces and, in `result`, their comparison."""
    write_runs(folder, arrays, unsaved=unsaved)
    found = compare(folder / "ref", folder / "target")
    result = folder / "result"
    prepare_result(result, overwrite=False)
    found.write(result)
    return result


@contextmanager
def serving(result: Path) -> Iterator[ReportServer]:
    """A server of the result's page, in a thread."""
    with open_server(result, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
