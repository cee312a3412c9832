"""The arithmetic of benchmarks/scale.py, and that its scripts are programs."""

from pathlib import Path

import pytest
from tests.unit.traces import make_trace

import scale

MB = 2**20


def test_a_run_whose_memory_is_flat_after_its_begin_does_not_grow() -> None:
    assert scale.growth([100 * MB] * 20 + [500 * MB] * 80) == 0


def test_growth_is_that_of_the_whole_run() -> None:
    samples = [500 * MB + index * 10_000 for index in range(1000)]
    assert scale.growth(samples) == pytest.approx(10_000_000, rel=0.01)


def test_a_peak_is_not_growth() -> None:
    samples = [500 * MB] * 100
    samples[90] = 900 * MB
    assert scale.growth(samples) == 0


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7])
def test_few_samples_are_enough(count: int) -> None:
    assert scale.growth([MB] * count) == 0


def test_a_bar_is_missed_above_it_and_by_nothing_else() -> None:
    assert not scale.Row("growth", 16.0, "B/call", 16.0).missed
    assert scale.Row("growth", 16.1, "B/call", 16.0).missed
    assert scale.Row("growth", float("nan"), "B/call", 16.0).missed
    assert not scale.Row("calls", 1e6, "").missed


@pytest.mark.parametrize("shape", scale.SHAPES.values(), ids=lambda shape: shape.name)
def test_the_scripts_are_programs(shape: scale.Shape) -> None:
    compile(shape.script, shape.name, "exec")


def test_a_trace_that_is_there_is_timed(tmp_path: Path) -> None:
    make_trace(tmp_path, steps=3)
    rows = [row.what for row in scale.lookup_rows(tmp_path)]
    for what in (
        "overview_of",
        "rank.call, first",
        "rank.uses, last",
        "find_call by name, step and phase",
        "show --op relu",
    ):
        assert what in rows
