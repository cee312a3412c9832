"""Opening traces: whole ones, ones that a crash left, and directories that are none."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.unit.traces import (
    CALLS_A_STEP,
    FIRST_WEIGHT,
    LINEAR,
    MASK,
    elements_of,
    frame,
    make_trace,
    rank_info,
    step_uses,
    value_row,
    weight_of,
    write_step,
)

from ulpscope.records.calls import Frame
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.errors import TraceError
from ulpscope.trace.reader import open_trace
from ulpscope.trace.schema import VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory


def test_objects_are_what_was_written(tmp_path: Path) -> None:
    rank = open_trace(make_trace(tmp_path)).ranks[0]
    call = rank.call(CALLS_A_STEP + 1)
    assert (call.name, call.kind, call.phase) == (f"{LINEAR}.0", Kind.API, Phase.FORWARD)
    assert (call.rank, call.step, call.parent, call.module) == (0, 1, CALLS_A_STEP, "layers.0")
    assert call.arguments["kwargs"] == {"bias": None}
    uses = rank.uses(call.id)
    assert [(use.role, use.place) for use in uses] == [
        (Role.INPUT, "args.0"),
        (Role.PARAMETER, "args.1"),
        (Role.OUTPUT, "output.0"),
    ]
    assert rank.stack(0) == (Frame(__file__.replace("test_trace_reader", "traces"), 1, "forward"), rank.stack(0)[1])
    assert rank.stack(99) == ()
    value = rank.value(FIRST_WEIGHT)
    assert value.stats is not None
    assert (value.stats.min, value.stats.norm, value.digest) == (-1.5, 3.5, 2**63 + FIRST_WEIGHT)
    assert value.sketch == (1.0,) * 61
    assert rank.data(value) is None


def test_integers_have_stats_without_what_only_floats_have(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    nulls = dict.fromkeys(
        ("norm", "abs_sum", "nan", "pos_inf", "neg_inf", "set_aside", "subnormal", "exponents", "sketch")
    )
    none = dict.fromkeys(("min", "max", "mean", "zero", "digest"))
    values = [value_row(0, dtype="int64", **nulls), value_row(1, **nulls, **none)]
    empty = pl.DataFrame()
    writer.write_part(0, calls=empty, values=frame(VALUES, values), tensors=empty, stacks=empty)
    found = open_trace(tmp_path).ranks[0].find_values([0, 1])
    stats = found[0].stats
    assert stats is not None
    assert (stats.min, stats.zero, stats.norm, stats.nan, stats.exponents) == (-1.5, 1, None, 0, ())
    assert found[1].stats is None


def test_a_value_is_found_in_the_step_that_wrote_it(tmp_path: Path) -> None:
    rank = open_trace(make_trace(tmp_path, steps=4, save=True)).ranks[0]
    for step in range(4):
        used = sorted({use["value"] for use in step_uses(step)})
        assert sorted(rank.collect(rank.values(step))["id"].to_list()) == used
        assert set(rank.find_values(used)) == set(used)
        assert weight_of(step) in used
    assert MASK in rank.collect(rank.values(3))["id"].to_list()
    found = rank.data(rank.value(weight_of(3)))
    assert found is not None
    assert np.array_equal(found, elements_of(weight_of(3)))
    assert not found.flags.writeable


def test_a_value_is_found_even_if_step_json_misleads(tmp_path: Path) -> None:
    directory = make_trace(tmp_path, steps=3)
    for step in range(3):
        path = directory / f"step{step}/step.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"first_value": 0}))
    assert open_trace(tmp_path).ranks[0].value(FIRST_WEIGHT).id == FIRST_WEIGHT


def test_ranks_are_read_as_one(tmp_path: Path) -> None:
    for rank_number in (10, 2, 2):
        make_trace(tmp_path, rank=rank_number)
    trace = open_trace(str(tmp_path))
    assert [rank.name for rank in trace.ranks] == ["rank2", "rank2-p2", "rank10"]
    calls = trace.collect(trace.calls(1).group_by("rank", "process").len().sort("rank", "process"))
    assert calls.rows() == [(2, "rank2", 7), (2, "rank2-p2", 7), (10, "rank10", 7)]
    assert trace.steps == (0, 1)
    assert trace.missing == ()
    assert trace.collect(trace.stacks()).height == 6
    assert trace.collect(trace.values()).height == trace.collect(trace.values().unique(["process", "id"])).height
    assert trace.process("rank10").info.rank == 10
    with pytest.raises(TraceError, match=r"no process 'rank3'\n  expected: one of rank2, rank2-p2, rank10"):
        trace.process("rank3")


def test_a_folder_may_be_named_like_a_pattern(tmp_path: Path) -> None:
    trace = open_trace(make_trace(tmp_path / "run[1]*"))
    assert trace.collect(trace.calls(1)).height == CALLS_A_STEP


def test_a_step_that_is_not_there_is_empty(tmp_path: Path) -> None:
    trace = open_trace(make_trace(tmp_path))
    assert trace.collect(trace.calls(5)).is_empty()
    assert trace.collect(trace.tensors(5)).is_empty()
    assert trace.collect(trace.values(5)).is_empty()


def test_unknown_ids_are_named(tmp_path: Path) -> None:
    rank = open_trace(make_trace(tmp_path)).ranks[0]
    with pytest.raises(TraceError, match="has no call 999"):
        rank.call(999)
    with pytest.raises(TraceError, match="has no value 999"):
        rank.value(999)


def test_a_running_capture_is_readable(tmp_path: Path) -> None:
    directory = make_trace(tmp_path, closed=False)
    rank = open_trace(tmp_path).ranks[0]
    assert rank.missing == ("not closed: the process is still running or was killed",)
    (directory / "step1/step.json").unlink()
    rank = open_trace(tmp_path).ranks[0]
    assert "step 1 is unfinished: 2 parts flushed" in rank.missing
    assert rank.steps == (0, 1)
    assert rank.step_info(1) is None
    assert rank.value(weight_of(2)).id == weight_of(2)


def test_a_part_without_its_calls_is_not_read(tmp_path: Path) -> None:
    directory = make_trace(tmp_path)
    (directory / "step1/calls-000.parquet").unlink()
    rank = open_trace(tmp_path).ranks[0]
    assert rank.missing == (
        "step 1 has 1 of its 2 parts",
        "part 000 of step 1 was not finished and is not read: no calls file",
    )
    assert rank.collect(rank.calls(1)).height == 4
    with pytest.raises(TraceError, match="has no value"):
        rank.value(weight_of(1) + 1)


def test_missing_tables_and_stray_files_are_named(tmp_path: Path) -> None:
    directory = make_trace(tmp_path)
    (directory / "step0/values-000.parquet").unlink()
    (directory / "step0/tensors-001.parquet").unlink()
    (directory / "step1/.values-002.parquet").write_bytes(b"half")
    (directory / "notes.txt").write_text("mine")
    (directory / "stacks-000.parquet").rename(directory / "stacks-001.parquet")
    assert open_trace(tmp_path).ranks[0].missing == (
        "part 000 of step 0 is incomplete: values file missing",
        "part 001 of step 0 is incomplete: tensors file missing",
        "step1/.values-002.parquet was left behind half-written and is not read",
        "stacks-000.parquet is missing: calls made there have no stack",
        "notes.txt is not a file of a trace and is not read",
    )


def write_steps(writer: RankWriter) -> None:
    for step in range(3):
        write_step(writer, step)


@pytest.mark.parametrize("kept", range(22))
def test_every_moment_of_a_crash_leaves_a_readable_trace(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = os.replace, 0

    def replace_until_killed(source: Path, target: Path) -> None:
        nonlocal count
        count += 1
        if count > kept:
            raise KeyboardInterrupt
        real(source, target)

    directory = claim_rank_directory(tmp_path, 0)
    writer = RankWriter(directory, rank_info())
    monkeypatch.setattr(os, "replace", replace_until_killed)
    with pytest.raises(KeyboardInterrupt):
        write_steps(writer)
    trace = open_trace(tmp_path)
    calls = trace.collect(trace.calls())
    assert calls["id"].to_list() == list(range(calls.height))
    uses = trace.collect(trace.tensors())
    assert set(uses["value"]) <= set(trace.collect(trace.values())["id"])
    assert set(uses["call"]) <= set(calls["id"])
    assert any("left behind half-written" in sentence for sentence in trace.missing)


def test_a_directory_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some/where").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for path, problem in (
        ("none", "does not exist"),
        ("file", "is not a directory"),
        ("some", "holds no directory with a rank.json"),
    ):
        with pytest.raises(TraceError, match=f"no trace: .*{problem}\n  expected: .*\n  next: "):
            open_trace(tmp_path / path)


def test_a_rank_that_died_at_once_is_named(tmp_path: Path) -> None:
    make_trace(tmp_path)
    claim_rank_directory(tmp_path, 1)
    assert open_trace(tmp_path).missing == ("rank1: no rank.json, it is not read",)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": "2.0"}, "field schema says '2.0'\n  expected: version 1.x"),
        ({"schema": 1}, "field schema holds 1, not str"),
        ({"rank": "0"}, "field rank holds '0', not int"),
        ({"rank": True}, "field rank holds True, not int"),
        ({"rank": None}, "field rank holds None"),
        ({"coverage": []}, "field coverage holds"),
        ({"coverage": {"waits": "x"}}, "field waits holds 'x'"),
        ({"coverage": {"calls_unobserved": {"r": "x"}}}, "field coverage.calls_unobserved.r holds 'x'"),
    ],
)
def test_a_wrong_field_of_rank_json_is_named(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    path = make_trace(tmp_path) / "rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(TraceError, match=rf"rank\.json:? {problem}"):
        open_trace(tmp_path)


@pytest.mark.parametrize("field", ["schema", "rank", "capture", "coverage", "started"])
def test_a_missing_field_of_rank_json_is_named(tmp_path: Path, field: str) -> None:
    path = make_trace(tmp_path) / "rank.json"
    content = json.loads(path.read_text())
    del content[field]
    path.write_text(json.dumps(content))
    with pytest.raises(TraceError, match=rf"rank\.json has no field {field}"):
        open_trace(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff", "[" * 100_000])
@pytest.mark.parametrize("file", ["rank.json", "step1/step.json"])
def test_unreadable_json_is_named(tmp_path: Path, file: str, text: str) -> None:
    (make_trace(tmp_path) / file).write_text(text, errors="surrogateescape")
    with pytest.raises(TraceError, match=file):
        open_trace(tmp_path)


def test_what_a_newer_minor_version_adds_is_ignored(tmp_path: Path) -> None:
    directory = make_trace(tmp_path)
    content = json.loads((directory / "rank.json").read_text())
    content |= {"schema": "1.7", "new": 1}
    content["coverage"]["new"] = 1
    (directory / "rank.json").write_text(json.dumps(content))
    for number, file in enumerate(sorted(directory.rglob("*.parquet"))):
        if number % 2:
            pl.read_parquet(file).with_columns(new=pl.lit("x")).write_parquet(file)
    rank = open_trace(tmp_path).ranks[0]
    assert rank.collect(rank.calls()).height == 14
    assert "new" not in rank.collect(rank.values()).columns


@pytest.mark.parametrize("table", ["calls", "values", "tensors", "stacks"])
def test_a_table_that_lacks_a_column_is_named(tmp_path: Path, table: str) -> None:
    directory = make_trace(tmp_path)
    file = sorted(directory.rglob(f"{table}-*.parquet"))[-1]
    frame = pl.read_parquet(file)
    column = frame.columns[-1]
    frame.drop(column).write_parquet(file)
    with pytest.raises(TraceError, match=rf"{file} cannot be read: it has no column {column}"):
        getattr(open_trace(tmp_path), table)()
    frame.with_columns(pl.lit(b"x").alias(column)).write_parquet(file)
    with pytest.raises(TraceError, match=rf"its column {column} holds Binary"):
        getattr(open_trace(tmp_path), table)()


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_a_truncated_table_is_named(tmp_path: Path, keep: float) -> None:
    file = make_trace(tmp_path) / "step1/tensors-000.parquet"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep) if keep == 0.5 else int(keep)])
    rank = open_trace(tmp_path).ranks[0]
    with pytest.raises(TraceError, match=r"tensors-000\.parquet cannot be read"):
        rank.uses(1)


def test_a_damaged_body_is_named(tmp_path: Path) -> None:
    file = make_trace(tmp_path) / "step1/calls-000.parquet"
    content = bytearray(file.read_bytes())
    content[4:400] = bytes(396)
    file.write_bytes(content)
    trace = open_trace(tmp_path)
    with pytest.raises(TraceError, match=r"step1/calls-000\.parquet cannot be read"):
        trace.collect(trace.calls())


def test_a_user_error_in_a_query_is_not_blamed_on_a_file(tmp_path: Path) -> None:
    trace = open_trace(make_trace(tmp_path))
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        trace.collect(trace.calls().select("no_such_column"))


@pytest.mark.parametrize(
    ("column", "content", "problem"),
    [
        ("kind", "apy", r"field kind of call 0 of rank0 says 'apy', which is none of api, backward"),
        ("name", None, r"field name of call 0 of rank0 is empty"),
        ("arguments", "{", r"field arguments of call 0 of rank0 is not JSON"),
        ("arguments", "[]", r"field arguments of call 0 of rank0 is not a JSON object"),
    ],
)
def test_a_row_that_is_no_call_is_named(tmp_path: Path, column: str, content: str | None, problem: str) -> None:
    file = make_trace(tmp_path) / "step0/calls-000.parquet"
    frame = pl.read_parquet(file)
    frame.with_columns(pl.lit(content, dtype=pl.String).alias(column)).write_parquet(file)
    with pytest.raises(TraceError, match=problem):
        open_trace(tmp_path).ranks[0].call(0)


def test_a_copied_rank_directory_is_a_trace(tmp_path: Path) -> None:
    directory = make_trace(tmp_path / "run", save=True)
    shutil.copytree(directory, tmp_path / "elsewhere")
    trace = open_trace(tmp_path / "elsewhere")
    assert [rank.name for rank in trace.ranks] == ["elsewhere"]
    assert trace.ranks[0].data(trace.ranks[0].value(FIRST_WEIGHT)) is not None


def test_a_trace_from_before_a_column_was_added_has_nulls_there(tmp_path: Path) -> None:
    rank = make_trace(tmp_path)
    for file in rank.rglob("values-*.parquet"):
        pl.read_parquet(file).drop("sketch_rest").write_parquet(file)
    trace = open_trace(tmp_path)
    assert trace.collect(trace.values())["sketch_rest"].null_count() == trace.collect(trace.values()).height > 0
    assert trace.ranks[0].value(1).sketch == (1.0,) * 61
