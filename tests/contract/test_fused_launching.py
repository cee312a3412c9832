"""What is launched for values on CUDA, and where it finds them: all that needs no device."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ulpscope.capture.torch.fused import launching
from ulpscope.capture.torch.fused.launching import DENSE, PAIRED, RUNS, STRIDED, FusedRows, Read, plan
from ulpscope.numerics.constants import BLOCK_ELEMENTS

BASE = torch.arange(8 * 6 * 10, dtype=torch.float32)
VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: BASE.view(8, 6, 10),
    "transposed": lambda: BASE.view(8, 6, 10).transpose(0, 1),
    "inner transposed": lambda: BASE.view(8, 6, 10).transpose(1, 2),
    "columns": lambda: BASE.view(48, 10)[:, 2:6],
    "odd columns": lambda: BASE.view(48, 10)[:, 1:4],
    "two columns": lambda: BASE.view(48, 10)[:, 4:6],
    "every second": lambda: BASE.view(8, 6, 10)[::2, :, ::2],
    "heads": lambda: BASE.view(4, 2, 6, 10).permute(0, 2, 1, 3),
    "reversed": lambda: BASE.view(4, 2, 6, 10).permute(3, 2, 1, 0),
    "expanded": lambda: BASE.view(8, 6, 10)[:, :1].expand(8, 5, 10),
    "unaligned": lambda: BASE[1:],
    "single": lambda: BASE.view(48, 10)[3:4, 5:6],
}


def offset(index: int, layout: tuple[int, ...]) -> int:
    """The kernels' way to an element (or pair), in Python's numbers."""
    (*divisors,), strides = layout[:9], layout[9:]
    total = 0
    for dimension in range(3):
        size, factor, shift = divisors[3 * dimension : 3 * dimension + 3]
        outer = (index * (factor % 2**32) >> 32) >> shift
        total += (index - outer * size) * strides[dimension]
        index = outer
    return total + index * strides[3]


@pytest.mark.parametrize("name", VIEWS)
def test_elements_are_found_where_they_lie(name: str) -> None:
    view = VIEWS[name]()
    read = plan(view, 0)
    assert read is not None
    start = (read.address - BASE.data_ptr()) // 4
    if read.lies == DENSE:
        found = [start + i for i in range(read.elements)]
    elif read.lies == STRIDED:
        layout = launching.layout_of(read.dimensions, STRIDED)
        found = [start + offset(i, layout) for i in range(read.elements)]
    else:
        layout = launching.layout_of(read.dimensions, PAIRED)
        found = [start + 2 * offset(i // 2, layout) + i % 2 for i in range(read.elements)]
    assert found == view.reshape(-1).int().tolist()


def test_pairs_are_read_at_once_only_where_they_lie_together() -> None:
    lies = {name: plan(view(), 0).lies for name, view in VIEWS.items()}  # type: ignore[union-attr]
    assert {name for name, how in lies.items() if how == DENSE} == {"contiguous"}
    assert {name for name, how in lies.items() if how == PAIRED} == {
        "transposed",
        "columns",
        "two columns",
        "heads",
        "expanded",
    }


def test_what_the_kernels_cannot_read() -> None:
    assert plan(torch.zeros(0), 0) is None
    assert plan(torch.zeros(3, dtype=torch.complex64), 0) is None
    assert plan(torch.zeros(3).to(torch.float8_e5m2), 0) is None
    assert plan(torch.arange(64.0).view(2, 2, 2, 2, 2, 2).permute(5, 3, 1, 0, 2, 4), 0) is None


@given(st.integers(2, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_division_by_a_reciprocal(divisor: int, number: int) -> None:
    factor, shift = launching._reciprocal(divisor)
    assert -(2**31) <= factor < 2**31
    assert (number * (factor % 2**32) >> 32) >> shift == number // divisor


def test_long_runs_of_bfloat16_are_found_run_by_run() -> None:
    heads = torch.zeros(2, 6, 4, 64, dtype=torch.bfloat16)
    assert plan(heads.permute(0, 2, 1, 3), 0).lies == RUNS  # type: ignore[union-attr]
    assert plan(heads[..., :62], 0).lies == PAIRED  # type: ignore[union-attr]
    assert plan(heads.float().permute(0, 2, 1, 3), 0).lies == PAIRED  # type: ignore[union-attr]
    assert not launching._in_runs(((64, 1), (2, 2**32)))


def dense(elements: int, dtype: torch.dtype) -> Read:
    variant = launching.variant_of(dtype)
    assert variant is not None
    return Read(variant, DENSE, 0, elements, 0, ((elements, 1),))


@given(
    st.lists(st.integers(1, launching.MAX_ELEMENTS), min_size=1, max_size=launching.FEW),
    st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_programs_cover_every_block_once(sizes: list[int], dtype: torch.dtype) -> None:
    for share in launching._shares([dense(elements, dtype) for elements in sizes]):
        whole, left = divmod(share.read.elements, BLOCK_ELEMENTS)
        assert 1 <= share.programs <= launching.PARTIAL_ROWS
        assert share.blocks <= 32
        assert (share.programs - (left > 0)) * share.blocks >= whole
        assert (share.programs - (left > 0) - 1) * share.blocks < whole or whole == 0


def test_values_of_a_launch_share_the_device() -> None:
    alone, together = (
        [share.programs for share in launching._shares([dense(2**23, torch.bfloat16)] * count)] for count in (1, 4)
    )
    at_once = launching.FULL_GRID // launching.MANY_WARPS
    assert at_once // 2 < alone[0] < at_once
    assert at_once // 2 < sum(together) < at_once


OWN_ROWS = range(10_000, 20_000)
"""Addresses of rows that no partial rows lead to."""


class Launches:
    """Stands for the kernels: knows which partial rows have been filled when they are joined."""

    summarize_few, summarize_many, summarize_strided, join = "few", "many", "strided", "join"

    def __init__(self) -> None:
        self.filled: dict[int, int] = {}
        self.joined: list[tuple[int, int, int]] = []
        self.launches: list[str] = []
        self.slices: list[int] = []

    def launch(
        self, kernel: str, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...], slices: int = 1
    ) -> None:
        if kernel == "join":
            self.join_rows(arguments[0])
            return
        self.launches.append(kernel)
        self.slices.append(slices)
        for row, count in self.rows_of(kernel, programs, arguments, slices):
            if count and row not in OWN_ROWS:
                assert row not in self.filled, "written again before it was joined"
                self.filled[row] = count

    def rows_of(self, kernel: str, programs: int, arguments: tuple[Any, ...], slices: int) -> list[tuple[int, int]]:
        """Where each value's programs leave their rows, and how many these are."""
        if kernel == "strided":
            return [(row, programs) for row in arguments[3 : 3 + 2 * slices : 2]]
        if kernel == "many":
            table = arguments[2].reshape(-1, launching.LINE_LENGTH).tolist()
            starts, rows = [line[0] for line in table], [line[4] for line in table]
            lengths = [end - start for start, end in pairwise([*starts, programs])]
            assert arguments[3].tolist()[:programs] == [
                line for line, length in enumerate(lengths) for _ in range(length)
            ]
        else:
            numbers = [*arguments[2:19], programs, *arguments[19:]]
            starts, rows = [0, *numbers[2:15:5]], numbers[4::5]
        ends = [*starts[1:], programs]
        return [(row, end - start) for row, start, end in zip(rows, starts, ends, strict=True)]

    def join_rows(self, table: torch.Tensor) -> None:
        for row, partial, parts in table.reshape(-1, 3).tolist():
            assert self.filled.pop(partial) == parts, "joined before it was read"
            self.joined.append((row, partial, parts))


def reader_of(launches: Launches, monkeypatch: pytest.MonkeyPatch, rows: int) -> FusedRows:
    monkeypatch.setattr(launching, "PARTIAL_ROWS", rows)
    stream: Any = SimpleNamespace(cuda_stream=0, device_index=0)
    reader = FusedRows(torch.device("cpu"), stream, launches)
    monkeypatch.setattr(reader, "_is_current", lambda: True)
    monkeypatch.setattr(reader, "_upload", torch.from_numpy)
    monkeypatch.setattr(reader, "_launch", launches.launch)
    return reader


def reads_of(counts: list[int]) -> list[Read]:
    found = []
    for row, count in enumerate(counts):
        read = plan(torch.empty(count, dtype=torch.bfloat16), OWN_ROWS[row])
        assert read is not None
        found.append(read._replace(lies=DENSE))
    return found


@pytest.mark.parametrize("counts", [[9 * BLOCK_ELEMENTS] * 9, [5, 37 * BLOCK_ELEMENTS + 1, 7] * 4, [40] * 30])
def test_partial_rows_are_joined_after_they_were_read(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=16)
    reads = reads_of(counts)
    reader.read(reads)
    reader.read(reads[:2])
    reader.join()
    several = [read.row for read in reads if read.elements > BLOCK_ELEMENTS]
    again = [read.row for read in reads[:2] if read.elements > BLOCK_ELEMENTS]
    assert sorted(row for row, _, _ in launches.joined) == sorted(several + again)


def test_values_that_come_together_are_launched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=4096)
    reader.read(reads_of([50, 60, 70]))
    reader.read([read._replace(row=read.row + 100) for read in reads_of([50] * 200)])
    assert launches.launches == ["few", "many"]


def test_strided_values_that_lie_alike_are_launched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    reader = reader_of(launches, monkeypatch, rows=4096)
    pieces = torch.zeros(64, 96, dtype=torch.bfloat16)
    views = [*pieces.split(32, 1), pieces[:, :16], *(pieces[:, start : start + 32] for start in (2, 4, 6))]
    reads = [plan(view, OWN_ROWS[number]) for number, view in enumerate(views)]
    reader.read([read for read in reads if read is not None])
    assert launches.launches == ["strided"] * 3
    assert launches.slices == [4, 2, 1]
