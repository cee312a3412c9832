"""Scalars for TensorBoard: the bytes of event files, tags and numbers."""

import io
import math
import os
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.unit.handmade import HandmadeRun
from tests.unit.traces import make_trace

from ulpscope.cli.main import main
from ulpscope.dialects.tfrecord import record
from ulpscope.dialects.wire import fields
from ulpscope.numerics.checksum import crc32c
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.files.tensorboard import (
    EVENTS,
    comparison_scalars,
    trend_scalars,
    write_events,
    write_scalars,
)
from ulpscope.trace.overview import SCHEMA, module_trends
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.report.exports import export_tensorboard

Scalars = dict[tuple[int, str], float]


def bit_by_bit(data: bytes) -> int:
    """CRC32C as its definition has it."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def records(data: bytes) -> list[bytes]:
    """The contents of a TFRecord file; checks every sum."""
    found, position = [], 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        content = data[position + 12 : position + 12 + length]
        for covered, place in ((data[position : position + 8], 8), (content, 12 + length)):
            (masked,) = struct.unpack_from("<I", data, position + place)
            crc = bit_by_bit(covered)
            assert masked == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        found.append(content)
        position += 16 + length
    return found


def message(data: Any) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for number, _, content in fields(memoryview(data)):
        found.setdefault(number, []).append(content)
    return found


def read_scalars(path: Path) -> Scalars:
    """What an event file holds, by step and tag."""
    version, *events = (message(event) for event in records(path.read_bytes()))
    assert bytes(version[3][0]) == b"brain.Event:2"
    found: Scalars = {}
    for event in events:
        for value in map(message, message(event[5][0])[1]):
            (number,) = struct.unpack("<f", value[2][0])
            found[event[2][0], bytes(value[1][0]).decode()] = number
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_check_sum_is_castagnolis(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 1023, 1024, 1025, 1027, 1028, 2048, 2051, 5000])
def test_the_check_sum_goes_on_over_blocks(length: int) -> None:
    data = os.urandom(length)
    assert crc32c(data) == bit_by_bit(data)


def test_a_record_begins_as_those_that_tensorflow_writes() -> None:
    assert record(bytes(24))[:12] == b'\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK"'


def test_an_event_has_the_bytes_of_its_message() -> None:
    file = io.BytesIO()
    write_events(file, [(300, {"a/b": 1.5})], wall_time=2.0)
    version, event = records(file.getvalue())
    wall_time = b"\x09" + struct.pack("<d", 2.0)
    assert version == wall_time + b"\x1a\x0dbrain.Event:2"
    assert event == wall_time + b"\x10\xac\x02" + b"\x2a\x0c" + b"\x0a\x0a" + b"\x0a\x03a/b" + b"\x15\x00\x00\xc0\x3f"


def test_a_long_tag_and_a_negative_step_are_written_whole() -> None:
    tag = "norm/output/" + "层." * 100
    file = io.BytesIO()
    write_events(file, [(-1, {tag: 0.0})], wall_time=0.0)
    event = message(records(file.getvalue())[1])
    assert event[2] == [2**64 - 1]
    assert bytes(message(message(event[5][0])[1][0])[1][0]).decode() == tag


def test_a_trace_has_a_directory_for_each_rank_and_a_tag_for_each_statistic(tmp_path: Path) -> None:
    make_trace(tmp_path / "run", rank=0)
    make_trace(tmp_path / "run", rank=1, steps=1)
    export = export_tensorboard(tmp_path / "run", tmp_path / "board")
    assert export.files == tuple(tmp_path / "board" / name / EVENTS for name in ("rank0", "rank1", "graph"))
    assert f"tensorboard --logdir {tmp_path / 'board'}" in export.text()
    scalars = read_scalars(export.files[0])
    assert scalars[1, "norm/output/layers.0"] == 3.5
    assert scalars[0, "max_abs/output/layers.0"] == 2.5
    assert scalars[0, "mean_abs/gradient/(outside of modules)"] == 0.25
    assert {step for step, _ in read_scalars(export.files[1])} == {0}


def test_a_tensor_that_a_module_and_its_call_have_is_counted_once(tmp_path: Path) -> None:
    make_trace(tmp_path / "run", steps=1)
    trends = module_trends(open_trace(tmp_path / "run"))
    layer = trends.filter(pl.col("module") == "layers.0", pl.col("what") == "output")
    assert layer["tensors"].to_list() == [1]


def trends(**columns: Any) -> pl.DataFrame:
    row = {"rank": 0, "step": 0, "module": "m", "what": "output", "tensors": 1}
    return pl.DataFrame([{name: {**row, **columns}.get(name) for name in SCHEMA}], schema=SCHEMA)


def test_numbers_beyond_float32_are_infinite_and_unknown_ones_left_out(tmp_path: Path) -> None:
    scalars = trend_scalars(trends(norm=1e300, mean=math.nan, nan=7))
    (file,) = write_scalars(scalars, tmp_path)
    found = read_scalars(file)
    assert found[0, "norm/output/m"] == math.inf
    assert math.isnan(found[0, "mean_abs/output/m"])
    assert found[0, "nan/output/m"] == 7
    assert len(found) == 3


def pairs(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"rank": 0, "step": 0, "module": "m", "role": "output", "judgement": "rounding", "mismatched": 0}
    schema = {"error": pl.Float64, "expected": pl.Float64}
    return pl.DataFrame([{"error": None, "expected": None, **usual, **row} for row in rows], schema_overrides=schema)


def found_in(table: pl.DataFrame) -> Scalars:
    return {(step, tag): value for step, tag, value in table.select("step", "tag", "value").iter_rows()}


def test_a_comparison_tells_the_worst_error_and_what_was_made_here() -> None:
    found = found_in(
        comparison_scalars(
            pairs(
                {"error": 0.5, "expected": 0.25, "judgement": "made_here"},
                {"error": 0.75, "expected": 3.0, "judgement": "inherited"},
                {"error": 0.125, "step": 1},
                {"role": "parameter_after", "judgement": "made_here", "module": None},
                {"role": "output", "module": "n", "mismatched": 3},
            )
        )
    )
    assert found[0, "error/output/m"] == 0.75
    assert found[0, "error_by_expected/output/m"] == 2.0
    assert found[0, "made_here/output/m"] == 1
    assert found[1, "error/output/m"] == 0.125
    assert (1, "error_by_expected/output/m") not in found
    assert found[0, "made_here/parameter_after/(outside of modules)"] == 1
    assert found[0, "mismatched/output/n"] == 3
    assert (0, "error/output/n") not in found


def test_an_earlier_export_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    run, board = tmp_path / "run", tmp_path / "board"
    make_trace(run)
    stale = board / "rank7" / EVENTS
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"")
    export_tensorboard(run, board)
    assert not stale.exists()
    (board / "notes ulpscope.txt").write_text("mine")
    with pytest.raises(UlpscopeError, match=r"holds other files, notes ulpscope\.txt") as caught:
        export_tensorboard(run, board)
    assert "--tensorboard DIR" in caught.value.next_step
    assert (board / "rank0" / EVENTS).is_file()


def test_a_trace_without_steps_exports_nothing(tmp_path: Path) -> None:
    make_trace(tmp_path / "run", steps=0)
    with pytest.raises(UlpscopeError, match="no statistics") as caught:
        export_tensorboard(tmp_path / "run", tmp_path / "board")
    assert caught.value.code is ExitCode.NOTHING
    assert not (tmp_path / "board").exists()


def nodes_of(file: Path) -> dict[str, dict[int, list[Any]]]:
    """The nodes of a written graph by their names."""
    _, event = records(file.read_bytes())
    (graph,) = message(event)[4]
    return {str(bytes(node[1][0]), "utf-8"): node for node in map(message, message(graph)[1])}


def attributes(node: dict[int, list[Any]]) -> dict[str, str]:
    entries = map(message, node.get(5, ()))
    return {str(bytes(entry[1][0]), "utf-8"): str(bytes(message(entry[2][0])[2][0]), "utf-8") for entry in entries}


def test_the_graph_of_a_trace(tmp_path: Path) -> None:
    make_trace(tmp_path / "run")
    export_tensorboard(tmp_path / "run", tmp_path / "board")
    nodes = nodes_of(tmp_path / "board" / "graph" / EVENTS)
    relu = nodes["forward/relu_2"]
    assert bytes(relu[2][0]) == b"relu"
    # It reads what linear made inside of its module.
    assert [bytes(each) for each in relu[3]] == [b"forward/layers/0/linear_1"]
    assert attributes(relu)["call"] == "torch.relu.0"
    assert "max_abs" in attributes(relu)


def test_the_graphs_of_a_comparison_have_errors_on_them(tmp_path: Path) -> None:
    for name, relu in (("ref", [0.0, 2.0]), ("target", [0.0, 3.0])):
        run = HandmadeRun()
        run.call("torch.relu", reads={"args.0": run.value([-1.0, 2.0])}, makes={"output.0": relu})
        run.write(tmp_path / name)
    result = tmp_path / "result"
    assert main(["compare", str(tmp_path / "ref"), str(tmp_path / "target"), "--out", str(result)]) == 1
    export = export_tensorboard(result, tmp_path / "board")
    assert {file.parent.name for file in export.files} == {"rank0", "graph_target", "graph_reference"}
    for side in ("target", "reference"):
        (node,) = nodes_of(tmp_path / "board" / f"graph_{side}" / EVENTS).values()
        assert attributes(node)["judgement"] == "made here"
        assert float(attributes(node)["error"]) > 0.1
        assert bytes(node[4][0]) == b"made here"
