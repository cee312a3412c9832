"""The door for files that others wrote: regular files of a plausible size, and tables whose rows can be relied on."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.unit.traces import call_row, frame, rank_info, stacks_frame, use_row, value_row

from ulpscope.cli.main import main
from ulpscope.records.errors import TraceError
from ulpscope.report.program import source_line
from ulpscope.trace import files
from ulpscope.trace.files import map_bytes, open_file, parse_json, read_bytes, read_json
from ulpscope.trace.reader import open_trace
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory

HUGE = 2**40


@pytest.fixture(autouse=True)
def never_for_long() -> Iterator[None]:
    """What waits for a fifo's writer waits for ever."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waited for ever"))
    signal.alarm(60)
    yield
    signal.alarm(0)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(path.parent)
        listening.bind(path.name)
        os.chdir(here)


PLACED = {
    "a fifo": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": lambda path: path.mkdir(),
    "a socket": make_socket,
}


@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("read", [open_file, map_bytes, read_json, lambda path: read_bytes(path, limit=HUGE)])
def test_only_regular_files_pass(tmp_path: Path, kind: str, read: Any) -> None:
    PLACED[kind](tmp_path / "x")
    with pytest.raises(OSError, match=f"it is {kind}, not a regular file") as caught:
        read(tmp_path / "x")
    assert caught.value.filename == str(tmp_path / "x")


def test_a_link_to_a_regular_file_passes_and_one_to_itself_does_not(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("[1]")
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "loop").symlink_to("loop")
    assert read_json(tmp_path / "link") == [1]
    with pytest.raises(OSError, match="symbolic links"):
        read_json(tmp_path / "loop")


def test_a_file_that_becomes_a_fifo_after_the_look_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sound").write_text("{}")
    os.mkfifo(tmp_path / "x")
    sound = os.stat(tmp_path / "sound")
    monkeypatch.setattr(files.os, "stat", lambda path: sound)
    with pytest.raises(OSError, match="a fifo"):
        open_file(tmp_path / "x")


def test_a_file_that_is_implausibly_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    os.truncate(tmp_path / "x.json", HUGE)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, and a file of its kind at most"):
        read_json(tmp_path / "x.json")


def test_bytes_that_are_not_there_are_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345678")
    assert map_bytes(tmp_path / "x", start=6, length=2).tobytes() == b"78"
    assert map_bytes(tmp_path / "x", start=8).size == 0
    for start, length in ((6, 3), (9, 0), (-1, 1), (0, -1)):
        with pytest.raises(OSError, match="more than it has"):
            map_bytes(tmp_path / "x", start=start, length=length)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5000, "integer string conversion"),
        ("\xff", "Expecting value"),
    ],
)
def test_json_that_is_none_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_json(text.encode())


def test_bytes_of_a_path_that_is_no_text_stay_what_they_are() -> None:
    assert os.fsencode(parse_json(b'"a\\udcff"')) == b"a\xff"


def test_a_file_of_brackets_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "JSON_MEMORY", (4, 1000))
    with pytest.raises(ValueError, match="almost only brackets"):
        parse_json(b"[" + b"[],{}," * 100 + b"1]")
    assert len(parse_json(b"[" + b'{"name": "torch.nn.functional.linear", "shape": [2, 3]},' * 100 + b"1]")) == 101


CALL, OTHER = call_row(0, "torch.relu.0"), call_row(1, "torch.relu.1")
VALUE, USE = value_row(0), use_row(0, "input", "args.0", 0)
STACK = stacks_frame().row(0, named=True)


def write(folder: Path, **tables: list[dict[str, Any]]) -> Path:
    rows = {"calls": [CALL, OTHER], "values": [VALUE], "tensors": [USE], "stacks": [STACK]} | tables
    columns = {"calls": CALLS, "values": VALUES, "tensors": TENSORS, "stacks": STACKS}
    writer = RankWriter(claim_rank_directory(folder, 0), rank_info())
    writer.write_part(0, **{name: frame(columns[name], rows[name]) for name in columns})
    return folder


@pytest.mark.parametrize(
    ("table", "rows", "told"),
    [
        ("calls", [CALL | {"id": None}], "calls-000.parquet cannot be read: field id is empty in some row"),
        ("calls", [CALL, CALL], "field id is the same in two rows"),
        ("calls", [CALL | {"id": -1}], "field id is negative"),
        ("calls", [CALL | {"name": None}], "field name is empty"),
        ("calls", [CALL | {"phase": "later"}], "field phase is none of setup, forward, backward, update, other"),
        ("calls", [CALL | {"kind": None}], "field kind is empty"),
        ("calls", [CALL | {"parent": 0}], "field parent names a call that began no earlier"),
        ("calls", [CALL | {"parent": 1}, OTHER | {"parent": 0}], "field parent names a call that began no earlier"),
        ("calls", [CALL | {"forward": 9}], "field forward names a call that began no earlier"),
        ("values", [VALUE, VALUE], "field id is the same in two rows"),
        ("values", [VALUE | {"shape": [2, None]}], "field shape lacks a number"),
        ("values", [VALUE | {"shape": [-2]}], "field shape is none of a tensor"),
        ("values", [VALUE | {"shape": [1] * 65}], "field shape is none of a tensor"),
        ("values", [VALUE | {"shape": [2**40, 2**40]}], "field shape is that of more elements than memory has"),
        ("values", [VALUE | {"nan": -1}], "field nan is negative"),
        ("tensors", [USE | {"role": "?"}], "field role is none of"),
        ("tensors", [USE | {"value": None}], "field value is empty"),
        ("stacks", [STACK | {"line": -3}], "field line is negative"),
        ("stacks", [STACK, STACK], "field depth is the same in two rows"),
    ],
)
def test_rows_that_break_a_rule_are_named(tmp_path: Path, table: str, rows: list[Any], told: str) -> None:
    trace = open_trace(write(tmp_path, **{table: rows}))
    with pytest.raises(TraceError, match="cannot be read") as caught:
        getattr(trace, table)()
    assert told in caught.value.seen


def test_large_shapes_of_real_tensors_are_read(tmp_path: Path) -> None:
    shape = [8, 12, 2**20, 2**20]
    trace = open_trace(
        write(tmp_path, values=[VALUE | {"shape": shape}, value_row(1, shape=[]), value_row(2, shape=[0])])
    )
    assert trace.collect(trace.values())["shape"].to_list() == [shape, [], [0]]


def test_the_same_call_in_two_parts_is_named(tmp_path: Path) -> None:
    writer = RankWriter(claim_rank_directory(tmp_path, 0), rank_info())
    empty = {"values": pl.DataFrame(), "tensors": pl.DataFrame(), "stacks": pl.DataFrame()}
    for _ in range(2):
        writer.write_part(0, calls=frame(CALLS, [CALL]), **empty)
    with pytest.raises(TraceError, match=r"calls-001.parquet cannot be read: field id is the same in two rows"):
        open_trace(tmp_path).calls()


def test_far_more_rows_than_bytes_are_not_read(tmp_path: Path) -> None:
    trace = write(tmp_path)
    uses = pl.select(call=pl.repeat(0, 40_000_000), value=pl.repeat(0, 40_000_000)).with_columns(
        role=pl.lit("input"), place=pl.lit("args.0")
    )
    uses.select(*TENSORS).write_parquet(tmp_path / "rank0" / "step0" / "tensors-000.parquet", statistics=False)
    with pytest.raises(TraceError, match="it claims 40,000,000 rows in"):
        open_trace(trace).tensors()


@pytest.mark.parametrize(
    "file", ["rank.json", "step0/step.json", "step0/calls-000.parquet", "step0/values-000.parquet"]
)
@pytest.mark.parametrize("kind", PLACED)
def test_a_trace_with_something_else_in_the_place_of_a_file(
    tmp_path: Path, file: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "t")
    path = tmp_path / "t" / "rank0" / file
    path.unlink(missing_ok=True)
    PLACED[kind](path)
    assert main(["show", str(tmp_path / "t")]) == 2
    told = capsys.readouterr().err
    assert f"{path} cannot be read: it is {kind}" in told.replace("\n", " ")


@pytest.mark.parametrize(
    "name", ["step0/calls-999999999.parquet", "stacks-999999999.parquet", "step99999999999999999999"]
)
def test_numbers_beyond_all_counting_are_no_parts(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / "rank0" / name).mkdir()
    trace = open_trace(tmp_path)
    assert trace.steps == (0,)
    assert trace.missing


def test_lines_of_what_is_no_program_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "linked.py").symlink_to("key")
    (tmp_path / "own.py").write_text("x = 1\n")
    (tmp_path / "also.py").symlink_to("own.py")
    found = [source_line(str(tmp_path / name), 1) for name in ("key", "linked.py", "own.py", "also.py")]
    assert found == [None, None, "x = 1", "x = 1"]


def test_of_an_endless_name_the_middle_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"torch.{'x' * 10**6}.0"
    write(tmp_path, calls=[CALL | {"name": name, "op": name, "module": name}, OTHER | {"error": name}])
    for words in (["--op", "*"], ["0"], ["1"]):
        assert main(["show", str(tmp_path), *words]) == 0
        told = capsys.readouterr().out
        assert "xxx" in told
        assert len(told) < 20_000


def test_a_file_that_is_taken_away_is_no_fault_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def taken(*_: object) -> int:
        raise FileNotFoundError(2, "No such file or directory", "x\x1b.npy")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ulpscope.cli.main._dispatch", taken)
        assert main(["show", "x"]) == 2
    told = capsys.readouterr().err
    assert "x\\x1b.npy cannot be used: No such file or directory" in told
    assert "next: check the path" in told


def test_other_tools_files_come_through_the_door() -> None:
    opening = re.compile(r'(?<![\w.])open\((?![^)\n]*"[wa])|\.read_bytes\(\)|\.read_text\(|np\.(?:memmap|load)\(path')
    dialects = Path(files.__file__).parents[1] / "dialects"
    modules = {module: module.read_text() for module in dialects.rglob("*.py")}
    assert len(modules) > 30
    assert [module.name for module, text in modules.items() if opening.search(text)] == []
