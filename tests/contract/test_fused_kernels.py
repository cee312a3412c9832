"""The fused kernels' rows equal the plain reference's. Their sources run on the CPU here, thread by thread (on_cpu/).

benchmarks/fused.py checks the same on a device, with more and longer values.
"""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from on_cpu.device import ANY_VARIANT, Compiled, CpuDevice, WrongProgramError, host_reader
from torch import Tensor

from fused import FLOATS, INTEGERS, differences, planned, reference
from fused import contents as usual_contents
from ulpscope.capture.torch.summaries import launching
from ulpscope.capture.torch.summaries.kernels import PARTIAL_LENGTH, WARPS
from ulpscope.capture.torch.summaries.launching import FusedRows
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS, DIGEST, MAX, MIN, ROW_LENGTH, SUM

DTYPES = (*FLOATS, *INTEGERS, torch.uint16, torch.uint32)
WAYS = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8)
"""Of each way to add up, and of each number of bytes that is copied, at least one."""
LENGTHS = (1, 2, 61, 122, 123, 1951, 1952, 1953, 4 * 1952, 9 * 1952 + 5, 20_011)
OFFSETS = (0, 16, 8, 4, 2, 1)
CANARY = -1

Cases = list[tuple[str, Tensor]]
Row = NDArray[np.float64]
Look = Callable[[Tensor], Tensor]
LAYOUTS: dict[str, Look] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "inner transposed": lambda x: x.transpose(1, 2),
    "columns": lambda x: x[:, :, 16:48],
    "narrow columns": lambda x: x[:, :, 4:32],
    "odd columns": lambda x: x[:, :, 3:36],
    "an odd number of columns": lambda x: x[:, :, :33],
    "every second": lambda x: x[::2, :, ::2],
    "one column": lambda x: x[:, 3:4, 5:6],
    "expanded": lambda x: x[:, :1].expand(24, 7, 64),
    "all expanded": lambda x: x[:1, :1, :1].expand(24, 7, 64),
    "unaligned": lambda x: x.flatten()[1:10_001],
    "heads": lambda x: x.view(4, 6, 10, 64).permute(0, 2, 1, 3),
    "reversed": lambda x: x.view(4, 6, 10, 64).permute(3, 2, 1, 0),
    "four dimensions": lambda x: x.view(4, 6, 10, 64)[:, ::2, 1:9, :48].transpose(1, 2),
}
"""Ways to look at a tensor of 24 x 10 x 64 elements."""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("kernels"))


class Bench:
    """Reads values with kernels of the host."""

    def __init__(self, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
        self._compiled = compiled
        self._monkeypatch = monkeypatch

    def use(
        self, at_once: int, *, rows: int = 4096, copies_are_late: bool = True, backwards: bool = False
    ) -> FusedRows:
        """A reader of a device that runs so many programs at once, with so many partial rows."""
        self._monkeypatch.setattr(launching, "PARTIAL_ROWS", rows)
        self.device = CpuDevice(self._compiled, at_once, copies_are_late=copies_are_late, backwards=backwards)
        return host_reader(self._monkeypatch, self.device)


@pytest.fixture
def bench(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(compiled, monkeypatch)


def contents(length: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Tensors of one length whose summaries take different paths."""
    yield from usual_contents(length, dtype)
    yield from more_floats(length, dtype) if dtype in FLOATS else [("any bytes", any_bytes(length, dtype))]


def more_floats(length: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    normal, places = torch.randn(length), torch.arange(length)
    yield "one far below", torch.where(places == length // 2, 2.0**-100, normal).to(dtype)
    yield "one subnormal", torch.where(places == length // 2, 1e-39, normal).to(dtype)
    yield "lowest bin", (normal * 2.0**-122).to(dtype)
    yield "all bins", torch.ldexp(normal.sign(), torch.randint(-118, 29, (length,))).to(dtype)
    yield "zeros of both signs", torch.where(places % 3 == 0, -0.0, normal.relu()).to(dtype)
    yield "borders", borders(dtype).repeat(length)[:length]
    yield "just ordinary", torch.where(places % 7 == 0, -(2.0**29) * 0.99609375, normal).to(dtype)
    for exponent in (-40, -46, -52, -58):
        yield f"times 2**{exponent}", (normal * 2.0**exponent).to(dtype)


def borders(dtype: torch.dtype) -> Tensor:
    """Numbers next to those where something changes."""
    info = torch.finfo(dtype)
    exponents = torch.tensor([-128, -127, -119, -120, -1022, -14, 28, 29, 127], dtype=torch.float64)
    powers = torch.cat([torch.exp2(exponents), torch.tensor([info.max, info.smallest_normal], dtype=torch.float64)])
    below = powers.to(dtype).double() * (1 - info.eps / 2)
    return torch.cat([powers, -powers, below, -below]).to(dtype)


def any_bytes(length: int, dtype: torch.dtype) -> Tensor:
    numbers = np.random.default_rng(length).integers(0, 256, length * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(numbers & 1 if dtype == torch.bool else numbers).view(dtype)


def normal_and_strange(length: int, dtype: torch.dtype) -> Cases:
    return [(kind, tensor) for kind, tensor in contents(length, dtype) if kind in ("normal", "strange", "any bytes")]


def among_others(tensor: Tensor, offset: int) -> Tensor:
    """The same numbers so many bytes behind a border, with others before and behind them."""
    size = tensor.numel() * tensor.element_size()
    room = np.full(size + 256, 0x3D, dtype=np.uint8)
    start = -room.ctypes.data % 64 + 64 + offset
    room[start : start + size] = tensor.reshape(-1).view(torch.uint8).numpy()
    return torch.from_numpy(room[start : start + size]).view(tensor.dtype)


def rows_of(reader: FusedRows, cases: Cases) -> Row:
    """Reads all at once."""
    rows = torch.full((len(cases), ROW_LENGTH + 8), CANARY, dtype=torch.int64)
    reader.read([planned(tensor, row) for (_, tensor), row in zip(cases, rows, strict=True)])
    reader.join()
    assert bool((rows[:, ROW_LENGTH:] == CANARY).all()), "something was written behind a row"
    return rows.numpy()[:, :ROW_LENGTH].view(np.float64)


def wrong_rows(reader: FusedRows, cases: Cases) -> dict[str, list[str]]:
    """In what the rows differ from the reference's."""
    found = zip(cases, rows_of(reader, cases), strict=True)
    compared = [(name, unequal(row, tensor)) for (name, tensor), row in found]
    return {name: wrong for name, wrong in compared if wrong}


def unequal(row: Row, tensor: Tensor) -> list[str]:
    expected = reference(tensor)
    signs = ["signs of the range"] if row[:SUM].tobytes() != expected[:SUM].tobytes() else []
    return differences(row, expected) + signs


def launched(bench: Bench, name: str) -> list[int]:
    """How many programs each launch of a kernel had."""
    return [programs for one, programs, _ in bench.device.launches if one == name]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_equal_the_reference(dtype: torch.dtype, bench: Bench) -> None:
    reader = bench.use(at_once=100)
    for length in LENGTHS:
        cases = [(f"{length} {kind}", among_others(tensor, 16)) for kind, tensor in contents(length, dtype)]
        assert wrong_rows(reader, cases) == {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_may_begin_anywhere(dtype: torch.dtype, bench: Bench) -> None:
    reader = bench.use(at_once=100)
    cases = [
        (f"{length} {kind} {offset} bytes behind", among_others(tensor, offset))
        for offset in OFFSETS
        if offset % dtype.itemsize == 0
        for length in (5, 1953, 3 * 1952 + 7)
        for kind, tensor in normal_and_strange(length, dtype)
    ]
    assert wrong_rows(reader, cases) == {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_read_where_they_lie(dtype: torch.dtype, bench: Bench) -> None:
    reader = bench.use(at_once=100)
    cases = [
        (f"{name} {kind}", look(tensor.view(24, 10, 64)))
        for kind, tensor in normal_and_strange(24 * 10 * 64, dtype)
        for name, look in LAYOUTS.items()
    ]
    assert {planned(tensor, torch.empty(0)).unit for _, tensor in cases} == {*launching.units_of(dtype.itemsize)}
    assert wrong_rows(reader, cases) == {}


def test_elements_may_lie_far_apart(bench: Bench, tmp_path: Path) -> None:
    far = launching.MAX_STRIDE
    memory = np.memmap(tmp_path / "sparse", dtype=np.uint8, mode="w+", shape=(2 * far + 4000,))
    for row in range(3):
        memory[row * far : row * far + 4000] = row + np.arange(4000) % 31
    rows = torch.from_numpy(memory).as_strided((3, 2000), (far, 2))
    assert wrong_rows(bench.use(at_once=2), [("rows", rows), ("columns", rows.t()), ("column", rows[:, 7])]) == {}


@pytest.mark.parametrize("dtype", WAYS, ids=str)
@pytest.mark.parametrize(("at_once", "most"), [(1000, 64), (9, 64), (2, 64), (1, 64), (1, 200)])
def test_a_program_may_read_many_blocks(
    dtype: torch.dtype, at_once: int, most: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "MAX_BLOCKS", most)
    reader = bench.use(at_once)
    blocks = 170 if most > 64 else 18
    ((_, value), *_) = normal_and_strange(blocks * BLOCK_ELEMENTS - 3, dtype)
    assert wrong_rows(reader, [("one", value)]) == {}
    assert launched(bench, "summarize") == [min(at_once, -(-blocks // WARPS))]


@pytest.mark.parametrize("count", [33, 70])
def test_many_values_take_several_launches(count: int, bench: Bench) -> None:
    generator = np.random.default_rng(count)
    reader = bench.use(at_once=100)
    lengths = generator.integers(1, 9 * BLOCK_ELEMENTS, count).tolist()
    cases = [(f"{index}", torch.randn(length)) for index, length in enumerate(lengths)]
    cases[5] = "5", torch.randn(70, 90).t()
    cases[31] = "31", torch.randn(9, 80, 64)[:, :, 3:7]
    assert wrong_rows(reader, cases) == {}
    assert len(launched(bench, "summarize")) == -(-count // launching.LAUNCH_VALUES)


@pytest.mark.parametrize("dtype", WAYS, ids=str)
def test_partial_rows_are_joined_before_they_are_used_again(dtype: torch.dtype, bench: Bench) -> None:
    reader = bench.use(at_once=8, rows=10)
    lengths = [13 * 1952 + 1, 29 * 1952, 700, 6 * 1952] * 2
    tensors = [next(iter(contents(length, dtype)))[1] for length in lengths]
    rows = torch.full((len(tensors), ROW_LENGTH), CANARY, dtype=torch.int64)
    for tensor, row in zip(tensors, rows, strict=True):
        reader.read([planned(tensor, row)])
    assert len(launched(bench, "join")) > 1
    reader.join()
    found = zip(rows.numpy().view(np.float64), tensors, strict=True)
    assert [unequal(row, tensor) for row, tensor in found] == [[]] * len(rows)


@pytest.mark.parametrize("dtype", WAYS, ids=str)
def test_rows_do_not_depend_on_who_is_quick(dtype: torch.dtype, bench: Bench) -> None:
    cases = [
        (f"{kind} {offset}", among_others(tensor, offset))
        for offset in (0, 8)
        for kind, tensor in normal_and_strange(18 * BLOCK_ELEMENTS + 77, dtype)
    ]
    orders = [(late, backwards) for late in (False, True) for backwards in (False, True)]
    readers = (bench.use(at_once=3, copies_are_late=late, backwards=backwards) for late, backwards in orders)
    first, *others = [rows_of(reader, cases) for reader in readers]
    assert [other.tobytes() == first.tobytes() for other in others] == [True] * 3
    assert wrong_rows(bench.use(at_once=3), cases) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_ordinary_blocks_are_read_once_and_strange_ones_twice(dtype: torch.dtype, bench: Bench) -> None:
    length = 4 * BLOCK_ELEMENTS
    once = {"normal", "relu", "constant", "zero", "one far below", "all bins"}
    if dtype == torch.float16:  # has no such numbers
        once.remove("all bins")
    for kind, times in {**dict.fromkeys(once, 1), "strange": 2}.items():
        tensor = among_others(dict(contents(length, dtype))[kind], 0)
        rows_of(bench.use(at_once=4), [(kind, tensor)])
        ((_, _, copied), *_) = bench.device.launches
        assert copied == times * length * dtype.itemsize, kind


@pytest.mark.parametrize("parts", [2, 31, 32, 33, 64, 1000])
def test_all_partial_rows_are_joined(parts: int, bench: Bench) -> None:
    generator = np.random.default_rng(parts)
    partial = generator.integers(-1000, 1000, (2, parts, PARTIAL_LENGTH)).astype(np.float64)
    partial[:, :, DIGEST] = generator.integers(0, 2**63, (2, parts)).view(np.float64)
    rows = np.zeros((2, ROW_LENGTH))
    table = [[row.ctypes.data, part.ctypes.data, parts] for row, part in zip(rows, partial, strict=True)]
    bench.use(at_once=4).join_table(np.array(table, dtype=np.int64).reshape(-1))
    assert np.array_equal(rows[:, MIN], partial[:, :, MIN].min(axis=1))
    assert np.array_equal(rows[:, MAX], partial[:, :, MAX].max(axis=1))
    assert np.array_equal(rows[:, SUM:DIGEST], partial[:, :, SUM:DIGEST].sum(axis=1))
    assert np.array_equal(rows.view(np.uint64)[:, DIGEST], partial.view(np.uint64)[:, :, DIGEST].sum(axis=1))


@pytest.mark.parametrize(
    ("which", "told"),
    [
        (0, "deadlock: thread 0 waits at wait_for_warp with 31 there"),
        (1, "thread 3 came to sum_of_lanes, others wait at wait_for_warp"),
        (2, "deadlock: thread 32 waits at wait_for_program with 32 there"),
        (3, "a copy of 16 bytes does not begin at a multiple of them"),
        (4, "copies are under way when the program has ended"),
    ],
    ids=["a lane ends", "a lane goes elsewhere", "a warp waits alone", "an odd address", "copies not waited for"],
)
def test_what_no_device_allows_is_told(which: int, told: str, compiled: Compiled) -> None:
    device = CpuDevice(compiled, 1)
    kernel = device.join_kernel(torch.device("cpu"))._replace(function=device.handle("wrong", ANY_VARIANT), threads=64)
    with pytest.raises(WrongProgramError, match=told):
        device.launch(kernel, 1, 1, 0, ctypes.c_int(which))
