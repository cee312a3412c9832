"""Dumps of TensorFlow 2's debugger without TensorFlow: real ones, and such as were cut off, damaged or mixed up."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ulpscope.cli.main import main
from ulpscope.dialects.graphs.opening import is_graph, open_graph
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.reference import reference_tensors
from ulpscope.dialects.tfdbg2 import open_tfdbg2
from ulpscope.dialects.tfrecord import read_records, record
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphFormat
from ulpscope.shell.data import find_data

DATA = Path(__file__).parents[1] / "data" / "tfdbg"
FUNCTIONS, HEALTH = DATA / "functions", DATA / "health"
STEM = "tfdbg_events.1795038999.host"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A copy of the real dump, to be spoilt."""
    return Path(shutil.copytree(FUNCTIONS, tmp_path / "dump"))


def cut(path: Path, to: int) -> None:
    path.write_bytes(path.read_bytes()[:to])


def test_every_tensor_is_as_tensorflows_own_reader_finds_it() -> None:
    expected = np.load(DATA / "expected.npz")
    tensors = reference_tensors(FUNCTIONS) or []
    assert len(tensors) == len(expected.files)
    for tensor in tensors:
        wanted = expected[f"{tensor.op}:{tensor.index}:{tensor.timestamp}".replace("/", "|")]
        found = tensor.stored().array()
        bits = found.view(np.uint16) if found.dtype.name == "bfloat16" else found
        assert bits.shape == wanted.shape
        assert bits.dtype == wanted.dtype
        assert bits.tobytes() == wanted.tobytes()


def test_an_execution_of_a_function_is_a_step() -> None:
    trace = open_run(FUNCTIONS)
    assert trace.steps == (0, 1)
    assert not trace.missing
    first, second = (trace.collect(trace.calls(step).select("op", "module")).rows() for step in trace.steps)
    # What Python executed before the first function is in its step.
    assert first[:2] == [("VarHandleOp", "VarHandleOp"), ("AssignVariableOp", "AssignVariableOp")]
    assert second[0] == ("ReadVariableOp", "MatMul/ReadVariableOp")
    # The function itself comes after what it did, without the number that its name ends in.
    assert second[-5:] == [(name, name) for name in ("step", "Cast", "Sub", "Log", "Mul")]
    assert ("TopKV2", "TopKV2") in second


def test_who_reads_what_another_made() -> None:
    trace = open_run(FUNCTIONS)
    (rank,) = trace.ranks
    calls = {name: number for number, name in trace.collect(trace.calls(1).select("id", "module")).iter_rows()}
    product = next(use.value for use in rank.uses(calls["MatMul"]) if use.place == "output.0")
    assert rank.value(product).producer == calls["MatMul"]
    weight = next(use.value for use in rank.uses(calls["MatMul"]) if use.place == "args.1")
    assert rank.value(weight).producer == calls["MatMul/ReadVariableOp"]
    # Of Python's own executions, too.
    logarithm = next(use.value for use in rank.uses(calls["Log"]) if use.place == "args.0")
    assert rank.value(logarithm).producer == calls["Sub"]
    assert rank.uses(calls["TopKV2"])[-1].place == "output.1"


def test_numbers_of_a_dump_without_tensors() -> None:
    trace = open_run(HEALTH)
    expected = json.loads((DATA / "expected_health.json").read_text())
    made = trace.collect(trace.values()).filter(pl.col("producer").is_not_null(), pl.col("nan").is_not_null())
    found = made.select("neg_inf", "pos_inf", "nan", "zero").rows()
    # Elements, -inf, inf, nan, negative, zero, positive.
    assert sorted(found) == sorted((row[1], row[2], row[3], row[5]) for row in expected)
    sizes = [int(np.prod(shape, dtype=int)) for shape in made["shape"].to_list()]
    assert sorted(sizes) == sorted(row[0] for row in expected)
    assert set(made["dtype"]) == {"float32", "bfloat16"}
    assert any("FULL_HEALTH" in told for told in trace.missing)


def test_overflow_is_found_in_either(capsys: pytest.CaptureFixture[str]) -> None:
    for dump in (FUNCTIONS, HEALTH):
        assert main(["overflow", str(dump)]) == 1
        assert "Log overflowed first" in capsys.readouterr().out


def test_a_dump_agrees_with_itself_and_not_with_another(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(FUNCTIONS), str(dump)]) == 0
    traces = dump / f"{STEM}.graph_execution_traces"
    events = read_records(traces).contents
    changed = [bytes(event) for event in events]
    place = next(number for number, event in enumerate(changed) if b"\x12\x04Relu" in event)
    eight_elevenths = b"\x8c.:?"
    assert eight_elevenths in changed[place]
    changed[place] = changed[place].replace(eight_elevenths, struct.pack("<f", 8.0))
    traces.write_bytes(b"".join(map(record, changed)))
    capsys.readouterr()
    assert main(["compare", str(FUNCTIONS), str(dump)]) == 1
    assert "in Relu" in capsys.readouterr().out.splitlines()[0]


def test_counts_are_not_compared_with_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    for pair in ((FUNCTIONS, HEALTH), (HEALTH, FUNCTIONS)):
        assert main(["compare", *map(str, pair)]) == 3
        assert f"{HEALTH} has counts of inf and nan at most" in capsys.readouterr().err
    assert main(["compare", str(HEALTH), str(HEALTH)]) == 3


def test_a_file_that_was_cut_off(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = dump / f"{STEM}.graph_execution_traces"
    whole = len(read_records(traces).contents)
    cut(traces, traces.stat().st_size - 100)
    trace = open_tfdbg2(dump)
    assert len(trace.missing) == 1
    assert f"{traces.name} is not whole: after {whole - 1} records" in trace.missing[0]
    assert main(["convert", str(dump), "--to", "npy", "-o", str(tmp_path / "npy")]) == 1
    out = capsys.readouterr().out
    assert "is not whole" in out
    # The others are written.
    assert len(list((tmp_path / "npy").glob("*.npy"))) > 10


def test_a_record_that_was_changed_is_left_out(dump: Path) -> None:
    executions = dump / f"{STEM}.execution"
    content = bytearray(executions.read_bytes())
    content[40] ^= 0xFF
    executions.write_bytes(content)
    before, after = (open_tfdbg2(each) for each in (FUNCTIONS, dump))
    count = [trace.collect(trace.calls().select(pl.len())).item() for trace in (before, after)]
    assert count[1] == count[0] - 1
    assert after.missing == (f"rank0: {executions.name}: 1 record is damaged and not read",)


def test_a_length_that_was_changed_ends_the_file(dump: Path) -> None:
    content = bytearray((dump / f"{STEM}.graph_execution_traces").read_bytes())
    content[0] ^= 0xFF
    (dump / f"{STEM}.graph_execution_traces").write_bytes(content)
    assert "after 0 records its last" in open_tfdbg2(dump).missing[0]


def test_two_runs_in_one_directory(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in HEALTH.iterdir():
        shutil.copy(file, dump)
    newest = "tfdbg_events.1795039031.host"
    trace = open_tfdbg2(dump)
    assert trace.ranks[0].info.capture["save"] == "stats"
    assert f"({STEM}.metadata); the newest is read, {newest}" in trace.missing[0]
    # Each can be named.
    older = dump / f"{STEM}.metadata"
    assert open_run(older).ranks[0].info.capture["save"] == "tensors"
    assert main(["convert", str(older), "--to", "npy", "-o", str(tmp_path / "npy")]) == 0
    assert main(["convert", str(dump), "--to", "npy", "-o", str(tmp_path / "other")]) == 3
    assert not (tmp_path / "other").exists()
    assert "FULL_TENSOR" in capsys.readouterr().err


def test_nothing_was_executed(dump: Path) -> None:
    for kind in ("execution", "graph_execution_traces"):
        (dump / f"{STEM}.{kind}").write_bytes(b"")
    with pytest.raises(UlpscopeError, match="tells of no execution") as caught:
        open_run(dump)
    assert caught.value.code == 3
    assert "circular_buffer_size" in caught.value.next_step


def test_without_its_graphs_operators_have_their_names_alone(dump: Path) -> None:
    (dump / f"{STEM}.graphs").unlink()
    trace = open_run(dump)
    ops = trace.collect(trace.calls(1).select("op"))["op"].to_list()
    assert "MatMul/ReadVariableOp" in ops


def test_the_last_step_is_written_unless_others_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(FUNCTIONS), "--to", "npy", "-o", str(tmp_path / "last")]) == 0
    assert "these are of step 1; for others: --steps 0" in capsys.readouterr().out
    assert main(["convert", str(FUNCTIONS), "--steps", "0-1", "--to", "npy", "-o", str(tmp_path / "all")]) == 0
    assert "for others" not in capsys.readouterr().out
    last, every = ({path.name for path in (tmp_path / name).iterdir()} for name in ("last", "all"))
    assert last < every
    (relu,) = (name for name in last if name.startswith("Relu.0."))
    assert np.load(tmp_path / "last" / relu).dtype == np.float32
    assert main(["convert", str(FUNCTIONS), "--steps", "5", "--to", "npy", "-o", str(tmp_path / "none")]) == 3
    assert "expected: step 0-1" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def operators(path: Path) -> dict[str, list[tuple[str, str]]]:
    return {graph.name: [(one.name, one.type) for one in graph.operators] for graph in open_graph(path).graphs}


def test_functions_as_graphs() -> None:
    path = FUNCTIONS / f"{STEM}.graphs"
    assert is_graph(path)
    model = open_graph(path)
    assert model.format is GraphFormat.TFDBG2
    found = operators(path)
    assert ("MatMul", "MatMul") in found["step"]
    assert found["activated"][:3] == [("y", "Placeholder"), ("Relu", "Relu"), ("Identity", "Identity")]
    product = next(one for one in model.graphs[0].operators if one.name == "MatMul")
    assert [str(each.source) for each in product.inputs] == ["x:0", "MatMul/ReadVariableOp:0"]


def test_the_graph_beside_a_dump_of_a_session(tmp_path: Path) -> None:
    (path,) = DATA.glob("_tfdbg_graph_*")
    assert is_graph(path)
    found = dict(operators(path)[""])
    assert found["fc1/Relu"] == "Relu"
    assert main(["show", str(path), "fc1/Relu", "--svg", str(tmp_path / "relu.svg")]) == 0
    assert "fc1/Relu" in (tmp_path / "relu.svg").read_text()


def test_the_shell_opens_functions_and_dumps(tmp_path: Path) -> None:
    graphs = find_data(FUNCTIONS / f"{STEM}.graphs")
    assert graphs is not None
    assert [path.name for path in graphs.graphs] == [f"{STEM}.graphs"]
    dump = find_data(FUNCTIONS)
    assert dump is not None
    assert dump.reference == FUNCTIONS
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12" + _with_length(META.read_bytes()))
    model = find_data(tmp_path)
    assert model is not None
    assert model.graphs == (tmp_path / "saved_model.pb",)


META = DATA.parent / "graphs" / "functions.meta"


def _with_length(content: bytes) -> bytes:
    return bytes([len(content) & 0x7F | 0x80, len(content) >> 7]) + content


def test_a_graph_file_that_was_cut_off_says_so(dump: Path) -> None:
    path = dump / f"{STEM}.graphs"
    cut(path, path.stat().st_size // 2)
    (told,) = _incomplete(path)
    assert "is not whole" in told
    cut(path, 100)
    with pytest.raises(UlpscopeError):
        open_graph(path)


def _incomplete(path: Path) -> Any:
    return open_graph(path).attributes["incomplete"]
