"""The shell finds its data by itself: both layouts of precision_tool, names of all compilers' graphs, traces."""

from pathlib import Path

import pytest

from ulpscope.shell.data import DebugData, file_name, find_data, graph_files, look_again, newest_result, why_no_data

ASCEND = Path(__file__).parents[1] / "data" / "ascend"
PRECISION_DATA = ASCEND / "precision_data"
DUMP_FILE = "Relu.fc1_Relu.21.0.1767225600021123"


def put(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize("start", [PRECISION_DATA, ASCEND])
def test_the_newer_layout_is_found_from_inside_and_from_above(start: Path) -> None:
    data = find_data(start)
    assert data is not None
    debug = PRECISION_DATA / "npu" / "debug_0"
    assert data.root == PRECISION_DATA
    assert data.debugs == (DebugData("debug_0", (debug / "graph" / "ge_proto_00000_Build.txt",), debug / "dump"),)
    assert data.reference == PRECISION_DATA / "tf" / "dump"
    assert data.overflow == PRECISION_DATA / "overflow" / "dump" / "20260101000000"
    assert data.trace is None


def test_the_older_layout_is_found(tmp_path: Path) -> None:
    root = tmp_path / "precision_data"
    graph = put(root / "graph" / "all" / "ge_proto_00003_PreRunAfterBuild.txt")
    put(root / "graph" / "json" / "ge_proto_00003_PreRunAfterBuild.json")
    put(root / "dump" / "npu" / "20210101000000" / "0" / "net" / "1" / "0" / DUMP_FILE)
    put(root / "dump" / "overflow" / "20210101000000" / "0" / "net" / "1" / "0" / DUMP_FILE)
    put(root / "dump" / "cpu" / "fc1_Relu.0.1767225600900010.npy")
    data = find_data(tmp_path)
    assert data is not None
    assert data.debugs == (DebugData("debug_0", (graph,), root / "dump" / "npu"),)
    assert data.reference == root / "dump" / "cpu"
    assert data.overflow == root / "dump" / "overflow" / "20210101000000"
    assert data.own.results == root / "dump" / "temp" / "vector_compare"


def test_directories_that_are_still_empty_hold_nothing(tmp_path: Path) -> None:
    for place in ("npu/debug_0/dump", "npu/debug_0/graph", "tf/dump", "tf/tf_debug", "overflow/dump", "fusion"):
        (tmp_path / place).mkdir(parents=True)
    data = find_data(tmp_path)
    assert data is not None
    assert data.debugs == (DebugData("debug_0", (), None),)
    assert (data.reference, data.overflow, data.dumps, data.graphs) == (None, None, (), ())


def test_a_dump_opens_as_a_run(tmp_path: Path) -> None:
    data = find_data(ASCEND / "debug_1")
    assert data is not None
    assert data.trace == ASCEND / "debug_1"
    assert data.dumps == (ASCEND / "debug_1",)
    assert find_data(tmp_path) is None


def test_graphs_of_all_compilers_are_found_once(tmp_path: Path) -> None:
    newer = put(tmp_path / "ge_proto_00000001_graph_31_Build.txt")
    put(tmp_path / "ge_onnx_00000001_graph_31_Build.pbtxt")
    text = put(tmp_path / "ge_proto_00000_Build.txt")
    put(tmp_path / "ge_proto_00000_Build.txt.json")
    put(tmp_path / "ge_proto_00002_Build.txt", "")
    json = put(tmp_path / "ge_proto_00002_Build.txt.json")
    nested = put(tmp_path / "pid_1_deviceid_0" / "ge_proto_00000007_graph_0_Build.txt")
    for other in ("ge_proto_00001_PreRunBegin.txt", "ge_proto_00004_PreRunAfterBuild.txt", "notes_Build.txt"):
        put(tmp_path / other)
    assert graph_files(tmp_path) == (text, newer, json, nested)


def test_the_stage_of_old_compilers_counts_where_there_is_no_other(tmp_path: Path) -> None:
    graph = put(tmp_path / "ge_proto_00004_PreRunAfterBuild.txt")
    put(tmp_path / "ge_proto_00001_PreRunBegin.txt")
    assert graph_files(tmp_path) == (graph,)


def test_the_newest_result_is_taken(tmp_path: Path) -> None:
    (tmp_path / "npu" / "debug_0").mkdir(parents=True)
    results = tmp_path / "temp" / "vector_compare"
    for name in ("20260101000000", "20261115061727", "notes"):
        (results / name).mkdir(parents=True)
    data = find_data(tmp_path)
    assert data is not None
    assert newest_result(data) == results / "20261115061727"


def test_graphs_of_two_processes_are_both_there(tmp_path: Path) -> None:
    """Each numbers its graphs from 0."""
    graphs = tuple(put(tmp_path / f"pid_{pid}_deviceid_0" / "ge_proto_00000000_graph_0_Build.txt") for pid in (1, 2))
    assert graph_files(tmp_path) == graphs


def test_a_graph_alone_or_beside_dumps_is_data(tmp_path: Path) -> None:
    source = PRECISION_DATA / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt"
    alone = find_data(source)
    assert alone is not None
    assert (alone.graphs, alone.dumps) == ((source,), ())
    graph = put(tmp_path / source.name, source.read_text())
    put(tmp_path / "20210101000000" / "0" / "net" / "1" / "0" / DUMP_FILE)
    beside = find_data(tmp_path)
    assert beside is not None
    assert (beside.graphs, beside.dumps, beside.trace) == ((graph,), (tmp_path,), None)
    assert find_data(put(tmp_path / "notes.txt", "no graph")) is None


def test_graphs_that_a_compiler_left_beside_precision_data_do_not_hide_it(tmp_path: Path) -> None:
    put(tmp_path / "ge_proto_00000_Build.txt")
    (tmp_path / "precision_data" / "npu" / "debug_0").mkdir(parents=True)
    data = find_data(tmp_path)
    assert data is not None
    assert data.root == tmp_path / "precision_data"


def test_what_has_come_since_is_seen(tmp_path: Path) -> None:
    (tmp_path / "npu" / "debug_0" / "graph").mkdir(parents=True)
    before = find_data(tmp_path)
    assert before is not None
    assert before.graphs == ()
    graph = put(tmp_path / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt")
    assert look_again(before).graphs == (graph,)
    trace = find_data(ASCEND / "debug_1")
    assert trace is not None
    assert look_again(trace) is trace


def test_the_names_of_a_second_run_and_of_overflows_are_told_apart(tmp_path: Path) -> None:
    for place in ("npu/debug_0/dump", "npu/debug_1/dump", "overflow/dump"):
        put(tmp_path / place / "20210101000000" / "0" / "net" / "1" / "0" / DUMP_FILE)
    data = find_data(tmp_path)
    assert data is not None
    assert list(data.dump_roots) == ["debug_0", "debug_1", "overflow"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fc1/Relu", "fc1_Relu"), ("a\x1b[31m\0b", "a_[31m_b"), ("\ud800x", "_x"), ("卷" * 200, "卷" * 66)],
)
def test_any_name_becomes_that_of_a_file(tmp_path: Path, name: str, expected: str) -> None:
    assert file_name(name) == expected
    put(tmp_path / f"{file_name(name)}.txt")


def test_a_damaged_trace_is_told_as_what_it_is(tmp_path: Path) -> None:
    put(tmp_path / "run" / "rank0" / "rank.json", "{")
    assert find_data(tmp_path / "run") is None
    assert "rank0/rank.json cannot be read" in str(why_no_data(tmp_path / "run"))
    assert "nowhere does not exist" in str(why_no_data(tmp_path / "nowhere"))
