"""An operator graph: asked, followed over borders, cut out, laid out."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.graph_files import CALLS, NETWORK

from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.graph.layout import GAP, Layout, lay_out
from ulpscope.graph.query import (
    OperatorFilter,
    borders,
    cut_out,
    edges,
    find_operators,
    made_at,
    match_operators,
    nearest_names,
    type_counts,
    wiring,
)
from ulpscope.records.graphs import Edge, Graph, GraphFormat, GraphModel, Input, Operator, Source


@pytest.fixture
def network() -> GraphModel:
    return open_graph(NETWORK)


def chain(*names: str, kinds: dict[str, str] | None = None) -> Graph:
    """Operators that each read the one before."""
    operators = [
        Operator(
            name=name,
            type=(kinds or {}).get(name, "Relu"),
            graph="chain",
            id=place,
            inputs=(Input(Source(names[place - 1], 0)),) if place else (),
        )
        for place, name in enumerate(names)
    ]
    return Graph("chain", tuple(operators))


def names(operators: object) -> list[str]:
    return [operator.name for operator in operators]  # type: ignore[attr-defined]


def test_types_are_counted(network: GraphModel) -> None:
    counts = type_counts(network)
    assert counts[:4] == [("TransData", 7), ("Variable", 4), ("Cast", 3), ("Add", 2)]
    assert sum(count for _, count in counts) == 29


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (OperatorFilter(type="MatMul"), ["fc1/MatMul", "fc2/MatMul"]),
        (OperatorFilter(type="matmul", name="FC2"), ["fc2/MatMul"]),
        (OperatorFilter(name="fc?/MatMul"), ["fc1/MatMul", "fc2/MatMul"]),
        (OperatorFilter(name="*relu", kernel="te_relu"), ["fc1/Relu"]),
        (OperatorFilter(fusion_pass="BatchnormFusion"), ["bn/FusedBatchNormV3_Reduce", "bn/FusedBatchNormV3_Update"]),
        (OperatorFilter(fusion_pass="Tbe"), ["conv1/Conv2Dconv1/BiasAddconv1/Relu"]),
        (OperatorFilter(name="fc", graph="other"), []),
        (OperatorFilter(type="Mat", fusion_pass="Tbe"), []),
    ],
)
def test_filters_are_all_to_be_met(network: GraphModel, wanted: OperatorFilter, found: list[str]) -> None:
    assert names(match_operators(network, wanted)) == found


def test_a_filter_tells_its_options() -> None:
    assert str(OperatorFilter(name="a", fusion_pass="b")) == "--name a --pass b"
    assert not OperatorFilter()
    assert OperatorFilter(name="")


def test_operators_by_name(network: GraphModel) -> None:
    assert names(find_operators(network, "fc1/Relu").operators) == ["fc1/Relu"]
    assert names(find_operators(network, "fc1_Relu").operators) == ["fc1/Relu"]
    assert names(find_operators(network, "conv1/Conv2Dconv1/BiasAddconv1_Relu").operators)
    assert names(find_operators(network, "pool1").operators) == ["pool1/MaxPool"]
    several = find_operators(network, "Relu")
    assert several.operators == ()
    assert names(several.candidates) == ["conv1/Conv2Dconv1/BiasAddconv1/Relu", "fc1/Relu"]
    assert find_operators(network, "nothing").candidates == ()
    assert nearest_names(network, "fc1/Relo")[0] == "fc1/Relu"


def test_an_exact_name_goes_before_one_that_files_write_alike() -> None:
    model = GraphModel("m", GraphFormat.ONNX, (chain("a/b", "a_b", "a.b"),))
    assert names(find_operators(model, "a_b").operators) == ["a_b"]
    assert names(find_operators(model, "a b").operators) == ["a/b", "a_b", "a.b"]


def test_readers_and_followers(network: GraphModel) -> None:
    wires = wiring(network.graphs[0])
    assert wires.readers["fc1/MatMul"] == (
        Edge("fc1/MatMul", 0, "fc1/Relu", 0),
        Edge("fc1/MatMul", 0, "mask/Greater", 0),
    )
    assert wires.followers == {"trans_Cast_0": ("ge_default_Node_Output",)}


def test_tensors_are_followed_over_borders(tmp_path: Path) -> None:
    path = tmp_path / "calls.txt"
    path.write_text(CALLS, encoding="utf-8")
    known = borders(open_graph(path))
    outside = made_at(known, "inner", Source("arg", 0))
    assert (outside.graph, outside.source) == ("root", Source("x", 0))
    inside = made_at(known, "root", Source("call", 2))
    assert (inside.graph, inside.source) == ("inner", Source("投影/Mul", 0))
    # Its first output is the argument itself: out of the sub-graph again.
    through = made_at(known, "root", Source("call", 0))
    assert (through.graph, through.source) == ("root", Source("x", 0))
    assert made_at(known, "root", Source("call", 1)).source == Source("call", 1)


def test_a_sub_graph_that_runs_itself_is_left() -> None:
    data = Operator("arg", "Data", "loop", 0, attributes={"_parent_node_index": 0})
    call = Operator("call", "PartitionedCall", "loop", 1, inputs=(Input(Source("arg", 0)),), subgraphs=("loop",))
    known = borders(GraphModel("m", GraphFormat.GE_TEXT, (Graph("loop", (data, call)),)))
    assert made_at(known, "loop", Source("arg", 0)).source == Source("arg", 0)


FUNCTION = """
node {{ name: "x" op: "Placeholder" }}
node {{ name: "call" op: "{kind}" input: "x" input: "x:1" attr {{ key: "f" value {{ func {{ name: "double" }} }} }} }}
{more}
library {{ function {{
  signature {{
    name: "double" input_arg {{ name: "a" }} input_arg {{ name: "b" type: DT_FLOAT }} output_arg {{ name: "y" }}
  }}
  node_def {{ name: "sum" op: "AddV2" input: "a" input: "b" }}
  ret {{ key: "y" value: "sum:z:0" }}
}} }}
"""


def function(tmp_path: Path, kind: str, more: str = "") -> GraphModel:
    path = tmp_path / "function.pbtxt"
    path.write_text(FUNCTION.format(kind=kind, more=more), encoding="utf-8")
    return open_graph(path)


def test_tensors_are_followed_into_functions_and_out(tmp_path: Path) -> None:
    model = function(tmp_path, "StatefulPartitionedCall")
    known, (_, double) = borders(model), model.graphs
    assert str(made_at(known, "double", Source("b", 0))) == "x:1 of "
    assert str(made_at(known, "", Source("call", 0))) == "sum:0 of double"
    assert [(each.name, each.type) for each in double.operators] == [
        ("a", "_Arg"), ("b", "_Arg"), ("sum", "AddV2"), ("y_RetVal", "_Retval"),
    ]  # fmt: skip
    assert {(edge.producer, edge.consumer) for edge in edges(double)} == {
        ("a", "sum"), ("b", "sum"), ("sum", "y_RetVal"),
    }  # fmt: skip


def test_a_function_of_several_callers_or_of_a_loop_has_arguments_of_its_own(tmp_path: Path) -> None:
    other = (
        'node { name: "again" op: "PartitionedCall" input: "x" attr { key: "f" value { func { name: "double" } } } }'
    )
    for model in (function(tmp_path, "PartitionedCall", other), function(tmp_path, "StatelessWhile")):
        assert made_at(borders(model), "double", Source("b", 0)).source == Source("b", 0)


def test_a_cut_reaches_both_ways(network: GraphModel) -> None:
    near = cut_out(network.graphs[0], "fc1/MatMul", depth=1)
    assert set(names(near.operators)) == {
        "fc1/MatMul", "trans_TransData_4", "trans_TransData_5", "fc1/Relu", "mask/Greater",
    }  # fmt: skip
    assert {(edge.producer, edge.consumer) for edge in near.edges} == {
        ("trans_TransData_4", "fc1/MatMul"),
        ("trans_TransData_5", "fc1/MatMul"),
        ("fc1/MatMul", "fc1/Relu"),
        ("fc1/MatMul", "mask/Greater"),
    }
    assert names(cut_out(network.graphs[0], "fc1/MatMul", depth=0).operators) == ["fc1/MatMul"]


def test_a_cut_does_not_pass_what_joins_everything() -> None:
    kinds = {"c": "NetOutput", "x": "AtomicAddrClean"}
    graph = chain("a", "b", "c", "d", "x", "y", kinds=kinds)
    assert names(cut_out(graph, "a", depth=9).operators) == ["a", "b", "c"]
    assert names(cut_out(graph, "y", depth=9).operators) == ["x", "y"]
    assert names(cut_out(graph, "c", depth=1).operators) == ["b", "c", "d"]


def check_drawing(layout: Layout, arcs: list[tuple[str, str]]) -> None:
    """Boxes do not overlap, and lie inside; arcs begin and end at their boxes."""
    boxes = list(layout.boxes.values())
    for place, box in enumerate(boxes):
        assert box.x >= 0
        assert box.x + box.width <= layout.width
        assert box.y >= 0
        assert box.y + box.height <= layout.height
        for other in boxes[place + 1 :]:
            beside = box.x + box.width <= other.x + 1e-6 or other.x + other.width <= box.x + 1e-6
            assert beside or box.y + box.height <= other.y or other.y + other.height <= box.y
    for (producer, consumer), route in zip(arcs, layout.routes, strict=True):
        for name, (x, y) in ((producer, route[0]), (consumer, route[-1])):
            box = layout.boxes[name]
            assert x == box.x + box.width / 2
            assert y in (box.y, box.y + box.height)


def test_what_reads_lies_below() -> None:
    arcs = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")]
    layout = lay_out(dict.fromkeys("abcd", (100.0, 30.0)), arcs)
    check_drawing(layout, arcs)
    for producer, consumer in arcs:
        assert layout.boxes[producer].y < layout.boxes[consumer].y
    for route in layout.routes:
        assert all(upper[1] <= lower[1] for upper, lower in pairwise(route))


def test_a_long_arc_passes_beside_the_boxes_on_its_way() -> None:
    arcs = [("a", "b"), ("b", "c"), ("a", "c")]
    layout = lay_out(dict.fromkeys("abc", (100.0, 30.0)), arcs)
    box, bend = layout.boxes["b"], layout.routes[2][1]
    assert box.y == bend[1]
    assert not box.x <= bend[0] <= box.x + box.width


def test_weights_lie_just_above_their_reader() -> None:
    arcs = [("a", "b"), ("b", "c"), ("c", "d"), ("weight", "cast"), ("cast", "d")]
    layout = lay_out(dict.fromkeys(["a", "b", "c", "d", "weight", "cast"], (50.0, 20.0)), arcs)
    assert layout.boxes["cast"].y == layout.boxes["c"].y
    assert layout.boxes["weight"].y == layout.boxes["b"].y


def test_circles_and_loops_are_drawn_too() -> None:
    arcs = [("a", "b"), ("b", "c"), ("c", "a"), ("b", "b")]
    check_drawing(lay_out(dict.fromkeys("abc", (40.0, 20.0)), arcs), arcs)


def test_nothing_and_one() -> None:
    assert lay_out({}, []).routes == ()
    assert lay_out({"a": (10.0, 10.0)}, []).boxes["a"].x == GAP


@pytest.mark.parametrize("seed", range(5))
def test_any_graph_is_drawn_without_overlaps(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [f"n{number}" for number in range(30)]
    arcs = [(chance.choice(nodes), chance.choice(nodes)) for _ in range(50)]
    sizes = {name: (chance.uniform(20, 200), chance.uniform(20, 60)) for name in nodes}
    check_drawing(lay_out(sizes, arcs), arcs)


def test_a_constant_that_everybody_reads_is_drawn_without_bends() -> None:
    chain_arcs = [(f"n{number}", f"n{number + 1}") for number in range(1000)]
    arcs = [*chain_arcs, *(("n0", consumer) for _, consumer in chain_arcs)]
    layout = lay_out({f"n{number}": (10.0, 10.0) for number in range(1001)}, arcs)
    assert {len(route) for route in layout.routes} == {2}


def test_a_chain_of_thousands_is_no_recursion() -> None:
    arcs = [(f"n{number}", f"n{number + 1}") for number in range(5000)]
    layout = lay_out({f"n{number}": (10.0, 10.0) for number in range(5001)}, arcs)
    assert layout.boxes["n5000"].y > layout.boxes["n0"].y
