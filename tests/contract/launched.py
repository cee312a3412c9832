"""The fused kernels' launches, done by the CPU: values are read when they would be launched, not when they are met."""

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch

from ulpscope.capture.recording.tensors import ROW_BYTES, HostBatch
from ulpscope.capture.torch.host.recorder import Bridge
from ulpscope.capture.torch.summaries import launching
from ulpscope.capture.torch.summaries.kernels import PARTIAL_LENGTH, Kernel
from ulpscope.capture.torch.summaries.summary import summarize_cpu_into
from ulpscope.capture.torch.tensors import quiet

DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
"""By torch's own numbers, of which Bridge.kernel is told. They stand for functions of the driver, counted from 1."""

LaunchKernel = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
"""cuLaunchKernelEx; of its configuration only the first number, how many programs, is looked at."""


class CpuKernels:
    """Stands in for a device whose memory is the host's."""

    def __init__(self) -> None:
        self._partials = np.zeros(launching.PARTIAL_ROWS * PARTIAL_LENGTH, dtype=np.int64)
        self._launch_kernel = LaunchKernel(self._launch)
        self.launches: list[int] = []
        """How many values each of them has read."""

    def make_reader(self, _bridge: Bridge, tensor: torch.Tensor) -> tuple[Any, int, int, int]:
        address = ctypes.cast(self._launch_kernel, ctypes.c_void_p).value
        assert address is not None
        return tensor.device, 0, self._partials.ctypes.data, address

    def new_batch(self, _bridge: Bridge, _reader: Any) -> tuple[HostBatch, int]:
        batch = HostBatch()
        return batch, batch.rows().ctypes.data

    def land_batch(self, _bridge: Bridge, batch: HostBatch, used: int) -> None:
        batch.used = used

    def kernel(self, _bridge: Bridge, _reader: Any, dtype: int) -> Kernel:
        return Kernel(dtype + 1, 128, 0, 4, False)

    def join(self, _bridge: Bridge, _reader: Any, table: bytes) -> None:
        for row, partial, _ in np.frombuffer(table, dtype=np.int64).reshape(-1, 3).tolist():
            ctypes.memmove(row, partial, ROW_BYTES)

    def _launch(self, config: Any, function: int, arguments: Any, _extra: Any) -> int:
        programs, address = config[0], arguments[0]
        memory = (ctypes.c_char * launching.LAUNCH.itemsize).from_address(address)
        (launch,) = np.frombuffer(memory, dtype=launching.LAUNCH)
        count = 1 + int(np.argmax(launch["ends"] == programs))
        for value in launch["values"][:count]:
            address, elements, row = (int(value[name]) for name in ("address", "elements", "row"))
            read_now(address, elements, value["layout"], DTYPES[function - 1], row)
        self.launches.append(count)
        return 0


class CpuReader:
    """Stands in for FusedRows: reads values when it is told to."""

    def read(self, reads: Sequence[launching.Read]) -> None:
        kinds = {launching.variant_of(dtype): dtype for dtype in DTYPES.values()}
        for read in reads:
            layout = launching.layout_of(read.unit, read.dimensions)
            read_now(read.address, read.elements, layout, kinds[read.variant], read.row)

    def join(self) -> None:
        pass


def read_now(address: int, elements: int, layout: Any, dtype: torch.dtype, row: int) -> None:
    places = places_of(elements, layout, dtype.itemsize)
    memory = (ctypes.c_char * ((int(places.max()) + 1) * dtype.itemsize)).from_address(address)
    with quiet():
        summarize_cpu_into(torch.frombuffer(memory, dtype=dtype)[torch.from_numpy(places)], row)


def places_of(count: int, layout: Any, item: int) -> "np.ndarray[Any, Any]":
    """Where the elements of a value lie, in their order."""
    index = np.arange(count)
    together = int(layout["bytes"]) // item
    return offsets(index // together, layout) * together + index % together


def offsets(unit: "np.ndarray[Any, Any]", layout: Any) -> "np.ndarray[Any, Any]":
    if layout["dimensions"] == 0:
        return unit
    total = np.zeros_like(unit)
    for size, stride in zip(layout["sizes"].tolist(), layout["strides"].tolist(), strict=False):
        if size == 0:
            return total
        total, unit = total + unit % size * stride, unit // size
    return total + unit * int(layout["strides"][3])


@contextlib.contextmanager
def launches_on_the_cpu() -> Iterator[CpuKernels]:
    kernels = CpuKernels()
    names = ("make_reader", "new_batch", "land_batch", "kernel", "join")

    def bound(name: str) -> Any:
        return lambda bridge, *args: getattr(kernels, name)(bridge, *args)

    with mock.patch.multiple(Bridge, **{name: bound(name) for name in names}):
        yield kernels
