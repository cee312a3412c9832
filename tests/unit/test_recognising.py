"""A path of another kind than a command takes: told what it is, and which command takes it."""

import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.graph_files import GRAPHS, NETWORK_JSON

from ulpscope.cli.main import main
from ulpscope.dialects.recognising import recognise, wrong_kind

CHECKER = Path(__file__).parents[1] / "data" / "msprobe" / "checker"


def database(*tables: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with sqlite3.connect(path) as opened:
            for table in tables:
                opened.execute(f"create table {table} (id integer)")

    return make


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def workbook(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", "")


def result(path: Path) -> None:
    path.mkdir()
    (path / "summary.json").write_text('{"schema": 1, "command": "compare", "verdict": "agree"}')


FILES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "build_1.vis.db": (database("tb_config", "tb_nodes", "tb_stack"), "graph_visualize drew", "ulpscope compare"),
    "monitor.trend.db": (database("trend_data"), "msprobe's monitor", "ulpscope run"),
    "other.db": (database("x"), "an SQLite database", ""),
    "compare_1.vis": (text('{"NPU": {"node": {}, "root": "a"}, "Bench": {}}'), "graph_visualize drew", ""),
    "build_1.vis": (text('{"root": "m", "node": {"m": {"matched_node_link": []}}}'), "graph_visualize drew", ""),
    "model.onnx.json": (
        lambda path: path.write_bytes((GRAPHS / "branches.proto.json").read_bytes()) and None,
        "a graph",
        "ulpscope show",
    ),
    "net.json": (lambda path: path.write_bytes(NETWORK_JSON.read_bytes()) and None, "a graph", "--graph"),
    "compare_result_1.xlsx": (workbook, "an Excel workbook", "CSV"),
    "compare_result_1.csv": (
        lambda path: path.write_bytes((CHECKER / "compare_result_md5.csv").read_bytes()) and None,
        "a result of msprobe's compare",
        "ulpscope show",
    ),
    "monitor.csv": (text("vpp_stage,name,step,norm\n0,a,0,1.0\n"), "msprobe's monitor", "ulpscope run"),
    "config.json": (
        text(
            '{"task": "statistics", "dump_path": "/x", "rank": [], "level": "L1", "statistics": {"data_mode": ["all"]}}'
        ),
        "what is dumped",
        "dump_path",
    ),
    "acl.json": (text('{"dump": {"dump_path": "/x", "dump_list": []}}'), "what is dumped", "dump_path"),
    "construct.json": (text('{"Torch.a.0.forward": null}'), "of an msprobe dump", "dump.json"),
    "stack.json": (text('{"0": [["Torch.a.0.forward"], ["File x"]]}'), "of an msprobe dump", "dump.json"),
    "here.json": (text('{"schema": 1, "command": "env", "environment": {}}'), "an environment", "ulpscope diff"),
    "fusion_result.json": (text('{"graph_fusion": {}}'), "fused", "ulpscope fusion"),
    "fusion_switch.cfg": (text('{"Switch": {}}'), "fusion passes", "ulpscope fusion"),
    "a.npy": (lambda path: np.save(path, np.ones(2)), "an array", "ulpscope diff"),
    "a.npz": (lambda path: np.savez(path, a=np.ones(2)), "a file of tensors", "ulpscope diff"),
    "dump.h5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n") and None, "an HDF5 file", ".npy"),
    "model.pkl": (lambda path: path.write_bytes(b"\x80\x04cos\nsystem\n.") and None, "a pickle", "ulpscope diff"),
    "net.om": (lambda path: path.write_bytes(b"IMOD\x00\x01\x00\x00") and None, "an offline model", "atc --mode=1"),
    "dump.json.gz": (lambda path: path.write_bytes(b"\x1f\x8b\x08\x00") and None, "a compressed file", "gunzip"),
    "calls-000.parquet": (lambda path: path.write_bytes(b"PAR1") and None, "a Parquet table", "directory"),
    "summary.json": (text('{"schema": 1, "command": "check"}'), "the summary of a result", "directory"),
    "report.html": (text("<!doctype html><html>"), "a page", "browser"),
    "empty.json": (lambda path: path.touch(), "an empty file", ""),
    "other.json": (text('{"a": 1}'), "a file of no kind that is known here", ""),
    "result": (result, "a result of ulpscope compare", "ulpscope report"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_run_was_wanted(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, what, next_step = FILES[name]
    path = tmp_path / name
    make(path)
    for words in (
        ["compare", str(path), str(path)],
        ["overflow", str(path)],
        ["repro", str(path), "1", "-o", str(tmp_path / "out")],
    ):
        assert main(words) == 2, words
        told = capsys.readouterr().err
        assert f"{name} is " in told
        assert what in told
        assert next_step in told
        assert "is not a directory" not in told


@pytest.mark.parametrize(
    "command",
    [["diff", "{}", "{}"], ["fusion", "{}"], ["report", "{}"], ["convert", "{}", "--to", "msprobe", "-o", "out"],
     ["check", "{}"], ["compare", "{}", "{}", "--graph", "{}"], ["show", "{}"]],
)  # fmt: skip
def test_every_command_says_so(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "build_1.vis.db"
    database("tb_nodes")(path)
    assert main([word.format(path) for word in command]) == 2
    assert "is a graph that msprobe's graph_visualize drew" in capsys.readouterr().err


def test_a_dump_is_no_graph_and_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "step0" / "rank0"
    dump.mkdir(parents=True)
    data = {"Torch.a.0.forward": {"input_args": [], "input_kwargs": {}, "output": []}}
    top = {"task": "statistics", "level": "L1", "framework": "pytorch", "data": data}
    (dump / "dump.json").write_text(json.dumps(top))
    assert main(["compare", str(tmp_path), str(tmp_path), "--graph", str(dump / "dump.json")]) == 2
    assert "dump.json is a dump of msprobe, not a graph" in capsys.readouterr().err
    assert main(["diff", str(dump / "dump.json"), str(dump / "dump.json")]) == 2
    assert "dump.json is a dump of msprobe, not a file of tensors" in capsys.readouterr().err


def test_what_is_damaged_is_told_by_the_reader_of_its_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fusion_result.json"
    path.write_text('{"graph_fusion": {"Pass": 3}}')
    assert main(["fusion", str(path)]) == 2
    assert "pass 'Pass' has no counters" in capsys.readouterr().err
    assert wrong_kind(tmp_path / "missing", "a run") is None
    (tmp_path / "notes.txt").write_text("hello")
    assert recognise(tmp_path / "notes.txt") is None
