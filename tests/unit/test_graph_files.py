"""Graph files of every format, against what the tools' own packages read in them, or the JSON of the same graph."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.graph_files import CALLS, GRAPHS, NETWORK, NETWORK_JSON, ge_onnx_text

from ulpscope.cli.main import main
from ulpscope.dialects.graphs.opening import is_graph, open_graph, read_graph
from ulpscope.graph.query import control_edges, edges
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Graph, GraphFormat, GraphModel, Operator, Origin, Source, TensorDesc


@pytest.fixture
def calls(tmp_path: Path) -> GraphModel:
    path = tmp_path / "calls.txt"
    path.write_text(CALLS, encoding="utf-8")
    return open_graph(path)


def told(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def network() -> Graph:
    return open_graph(NETWORK).graphs[0]


def operator(graph: Graph, name: str) -> Operator:
    return next(each for each in graph.operators if each.name == name)


def test_ge_text_holds_what_its_json_tells() -> None:
    (stated,) = told(NETWORK_JSON)["graph"]
    read = [(each.name, each.type, each.id, each.stream) for each in network().operators]
    assert read == [(op["name"], op["type"], op.get("id", 0), op.get("stream_id", 0)) for op in stated["op"]]
    for each, op in zip(network().operators, stated["op"], strict=True):
        for desc, said in zip(each.outputs, op.get("output_desc", ()), strict=True):
            attributes = {entry["key"]: entry["value"] for entry in said["attr"]}
            assert desc.layout == said["layout"]
            assert desc.shape == tuple(said["shape"]["dim"])
            assert desc.origin_shape == tuple(attributes["origin_shape"]["list"]["i"])
            assert desc.origin_layout == attributes["origin_format"]["s"]


def test_edges_are_those_that_producers_tell_of() -> None:
    """`dst_name` lists the consumers of each connected output, control edges among them."""
    (stated,) = told(NETWORK_JSON)["graph"]
    by_consumers = {
        (op["name"], consumer)
        for op in stated["op"]
        for entry in op.get("dst_name", ())
        for consumer in entry.split(":")
    }
    data = {(edge.producer, edge.consumer) for edge in edges(network())}
    control = {(edge.before, edge.after) for edge in control_edges(network())}
    assert data | control == by_consumers
    assert control == {("trans_Cast_0", "ge_default_Node_Output")}


def test_json_and_text_are_the_same_graph() -> None:
    text, other = open_graph(NETWORK), open_graph(NETWORK_JSON)
    assert (text.format, other.format) == (GraphFormat.GE_TEXT, GraphFormat.GE_JSON)
    assert other == replace(text, format=GraphFormat.GE_JSON)


def test_what_an_operator_of_the_network_is() -> None:
    conv = operator(network(), "conv1/Conv2Dconv1/BiasAddconv1/Relu")
    assert conv.originals == ("conv1/Conv2D", "conv1/BiasAdd", "conv1/Relu")
    assert conv.passes == ("AABiasaddConvFusion", "TbeConv2dRelu")
    assert conv.kernel is not None
    assert conv.kernel.startswith("te_conv2d_")
    assert conv.kernel_library == "AIcoreEngine"
    assert [str(each.source) for each in conv.inputs] == [
        "trans_TransData_1:0",
        "trans_TransData_2:0",
        "conv1/biases:0",
    ]
    assert [each.desc.dtype for each in conv.inputs if each.desc] == ["float16", "float16", "float32"]
    assert conv.outputs[0].origin == Origin("conv1/Relu", 0, "NHWC", "float32")
    assert operator(network(), "trans_Cast_0").originals == ()
    assert operator(network(), "fc1/Relu").originals is None
    assert operator(network(), "bn/FusedBatchNormV3_Reduce").multiple


def test_ge_onnx_is_the_same_graph(tmp_path: Path) -> None:
    path = tmp_path / "ge_onnx_00000_graph_11_Build.pbtxt"
    path.write_text(ge_onnx_text(told(NETWORK_JSON)), encoding="utf-8")
    model = open_graph(path)
    assert model.format is GraphFormat.GE_ONNX
    # Booleans are numbers there, and id and stream_id attributes.
    comparable = [_without_attributes(each) for each in model.graphs[0].operators]
    assert comparable == [_without_attributes(each) for each in network().operators]
    assert model.graphs[0].operators[6].attributes["fusion_scope"] == -5


def test_ge_onnx_holds_sub_graphs_and_rows(tmp_path: Path) -> None:
    def attribute(name: str, *words: str) -> str:
        return f'attribute {{ name: "{name}" {" ".join(words)} }}'

    rows = ((1, -1), (4, 4))
    ranges = [
        attribute(f"output_desc_attr_shape_range:1_{k}", *(f"ints: {number}" for number in row), "type: INTS")
        for k, row in enumerate(rows)
    ]
    described = " ".join(
        [attribute("id", "i: 5 type: INT"), attribute("output_desc_dtype:1", 's: "DT_BF16" type: STRING')]
    )
    inner = 'g { name: "inner" node { name: "arg" op_type: "ge:Data" input: "" } }'
    path = tmp_path / "ge_onnx_00000000_graph_1_Build.pbtxt"
    path.write_text(
        'ir_version: 6 graph { name: "root" node { name: "call" op_type: "ge:PartitionedCall" input: "x:1" '
        + f'input: "y:-1" {described} {" ".join(ranges)} }} node {{ name: "part" op_type: "subgraph" '
        + f"{attribute('graph', inner, 'type: GRAPH')} }} }}"
    )
    root, part = open_graph(path).graphs
    (call,) = root.operators
    assert (call.id, call.controls, [str(each.source) for each in call.inputs]) == (5, ("y",), ["x:1"])
    assert [(desc.dtype, desc.shape_range) for desc in call.outputs] == [("undefined", ()), ("bfloat16", rows)]
    assert (part.name, [each.name for each in part.operators]) == ("part", ["arg"])


def _without_attributes(each: Operator) -> Operator:
    inputs = [replace(one, desc=None if one.desc is None else replace(one.desc, attributes={})) for one in each.inputs]
    outputs = [replace(desc, attributes={}) for desc in each.outputs]
    return replace(each, inputs=tuple(inputs), outputs=tuple(outputs), attributes={})


def test_calls_sub_graphs_and_unconnected_inputs(calls: GraphModel) -> None:
    root, inner = calls.graphs
    assert (root.name, inner.name, calls.name) == ("root", "inner", "calls")
    call = operator(root, "call")
    assert call.subgraphs == ("inner",)
    assert (call.id, call.stream, call.controls) == (1, 3, ("x",))
    assert [each.source for each in call.inputs] == [Source("x", 0), None]
    assert [each.desc.dtype for each in call.inputs if each.desc] == ["float32", "bfloat16"]
    assert [desc.dtype for desc in call.outputs] == ["float32", "int64", "bool", "undefined"]
    read = [(edge.output, edge.input) for edge in edges(root) if edge.consumer == "end"]
    assert read == [(0, 0), (2, 1), (3, 2)]


def test_attributes_of_every_kind(calls: GraphModel) -> None:
    mul = operator(calls.graphs[1], "投影/Mul")
    assert (mul.passes, mul.originals, mul.multiple, mul.l1_fusion) == (("OldPass",), ("a", "b"), True, "7")
    assert mul.kernel == "te_muls"
    attributes = mul.attributes
    assert attributes["scale"] == 0.5
    assert attributes["blob"] == {"bytes": 4}
    assert attributes["empty"] is None
    assert attributes["none"] == ()
    assert attributes["flags"] == (True, False)
    assert attributes["floats"] == (1.5, float("-inf"), 1e-3)
    assert attributes["function"] == {"name": "f", "attr": {"k": -9}}
    assert attributes["weight"] == {"dtype": "int8", "layout": "ND", "shape": (3,), "bytes": 3}
    assert attributes["type"] == "float16"
    desc = mul.outputs[0]
    assert (desc.shape, desc.layout, desc.dtype) == ((2, 1, 4, 4, 16), "NC1HWC0", "float16")
    assert (desc.value_range, desc.shape_range) == (((0, 255), ()), ((1, -1),))
    assert (desc.origin_shape, desc.origin_layout) == ((2, 4, 4, 3), "NHWC")
    assert desc.origin == Origin("")
    assert desc.fusion_origin == Origin("a", 2)


def test_a_null_in_json_is_an_empty_message(tmp_path: Path) -> None:
    path = tmp_path / "null.json"
    attributes = [
        {"key": "_datadump_original_op_names", "value": {"list": None}},
        {"key": "other", "value": None},
        {"key": "numbers", "value": {"list": {"i": [1], "val_type": 2}}},
    ]
    op = {"name": "a", "type": "Cast", "attr": attributes, "output_desc": [{"dtype": "DT_FLOAT", "shape": None}]}
    path.write_text(json.dumps({"graph": [{"name": "g", "op": [op]}]}))
    (found,) = open_graph(path).graphs[0].operators
    assert found.originals == ()
    assert found.attributes["other"] is None
    assert found.attributes["numbers"] == (1,)
    assert found.outputs == (TensorDesc(dtype="float32", shape=()),)


@pytest.mark.parametrize("encoding", ["gbk", "utf-8", "utf-8-sig"])
def test_files_may_be_in_gbk(tmp_path: Path, encoding: str) -> None:
    # 誠 ends in a backslash in GBK, 齷 in a brace: read as bytes, they would break the text.
    name = "网络/誠齷_卷积"
    path = tmp_path / "graph.txt"
    path.write_bytes(f'graph {{ op {{ name: "{name}" type: "Conv2D" }} }}'.encode(encoding))
    assert is_graph(path)
    assert open_graph(path).graphs[0].operators[0].name == name


def test_onnx_against_the_onnx_package() -> None:
    model, stated = open_graph(GRAPHS / "branches.onnx"), told(GRAPHS / "branches.json")
    main, *others = model.graphs
    _same_nodes(main, stated["nodes"])
    assert [graph.name for graph in others] == ["choice/else_branch", "choice/then_branch", "my.functions.Twice"]
    _same_nodes(others[0], stated["bodies"]["else_branch"])
    _same_nodes(others[1], stated["bodies"]["then_branch"])
    _same_nodes(others[2], stated["function"])
    assert operator(main, "choice").subgraphs == ("choice/else_branch", "choice/then_branch")


def _same_nodes(graph: Graph, stated: list[dict[str, Any]]) -> None:
    makers = {tensor: (k, out) for k, node in enumerate(stated) for out, tensor in enumerate(node["outputs"])}
    for position, (each, node) in enumerate(zip(graph.operators, stated, strict=True)):
        assert each.name == (node["name"] or f"{node['type']}_{position}")
        assert each.type == (f"{node['domain']}.{node['type']}" if node["domain"] else node["type"])
        assert [desc.name for desc in each.outputs] == node["outputs"]
        for one, tensor in zip(each.inputs, node["inputs"], strict=True):
            if tensor in makers:
                maker, output = makers[tensor]
                assert one.source == Source(graph.operators[maker].name, output)
            else:
                assert one.source == (Source(tensor, 0) if tensor else None)
        for key, value in node["attributes"].items():
            assert each.attributes[key] == (tuple(value) if isinstance(value, list) else value)


def test_onnx_knows_tensors_that_the_graph_describes() -> None:
    matmul = open_graph(GRAPHS / "branches.onnx").graphs[0].operators[0]
    assert [each.desc for each in matmul.inputs] == [
        TensorDesc(name="x", dtype="float32", shape=(-1, 4)),
        TensorDesc(name="weight", dtype="float32", shape=(4, 3)),
    ]
    assert matmul.outputs == (TensorDesc(name="h", dtype="float32", shape=(-1, 3)),)


def test_onnx_nodes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "twins.pbtxt"
    nodes = [("x", "a", "twin"), ("a", "b", "twin"), ("b", "c", ""), ("c", "d", "Relu_2")]
    lines = [f'node {{ input: "{i}" output: "{o}" name: "{n}" op_type: "Relu" }}' for i, o, n in nodes]
    path.write_text("ir_version: 8 graph { " + "\n".join(lines) + " }")
    operators = open_graph(path).graphs[0].operators
    assert [each.name for each in operators] == ["twin", "twin_1", "Relu_2", "Relu_2_3"]
    assert [str(each.inputs[0].source) for each in operators] == ["x:0", "twin:0", "twin_1:0", "Relu_2:0"]


def test_onnx_as_text_is_the_same() -> None:
    assert open_graph(GRAPHS / "branches.pbtxt") == open_graph(GRAPHS / "branches.onnx")


def test_tensorflow_against_tensorflows_own_protos() -> None:
    model, stated = open_graph(GRAPHS / "session.pb"), told(GRAPHS / "session.json")
    assert model.format is GraphFormat.TENSORFLOW
    _same_tensorflow_nodes(model.graphs[0], stated["nodes"])
    conv = operator(model.graphs[0], "bn/FusedBatchNormV3")
    assert conv.outputs[0].dtype == "float32"


def test_meta_graphs_functions_and_control_edges() -> None:
    stated = told(GRAPHS / "functions.json")
    for name in ("functions.meta", "functions.pbtxt"):
        main, double = open_graph(GRAPHS / name).graphs
        _same_tensorflow_nodes(main, stated["nodes"])
        argument, *nodes = double.operators
        assert (argument.name, argument.type, argument.outputs[0].dtype) == ("a", "_Arg", "int32")
        _same_tensorflow_nodes(Graph("double", tuple(nodes)), stated["functions"]["double"])
        assert operator(main, "call").subgraphs == ("double",)
        unique = operator(main, "unique")
        assert [desc.shape for desc in unique.outputs] == [(-1,), None]
        assert operator(main, "x").outputs == (TensorDesc(dtype="float16", shape=(-1, 3)),)
    meta = open_graph(GRAPHS / "functions.meta")
    assert meta.format is GraphFormat.TENSORFLOW_META
    assert meta.attributes == {"tensorflow_version": "2.21.0", "tags": ("serve",)}


def test_a_saved_model_is_its_first_meta_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = (GRAPHS / "functions.meta").read_bytes()
    length = bytes([len(meta) & 0x7F | 0x80, len(meta) >> 7])
    path = tmp_path / "saved_model.pb"
    path.write_bytes(b"\x08\x01\x12" + length + meta)
    assert open_graph(path) == open_graph(GRAPHS / "functions.meta")
    # The directory that TensorFlow saved it into is what people name.
    assert is_graph(tmp_path)
    assert open_graph(tmp_path) == open_graph(path)
    assert main(["show", str(tmp_path), "call"]) == 0
    assert "double" in capsys.readouterr().out
    assert main(["show", str(tmp_path), "call", "--svg", str(tmp_path / "call.svg")]) == 0
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "is a graph, not a run" in capsys.readouterr().err


TENSORFLOW_NUMBERS = {1: "float32", 3: "int32", 9: "int64", 10: "bool", 19: "float16"}


def _same_tensorflow_nodes(graph: Graph, stated: list[dict[str, Any]]) -> None:
    for each, node in zip(graph.operators, stated, strict=True):
        assert (each.name, each.type) == (node["name"], node["type"])
        assert each.attributes.get("device", "") == node["device"]
        data = [entry for entry in node["inputs"] if not entry.startswith("^")]
        assert [str(one.source).removesuffix(":0") for one in each.inputs] == [
            entry.replace(":z:", ":").removesuffix(":0") for entry in data
        ]
        assert list(each.controls) == [entry[1:] for entry in node["inputs"] if entry.startswith("^")]
        for key, number in node["numbers"].items():
            assert each.attributes[key] == number
        for key, number in node["types"].items():
            assert each.attributes[key] == TENSORFLOW_NUMBERS[number]


def test_what_is_no_graph_is_not_taken_for_one(tmp_path: Path) -> None:
    contents = {
        "notes.txt": b"These are notes: nothing more.\n",
        "table.csv": b"Input/Output,Index\nInput,0\n",
        "dump.json": b'{"task": "statistics", "level": "L1", "data": {}}',
        "array.npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}",
        "empty": b"",
        "Relu.fc1_Relu.21.0.1767225600021123": b"\x0a\x00\x00\x00\x00\x00\x00\x00\x0a\x032.0",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert not is_graph(tmp_path / name), name
    assert not is_graph(tmp_path)
    assert not is_graph(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", b'graph { op { name: "x" ', "ends inside of graph.op: it is damaged"),
        ("a.txt", b'graph { op { name: "x" input: "y" } }', "has the input 'y', which is not name:index"),
        ("a.txt", b"graph { op { name: 5 } }", "field name holds 5, not a text"),
        ("a.txt", b'graph { op { id: "x" } }', "field id holds 'x', not a whole number of 64 bits"),
        ("a.txt", b"graph { op { id: 99999999999999999999 } }", "field id holds a larger number, not a whole number"),
        ("a.txt", b'graph { op { attr { key: "a" value { list: 3 } } } }', "field list holds 3, not a message"),
        ("a.txt", b"graph { op: 3 }", "has an op that is no message"),
        ("a.txt", b"name: 3", "is in protobuf's text format, but no graph: at its top it has name"),
        ("a.txt", b'graph { op { name: "\xff\xff\xff" } }', "is neither UTF-8 nor GBK: byte 20"),
        ("a.txt", b"library { }", "holds a graph without operators"),
        ("a.json", b'{"graph": [{"op": [', "is not JSON, or was not written to its end"),
        ("a.json", b'{"graph": {"op": 3}}', "has an op that is no message"),
        ("a.json", b'{"model": 1, "graphs": []}', "is JSON, but no graph: at its top it has model, graphs"),
        ("a.json", b'{"graph": [{"op": [3]}]}', "has an op that is no message"),
        ("a.json", b'{"graph": [{"op": [{"id": 1e300}]}]}', "field id holds 1e+300, not a whole number"),
        ("a.json", b'{"graph":[{"op":[{"attr":' + b"[" * 100_000, "nested too deeply"),
        ("a.json", b'{"graph":[{"op":[{"id":' + b"9" * 5000 + b"}]}]}", "is not JSON"),
        ("a.onnx", b"\x08\x07\x3a\xff\x01abc", "has a field 7 of 255 bytes where 3 are left; it is damaged"),
        ("a.bin", b"\x00\x01\x02\x03", "is a binary file, but neither ONNX nor TensorFlow's"),
        ("a.txt", b"", "is empty"),
    ],
)
def test_damaged_files_are_named_with_what_is_wrong(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UlpscopeError) as caught:
        read_graph(path)
    assert caught.value.seen.startswith(f"{path} ")
    assert problem in caught.value.seen
    assert "ge_proto_*_Build.txt" in caught.value.expected


def test_an_operator_is_inserted_also_if_its_list_of_originals_is_empty_in_any_way(tmp_path: Path) -> None:
    values = [{"list": {"s": [""]}}, {"list": {"val_type": 1}}, {"list": None}, None]
    operators = [
        {"name": f"n{k}", "type": "Cast", "attr": [{"key": "_datadump_original_op_names", "value": value}]}
        for k, value in enumerate(values)
    ]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"graph": [{"name": "g", "op": [*operators, {"name": "own", "type": "Relu"}]}]}))

    assert [operator.originals for operator in open_graph(path).graphs[0].operators] == [(), (), (), (), None]


def _respelled(model: Any, respell: Any) -> Any:
    """JSON with every value as `respell` writes the value of this field."""
    if isinstance(model, dict):
        return {key: _respelled(value, lambda _, item, key=key: respell(key, item)) for key, value in model.items()}
    if isinstance(model, list):
        return [_respelled(item, respell) for item in model]
    return respell("", model)


def _as_texts(_: str, value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) else value


def _by_protobuf(model: Any, field: str = "") -> Any:
    """As protobuf's own mapping writes it: names in camelCase, maps as objects, bytes in base64, 64 bits as texts."""
    if isinstance(model, dict):
        return {
            re.sub("_([a-z])", lambda letter: letter[1].upper(), name): {
                entry["key"]: _by_protobuf(entry["value"]) for entry in value
            }
            if name == "attr"
            else _by_protobuf(value, name)
            for name, value in model.items()
        }
    if isinstance(model, list):
        return [_by_protobuf(item, field) for item in model]
    if field in ("s", "bt", "data"):
        return base64.b64encode(model.encode()).decode()
    return str(model) if isinstance(model, int) and not isinstance(model, bool) else model


@pytest.mark.parametrize("spelled", [lambda model: _respelled(model, _as_texts), _by_protobuf])
def test_json_spells_values_in_other_ways(tmp_path: Path, spelled: Any) -> None:
    model = told(NETWORK_JSON)
    attributes = [
        {"key": "alpha", "value": {"f": 0.01}},
        {"key": "keep", "value": {"b": False}},
        {"key": "flags", "value": {"list": {"b": [True, False]}}},
        {"key": "type", "value": {"dt": 1}},
        {"key": "count", "value": {"i": 2**53 + 1}},
    ]
    model["graph"][0]["op"][3]["attr"] += attributes
    plain, other = tmp_path / "plain.json", tmp_path / "other.json"
    plain.write_text(json.dumps(model))
    other.write_text(json.dumps(spelled(model)))
    assert open_graph(other) == open_graph(plain)
    read = open_graph(other).graphs[0].operators[3].attributes
    assert [read[entry["key"]] for entry in attributes] == [0.01, False, (True, False), "float32", 2**53 + 1]


@pytest.mark.parametrize("spelled", ["inf", "-Infinity", "NaN", "1e-05", "-0.5", ".25"])
def test_floats_that_atc_prints(tmp_path: Path, spelled: str) -> None:
    path = tmp_path / "om.json"
    value = {"list": {"f": [spelled], "i": [], "val_type": "VT_LIST_FLOAT"}}
    op = {"name": "a", "type": "A", "attr": [{"key": "x", "value": value}], "input": None, "id": None}
    path.write_text(json.dumps({"graph": [{"op": [op]}]}))
    (found,) = open_graph(path).graphs[0].operators
    (number,) = found.attributes["x"]  # type: ignore[misc]
    assert np.array_equal(number, float(spelled), equal_nan=True)
    assert found.inputs == ()


@pytest.mark.parametrize("name", ["branches.onnx", "functions.meta"])
def test_onnx_and_tensorflow_graphs_as_json(tmp_path: Path, name: str) -> None:
    """`atc --mode=1` writes the original model, too."""
    path = tmp_path / f"{name}.json"
    path.write_text((GRAPHS / f"{Path(name).stem}.proto.json").read_text(encoding="utf-8"), encoding="utf-8")
    assert is_graph(path)
    assert open_graph(path) == open_graph(GRAPHS / name)
