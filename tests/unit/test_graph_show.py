"""`ulpscope show GRAPH`: what it says, draws and finds in dumps, and with which exit code."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.unit.graph_files import CALLS, DATA, GRAPHS, NETWORK

from ulpscope.cli.main import main
from ulpscope.graph.query import cut_out
from ulpscope.records.graphs import Graph, Input, Operator, Source
from ulpscope.report.files.graph_drawing import dot_text, svg_text

DUMPS = DATA / "ascend" / "precision_data" / "npu"
REFERENCE = DATA / "ascend" / "precision_data" / "tf" / "dump"
SVG = "{http://www.w3.org/2000/svg}"

Shown = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Run the command without graphviz; gives exit code, stdout, stderr."""
    monkeypatch.setattr("shutil.which", lambda program: None)

    def run(*options: str, graph: Path = NETWORK) -> tuple[int, str, str]:
        code = main(["show", str(graph), *options])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


def lines(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines() if line.strip()]


def answer(shown: Shown, *options: str) -> Any:
    code, out, err = shown(*options, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    assert (found["schema"], found["command"]) == (1, "show")
    return found


def test_types_are_counted(shown: Shown) -> None:
    code, out, err = shown()
    assert (code, err) == (0, "")
    assert lines(out)[:4] == [
        "ge_default_20260101000000_11 GE text, 29 operators",
        "Operators",
        "type count",
        "TransData 7",
    ]
    assert answer(shown)["types"][:2] == [{"type": "TransData", "count": 7}, {"type": "Variable", "count": 4}]


def test_several_graphs_are_told(shown: Shown, tmp_path: Path) -> None:
    path = tmp_path / "calls.txt"
    path.write_text(CALLS, encoding="utf-8")
    assert lines(shown(graph=path)[1])[1:5] == ["Graphs", "name operators", "root 3", "inner 3"]
    _, out, _ = shown("--type", "data", graph=path)
    assert lines(out) == ["id type name graph passes kernel", "0 Data x root", "0 Data arg inner", "2 operators"]
    _, out, _ = shown("投影_Mul", graph=path)
    assert "arg:0 x:0 of root" in " ".join(out.split())
    assert "original a, b (with other operators)" in lines(out)


def test_operators_that_match(shown: Shown) -> None:
    code, out, _ = shown("--pass", "fusion", "--type", "matmul")
    assert code == 0
    assert [line.split()[2:4] for line in out.splitlines()[1:3]] == [
        ["fc1/MatMul", "MatMulBiasAddFusionPass"],
        ["fc2/MatMul", "MatMulBiasAddFusionPass"],
    ]
    assert lines(out)[-1] == "2 operators"
    found = answer(shown, "--kernel", "te_relu")
    assert (found["view"], found["total"], found["operators"][0]["name"]) == ("operators", 1, "fc1/Relu")


def test_the_list_is_cut_and_says_so(shown: Shown) -> None:
    _, out, _ = shown("--name", "", "--limit", "4")
    assert len(out.splitlines()) == 6
    assert out.endswith("25 more; --limit 0 for all\n")
    assert len(answer(shown, "--name", "", "--limit", "0")["operators"]) == 29


def test_nothing_matches(shown: Shown) -> None:
    code, out, _ = shown("--name", "fc1/Relo")
    assert code == 3
    assert "No operator of" in out
    assert "Near it: fc1/Relu" in out


def test_one_operator(shown: Shown) -> None:
    code, out, _ = shown("bn_FusedBatchNormV3_Update")
    assert code == 0
    told = lines(out)
    for line in (
        "bn/FusedBatchNormV3_Update BNTrainingUpdate",
        "id 9, stream 0, in ge_default_20260101000000_11",
        "passes FusedBatchnormFusionPass",
        "original bn/FusedBatchNormV3 (with other operators)",
        "0 float16 NC1HWC0 [2, 1, 6, 6, 16] [2, 6, 6, 6] pool1/MaxPool:0",
        "2 float32 NC1HWC0 [1, 1, 1, 1, 16] [6] bn/FusedBatchNormV3_Reduce:1",
        "0 float16 NC1HWC0 [2, 1, 6, 6, 16] [2, 6, 6, 6] bn/FusedBatchNormV3:0 trans_TransData_3:0",
    ):
        assert line in told
    assert "Attributes" not in told
    assert "origin_shape_initialized true" in lines(shown("fc1/Relu", "--attributes")[1])


def test_many_readers_are_not_all_listed(shown: Shown) -> None:
    assert "pred/ArgMax:0 and 3 more; --limit 0 for all" in shown("trans_Cast_8", "--limit", "1")[1]
    assert len(answer(shown, "trans_Cast_8", "--limit", "1")["operators"][0]["readers"]) == 4


def test_an_inserted_operator_and_control_edges(shown: Shown) -> None:
    told = lines(shown("trans_Cast_0")[1])
    assert "original none: the compiler inserted it" in told
    assert "awaited by ge_default_Node_Output" in told
    assert "original itself" in lines(shown("fc1/Relu")[1])
    assert "waits for trans_Cast_0" in lines(shown("ge_default_Node_Output")[1])


def test_a_part_of_several_names_lists_them(shown: Shown) -> None:
    code, out, _ = shown("MatMul")
    assert code == 3
    assert lines(out)[0] == "No operator is called MatMul; it may be one of these:"
    assert [line.split()[2] for line in out.splitlines()[2:4]] == ["fc1/MatMul", "fc2/MatMul"]


def test_a_name_that_is_not_there(shown: Shown) -> None:
    code, out, err = shown("fc1/Relo")
    assert (code, out) == (2, "")
    assert "has no operator 'fc1/Relo'" in err
    assert "did you mean fc1/Relu" in err


def test_json_of_one_operator(shown: Shown) -> None:
    (relu,) = answer(shown, "fc1/Relu")["operators"]
    assert relu["inputs"][0]["from"] == {"operator": "fc1/MatMul", "output": 0}
    assert relu["inputs"][0]["shape"] == [3, 1, 16, 16]
    assert relu["outputs"][0]["origin"] == {"name": "fc1/Relu", "output": 0, "layout": "ND", "dtype": "float32"}
    assert relu["readers"] == [{"producer": "fc1/Relu", "output": 0, "consumer": "fc2/MatMul", "input": 0}]
    assert (relu["dumps"], relu["references"], "attributes" in relu) == (None, None, False)
    (relu,) = answer(shown, "fc1/Relu", "--attributes")["operators"]
    assert relu["attributes"]["_session_graph_id"] == "0_11"


def test_its_dumps_and_its_reference(shown: Shown) -> None:
    (matmul,) = answer(shown, "fc1/MatMul", "--dumps", str(DUMPS), "--reference", str(REFERENCE))["operators"]
    dumped = matmul["dumps"]["tensors"]
    assert [(each["place"], each["dtype"], each["shape"]) for each in dumped] == [
        ("input.0", "float16", [2, 216]),
        ("input.1", "float16", [216, 40]),
        ("output.0", "float16", [2, 40]),
    ]
    # The reference of a fused operator is the last of the originals.
    (reference,) = matmul["references"]["tensors"]
    expected = np.load(next(REFERENCE.glob("fc1_BiasAdd.0.*.npy")))
    assert reference["stats"]["max"] == expected.max()
    assert reference["stats"]["norm"] == pytest.approx(np.linalg.norm(expected.astype(np.float64)), rel=1e-9)
    # What the device computed is the reference up to fp16.
    assert dumped[2]["stats"]["max"] == pytest.approx(float(expected.max()), rel=2e-3)
    _, out, _ = shown("fc1/MatMul", "--dumps", str(DUMPS), "--reference", str(REFERENCE))
    assert "MatMulV2.fc1_MatMul.20.0.1767225600020123" in out
    assert lines(shown("flatten/Reshape", "--dumps", str(DUMPS))[1])[-1] == "none of this operator"


def test_references_of_operators_that_were_renamed_or_are_not_described(shown: Shown, tmp_path: Path) -> None:
    names = 'attr { key: "_datadump_original_op_names" value { list { s: "old/Name" } } }'
    graph = tmp_path / "graph.txt"
    described = f'op {{ name: "new" type: "Relu" {names} output_desc {{ dtype: DT_FLOAT }} }}'
    graph.write_text(f'graph {{ name: "g" {described} op {{ name: "bare" type: "Split" }} }}')
    (tmp_path / "reference").mkdir()
    for name in ("old_Name.0", "bare.0", "bare.1"):
        np.save(tmp_path / f"reference/{name}.1767225600900010.npy", np.ones(3, np.float32))

    for node, files in (("new", ["old_Name.0"]), ("bare", ["bare.0", "bare.1"])):
        _, out, _ = shown(node, "--reference", str(tmp_path / "reference"), "--json", graph=graph)
        (found,) = json.loads(out)["operators"]
        assert [each["file"] for each in found["references"]["tensors"]] == [
            f"{name}.1767225600900010.npy" for name in files
        ]


def test_a_folder_without_dumps_is_an_error(shown: Shown, tmp_path: Path) -> None:
    code, _, err = shown("fc1/MatMul", "--dumps", str(tmp_path))
    assert code == 2
    assert "holds no dump of an NPU" in err
    assert shown("fc1/MatMul", "--reference", str(tmp_path))[0] == 2


def test_a_drawing_of_our_own(shown: Shown, tmp_path: Path) -> None:
    svg = tmp_path / "near.svg"
    code, out, _ = shown("fc1/MatMul", "--svg", str(svg), "--depth", "1")
    assert code == 0
    assert lines(out)[-1] == f"{svg}: 5 operators within 1 step, drawn by ulpscope"
    root = ElementTree.parse(svg).getroot()
    drawn = {text.text for text in root.iter(f"{SVG}text")}
    assert {"fc1/MatMul", "MatMulV2", "trans_TransData_5", "mask/Greater"} <= drawn
    (centre,) = [group for group in root.iter(f"{SVG}g") if group.get("class") == "centre"]
    assert centre.findall(f"{SVG}text")[1].text == "fc1/MatMul"
    assert sum(group.get("class") == "edge" for group in root.iter(f"{SVG}g")) == 4


def test_graphviz_draws_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "dot"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/graph.gv\necho '<svg>by dot</svg>'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    svg = tmp_path / "near.svg"
    assert main(["show", str(NETWORK), "fc1/MatMul", "--svg", str(svg), "--depth", "1"]) == 0
    assert "drawn by graphviz" in capsys.readouterr().out
    assert svg.read_text() == "<svg>by dot</svg>\n"
    assert '"fc1/MatMul" -> "fc1/Relu"' in (tmp_path / "graph.gv").read_text()
    program.write_text("#!/bin/sh\nexit 1\n")
    assert main(["show", str(NETWORK), "fc1/MatMul", "--svg", str(svg), "--depth", "1"]) == 0
    assert "drawn by ulpscope" in capsys.readouterr().out


def test_names_cannot_break_a_drawing() -> None:
    name = '</title><script>"&\\\n\x01\ud800'
    operators = (
        Operator(name, "A<b>", "g", 0),
        Operator("reader", "B", "g", 1, inputs=(Input(Source(name, 0)),), controls=(name,)),
    )
    cut = cut_out(Graph("g", operators), name, depth=1)
    root = ElementTree.fromstring(svg_text(cut).encode())
    assert [text.text for text in root.iter(f"{SVG}text")][:2] == ["A<b>", '</title><script>"&\\\n\ufffd\ufffd']
    assert dot_text(cut).encode()
    assert '"</title><script>\\"&amp;\\\\\\n\ufffd\ufffd" -> "reader"' in dot_text(cut)


def test_a_drawing_of_a_name_in_several_graphs_needs_the_graph(shown: Shown, tmp_path: Path) -> None:
    op = 'op { name: "same" type: "Relu" }'
    path = tmp_path / "two.txt"
    path.write_text(f'graph {{ name: "one" {op} }} graph {{ name: "two" {op} }}')
    assert lines(shown("same", graph=path)[1]).count("same Relu") == 2
    code, _, err = shown("same", "--svg", str(tmp_path / "x.svg"), graph=path)
    assert code == 2
    assert "2 graphs have an operator same: one, two" in err
    assert shown("same", "--svg", str(tmp_path / "x.svg"), "--graph", "two", graph=path)[0] == 0


def test_a_name_that_another_graph_has_is_not_said_to_be_none(shown: Shown) -> None:
    code, _, err = shown("fc1/Relu", "--graph", "other")
    assert code == 2
    assert "has fc1/Relu, but not with --graph other" in err
    assert "a graph that has it: ge_default_20260101000000_11" in err
    assert "did you mean" not in err


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--op", "x"), "--op with a graph"),
        (("--svg", "x.svg"), "--svg with no NODE"),
        (("--attributes",), "--attributes with no NODE"),
        (("fc1/Relu", "--type", "x", "--pass", "y"), "--type and --pass with the name of one operator"),
        (("fc1/Relu", "--depth", "3"), "--depth with no --svg"),
        (("fc1/Relu", "--svg", "/nowhere/x.svg"), "/nowhere/x.svg cannot be written"),
    ],
)
def test_options_without_effect_are_refused(shown: Shown, options: tuple[str, ...], seen: str) -> None:
    code, out, err = shown(*options)
    assert (code, out) == (2, "")
    assert seen in err


def test_options_of_graphs_are_refused_for_a_trace(shown: Shown, tmp_path: Path) -> None:
    code, _, err = shown("--kernel", "x", graph=tmp_path)
    assert code == 2
    assert "--kernel with a trace" in err


def test_onnx_and_tensorflow(shown: Shown) -> None:
    told = lines(shown("clip", graph=GRAPHS / "branches.onnx")[1])
    assert "1 -" in told
    assert "2 total:0" in told
    told = lines(shown("halves", graph=GRAPHS / "branches.onnx")[1])
    assert told[-2:] == ["0 -", "1 half:0"]
    assert "runs double" in lines(shown("call", graph=GRAPHS / "functions.meta")[1])


def test_a_damaged_graph_is_told_with_its_name(shown: Shown, tmp_path: Path) -> None:
    path = tmp_path / "half.txt"
    path.write_bytes(NETWORK.read_bytes()[:30_000])
    code, out, err = shown(graph=path)
    assert (code, out) == (2, "")
    assert f"{path} ends inside of graph.op" in err
    assert "expected: a graph" in err
