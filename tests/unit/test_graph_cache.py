"""Graphs that are read once: what comes out of the cache is what went in, or the file is read anew."""

import json
import os
from pathlib import Path

import pytest
from tests.unit.graph_files import CALLS, GRAPHS, NETWORK

from ulpscope.dialects.graphs import opening
from ulpscope.dialects.graphs.opening import open_graph, read_graph
from ulpscope.records.graphs import GraphModel


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder; graphs of any size are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(opening, "WORTH_KEEPING", 0)
    return tmp_path / "cache" / "ulpscope" / "graphs"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were read, and not taken from the cache."""
    seen: list[Path] = []

    def watched(path: Path) -> GraphModel:
        seen.append(path)
        return read_graph(path)

    monkeypatch.setattr(opening, "read_graph", watched)
    return seen


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.txt"
    path.write_text(CALLS, encoding="utf-8")
    return path


def test_every_format_comes_back_as_it_was(kept: Path, parsed: list[Path], graph: Path) -> None:
    files = [NETWORK, graph, *(GRAPHS / name for name in ("branches.onnx", "session.pb", "functions.meta"))]
    for path in files:
        assert open_graph(path) == open_graph(path) == read_graph(path)
    assert parsed == files
    assert len(list(kept.iterdir())) == len(files)


def test_a_file_that_changed_is_read_anew(kept: Path, parsed: list[Path], graph: Path) -> None:
    open_graph(graph)
    status = graph.stat()
    graph.write_text(CALLS.replace('name: "calls"', 'name: "other"'), encoding="utf-8")
    os.utime(graph, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert graph.stat().st_size == status.st_size
    assert open_graph(graph).name == "other"
    assert len(parsed) == 2
    assert len(list(kept.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "other", "pickle"])
def test_a_damaged_entry_is_read_anew(kept: Path, parsed: list[Path], graph: Path, damage: str) -> None:
    model = open_graph(graph)
    (entry,) = kept.iterdir()
    data = bytearray(entry.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "bit":
        data[data.index(b"PartitionedCall")] ^= 1
    elif damage == "empty":
        data.clear()
    elif damage == "other":
        first, _, body = bytes(data).partition(b"\n")
        data = bytearray(json.dumps({**json.loads(first), "version": "0"}).encode() + b"\n" + body)
    else:
        data = bytearray(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    entry.write_bytes(data)
    assert open_graph(graph) == model
    assert len(parsed) == 2
    assert open_graph(graph) == model
    assert len(parsed) == 2


def test_a_cache_that_cannot_be_written_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: Path
) -> None:
    monkeypatch.setattr(opening, "WORTH_KEEPING", 0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert open_graph(graph) == read_graph(graph)


def test_small_graphs_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_graph(graph)
    assert not (tmp_path / "cache").exists()


def test_a_user_without_a_home_has_no_cache(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that run under any number."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(opening, "WORTH_KEEPING", 0)
    monkeypatch.setattr(Path, "home", homeless)

    assert open_graph(graph).name == "calls"


def test_a_file_that_changes_while_it_is_read_is_read_anew(
    kept: Path, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: Path) -> GraphModel:
        found = read_graph(path)
        path.write_text(CALLS.replace('"calls"', '"other"'), encoding="utf-8")
        return found

    monkeypatch.setattr(opening, "read_graph", slowly)
    assert open_graph(graph).name == "calls"
    monkeypatch.undo()
    monkeypatch.setattr(opening, "WORTH_KEEPING", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept.parents[1]))

    assert open_graph(graph).name == "other"
