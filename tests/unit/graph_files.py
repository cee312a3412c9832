"""Graph files that tests read: those of the folders below tests/data, and small ones written here."""

from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
NETWORK = DATA / "ascend" / "precision_data" / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt"
NETWORK_JSON = NETWORK.with_name(f"{NETWORK.name}.json")
GRAPHS = DATA / "graphs"

# A model with a sub-graph: a call with four outputs, of which the second is read by nobody; an optional input that is
# not connected; a pass given as a text; attributes of every kind; the words of the name in UTF-8, as octal escapes.
CALLS = r"""
name: "calls"   # a comment
graph {
  name: "root"
  op { name: "x" type: "Data" output_desc { dtype: DT_FLOAT layout: "ND" shape { dim: 8 dim: -1 } } }
  op {
    name: "call" type: "PartitionedCall" input: "x:0" input: "" input: "x:-1" id: 1 stream_id: 3
    subgraph_name: "inner"
    input_desc { dtype: DT_FLOAT } input_desc { dtype: DT_BF16 }
    output_desc { dtype: DT_FLOAT } output_desc { dtype: DT_INT64 } output_desc { dtype: DT_BOOL } output_desc { }
    dst_name: "end" dst_name: "end" dst_name: "end" dst_index: 0 dst_index: 1 dst_index: 2
  }
  op { name: "end" type: "NetOutput" input: "call:0" input: "call:2" input: "call:3" id: 2 }
}
graph <
  name: "inner"
  op { name: "arg" type: "Data" attr { key: "_parent_node_index" value { i: 0 } } }
  op {
    name: "\346\212\225\345\275\261/Mul" type: "Muls" input: "arg:0" id: 1
    attr { key: "pass_name" value { s: "OldPass" } }
    attr { key: "_datadump_original_op_names" value { list { s: "a" s: "b" s: "a" val_type: VT_LIST_STRING } } }
    attr { key: "_datadump_is_multiop" value { b: true } }
    attr { key: "_L1_fusion_sub_graph_no" value { s: "7" } }
    attr { key: "_kernelname" value { s: "te_muls" } }
    attr { key: "scale" value { f: 0.5 } }
    attr { key: "blob" value { bt: "\000\377\"x" } }
    attr { key: "empty" value { } }
    attr { key: "none" value { list { val_type: VT_LIST_INT } } }
    attr { key: "flags" value { list { b: true b: false val_type: VT_LIST_BOOL } } }
    attr { key: "floats" value { list { f: 1.5 f: -inf f: 1e-3 val_type: VT_LIST_FLOAT } } }
    attr { key: "function" value { func { name: "f" attr { key: "k" value { i: -9 } } } } }
    attr { key: "weight" value { t { desc { dtype: DT_INT8 layout: "ND" shape { dim: 3 } } data: "\001\002\003" } } }
    attr { key: "type" value { dt: DT_FLOAT16 } }
    output_desc {
      dtype: DT_FLOAT16 layout: "NC1HWC0" shape { dim: [2, 1, 4, 4, 16] }
      attr { key: "value_range" value { list_list_int { list_list_i { list_i: 0 list_i: 255 } list_list_i { } } } }
      attr { key: "shape_range" value { list_list_int { list_list_i { list_i: 1 list_i: -1 } } } }
      attr { key: "origin_shape" value { list { i: 2 i: 4 i: 4 i: 3 val_type: VT_LIST_INT } } }
      attr { key: "origin_format" value { s: "NHWC" } }
      attr { key: "_datadump_origin_name" value { s: "" } }
      attr { key: "_fusion_origin_name" value { s: "a" } }
      attr { key: "_fusion_origin_output_index" value { i: 2 } }
    }
  }
  op { name: "inner_Node_Output" type: "NetOutput" input: "arg:0" input: "\346\212\225" "\345\275\261/Mul:0" id: 2
       input_desc { } input_desc { attr { key: "_parent_node_index" value { i: 2 } } } }
>
"""


def ge_onnx_text(model: dict[str, Any]) -> str:
    """A model in atc's JSON as GE writes it in ONNX's text: everything it knows is an attribute of a node."""
    (graph,) = model["graph"]
    lines = ["ir_version: 5", 'producer_name: "graphengine"', "graph {", f'  name: "{graph["name"]}"']
    for op in graph["op"]:
        lines += ["  node {", *(f'    input: "{entry}"' for entry in op.get("input", ()))]
        lines += [f'    output: "{op["name"]}:{k}"' for k in range(len(op.get("output_desc", ())))]
        lines += [f'    name: "{op["name"]}"', f'    op_type: "ge:{op["type"]}"']
        lines += _onnx_attribute("id", {"i": op.get("id", 0)})
        lines += _onnx_attribute("stream_id", {"i": op.get("stream_id", 0)})
        for attribute in op["attr"]:
            lines += _onnx_attribute(attribute["key"], attribute["value"])
        for side in ("input_desc", "output_desc"):
            for k, desc in enumerate(op.get(side, ())):
                lines += _onnx_attribute(f"{side}_dtype:{k}", {"s": desc["dtype"]})
                lines += _onnx_attribute(f"{side}_shape:{k}", {"list": {"i": desc["shape"].get("dim", [])}})
                lines += _onnx_attribute(f"{side}_layout:{k}", {"s": desc["layout"]})
                for attribute in desc["attr"]:
                    lines += _onnx_attribute(f"{side}_attr_{attribute['key']}:{k}", attribute["value"])
        lines += ["  }"]
    return "\n".join([*lines, "}", ""])


def _onnx_attribute(name: str, value: dict[str, Any]) -> list[str]:
    ((kind, content),) = value.items()
    if kind == "list":
        strings, ints = content.get("s", []), content.get("i", [])
        words = [*(f'strings: "{word}"' for word in strings), *(f"ints: {number}" for number in ints)]
        words.append("type: STRINGS" if strings or content.get("val_type") == "VT_LIST_STRING" else "type: INTS")
    elif kind == "s":
        words = [f's: "{content}"', "type: STRING"]
    else:
        words = [f"i: {int(content)}", "type: INT"]
    return ["    attribute {", f'      name: "{name}"', *(f"      {word}" for word in words), "    }"]
