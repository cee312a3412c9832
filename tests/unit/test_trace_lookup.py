"""Looking up one call of many steps: only the files are opened that may tell, and nothing is overlooked."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.unit.traces import (
    CALLS_A_STEP,
    LINEAR,
    MASK,
    call_row,
    frame,
    make_trace,
    rank_info,
    use_row,
    value_row,
    weight_of,
)

from ulpscope.records.errors import TraceError
from ulpscope.records.runs import IntRanges, StepInfo
from ulpscope.trace.earlier_steps import MAX_RANGES, REACH_FIELDS, STEPS_SOUGHT, ReachCollector, cover
from ulpscope.trace.query import CallFilter, find_call, match_calls, neighbours, with_outputs
from ulpscope.trace.reader import open_trace
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory

TABLE_NAMES = ("calls", "values", "tensors")
STEPS = 40
LAST = STEPS - 1


def spoil(directory: Path, steps: range) -> None:
    """Make the tables of these steps unreadable; who opens one cannot miss it."""
    for step in steps:
        for file in (directory / f"step{step}").glob("*.parquet"):
            file.write_bytes(b"spoilt")


def keep_only(directory: Path, *kept: int) -> None:
    for step in set(range(STEPS)) - set(kept):
        spoil(directory, range(step, step + 1))


def note_reach(directory: Path) -> None:
    """What a writer states in step.json."""
    for folder in directory.glob("step*"):
        collector = ReachCollector(int(folder.name[4:]))
        for calls in sorted(folder.glob("calls-*.parquet")):
            tables = {name: pl.read_parquet(calls.with_name(calls.name.replace("calls", name))) for name in TABLE_NAMES}
            collector.add(**tables)
        path = folder / "step.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | collector.reach().to_json()))


def forget_reach(directory: Path) -> None:
    """As an older version left it."""
    for path in directory.glob("step*/step.json"):
        stated = json.loads(path.read_text())
        path.write_text(json.dumps({name: stated[name] for name in stated if name not in REACH_FIELDS.values()}))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_trace(tmp_path, steps=STEPS)


def bisected(step: int) -> set[int]:
    """Steps whose first call a search for `step` must read."""
    low, high, probed = 0, STEPS, set()
    while low < high:
        middle = (low + high) // 2
        probed.add(middle)
        low, high = (low, middle) if middle > step else (middle + 1, high)
    return probed


@pytest.mark.parametrize("step", [0, 17, LAST])
def test_a_call_is_found_without_opening_the_other_steps(directory: Path, step: int) -> None:
    near = bisected(step) | {step, min(step + 1, LAST)}
    assert len(near) < 10
    keep_only(directory, *near)
    rank = open_trace(directory).ranks[0]
    number = step * CALLS_A_STEP + 1
    assert (rank.call(number).name, rank.call(number).step) == (f"{LINEAR}.0", step)
    assert [use.place for use in rank.uses(number)] == ["args.0", "args.1", "output.0"]
    assert find_call(open_trace(directory), number).call.step == step


@pytest.mark.parametrize("step", [0, 17, LAST])
def test_a_name_is_looked_up_in_its_step(directory: Path, step: int) -> None:
    keep_only(directory, step, min(step + 1, LAST))
    assert find_call(open_trace(directory), "SGD.0", step=step).call.id == step * CALLS_A_STEP + 5


def test_a_file_that_is_needed_and_broken_is_named(directory: Path) -> None:
    spoil(directory, range(17, 18))
    for look in (lambda rank: rank.call(17 * CALLS_A_STEP), lambda rank: rank.uses(17 * CALLS_A_STEP)):
        with pytest.raises(TraceError, match=r"step17/calls-000\.parquet cannot be read"):
            look(open_trace(directory).ranks[0])


@pytest.mark.parametrize("part", ["000", "001"])
def test_a_column_that_is_needed_and_missing_is_named(directory: Path, part: str) -> None:
    file = directory / f"step3/calls-{part}.parquet"
    pl.read_parquet(file).drop("error").write_parquet(file)
    with pytest.raises(TraceError, match=rf"step3/calls-{part}\.parquet cannot be read: it has no column error"):
        open_trace(directory).ranks[0].call(3 * CALLS_A_STEP)


def test_ids_of_many_steps_are_found_in_one_read(directory: Path) -> None:
    rank = open_trace(directory).ranks[0]
    wanted = [step * CALLS_A_STEP + 2 for step in range(STEPS)]
    assert len(wanted) > STEPS_SOUGHT
    assert list(rank.find_calls([*wanted, 10**9])) == wanted
    assert list(rank.find_calls(reversed(wanted[:2]))) == wanted[:2]
    assert rank.find_calls([]) == {}


def test_readers_are_looked_for_only_where_they_can_be(directory: Path) -> None:
    note_reach(directory)
    step = 17
    optimizer = step * CALLS_A_STEP + 5
    # The step before made the weight that this optimizer read, the next one reads what it made.
    probed = [probe for each in (step - 1, step, step + 1) for probe in bisected(each)]
    keep_only(directory, *probed, *range(step - 1, step + 3))
    rank = open_trace(directory).ranks[0]
    around = neighbours(rank, rank.call(optimizer))
    assert [(edge.call.id, edge.use.value) for edge in around.readers] == [
        (optimizer + 3, weight_of(step + 1)),
        (optimizer + 7, weight_of(step + 1)),
    ]


@pytest.mark.parametrize("stated", [True, False])
def test_what_is_known_of_reach_changes_no_answer(directory: Path, stated: bool) -> None:
    (note_reach if stated else forget_reach)(directory)
    rank = open_trace(directory).ranks[0]
    assert (rank.reach(3) is not None) == stated
    readers = rank.where.of_readers([MASK])
    assert readers == list(range(STEPS))
    assert neighbours(rank, rank.call(2)).backwards[0].id == 3
    assert [call.id for call in neighbours(rank, rank.call(0)).children] == [1]


def write(
    writer: RankWriter, step: int, *, calls: list[dict[str, object]], values: range, uses: list[dict[str, object]]
) -> None:
    writer.write_part(
        step,
        calls=frame(CALLS, calls),
        values=frame(VALUES, [value_row(number) for number in values]),
        tensors=frame(TENSORS, uses),
        stacks=frame(STACKS, []),
    )
    first = values.start if len(values) else 0
    counts = {"calls": len(calls), "values": len(values), "tensors": len(uses), "parts": 1}
    writer.finish_step(StepInfo(step=step, first_value=first, seconds=0.1, **counts))


OUTER = 1


def write_long_call(out: Path, *, steps: int) -> None:
    """Call 1 begins in step 0, reads a value there, and ends some steps later; one call runs inside it in each step."""
    writer = RankWriter(claim_rank_directory(out, 0), rank_info())
    uses = [use_row(0, "output", "output.0", 0), use_row(OUTER, "input", "args.0", 0)]
    write(writer, 0, calls=[call_row(0, "torch.first.0")], values=range(1), uses=uses)
    for step in range(1, steps + 1):
        number = step + 1
        calls = [call_row(number, "torch.inner.0", parent=OUTER, step=step)]
        uses = [use_row(number, "input", "args.0", 0), use_row(number, "output", "output.0", step)]
        if step == steps:
            calls.insert(0, call_row(OUTER, "torch.outer.0"))
            uses.append(use_row(OUTER, "output", "output.0", step))
        write(writer, step, calls=calls, values=range(step, step + 1), uses=uses)
    for step in range(steps + 1, steps + 5):
        write(writer, step, calls=[call_row(step + 1, "torch.last.0", step=step)], values=range(0), uses=[])


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_call_that_ends_steps_later_is_found_whole(tmp_path: Path, steps: int, stated: bool) -> None:
    write_long_call(tmp_path, steps=steps)
    (note_reach if stated else forget_reach)(tmp_path / "rank0")
    trace = open_trace(tmp_path)
    rank = trace.ranks[0]
    call = rank.call(OUTER)
    assert (call.name, call.step) == ("torch.outer.0", 0)
    assert [(use.role.value, use.value) for use in rank.uses(OUTER)] == [("input", 0), ("output", steps)]
    assert find_call(trace, "outer.0", step=0).call == call
    around = neighbours(rank, call)
    assert [child.id for child in around.children] == list(range(2, steps + 2))
    assert [edge.call.id for edge in around.makers] == []
    readers = [edge.call.id for edge in neighbours(rank, rank.call(0)).readers]
    assert readers == [OUTER, *range(2, steps + 2)]
    listed = with_outputs(trace, trace.collect(match_calls(trace, CallFilter(step=IntRanges(((0, 0),))))))
    assert sorted(listed["id"]) == [0, OUTER]
    assert listed["output_dtype"].to_list() == ["float32", "float32"]


def test_steps_without_calls_are_passed_over(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    for step in range(12):
        number = 10 * step
        rows = [call_row(number, "torch.add.0", step=step)] if step in (2, 7) else []
        uses = [use_row(number, "output", "output.0", step)] if rows else []
        write(writer, step, calls=rows, values=range(step, step + len(rows)), uses=uses)
    writer.finish_step(StepInfo(step=12, calls=0, values=0, tensors=0, parts=0, first_value=0, seconds=0.0))
    rank = open_trace(tmp_path).ranks[0]
    for step in (2, 7):
        assert rank.call(10 * step).step == step
        assert [use.value for use in rank.uses(10 * step)] == [step]
    assert rank.uses(30) == []
    with pytest.raises(TraceError, match="has no call 30"):
        rank.call(30)


def test_a_rank_without_steps_has_nothing(tmp_path: Path) -> None:
    RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    rank = open_trace(tmp_path).ranks[0]
    assert rank.find_calls([1]) == {}
    assert rank.uses(1) == []


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 500])
def test_few_ranges_cover_all_ids(count: int) -> None:
    generator = np.random.default_rng(count)
    ids = np.unique(generator.integers(0, 10**6, count))
    ranges = cover(ids).ranges
    assert all(number in IntRanges(ranges) for number in ids.tolist())
    assert len(ranges) == min(len(ids), MAX_RANGES)
    assert all(low <= high < following for (low, high), (following, _) in pairwise(ranges))
    assert {end for ends in ranges for end in ends} <= set(ids.tolist())


def test_neighbouring_ids_are_one_range() -> None:
    assert cover(np.array([3, 4, 5, 9])).ranges == ((3, 5), (9, 9))


def test_a_step_reaches_to_what_it_did_not_write(directory: Path) -> None:
    note_reach(directory)
    reach = open_trace(directory).ranks[0].reach(5)
    assert reach is not None
    assert [number for number in range(weight_of(6)) if number in reach.values] == [MASK, weight_of(5)]
    assert reach.calls.ranges == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (3, "field earlier_values holds 3, not list"),
        ([3], "field earlier_values holds 3, not a first and a last id"),
        ([[1, 2, 3]], r"field earlier_values holds \[1, 2, 3\], not a first and a last id"),
        ([[1, True]], r"field earlier_values holds \[1, True\], not a first and a last id"),
    ],
)
def test_a_wrong_reach_is_named(directory: Path, content: object, problem: str) -> None:
    path = directory / "step5/step.json"
    stated = asdict(StepInfo(step=5, calls=7, values=7, tensors=16, parts=2, first_value=37, seconds=0.5))
    path.write_text(json.dumps(stated | {"earlier_values": content, "earlier_calls": []}))
    with pytest.raises(TraceError, match=rf"step5/step\.json {problem}"):
        open_trace(directory)
