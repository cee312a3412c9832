"""What the writer puts on disk, and what is left of it when it is interrupted."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from safetensors import SafetensorError
from tests.unit.traces import call_row, frame, make_trace, rank_info, stacks_frame, use_row, value_row

from ulpscope.numerics.summaries.constants import EXPONENT_BINS, SKETCH_LENGTH, SUMMARY_ID
from ulpscope.records.errors import TraceError
from ulpscope.records.runs import Coverage, Root, Stepping
from ulpscope.trace.reader import open_trace
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory, write_aside

FULL_CALL = call_row(
    7,
    "torch.add.0@recompute",
    module="layers.0",
    module_class="Linear",
    step=3,
    micro_step=2,
    parent=6,
    forward=5,
    stack=0,
    autocast="bfloat16",
    recompute=True,
    random=True,
    generator="00ff",
    arguments='{"args":[1,{"$float":"nan"}]}',
    error="RuntimeError: 数",
)
FULL_VALUE = value_row(
    9,
    producer=7,
    requires_grad=True,
    min=float("-inf"),
    max=float("nan"),
    nan=1,
    pos_inf=2,
    neg_inf=3,
    set_aside=6,
    subnormal=4,
    exponents=list(range(EXPONENT_BINS)),
    sketch=[1.0 / (1 + place) for place in range(SKETCH_LENGTH)],
    digest=2**64 - 1,
    data_file="step3/data-000.safetensors",
    data_key="0",
    data_offset=4,
    data_strides=[3, 1],
    global_shape=[4, 3],
    global_offset=[2, 0],
    mesh="dp=2",
)
BARE_VALUE = {
    name: FULL_VALUE[name] for name in ("storage", "dtype", "shape", "strides", "device", "layout", "initialized")
}


def test_every_column_comes_back(tmp_path: Path) -> None:
    tables = {
        "calls": frame(CALLS, [FULL_CALL, call_row(8, "torch.add.1")]),
        "values": frame(VALUES, [FULL_VALUE, BARE_VALUE | {"id": 10, "shape": []}]),
        "tensors": frame(TENSORS, [use_row(7, "input", "args.0", 9), use_row(8, "output", "output.0", 10)]),
        "stacks": stacks_frame(),
    }
    directory = claim_rank_directory(tmp_path, 0)
    written = RankWriter(directory, rank_info()).write_part(3, **tables)
    rank = open_trace(tmp_path).ranks[0]
    for name, table in tables.items():
        found = rank.collect(getattr(rank, name)())
        assert found["rank"].to_list() == [0] * table.height
        assert found["process"].to_list() == ["rank0"] * table.height
        assert_frame_equal(found.drop("rank", "process"), table)
    assert written == sum(file.stat().st_size for file in directory.rglob("*.parquet"))


def test_columns_left_out_are_null(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    some = ["id", "name", "kind", "op", "phase", "step", "micro_step"]
    calls = frame(CALLS, [FULL_CALL]).select(some)
    writer.write_part(0, calls=calls, values=pl.DataFrame(), tensors=pl.DataFrame(), stacks=pl.DataFrame())
    rank = open_trace(tmp_path).ranks[0]
    assert rank.collect(rank.calls())["module"].to_list() == [None]
    assert rank.collect(rank.values()).height == 0
    assert rank.call(7).arguments == {}


def test_columns_come_in_the_order_of_the_format(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    calls = frame(CALLS, [FULL_CALL]).select(reversed(CALLS)).cast({"id": pl.Int32})
    writer.write_part(0, calls=calls, values=pl.DataFrame(), tensors=pl.DataFrame(), stacks=pl.DataFrame())
    written = pl.read_parquet(tmp_path / "rank0" / "step0" / "calls-000.parquet")
    assert list(written.schema.items()) == list(CALLS.items())
    assert written.row(0, named=True) == frame(CALLS, [FULL_CALL]).row(0, named=True)


def test_rank_json_states_everything(tmp_path: Path) -> None:
    coverage = Coverage(calls_seen=3, calls_unobserved={"x": 1})
    info = rank_info(closed="later", exit="1", coverage=coverage, errors=("e",))
    directory = claim_rank_directory(tmp_path, 0)
    RankWriter(directory, rank_info()).close(info)
    written = json.loads((directory / "rank.json").read_text())
    assert written["schema"] == "1.3"
    assert written["summary"] == SUMMARY_ID
    assert written["ulpscope"]
    assert {name: written[name] for name in asdict(info)} == json.loads(json.dumps(asdict(info)))
    rank = open_trace(directory).ranks[0]
    assert rank.info == info
    assert rank.summary_id == SUMMARY_ID


def test_how_steps_were_told_apart_is_read_back(tmp_path: Path) -> None:
    stepping = Stepping(updates=5, forwards=2, optimizers=2)
    roots = (Root("model", "torch.nn.Linear", "/a/train.py:7", 3), Root("Loss", "m.Loss", None, 3))
    directory = claim_rank_directory(tmp_path, 0)
    info = rank_info(closed="later", stepping=stepping, roots=roots, coverage=Coverage(ended_early="full"))
    RankWriter(directory, rank_info()).close(info)
    assert open_trace(directory).ranks[0].info == info


def test_what_is_counted_so_far_is_not_stated(tmp_path: Path) -> None:
    counted = rank_info(coverage=Coverage(calls_seen=658, calls_recorded=658), stepping=Stepping(updates=1))
    directory = claim_rank_directory(tmp_path, 0)
    RankWriter(directory, counted)
    written = json.loads((directory / "rank.json").read_text())
    assert (written["coverage"], written["stepping"], written["roots"]) == ({}, {}, [])


def test_what_an_older_version_had_counted_of_a_killed_run_is_not_believed(tmp_path: Path) -> None:
    directory = claim_rank_directory(tmp_path, 0)
    RankWriter(directory, rank_info())
    file = directory / "rank.json"
    old = json.loads(file.read_text())
    for name in ("stepping", "roots"):
        del old[name]
    file.write_text(json.dumps(old | {"coverage": {"calls_seen": 658, "calls_recorded": 658}}))
    info = open_trace(directory).ranks[0].info
    assert (info.coverage, info.stepping, info.roots) == (Coverage(), Stepping(), ())


@pytest.mark.parametrize(
    ("field", "content", "problem"),
    [
        ("stepping", {"updates": "5"}, "field stepping.updates holds '5', not int"),
        ("roots", ["model"], "field roots holds 'model', not an object"),
        ("roots", [{"name": "model"}], "has no field roots.module_class"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, field: str, content: object, problem: str) -> None:
    directory = claim_rank_directory(tmp_path, 0)
    RankWriter(directory, rank_info(closed="later"))
    file = directory / "rank.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: content}))
    with pytest.raises(TraceError, match=re.escape(problem)):
        open_trace(directory)


def test_processes_of_one_rank_get_directories_of_their_own(tmp_path: Path) -> None:
    names = [claim_rank_directory(tmp_path / "new" / "run", 0).name for _ in range(3)]
    assert names == ["rank0", "rank0-p2", "rank0-p3"]
    assert claim_rank_directory(tmp_path / "new" / "run", 1).name == "rank1"


def test_two_runs_never_share_a_rank(tmp_path: Path) -> None:
    claim_rank_directory(tmp_path, 0, run="one")
    with pytest.raises(TraceError, match=r"rank0 belongs to another run \(process \d+ on ") as caught:
        claim_rank_directory(tmp_path, 0, run="other")
    assert "-o" in caught.value.next_step
    assert claim_rank_directory(tmp_path, 1, run="other").name == "rank1"
    assert claim_rank_directory(tmp_path, 0, run="one").name == "rank0-p2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0", "rank0-p2", "rank1"]


def test_a_trace_without_claims_is_another_runs(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "rank.json").touch()
    with pytest.raises(TraceError, match="an earlier run"):
        claim_rank_directory(tmp_path, 0, run="one")


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match=r"cannot write .*file.*\n  expected: a directory that can be written"):
        claim_rank_directory(tmp_path / "file", 0)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = make_trace(tmp_path)
    (directory / "step9").write_text("in the way")
    writer = RankWriter(directory, rank_info())
    empty = pl.DataFrame()
    with pytest.raises(TraceError, match=r"cannot write .*step9"):
        writer.write_part(9, calls=empty, values=empty, tensors=empty, stacks=empty)
    assert not list(directory.glob("**/.*"))


def test_a_rank_that_is_learnt_late_takes_its_files_along(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    calls = frame(CALLS, [FULL_CALL])
    writer.write_part(3, calls=calls, values=pl.DataFrame(), tensors=pl.DataFrame(), stacks=frame(STACKS, []))
    writer.move(claim_rank_directory(tmp_path, 1))
    writer.update(rank_info(rank=1, world_size=2))
    calls = frame(CALLS, [FULL_CALL | {"id": FULL_CALL["id"] + 1}])
    writer.write_part(3, calls=calls, values=pl.DataFrame(), tensors=pl.DataFrame(), stacks=frame(STACKS, []))
    trace = open_trace(tmp_path)
    assert [rank.name for rank in trace.ranks] == ["rank1"]
    assert trace.collect(trace.calls())["rank"].to_list() == [1, 1]


def test_a_part_is_named_only_when_all_of_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    monkeypatch.setattr("ulpscope.trace.writer.os.replace", lambda source, target: renamed.append(target.name))
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    writer.write_part(0, calls=pl.DataFrame(), values=pl.DataFrame(), tensors=pl.DataFrame(), stacks=stacks_frame())
    assert renamed[0] == "rank.json"
    assert renamed[-1] == "calls-000.parquet"
    assert set(renamed[1:-1]) == {"stacks-000.parquet", "values-000.parquet", "tensors-000.parquet"}


@pytest.mark.parametrize(
    ("number", "seen", "advice"),
    [
        (errno.ENOSPC, "No space left on device", "df -i"),
        (errno.EDQUOT, "Disk quota exceeded", "quota"),
        (errno.EFBIG, "File too large", "ulimit -f"),
        (errno.EROFS, "Read-only file system", "another directory with -o"),
        (errno.ENOENT, "No such file or directory", "do not move or remove it"),
        (errno.EACCES, "Permission denied", "permissions"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_with_the_systems_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, seen: str, advice: str
) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())

    def refuse(path: Path, content: object) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(TraceError) as caught:
        writer.write_part(0, calls=pl.DataFrame(), values=pl.DataFrame(), tensors=pl.DataFrame(), stacks=pl.DataFrame())
    assert caught.value.seen.endswith(f"values-000.parquet: {seen}")
    assert advice in caught.value.next_step


def test_a_limit_on_the_size_of_files_is_told(tmp_path: Path) -> None:
    code = f"""
import resource, sys
from pathlib import Path
from ulpscope.records.errors import TraceError
from ulpscope.trace.writer import write_aside
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_aside(Path({str(tmp_path)!r}) / "table", lambda aside: aside.write_bytes(bytes(4000)))
except TraceError as error:
    print(error.seen.rpartition(": ")[2])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_what_rust_says_is_told_as_the_system_does(tmp_path: Path) -> None:
    def refuse(aside: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: anything (os error 28)")

    with pytest.raises(TraceError) as caught:
        write_aside(tmp_path / "data", refuse)
    assert caught.value.seen.endswith("data: No space left on device")


def test_a_directory_that_was_removed_while_the_run_writes(tmp_path: Path) -> None:
    directory = claim_rank_directory(tmp_path, 0)
    writer = RankWriter(directory, rank_info())
    shutil.rmtree(tmp_path)
    with pytest.raises(TraceError, match="No such file or directory") as caught:
        writer.write_part(0, calls=pl.DataFrame(), values=pl.DataFrame(), tensors=pl.DataFrame(), stacks=pl.DataFrame())
    assert "do not move or remove it" in caught.value.next_step
