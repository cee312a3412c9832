"""What is launched for values on CUDA, and where it finds them: all that needs no device."""

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from on_cpu.device import compile_with, host_reader
from torch import Tensor

from ulpscope.capture.torch.summaries import kernels as compiling
from ulpscope.capture.torch.summaries import launching
from ulpscope.capture.torch.summaries.kernels import PARTIAL_LENGTH, WARPS, Kernel
from ulpscope.capture.torch.summaries.launching import FusedRows, Join, Read, Variant, plan
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS, ROW_LENGTH

ELEMENTS = 8 * 6 * 16
DTYPES = (torch.int8, torch.bfloat16, torch.float32, torch.float64)
"""One of each size."""
Look = Callable[[Tensor], Tensor]
VIEWS: dict[str, Look] = {
    "contiguous": lambda x: x.view(8, 6, 16),
    "transposed": lambda x: x.view(8, 6, 16).transpose(0, 1),
    "inner transposed": lambda x: x.view(8, 6, 16).transpose(1, 2),
    "half of columns": lambda x: x.view(24, 32)[:, :16],
    "columns": lambda x: x.view(48, 16)[:, 4:12],
    "odd columns": lambda x: x.view(48, 16)[:, 1:4],
    "an odd number of columns": lambda x: x.view(24, 32)[:, :13],
    "rows of odd length": lambda x: x[:765].view(45, 17)[:, :16],
    "every second": lambda x: x.view(8, 6, 16)[::2, :, ::2],
    "heads": lambda x: x.view(4, 2, 6, 16).permute(0, 2, 1, 3),
    "reversed": lambda x: x.view(4, 2, 6, 16).permute(3, 2, 1, 0),
    "expanded": lambda x: x.view(8, 6, 16)[:, :1].expand(8, 5, 16),
    "all expanded": lambda x: x[:1].expand(5, 7),
    "unaligned": lambda x: x[1:],
    "single": lambda x: x.view(48, 16)[3:4, 5:6],
}


def base_of(dtype: torch.dtype) -> Tensor:
    base = torch.zeros(ELEMENTS, dtype=dtype)
    assert base.data_ptr() % launching.WIDE_UNIT == 0
    return base


def planned(tensor: Tensor, row: int = 0) -> Read:
    read = plan(tensor, row)
    assert read is not None
    return read


def place_of(unit: int, layout: Any) -> int:
    """The kernels' way to a unit (staging.h), in Python's numbers."""
    if layout["dimensions"] == 0:
        return unit
    place = 0
    for dimension in range(min(3, int(layout["dimensions"]))):
        size, factor, shift = (int(layout[name][dimension]) for name in ("sizes", "factors", "shifts"))
        outer = (unit * factor >> 32) >> shift
        place += (unit - outer * size) * int(layout["strides"][dimension])
        unit = outer
    return place + unit * int(layout["strides"][3])


def elements_found(read: Read, base: Tensor) -> list[int]:
    """Places of a value's elements in its base, in the order in which they are read."""
    item = base.element_size()
    together = read.unit // item
    start, odd = divmod(read.address - base.data_ptr(), item)
    assert odd == 0
    layout = launching.layout_of(read.unit, read.dimensions)
    return [start + place_of(i // together, layout) * together + i % together for i in range(read.elements)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_elements_are_found_where_they_lie(name: str, dtype: torch.dtype) -> None:
    base, look = base_of(dtype), VIEWS[name]
    assert elements_found(planned(look(base)), base) == look(torch.arange(ELEMENTS)).reshape(-1).tolist()


@given(
    st.sampled_from(DTYPES),
    st.permutations(range(4)),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=4, max_size=4),
    st.sampled_from([(8, 6, 4, 4), (2, 3, 4, 32), (1, 48, 1, 16), (16, 3, 16, 1)]),
)
def test_elements_of_any_view_are_found(
    dtype: torch.dtype, order: Sequence[int], cuts: list[tuple[int, int]], shape: tuple[int, ...]
) -> None:
    base = base_of(dtype)

    def look(x: Tensor) -> Tensor:
        slices = tuple(slice(min(start, size - 1), None, step) for (start, step), size in zip(cuts, shape, strict=True))
        return x.view(shape)[slices].permute(*order)

    assert elements_found(planned(look(base)), base) == look(torch.arange(ELEMENTS)).reshape(-1).tolist()


@pytest.mark.parametrize(
    ("dtype", "wide", "narrow"),
    [
        (torch.int8, {"half of columns"}, {"columns"}),
        (torch.bfloat16, {"half of columns"}, {"columns"}),
        (torch.float32, {"half of columns", "columns"}, set()),
        (torch.float64, {"half of columns", "columns"}, set()),
    ],
    ids=str,
)
def test_as_many_bytes_are_copied_at_once_as_lie_together(dtype: torch.dtype, wide: set[str], narrow: set[str]) -> None:
    units = {name: planned(look(base_of(dtype))).unit for name, look in VIEWS.items() if name != "single"}
    everywhere = {"contiguous", "transposed", "heads", "expanded"}
    item = dtype.itemsize
    assert {name for name, unit in units.items() if unit == 16} == everywhere | wide
    assert {name for name, unit in units.items() if unit == 4 != item} == narrow
    assert {*units.values()} <= {16, 4, item}


@pytest.mark.parametrize(
    ("dtype", "units"),
    [
        (torch.int8, {0: 16, 16: 16, 8: 4, 4: 4, 2: 1, 1: 1}),
        (torch.bfloat16, {0: 16, 16: 16, 8: 4, 4: 4, 2: 2}),
        (torch.float32, {0: 16, 16: 16, 8: 4, 4: 4}),
        (torch.float64, {0: 16, 16: 16, 8: 8}),
    ],
    ids=str,
)
def test_units_of_contiguous_values_depend_on_where_they_begin(dtype: torch.dtype, units: dict[int, int]) -> None:
    base = base_of(dtype)
    assert {offset: planned(base[offset // dtype.itemsize :]).unit for offset in units} == units
    assert {planned(base[offset // dtype.itemsize :]).dimensions for offset in units} == {()}


def test_a_strided_value_that_begins_elsewhere_is_read_in_smaller_units() -> None:
    rows = torch.zeros(48, 32, dtype=torch.bfloat16)
    assert [planned(rows[:, start : start + 16]).unit for start in (0, 8, 2, 1)] == [16, 16, 4, 2]


def test_what_the_kernels_cannot_read() -> None:
    assert plan(torch.zeros(0), 0) is None
    assert plan(torch.zeros(3, dtype=torch.complex64), 0) is None
    assert plan(torch.zeros(3).to(torch.float8_e5m2), 0) is None
    assert plan(torch._neg_view(torch.zeros(3)), 0) is None
    assert plan(torch.frombuffer(bytearray(64), dtype=torch.float32, offset=1, count=3), 0) is None
    assert plan(torch.arange(64.0).view(2, 2, 2, 2, 2, 2).permute(5, 3, 1, 0, 2, 4), 0) is None


def test_steps_are_as_wide_as_an_integer_holds() -> None:
    widest = launching.MAX_STRIDE
    assert launching.in_units(((2, widest),), 4, 0) == (4, ((2, widest),))
    assert launching.in_units(((2, widest + 1),), 4, 0) is None
    assert launching.in_units(((8, 1), (2, widest + 1)), 4, 0) == (16, ((2, 1), (2, 2**29)))
    assert launching.in_units(((8, 1), (2, 4 * widest + 4)), 4, 0) is None


def test_too_many_elements_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MAX_ELEMENTS", 100)
    monkeypatch.setattr(launching, "MAX_STRIDED_ELEMENTS", 50)
    assert plan(torch.zeros(100), 0) is not None
    assert plan(torch.zeros(101), 0) is None
    assert plan(torch.zeros(25, 4)[:, :2], 0) is not None
    assert plan(torch.zeros(26, 4)[:, :2], 0) is None


@given(st.integers(2, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_division_by_a_reciprocal(divisor: int, number: int) -> None:
    factor, shift = launching._reciprocal(divisor)
    assert 0 <= factor < 2**32
    assert 0 <= shift < 32
    assert (number * factor >> 32) >> shift == number // divisor


@given(st.integers(2, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_division_next_to_multiples(divisor: int, number: int) -> None:
    factor, shift = launching._reciprocal(divisor)
    multiple = number // divisor * divisor
    near = [x for x in (multiple - 1, multiple, multiple + divisor - 1, 2**31 - 1) if 0 <= x < 2**31]
    assert [(x * factor >> 32) >> shift for x in near] == [x // divisor for x in near]


def contiguous(elements: int, dtype: torch.dtype = torch.bfloat16, row: int = 0) -> Read:
    variant = launching.variant_of(dtype)
    assert variant is not None
    return Read(variant, 0, elements, row, launching.WIDE_UNIT, ())


def blocks_of(read: Read) -> int:
    return -(-read.elements // BLOCK_ELEMENTS)


some_sizes = st.lists(st.integers(1, 2**28), min_size=1, max_size=launching.LAUNCH_VALUES)


@given(some_sizes, st.integers(1, 1000))
def test_programs_have_neither_too_many_nor_too_few_blocks(sizes: list[int], at_once: int) -> None:
    shares = launching.shares_of([contiguous(elements) for elements in sizes], at_once)
    assert [share.read.elements for share in shares] == sizes
    for share in shares:
        blocks = blocks_of(share.read)
        assert -(-blocks // launching.MAX_BLOCKS) <= share.programs <= -(-blocks // WARPS)


@given(some_sizes, st.integers(1, 1000))
def test_programs_of_a_launch_run_at_once(sizes: list[int], at_once: int) -> None:
    shares = launching.shares_of([contiguous(elements) for elements in sizes], at_once)
    fewest = [-(-blocks_of(share.read) // launching.MAX_BLOCKS) for share in shares]
    chosen = [share.programs for share, least in zip(shares, fewest, strict=True) if share.programs > least]
    assert sum(chosen) + len(shares) - len(chosen) <= max(at_once, len(shares))


def test_values_of_a_launch_share_the_device() -> None:
    at_once = 528
    alone, together = ([s.programs for s in launching.shares_of([contiguous(2**23)] * n, at_once)] for n in (1, 4))
    assert alone == [at_once]
    assert together == [at_once // 4] * 4


@given(st.lists(st.integers(1, launching.MAX_ELEMENTS), max_size=100))
def test_a_launch_takes_what_it_has_room_for(sizes: list[int]) -> None:
    portions = list(launching.portions_of([contiguous(elements) for elements in sizes]))
    assert [read.elements for portion in portions for read in portion] == sizes
    for portion in portions:
        assert 1 <= len(portion) <= launching.LAUNCH_VALUES
        programs = sum(share.programs for share in launching.shares_of(portion, at_once=2000))
        assert programs <= launching.PARTIAL_ROWS
    for one, following in pairwise(portions):
        full = sum(read.elements for read in one) + following[0].elements > launching.MAX_ELEMENTS
        assert full or len(one) == launching.LAUNCH_VALUES


OWN_ROWS = range(10_000, 20_000)
"""Addresses of rows that no partial rows lead to."""
SUMMARIZE, JOIN = 0, 1
AT_ONCE = 8
ROW_STEP = PARTIAL_LENGTH * launching.WORD_BYTES


def assert_covered(value: Any, programs: int) -> None:
    """A value's programs read every block once (blocks_of_warp of summarize.cu)."""
    blocks, longer = int(value["blocks"]), int(value["longer"])
    ranges = [range(n * blocks + min(n, longer), (n + 1) * blocks + min(n + 1, longer)) for n in range(programs)]
    assert [block for one in ranges for block in one] == [*range(-(-int(value["elements"]) // BLOCK_ELEMENTS))]


class Launches:
    """Stands for a device: knows which partial rows have been filled when they are joined."""

    def __init__(self) -> None:
        self.filled: set[int] = set()
        self.joined: list[Join] = []
        self.values: list[list[Any]] = []
        """Of each launch that reads."""

    def summarize_kernel(self, _device: torch.device, _variant: Variant) -> Kernel:
        return Kernel(SUMMARIZE, 32 * WARPS, 0, AT_ONCE, early=True)

    def join_kernel(self, _device: torch.device) -> Kernel:
        return Kernel(JOIN, launching.JOIN_THREADS, 0, AT_ONCE, early=False)

    def launch(self, kernel: Kernel, programs: int, slices: int, _stream: int, argument: Any) -> None:
        if kernel.function == JOIN:
            assert slices * launching.JOIN_SLOTS >= ROW_LENGTH
            table = ctypes.cast(argument.value, ctypes.POINTER(ctypes.c_int64))
            self.join_rows(np.ctypeslib.as_array(table, (programs, len(Join._fields))))
        else:
            assert slices == 1
            self.fill(programs, np.frombuffer(argument, dtype=launching.LAUNCH)[0])

    def fill(self, programs: int, launch: Any) -> None:
        ends = launch["ends"].tolist()
        count = 1 + ends.index(programs)
        assert set(ends[count - 1 :]) == {programs}
        self.values.append(list(launch["values"][:count]))
        for value, start, end in zip(launch["values"], [0, *ends], ends[:count], strict=False):
            assert_covered(value, end - start)
            if int(value["row"]) in OWN_ROWS:
                assert end - start == 1
                continue
            rows = {int(value["row"]) + ROW_STEP * program for program in range(end - start)}
            assert not rows & self.filled, "written again before it was joined"
            self.filled |= rows

    def join_rows(self, table: "np.ndarray[Any, Any]") -> None:
        for join in (Join(*line) for line in table.tolist()):
            rows = {join.partial + ROW_STEP * part for part in range(join.parts)}
            assert rows <= self.filled, "joined before it was read"
            self.filled -= rows
            self.joined.append(join)


def reader_of(launches: Launches, monkeypatch: pytest.MonkeyPatch, rows: int) -> FusedRows:
    monkeypatch.setattr(launching, "PARTIAL_ROWS", rows)
    return host_reader(monkeypatch, launches)


def reads_of(counts: list[int]) -> list[Read]:
    return [contiguous(count, row=OWN_ROWS[index]) for index, count in enumerate(counts)]


@pytest.mark.parametrize("counts", [[9 * BLOCK_ELEMENTS] * 3, [5, 7 * BLOCK_ELEMENTS + 1, 7] * 4, [40] * 30])
def test_partial_rows_are_joined_after_they_were_read(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=16)
    reads = reads_of(counts)
    reader.read(reads)
    for read in reads[:5]:
        reader.read([read])
    reader.join()
    reader.join()
    together = [s.read for s in launching.shares_of(reads, AT_ONCE) if s.programs > 1]
    alone = [read for read in reads[:5] if launching.shares_of([read], AT_ONCE)[0].programs > 1]
    assert sorted(join.row for join in launches.joined) == sorted(read.row for read in together + alone)
    assert launches.filled == set()


def test_programs_cover_every_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=4096)
    for blocks in ([1], [4], [5], [9], [31], [1, 8, 37], [600, 1, 13, 64, 65], [9] * 40):
        reader.read(reads_of([count * BLOCK_ELEMENTS - 1 for count in blocks]))
    assert sum(len(values) for values in launches.values) == 53


def test_partial_rows_lie_within_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=16)
    first = reader._partials.data_ptr()
    for read in reads_of([5 * BLOCK_ELEMENTS] * 20):
        reader.read([read])
        assert launches.filled <= set(range(first, first + 16 * ROW_STEP, ROW_STEP))
    reader.join()
    assert len(launches.joined) == 20


def test_a_value_of_one_program_needs_no_partial_row(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=16)
    reader.read(reads_of([BLOCK_ELEMENTS] * AT_ONCE))
    reader.join()
    assert [int(value["row"]) for value in launches.values[0]] == [*OWN_ROWS[:AT_ONCE]]
    assert launches.joined == []


def test_values_that_come_together_are_launched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=4096)
    reader.read(reads_of([50, 60, 70]))
    reader.read(reads_of([50] * 70))
    assert [len(values) for values in launches.values] == [3, 32, 32, 6]


def test_values_are_launched_together_however_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=4096)
    base = torch.zeros(ELEMENTS, dtype=torch.bfloat16)
    reads = [planned(look(base), OWN_ROWS[index]) for index, look in enumerate(VIEWS.values())]
    reader.read(reads)
    (values,) = launches.values
    assert [int(value["address"]) for value in values] == [read.address for read in reads]
    assert [int(value["elements"]) for value in values] == [read.elements for read in reads]
    layouts = [launching.layout_of(read.unit, read.dimensions).tobytes() for read in reads]
    assert [value["layout"].tobytes() for value in values] == layouts


def test_each_type_has_a_launch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=4096)
    types = (torch.bfloat16, torch.float32, torch.bfloat16, torch.uint8, torch.bool)
    reader.read([contiguous(30, dtype, OWN_ROWS[index]) for index, dtype in enumerate(types)])
    found = [[int(value["row"]) - OWN_ROWS[0] for value in values] for values in launches.values]
    assert found == [[0, 2], [1], [3, 4]]


def fields_of(name: str, dtype: np.dtype[Any]) -> list[tuple[str, int, int]]:
    """Offset and size of each field as numpy sees it, then of the whole."""
    assert dtype.names is not None
    assert dtype.fields is not None
    fields = [(f"{name}.{field}", dtype.fields[field][1], dtype.fields[field][0].itemsize) for field in dtype.names]
    return [*fields, (name, 0, dtype.itemsize)]


def test_structures_are_those_that_the_compiler_sees(tmp_path: Path) -> None:
    structures = {"Layout": launching.LAYOUT, "Value": launching.VALUE, "Launch": launching.LAUNCH}
    expected = [line for name, dtype in structures.items() for line in fields_of(name, dtype)]
    prints = "".join(
        f'std::printf("%zu %zu\\n", offsetof({struct}, {field}), sizeof({struct}::{field}));\n'
        if field
        else f'std::printf("0 %zu\\n", sizeof({struct}));\n'
        for struct, _, field in (name.partition(".") for name, _, _ in expected)
    )
    source, program = tmp_path / "sizes.cpp", tmp_path / "sizes"
    source.write_text(f'#include <cstddef>\n#include <cstdio>\n#include "launch.h"\nint main() {{\n{prints}}}\n')
    compile_with(["-std=c++17", f"-I{compiling._SOURCES}", str(source), "-o", str(program)])
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    found = [(name, *map(int, line.split())) for (name, _, _), line in zip(expected, lines, strict=True)]
    assert found == expected


def test_a_launch_fits_into_the_arguments_of_a_kernel() -> None:
    assert launching.LAUNCH.itemsize <= 4096
