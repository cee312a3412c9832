"""The fused kernels' launches, done by the CPU: values are read when they would be launched, not when they are met."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from ulpscope.capture.torch.fused import launching
from ulpscope.capture.torch.host.bridge import Bridge
from ulpscope.capture.torch.quiet import quiet
from ulpscope.capture.torch.rows import ROW_BYTES, HostBatch
from ulpscope.capture.torch.summary import summarize_cpu_into

DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
"""By torch's own numbers, of which Bridge.launch is told."""


class CpuKernels:
    """Stands in for a device whose memory is the host's."""

    def __init__(self) -> None:
        self._partials = np.zeros(launching.PARTIAL_ROWS * launching.PARTIAL_LENGTH, dtype=np.int64)
        self.launches: list[int] = []
        """How many values each of them has read."""

    def make_reader(self, _bridge: Bridge, tensor: torch.Tensor) -> tuple[Any, int, int, int]:
        return tensor.device, 0, 0, self._partials.ctypes.data

    def new_batch(self, _bridge: Bridge, _reader: Any) -> tuple[HostBatch, int]:
        batch = HostBatch()
        return batch, batch.rows().ctypes.data

    def land_batch(self, _bridge: Bridge, batch: HostBatch, used: int) -> None:
        batch.used = used

    def launch(
        self,
        _bridge: Bridge,
        _reader: Any,
        kernel: int,
        dtype: int,
        lies: int,
        _programs: int,
        slices: int,
        packed: bytes,
    ) -> None:
        numbers = np.frombuffer(packed, dtype=np.int64).tolist()
        if launching.KERNELS[kernel] == "summarize_strided":
            count, _, *layout = numbers[2 * launching.FEW :]
            places = places_of(count, tuple(layout), lies)
            for value in range(slices):
                address, row = numbers[2 * value : 2 * value + 2]
                self._read(address, places, dtype, row)
            self.launches.append(slices)
            return
        numbers.insert(5 * launching.FEW - 3, 0)
        values = [numbers[5 * index : 5 * index + 5] for index in range(launching.FEW)]
        held = [(address, count, row) for address, count, _, _, row in values if count]
        for address, count, row in held:
            self._read(address, np.arange(count), dtype, row)
        self.launches.append(len(held))

    def read_many(self, _bridge: Bridge, _reader: Any, dtype: int, table: bytes, _owners: bytes) -> None:
        lines = np.frombuffer(table, dtype=np.int64).reshape(-1, launching.LINE_LENGTH).tolist()
        for _, address, count, _, row in lines:
            self._read(address, np.arange(count), dtype, row)
        self.launches.append(len(lines))

    def join(self, _bridge: Bridge, _reader: Any, table: bytes) -> None:
        for row, partial, _ in np.frombuffer(table, dtype=np.int64).reshape(-1, 3).tolist():
            ctypes.memmove(row, partial, ROW_BYTES)

    def _read(self, address: int, places: "np.ndarray[Any, Any]", dtype: int, row: int) -> None:
        kind = DTYPES[dtype]
        memory = (ctypes.c_char * ((int(places.max()) + 1) * kind.itemsize)).from_address(address)
        numbers = np.frombuffer((ctypes.c_char * ROW_BYTES).from_address(row), dtype=np.float64)
        with quiet():
            summarize_cpu_into(torch.frombuffer(memory, dtype=kind)[torch.from_numpy(places)], numbers)


def places_of(count: int, layout: tuple[int, ...], lies: int) -> "np.ndarray[Any, Any]":
    """Where the elements of a strided value lie, in their order."""
    index = np.arange(count)
    if lies == launching.STRIDED:
        return offsets(index, layout)
    return offsets(index // 2, layout) * 2 + index % 2


def offsets(index: "np.ndarray[Any, Any]", layout: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    sizes, strides = layout[0:9:3], layout[9:]
    total = np.zeros_like(index)
    for size, stride in zip(sizes, strides, strict=False):
        total, index = total + index % size * stride, index // size
    return total + index * strides[3]


@contextlib.contextmanager
def launches_on_the_cpu() -> Iterator[CpuKernels]:
    kernels = CpuKernels()
    names = ("make_reader", "new_batch", "land_batch", "launch", "read_many", "join")

    def bound(name: str) -> Any:
        return lambda bridge, *args: getattr(kernels, name)(bridge, *args)

    with mock.patch.multiple(Bridge, **{name: bound(name) for name in names}):
        yield kernels
