"""`ulpscope compare ... --graph`: options, files, exit codes."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from network_data import DUMPS, GRAPH, LEAF, MSACCUCMP_26, OTHER_DUMPS, REFERENCE, expected_table

from ulpscope.cli.main import main

SIDES = ["compare", str(REFERENCE), str(DUMPS)]
WITH_GRAPH = [*SIDES, "--graph", str(GRAPH)]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_answer_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *WITH_GRAPH)

    assert code == 1
    assert out.startswith("DIVERGED at step 0, forward, in fc1/Relu\n")
    assert "--op=fc1/Relu --output 0" in out


def test_the_answer_in_chinese_has_its_advice_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, *WITH_GRAPH, "--language", "zh")

    assert "fc1/Relu 是以 float16 计算的内置算子" in out


def test_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *WITH_GRAPH, "--json")
    found = json.loads(out)

    assert (code, found["verdict"], found["findings"][0]["module"]) == (1, "diverged", "fc1/Relu")
    counts = found["counts"]
    judged = sum(counts[word] for word in ("identical", "rounding", "inherited", "made_here", "after_choice"))
    assert judged == counts["tensors_compared"]


def test_a_result_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "result"
    told(capsys, *WITH_GRAPH, "--out", str(out), "--overflow")
    (table,) = out.glob("result_*.csv")

    assert expected_table(table) == expected_table(MSACCUCMP_26 / "cmp_npu_tf.csv")
    wanted = {"summary.json", "plan.json", "pairs.parquet", "tensors.csv", table.name}
    assert wanted <= {path.name for path in out.iterdir()}
    assert json.loads((out / "plan.json").read_text())["groups"][15]["originals"] == "fc1/Relu"
    assert json.loads((out / "summary.json").read_text())["graph"] == str(GRAPH)


def test_the_old_columns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told(capsys, *WITH_GRAPH, "--out", str(tmp_path / "r"), "--csv-layout", "2022")
    (table,) = (tmp_path / "r").glob("result_*.csv")

    assert expected_table(table)[0][:5] == ["Index", "NPUDump", "DataType", "GroundTruth", "DataType"]


def test_the_mapping_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = told(capsys, *WITH_GRAPH, "--mapping")
    lines = list(csv.reader(io.StringIO(out)))
    told(capsys, *WITH_GRAPH, "--mapping", "--out", str(tmp_path / "m"))
    (written,) = (tmp_path / "m").glob("mapping_*.csv")

    assert code == 0
    assert len(lines) == len(expected_table(MSACCUCMP_26 / "mapping.csv"))
    assert expected_table(written) == lines


def test_a_range_and_a_selection(capsys: pytest.CaptureFixture[str]) -> None:
    _, first, _ = told(capsys, *WITH_GRAPH, "--mapping", "--range", "15,16,1")
    _, second, _ = told(capsys, *WITH_GRAPH, "--mapping", "--select", "16,15")

    assert first == second
    assert {line.split(",")[1] for line in first.splitlines()[1:]} == {"15", "16"}


def test_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *WITH_GRAPH, "--plan")

    assert code == 0
    assert "      output:0 <- fc1/BiasAdd:output:0\n" in out
    _, out, _ = told(capsys, *WITH_GRAPH, "--plan", "--json")
    assert json.loads(out)["groups"][14]["relation"] == "several to one"


def test_one_tensor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = told(capsys, *WITH_GRAPH, "--op", "fc1/Relu", "--top", "1", "--out", str(tmp_path / "d"))

    assert code == 1
    assert "26  0 26 0 0  4.488281" in out
    assert (tmp_path / "d/fc1_Relu_output_0_absolute_error_topn.csv").is_file()
    _, out, _ = told(capsys, *WITH_GRAPH, "--op", "fc1/Relu", "--input", "0", "--json")
    assert json.loads(out)["tensor"] == "input:0"


def test_two_dumps_without_a_graph(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sides = ["compare", str(OTHER_DUMPS), str(DUMPS)]
    code, out, _ = told(capsys, *sides, "--overflow", "--out", str(tmp_path / "r"))
    (table,) = (tmp_path / "r").glob("result_*.csv")

    assert (code, "in fc1/Relu" in out) == (1, True)
    assert len(expected_table(table)) == len(expected_table(MSACCUCMP_26 / "cmp_npu_npu.csv"))
    code, out, _ = told(capsys, *sides, "--op", "fc1_Relu")
    assert (code, "4.488281" in out) == (1, True)


def test_a_directory_of_graphs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    shutil.copy(GRAPH, tmp_path / "graphs/ge_proto_00001_Build.txt")
    text = GRAPH.read_text().replace("ge_default_20260101000000_11", "ge_default_20260101000000_99")
    (tmp_path / "graphs/ge_proto_00002_Build.txt").write_text(text)
    words = [*SIDES, "--graph", str(tmp_path / "graphs")]
    code, out, _ = told(capsys, *words, "--json")
    found = json.loads(out)

    assert code == 1
    assert [network["name"] for network in found["networks"]] == ["0_ge_default_20260101000000_11_0"]
    assert found["findings"][0]["module"] == "fc1/Relu"
    assert "ge_default_20260101000000_99" in found["missing"][0]
    told(capsys, *words, "--out", str(tmp_path / "out"))
    (table,) = (tmp_path / "out").rglob("*_result_*.csv")
    assert table.name.startswith("0_ge_default_20260101000000_11_0_result_")
    assert expected_table(table) == expected_table(MSACCUCMP_26 / "cmp_npu_tf_plain.csv")


def test_of_all_stages_of_a_graph_the_last_is_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Beside a file that looks like a graph and is none, and a second model of the same network."""
    graphs, dumps = tmp_path / "graphs", tmp_path / "dump/20260101000000"
    graphs.mkdir()
    for stage in ("PreRunBegin", "Build", "PreRunEnd"):
        shutil.copy(GRAPH, graphs / f"ge_proto_00000001_graph_11_{stage}.txt")
    (graphs / "bad.json").write_text('{"graph": [{"name": "q", "op": [{"name": 1}]}]}')
    for model in ("1", "2"):
        shutil.copytree(LEAF, dumps / f"0/ge_default_20260101000000_11/{model}/0")
    words = ["compare", str(REFERENCE), str(dumps), "--graph", str(graphs)]
    _, out, _ = told(capsys, *words, "--json", "--out", str(tmp_path / "out"))
    found = json.loads(out)

    assert [Path(network["graph"]).name for network in found["networks"]] == [
        "ge_proto_00000001_graph_11_Build.txt"
    ] * 2
    assert found["missing"] == [f"{graphs / 'bad.json'} field name holds 1, not a text"]
    one = found["networks"][0]["counts"]
    assert found["counts"] == {key: 2 * number for key, number in one.items()}
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == [
        "0_ge_default_20260101000000_11_0",
        "0_ge_default_20260101000000_11_0_1",
    ]


def test_a_mapping_as_json_is_written_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = told(capsys, *WITH_GRAPH, "--mapping", "--json", "--out", str(tmp_path / "m"))
    (table,) = (tmp_path / "m").glob("mapping_*.csv")

    assert code == 0
    assert len(json.loads(out)["mapping"]) == len(expected_table(table)) - 1


def test_a_graph_of_another_time_is_known_by_its_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = GRAPH.read_text().replace("ge_default_20260101000000_11", "ge_default_20251231000000_11")
    (tmp_path / "ge_proto_00001_Build.txt").write_text(text)
    _, out, _ = told(capsys, *SIDES, "--graph", str(tmp_path), "--json")

    assert "made at different times" in json.loads(out)["networks"][0]["missing"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--close-graph", "g"], "--close-graph without --graph"),
        (["--select", "1"], "--select without --graph"),
        (["--overflow", "--out", "nowhere"], "are not both dumps of an NPU"),
        (["--graph", str(GRAPH), "--overflow"], "--overflow without --out"),
        (["--graph", str(GRAPH), "--top", "3"], "--top without --op"),
        (["--graph", str(GRAPH), "--op", "a", "--top", "0"], "--top 0"),
        (["--graph", str(GRAPH), "--csv-layout", "2022"], "--csv-layout without --out"),
        (["--graph", str(GRAPH), "--range", "1,2"], "three numbers"),
        (["--graph", str(GRAPH), "--range", "5,2,1"], "one that is not smaller"),
        (["--graph", str(GRAPH), "--select", "x"], "ids of operators"),
        (["--graph", str(GRAPH), "--range", "1,2,1", "--select", "1"], "--range and --select"),
        (["--graph", str(GRAPH.parent), "--op", "a"], "--op with a directory of graphs"),
        (["--graph", str(GRAPH), "--map", "m.yaml"], "--map with a network"),
        (["--graph", str(GRAPH), "--mapping", "--op", "a"], "--mapping and --op"),
        (["--graph", str(GRAPH), "--replay", "on"], "--replay on with --graph"),
    ],
)
def test_options_that_do_not_fit(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    code, out, err = told(capsys, *SIDES, *words)

    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_reference_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = told(capsys, "compare", str(tmp_path), str(LEAF), "--graph", str(GRAPH))

    assert code == 2
    assert "is no reference dump" in err


def test_nothing_to_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path in LEAF.glob("Relu.fc1_Relu.*"):
        (tmp_path / path.name.replace("fc1", "unknown")).write_bytes(path.read_bytes())
    code, out, _ = told(capsys, "compare", str(REFERENCE), str(tmp_path), "--graph", str(GRAPH), "--json")

    assert (code, json.loads(out)["verdict"]) == (3, "nothing_compared")


def test_without_a_graph_nothing_is_compared_and_the_graph_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *SIDES)
    text = " ".join(out.split())

    assert (code, text.split(":")[0]) == (3, "NOTHING COMPARED")
    assert "--graph ge_proto_*_Build.txt" in text
