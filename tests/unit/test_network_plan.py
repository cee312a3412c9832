"""Which tensor of a device's network is which of the original one, on graphs made by hand."""

import pytest
from network_data import GRAPH, desc, model, operator

from ulpscope.align.network.planning import (
    network_plan_json,
    network_plan_lines,
    plan_network,
    plan_other_compilation,
    plan_same_network,
)
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.records.graphs import GraphModel, NetworkPlan, PlannedOperator, Relation, TensorDesc


def planned(plan: NetworkPlan, name: str) -> PlannedOperator:
    return next(each for group in plan.groups for each in group.members if each.operator.name == name)


def outputs(plan: NetworkPlan, name: str) -> list[list[str]]:
    return [[str(original) for original in tensor.candidates] for tensor in planned(plan, name).outputs]


def inputs(plan: NetworkPlan, name: str) -> list[list[str]]:
    return [[str(original) for original in tensor.candidates] for tensor in planned(plan, name).inputs]


def test_an_operator_without_the_attribute_is_its_own_original() -> None:
    plan = plan_network(model(operator("a"), operator("b", inputs=("a:0",), outputs=(desc(), desc("other", 3)))))

    assert outputs(plan, "a") == [["a:output:0"]]
    assert outputs(plan, "b") == [["b:output:0"], ["other:output:3"]]
    assert inputs(plan, "b") == [["a:output:0"]]
    assert [group.relation for group in plan.groups] == [Relation.ONE_TO_ONE] * 2


def test_a_fused_operator_has_only_the_originals_that_its_outputs_name() -> None:
    fused = operator("convrelu", originals=("conv", "relu"), outputs=(desc("relu", 0), desc()))
    plan = plan_network(model(fused))

    assert outputs(plan, "convrelu") == [["relu:output:0"], []]
    assert plan.groups[0].relation is Relation.FUSED
    assert plan.groups[0].originals == "conv,relu"


def test_a_renamed_operator_is_its_only_original() -> None:
    plan = plan_network(model(operator("a_new", originals=("a",), outputs=(desc(), desc()))))

    assert outputs(plan, "a_new") == [["a:output:0"], ["a:output:1"]]


def test_operators_that_stand_for_one_original_are_a_group_with_an_inner_one() -> None:
    first = operator("bn_reduce", originals=("bn",), multiple=True, outputs=(desc(""),))
    second = operator("bn_update", originals=("bn",), multiple=True, inputs=("bn_reduce:0",), outputs=(desc("bn", 0),))
    plan = plan_network(model(operator("x"), first, second))

    group = plan.groups[1]
    assert (group.index, group.relation, group.names) == (1, Relation.SPLIT, "bn_reduce,bn_update")
    assert [member.inner for member in group.members] == [True, False]
    assert inputs(plan, "bn_update") == [[]]


def test_what_inserted_operators_pass_on_is_compared_with_what_went_into_them() -> None:
    plan = plan_network(
        model(
            operator("x"),
            operator("cast", "Cast", inputs=("x:0",), originals=()),
            operator("trans", "TransData", inputs=("cast:0",), originals=()),
            operator("y", inputs=("trans:0",)),
        )
    )

    assert outputs(plan, "trans") == [["x:output:0"]]
    assert inputs(plan, "y") == [["x:output:0"]]
    assert planned(plan, "trans").inserted
    assert plan.groups[2].originals == "*"


def test_a_cast_of_the_original_network_is_itself_before_it_is_its_input() -> None:
    plan = plan_network(
        model(operator("x"), operator("cast", "Cast", inputs=("x:0",)), operator("y", inputs=("cast:0",)))
    )

    assert inputs(plan, "y") == [["cast:output:0", "x:output:0"]]


def test_a_circle_of_casts_ends() -> None:
    plan = plan_network(
        model(
            operator("a", "Cast", inputs=("b:0",), originals=()), operator("b", "Cast", inputs=("a:0",), originals=())
        )
    )

    assert outputs(plan, "a") == [[]]


def test_a_long_chain_of_casts_is_followed_to_its_beginning() -> None:
    casts = [operator(f"c{n}", "Cast", inputs=(f"c{n - 1}:0" if n else "x:0",), originals=()) for n in range(20_000)]
    plan = plan_network(model(operator("x"), *reversed(casts)))

    assert outputs(plan, "c19999") == [["x:output:0"]]


def test_inputs_that_are_not_connected_are_left_out() -> None:
    plan = plan_network(model(operator("a"), operator("b"), operator("c", inputs=(None, "a:0", None, "b:0"))))

    assert inputs(plan, "c") == [["a:output:0"], ["b:output:0"]]


def test_operators_between_quantising_and_dequantising_are_not_compared() -> None:
    plan = plan_network(
        model(
            operator("x", number=0),
            operator("x/AscendQuant", "AscendQuant", inputs=("x:0",), outputs=(desc(dtype="int8"),), number=1),
            operator("conv", "Conv2D", inputs=("x/AscendQuant:0",), outputs=(desc(dtype="int32"),), number=2),
            operator(
                "c/AscendDequant", "AscendDequant", inputs=("conv:0",), outputs=(desc(dtype="float16"),), number=3
            ),
            operator("relu", inputs=("c/AscendDequant:0",), number=4),
        )
    )

    quantised = [member.operator.name for group in plan.groups for member in group.members if member.quantised]
    assert quantised == ["conv"]


def test_a_name_alone_does_not_quantise() -> None:
    plan = plan_network(
        model(
            operator("x/AscendQuant", outputs=(desc(dtype="float16"),), number=0),
            operator("y", inputs=("x/AscendQuant:0",), number=1),
        )
    )

    assert not any(member.quantised for group in plan.groups for member in group.members)


def test_a_quantised_model_leads_to_the_original_through_its_own_graph() -> None:
    amct = model(operator("conv_quant", originals=("conv",), outputs=(desc("conv", 0),)))
    plan = plan_network(
        model(operator("npu_conv", originals=("conv_quant",), outputs=(desc("conv_quant", 0),))), quantised=amct
    )

    assert outputs(plan, "npu_conv") == [["conv:output:0"]]
    assert plan.groups[0].originals == "conv"


def test_two_compilations_meet_at_their_originals() -> None:
    fused = model(
        operator("w", "Variable"),
        operator("convrelu", inputs=("w:0",), originals=("conv", "relu"), outputs=(desc("relu", 0),)),
    )
    plain = model(
        operator("w", "Variable"),
        operator("conv_1", inputs=("w:0",), originals=("conv",), outputs=(desc("conv", 0),)),
        operator("relu_1", inputs=("conv_1:0",), originals=("relu",), outputs=(desc("sum", 0), desc("relu", 0))),
    )
    plan = plan_other_compilation(fused, plain)

    assert outputs(plan, "convrelu") == [["relu_1:output:1"]]
    assert inputs(plan, "convrelu") == [["w:output:0", "conv_1:input:0"]]
    assert plan.groups[1].originals == "conv_1,relu_1"


def test_the_same_network_is_paired_by_names() -> None:
    plan = plan_same_network(model(operator("a"), operator("cast", "Cast", inputs=("a:0",), originals=())))

    assert outputs(plan, "cast") == [["cast:output:0"]]
    assert inputs(plan, "cast") == [["cast:input:0"]]
    assert planned(plan, "cast").inputs[0].source == ("a", 0)


def test_operators_of_one_l1_fusion_are_a_group() -> None:
    plan = plan_network(model(operator("a", l1_fusion="3"), operator("b"), operator("c", l1_fusion="3")))

    assert [group.names for group in plan.groups] == ["a,c", "b"]
    assert plan.groups[0].relation is Relation.L1_FUSION


def test_outputs_that_the_graph_does_not_describe() -> None:
    plan = plan_network(model(operator("a", outputs=()), operator("b", inputs=("a:1",))))

    assert inputs(plan, "b") == [["a:output:1"]]


def test_tensors_cross_the_borders_of_subgraphs() -> None:
    from dataclasses import replace

    from ulpscope.records.graphs import Graph, GraphFormat

    inside = [
        replace(operator("d", "Data"), graph="sub", attributes={"_parent_node_index": 0}),
        replace(operator("inner", inputs=("d:0",)), graph="sub"),
        replace(operator("end", "NetOutput", inputs=("inner:0",), outputs=()), graph="sub"),
    ]
    outside = [
        operator("x"),
        replace(operator("call", "PartitionedCall", inputs=("x:0",)), subgraphs=("sub",)),
        operator("y", inputs=("call:0",)),
    ]
    whole = GraphModel("net", GraphFormat.GE_TEXT, (Graph("net", tuple(outside)), Graph("sub", tuple(inside))))
    plan = plan_network(whole)

    assert inputs(plan, "inner") == [["x:output:0"]]
    assert inputs(plan, "y") == [["inner:output:0"]]


def test_a_plan_prints_itself() -> None:
    plan = plan_network(open_graph(GRAPH))
    lines = network_plan_lines(plan)

    assert "  15 Relu fc1/Relu [one to one]" in lines
    assert lines[lines.index("  15 Relu fc1/Relu [one to one]") + 1] == "      input:0 <- fc1/BiasAdd:output:0"
    groups = network_plan_json(plan)["groups"]
    assert groups[15]["operators"][0]["outputs"] == [["fc1/Relu:output:0"]]


@pytest.mark.parametrize("shape", [None, (2, 3)])
def test_what_the_graph_says_of_an_original_goes_with_it(shape: tuple[int, ...] | None) -> None:
    described = TensorDesc(dtype="float16", origin_layout="NHWC", origin_shape=shape)
    original = planned(plan_network(model(operator("a", outputs=(described,)))), "a").outputs[0].candidates[0]

    assert (original.layout, original.shape) == ("NHWC", shape)
