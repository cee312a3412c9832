"""What graphs alone tell: dangerous casts, and what two compilations did otherwise."""

import json
import re
from dataclasses import replace
from pathlib import Path

from ulpscope.diagnose.network_graphs import dangerous_casts, session_graph, similar_graphs
from ulpscope.records.enums import ExitCode
from ulpscope.records.graphs import Graph, GraphFormat, GraphModel, Input, Operator, Source, TensorDesc
from ulpscope.workflows.show.graph import check_casts, check_similarity, told_similarity

GRAPH = Path(__file__).parents[1] / "data/ascend/precision_data/npu/debug_0/graph/ge_proto_00000_Build.txt"


def operator(name: str, kind: str, reads: str, makes: str, **changes: object) -> Operator:
    """`reads` and `makes` are `dtype layout`."""
    descs = [TensorDesc(dtype=text.split()[0], layout=text.split()[1]) for text in (reads, makes)]
    whole = Operator(
        name=name,
        type=kind,
        graph="net",
        id=0,
        inputs=(Input(Source("before", 0), descs[0]),),
        outputs=(descs[1],),
        attributes={"_session_graph_id": "0_11"},
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def model(*operators: Operator) -> GraphModel:
    return GraphModel("net", GraphFormat.GE_TEXT, (Graph("net", operators),))


def test_a_cast_of_floats_to_int32_is_dangerous() -> None:
    casts = [
        operator("losing", "Cast", "float32 ND", "int32 ND"),
        operator("widening", "Cast", "int32 ND", "float32 ND"),
        operator("halving", "Cast", "float32 ND", "float16 ND"),
        operator("rounding", "Round", "float32 ND", "int32 ND"),
        operator("unconnected", "Cast", "float32 ND", "int32 ND", inputs=()),
    ]
    assert [cast.operator.name for cast in dangerous_casts(model(*casts))] == ["losing"]


def test_the_fixtures_cast_is_found() -> None:
    """As precision_tool 0.1.11 printed it for this graph."""
    result = check_casts([GRAPH])
    assert result.json()["casts"] == [
        {"operator": "global_step/Cast", "graph": "ge_default_20260101000000_11", "from": "float32", "to": "int32"}
    ]
    assert result.code is ExitCode.DIFFERENCE
    assert "global_step/Cast" in result.text()


def test_equal_graphs_are_similar() -> None:
    result = check_similarity([GRAPH], [GRAPH])
    (found,) = result.found
    assert result.code is ExitCode.OK
    assert "14 of 14 operators alike" in result.text(width=120)
    assert (found.session, found.agrees) == ("0_11", True)
    # 29 operators, of which 3 Cast, 7 TransData, 4 Variable and 1 NetOutput are passed over.
    assert found.compared == found.similar == 14


def test_another_type_or_layout_is_a_difference() -> None:
    reference = model(
        operator("a", "Relu", "float16 NZ", "float16 NZ"), operator("b", "Add", "float32 ND", "float32 ND")
    )
    target = model(
        operator("a", "Relu", "float16 NZ", "float32 NZ"), operator("b", "Add", "float32 NCHW", "float32 ND")
    )
    (found,) = similar_graphs(reference, target)
    assert (found.compared, found.similar, found.agrees) == (2, 0, False)
    places = {each.operators.reference.name: [tensor.place for tensor in each.tensors] for each in found.differences}
    assert places == {"a": ["output.0"], "b": ["input.0"]}
    result = told_similarity((found,))
    assert result.code is ExitCode.DIFFERENCE
    assert json.loads(json.dumps(result.json()))["graphs"][0]["differences"] == [
        {"operator": "a", "type": "Relu", "tensor": "output.0", "reference": "float16 NZ", "target": "float32 NZ"},
        {"operator": "b", "type": "Add", "tensor": "input.0", "reference": "float32 ND", "target": "float32 NCHW"},
    ]
    assert re.search(r"a +Relu +output\.0 +float16 NZ +float32 NZ", result.text())


def test_what_a_compiler_inserts_is_passed_over_and_what_is_missing_is_told() -> None:
    reference = model(
        operator("a", "Relu", "float16 ND", "float16 ND"), operator("c", "Cast", "float16 ND", "float32 ND")
    )
    target = model(operator("b", "Relu", "float16 ND", "float16 ND"))
    (found,) = similar_graphs(reference, target)
    assert (found.only_reference, found.only_target, found.compared) == (("a",), ("b",), 0)
    assert not found.agrees
    assert "only in the target\n  b" in told_similarity((found,)).text()


def test_a_tensor_that_one_side_lacks_is_a_difference() -> None:
    two = operator("a", "Add", "float16 ND", "float16 ND")
    more = replace(two, outputs=(*two.outputs, TensorDesc(dtype="float16", layout="ND")))
    (found,) = similar_graphs(model(two), model(more))
    (difference,) = found.differences
    assert [(tensor.place, tensor.descs.reference) for tensor in difference.tensors] == [("output.1", None)]


def test_graphs_of_other_sessions_are_not_compared() -> None:
    one = operator("a", "Relu", "float16 ND", "float16 ND")
    other = replace(one, attributes={"_session_graph_id": "0_21"})
    assert similar_graphs(model(one), model(other)) == ()
    assert told_similarity(()).code is ExitCode.NOTHING
    assert session_graph(Graph("net", (replace(one, attributes={}),))) is None
