"""Makes the ONNX and TensorFlow graphs of this folder, and beside each what the tools' own packages read in it.

    python make.py TFDBG_GRAPH_FILE        needs onnx and tensorboard (whose protos are TensorFlow's)

session.* holds the nodes of a real graph of TensorFlow 2.21, found in a debugger's dump (_tfdbg_graph_hash...). Paths
in that dump were replaced by shorter ones, which broke the lengths around them: nodes with such paths are left out.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

HERE = Path(__file__).parent


def branches() -> onnx.ModelProto:
    """Weights, an If with two bodies, an operator of another domain, a function, an optional input left out."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, 3])
    picked = helper.make_tensor_value_info("picked", TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "weight")
    then_body = helper.make_graph([helper.make_node("Relu", ["h"], ["picked"], name="up")], "positive", [], [picked])
    else_body = helper.make_graph([helper.make_node("Neg", ["h"], ["picked"], name="down")], "negative", [], [picked])
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["h"], name="fc/MatMul"),
        helper.make_node("ReduceSum", ["h"], ["total"], keepdims=0, name="total"),
        helper.make_node("Cast", ["total"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["picked"], then_branch=then_body, else_branch=else_body, name="choice"),
        helper.make_node("Clip", ["picked", "", "total"], ["clipped"], name="clip"),
        helper.make_node(
            "Scale", ["clipped"], ["scaled"], domain="my.ops", factor=2.5, names=["a", "中文"], name="scale"
        ),
        helper.make_node("Twice", ["scaled"], ["twice"], domain="my.functions", name="twice"),
        helper.make_node("Split", ["twice"], ["left", "right"], axis=0, num_outputs=2, name="halves"),
        helper.make_node("Cast", ["right"], ["y"], to=TensorProto.FLOAT16, name="half"),
    ]
    known = [helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", 3])]
    graph = helper.make_graph(nodes, "branches", [x], [y], [weight], value_info=known)
    twice = helper.make_function(
        "my.functions",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"], name="sum")],
        [helper.make_opsetid("", 18)],
    )
    opsets = [
        helper.make_opsetid(domain, version) for domain, version in (("", 18), ("my.ops", 1), ("my.functions", 1))
    ]
    return helper.make_model(graph, functions=[twice], opset_imports=opsets, producer_name="make.py", ir_version=9)


def onnx_expected(model: onnx.ModelProto) -> dict:
    return {
        "nodes": [node_expected(node) for node in model.graph.node],
        "function": [node_expected(node) for node in model.functions[0].node],
        "bodies": {
            attribute.name: [node_expected(node) for node in attribute.g.node]
            for attribute in model.graph.node[3].attribute
        },
    }


def node_expected(node: onnx.NodeProto) -> dict:
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    plain = {key: value for key, value in attributes.items() if isinstance(value, int | float | list)}
    plain = {
        key: [word.decode() if isinstance(word, bytes) else word for word in value]
        if isinstance(value, list)
        else value
        for key, value in plain.items()
    }
    names = {"name": node.name, "type": node.op_type, "domain": node.domain}
    return {**names, "inputs": list(node.input), "outputs": list(node.output), "attributes": plain}


def sound_nodes(data: bytes) -> list[NodeDef]:
    """Nodes that parse and were not damaged: they are followed by another one, or by the end."""
    begins = re.compile(rb"\n([\x80-\xff]?[\x01-\x7f])(?=\n)")
    found, position = [], 0
    while (match := begins.search(data, position)) is not None:
        low, *high = match[1]
        size = low if not high else (low & 0x7F) | high[0] << 7
        body = data[match.end() : match.end() + size]
        try:
            node = NodeDef.FromString(body)
        except DecodeError:
            node = NodeDef()
        sound = node.name and node.op and not node.op.startswith(("Debug", "Copy")) and len(body) == size
        if sound:
            found.append(node)
        position = match.end() + (size if sound else 0)
    return found


def functions() -> GraphDef:
    """A call of a function, a control edge, a second output that is read."""
    text = """
      node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_HALF } }
             attr { key: "shape" value { shape { dim { size: -1 } dim { size: 3 } } } } }
      node { name: "unique" op: "Unique" input: "x" attr { key: "T" value { type: DT_HALF } }
             attr { key: "_output_shapes" value { list { shape { dim { size: -1 } } shape { unknown_rank: true } } } } }
      node { name: "init" op: "NoOp" }
      node { name: "call" op: "PartitionedCall" input: "unique:1" input: "^init" device: "/device:CPU:0"
             attr { key: "f" value { func { name: "double" } } } attr { key: "config" value { s: "\\000\\377" } }
             attr { key: "scale" value { f: 0.5 } } attr { key: "deep" value { b: true } } }
      library { function { signature { name: "double" input_arg { name: "a" type: DT_INT32 } }
        node_def { name: "sum" op: "AddV2" input: "a" input: "a" attr { key: "T" value { type: DT_INT32 } } }
        node_def { name: "out" op: "Identity" input: "sum:z:0" attr { key: "T" value { type: DT_INT32 } } }
      } }
      versions { producer: 1882 }
    """
    return text_format.Parse(text, GraphDef())


def tensorflow_expected(graph: GraphDef) -> dict:
    return {
        "nodes": [tensorflow_node(node) for node in graph.node],
        "functions": {
            function.signature.name: [tensorflow_node(node) for node in function.node_def]
            for function in graph.library.function
        },
    }


def tensorflow_node(node) -> dict:
    simple = {key: value for key, value in node.attr.items() if value.WhichOneof("value") in ("i", "b", "f")}
    types = {key: value.type for key, value in node.attr.items() if value.WhichOneof("value") == "type"}
    numbers = {key: getattr(value, value.WhichOneof("value")) for key, value in sorted(simple.items())}
    names = {"name": node.name, "type": node.op, "device": node.device}
    return {**names, "inputs": list(node.input), "numbers": numbers, "types": dict(sorted(types.items()))}


def write(name: str, expected: dict) -> None:
    (HERE / name).write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(tfdbg_graph: Path) -> None:
    model = branches()
    onnx.checker.check_model(model)
    (HERE / "branches.onnx").write_bytes(model.SerializeToString())
    (HERE / "branches.pbtxt").write_text(text_format.MessageToString(model), encoding="utf-8")
    write("branches.json", onnx_expected(model))
    write("branches.proto.json", MessageToDict(model))

    session = GraphDef(node=sound_nodes(tfdbg_graph.read_bytes()))
    (HERE / "session.pb").write_bytes(session.SerializeToString())
    write("session.json", tensorflow_expected(session))

    called = functions()
    meta = MetaGraphDef(graph_def=called)
    meta.meta_info_def.tensorflow_version = "2.21.0"
    meta.meta_info_def.tags.append("serve")
    (HERE / "functions.meta").write_bytes(meta.SerializeToString())
    (HERE / "functions.pbtxt").write_text(text_format.MessageToString(called), encoding="utf-8")
    write("functions.json", tensorflow_expected(called))
    write("functions.proto.json", MessageToDict(meta))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
