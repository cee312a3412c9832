"""Steps of long runs share files: what was recorded is what is read, whenever the process that writes was asked to."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ulpscope.capture.recording.limits import HOLD_SECONDS
from ulpscope.capture.recording.rows import RowColumns
from ulpscope.capture.watch import together
from ulpscope.capture.watch.together import StepGatherer
from ulpscope.numerics.summaries.summary import summarize
from ulpscope.records.errors import TraceError
from ulpscope.records.runs import RankInfo
from ulpscope.trace.reader import RankTrace, open_trace
from ulpscope.trace.schema import CALLS, VALUES
from ulpscope.trace.writer import RankWriter

NAMES = ("weight", "bias")


def rows_of(step: int) -> RowColumns:
    """A step with an optimizer's call and two gradients, whose numbers are the step's."""
    rows = np.stack([summarize(np.full(3, step, np.float32), "float32") for _ in NAMES])
    call = dict.fromkeys(CALLS) | {"id": step, "name": f"SGD.{step}", "kind": "optimizer", "op": "SGD", "step": step}
    call |= {"phase": "update", "micro_step": 0, "recompute": False, "random": False}
    known = {"dtype": "float32", "shape": [3], "strides": [1], "device": "cpu", "layout": "strided"}
    known |= {"requires_grad": False, "initialized": True}
    ids = [2 * step, 2 * step + 1]
    values = {name: [known.get(name)] * 2 for name in VALUES} | {"id": ids}
    tensors = {"call": [step] * 2, "role": ["gradient"] * 2, "place": NAMES, "value": ids}
    stacks = [(step, 0, "train.py", 7, "main")]
    return RowColumns({name: [each] for name, each in call.items()}, values, tensors, stacks, [True] * 2, rows)


NO_ROWS = RowColumns(
    {name: [] for name in CALLS},
    {name: [] for name in VALUES},
    {name: [] for name in ("call", "role", "place", "value")},
    [],
    [],
    np.empty((0, rows_of(0).rows.shape[1])),
)


class Run:
    """A run whose steps are sent to a gatherer, as messages bring them."""

    def __init__(self, path: Path) -> None:
        self.directory = path / "rank0"
        self.directory.mkdir(parents=True)
        about = RankInfo(0, 1, {}, {"name": "torch"}, {}, (), {}, {}, {"watch": "gradients"}, "2026-01-01")
        writer = RankWriter(self.directory, about)
        self.gatherer = StepGatherer(writer)
        self.told = 0

    def send(self, step: int, rows: RowColumns, *, whole: bool = True) -> None:
        told = json.loads(json.dumps(rows.described())) | {"step": step, "end": {"seconds": 0.5} if whole else None}
        self.told += self.gatherer.receive(told, [rows.rows.tobytes()])[0]

    def settle(self) -> None:
        self.told += self.gatherer.settle()[0]

    def read(self) -> RankTrace:
        return open_trace(self.directory).ranks[0]

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.directory.iterdir() if entry.is_dir())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "t")


def holds(rank: RankTrace, step: int) -> bool:
    """Whether a step's rows are there, each once, and no other's."""
    calls, values = rank.collect(rank.calls(step)), rank.collect(rank.values(step))
    uses = rank.collect(rank.tensors(step))
    assert values["norm"].to_list() == [pytest.approx(step * 3**0.5)] * 2
    assert uses.select("call", "place", "value").rows() == [(step, "weight", 2 * step), (step, "bias", 2 * step + 1)]
    return calls["id"].to_list() == [step] and values["id"].to_list() == [2 * step, 2 * step + 1]


def test_steps_share_a_directory_and_are_read_one_by_one(run: Run) -> None:
    for step in range(5):
        run.send(step, rows_of(step))
    assert run.names() == []
    run.settle()
    rank = run.read()
    assert run.names() == ["steps-000"]
    assert rank.steps == (0, 1, 2, 3, 4)
    assert all(holds(rank, step) for step in rank.steps)
    assert rank.collect(rank.values([1, 3]))["id"].to_list() == [2, 3, 6, 7]
    assert rank.collect(rank.stacks())["stack"].to_list() == [0, 1, 2, 3, 4]
    info = rank.step_info(3)
    assert info is not None
    assert (info.calls, info.values, info.tensors, info.first_value, info.seconds) == (1, 2, 2, 6, 0.5)
    assert rank.value(7).shape == (3,)
    assert rank.uses(4)[0].place == "weight"


def test_a_block_grows_until_it_is_full(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "BLOCK_VALUES", 6)
    for step in range(7):
        run.send(step, rows_of(step))
        run.settle()
    rank = run.read()
    assert run.names() == ["steps-000", "steps-001", "steps-002"]
    assert rank.steps == tuple(range(7))
    assert all(holds(rank, step) for step in rank.steps)
    assert rank.collect(rank.calls())["id"].to_list() == list(range(7))


def test_what_waits_is_written_when_it_is_due(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(together.time, "monotonic", lambda: now[0])
    assert run.gatherer.seconds_left is None
    run.send(0, rows_of(0))
    assert run.gatherer.seconds_left == HOLD_SECONDS
    now[0] += HOLD_SECONDS
    run.send(1, rows_of(1))
    assert run.read().steps == (0, 1)
    assert run.gatherer.seconds_left is None


def test_a_step_that_is_not_whole_lies_by_itself_until_it_is(run: Run) -> None:
    run.send(0, rows_of(0))
    run.send(1, rows_of(1), whole=False)
    run.settle()
    rank = run.read()
    assert run.names() == ["step1", "steps-000"]
    assert rank.step_info(1) is None
    assert any("step 1 is unfinished" in sentence for sentence in rank.missing)
    assert holds(rank, 1)
    run.send(1, NO_ROWS)
    run.settle()
    rank = run.read()
    assert run.names() == ["steps-000"]
    assert rank.step_info(1) is not None
    assert holds(rank, 1)


def test_a_death_before_the_old_directory_was_removed_doubles_nothing(run: Run) -> None:
    run.send(0, rows_of(0), whole=False)
    run.settle()
    shutil.copytree(run.directory / "step0", run.directory / "old")
    run.send(0, NO_ROWS)
    run.settle()
    (run.directory / "old").rename(run.directory / "step0")
    assert holds(run.read(), 0)


def test_what_is_told_of_the_disk_is_what_lies_there(run: Run) -> None:
    for step in range(4):
        run.send(step, rows_of(step), whole=step < 3)
    assert run.told > 0
    run.settle()
    tables = sum(file.stat().st_size for file in run.directory.rglob("*") if file.is_file())
    about = sum((run.directory / name).stat().st_size for name in ("rank.json", "steps-000/steps.json"))
    steps = (run.directory / "steps-000/steps.json").stat().st_size
    assert run.told == tables - about + steps


@pytest.fixture
def blocks(run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(together, "BLOCK_VALUES", 4)
    for step in range(4):
        run.send(step, rows_of(step))
    run.settle()
    assert run.names() == ["steps-000", "steps-001"]
    return run.directory


@pytest.mark.parametrize("name", ["values-000.parquet", "calls-000.parquet", "steps.json"])
def test_a_block_without_a_file_is_said_and_the_others_are_read(name: str, blocks: Path) -> None:
    (blocks / "steps-000" / name).unlink()
    rank = open_trace(blocks).ranks[0]
    assert rank.steps == (2, 3)
    assert any(f"steps-000 is incomplete: {name} missing" in sentence for sentence in rank.missing)


def refused(blocks: Path) -> str:
    with pytest.raises(TraceError) as told:
        rank = open_trace(blocks).ranks[0]
        rank.collect(rank.values())
    return str(told.value)


def test_a_step_is_in_one_block_only(blocks: Path) -> None:
    shutil.copytree(blocks / "steps-000", blocks / "steps-002")
    assert "has step 0, which steps-000 has, too" in refused(blocks)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({}, "has no field steps"),
        ({"steps": {}}, "field steps holds {}, not list"),
        ({"steps": [7]}, "field steps holds 7, not an object"),
        ({"steps": [{"step": 1}]}, "has no field calls"),
        ({"steps": "twice"}, "does not hold each step once, in their order"),
    ],
)
def test_a_list_of_steps_that_was_changed_is_refused(content: dict[str, object], problem: str, blocks: Path) -> None:
    file = blocks / "steps-000" / "steps.json"
    if content.get("steps") == "twice":
        content = {"steps": json.loads(file.read_text())["steps"] * 2}
    file.write_text(json.dumps(content))
    told = refused(blocks)
    assert str(file) in told
    assert problem in told


def test_rows_without_their_step_are_refused(blocks: Path) -> None:
    file = blocks / "steps-001" / "values-000.parquet"
    pl.read_parquet(file).drop("part_of").write_parquet(file)
    assert f"{file} cannot be read: it has no column part_of" in refused(blocks)
