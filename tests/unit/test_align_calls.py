"""Which call is which, within one step, from calls written by hand."""

from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pytest

from ulpscope.align.calls import StepCalls, canonical, plan_step, step_calls

LINEAR, GELU, ADD = "torch.nn.functional.linear", "torch.nn.functional.gelu", "torch.Tensor.add"
MATMUL, SOFTMAX, TO = "torch.matmul", "torch.softmax", "torch.Tensor.to"
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"


@dataclass(frozen=True)
class Node:
    """One call with a label by which tests speak of it."""

    label: str
    op: str
    inner: tuple["Node", ...] = ()
    kind: str = "api"
    module: str | None = None
    of: str | None = None
    """Of a backward: the label of its forward."""
    recompute: bool = False
    outputs: str | None = "2,3"
    inputs: str | None = "2,3"
    arguments: str | None = None
    generator: str | None = None
    mapped: bool = True
    makers: tuple[str | None, ...] = ()
    """Operations that made its operands."""
    reads: tuple[str, ...] = ()
    """Labels of the calls that made its operands."""
    given: str | None = None
    """The name that a script gave."""
    grad_inputs: str | None = None
    """Shapes of the gradients that a backward gave."""


def module(path: str, *inner: Node, **changes: Any) -> Node:
    return replace(Node(path, "Block", inner, kind="module", module=path), **changes)


def backward(of: str, op: str, *inner: Node, **changes: Any) -> Node:
    return replace(Node(f"{of}'", op, inner, kind="backward", of=of), **changes)


@dataclass(frozen=True)
class Step:
    calls: StepCalls
    labels: list[str]


def step(*nodes: Node, first: int) -> Step:
    """Columns of these calls; ids begin anywhere, so that none is taken for a row."""
    listed: list[tuple[Node, int | None]] = []

    def add(node: Node, parent: int | None) -> None:
        number = first + len(listed)
        listed.append((node, parent))
        for child in node.inner:
            add(child, number)

    for node in nodes:
        add(node, None)
    ids = {node.label: first + row for row, (node, _) in enumerate(listed)}
    only = [node for node, _ in listed]

    def shapes(role: str) -> dict[int, str]:
        found = ((ids[node.label], getattr(node, f"{role}s", None)) for node in only)
        return {call: text for call, text in found if text is not None}

    calls = StepCalls(
        id=list(ids.values()),
        kind=[node.kind for node in only],
        op=[node.op for node in only],
        module=[node.module for node in only],
        parent=[parent for _, parent in listed],
        forward=[None if node.of is None else ids[node.of] for node in only],
        recompute=[node.recompute for node in only],
        arguments=[node.arguments for node in only],
        generator=[node.generator for node in only],
        mapped=[node.mapped for node in only],
        given=[node.given for node in only],
        shapes=shapes,
        made_by=lambda: {ids[node.label]: node.makers for node in only},
        origins=lambda: {ids[node.label]: tuple((ids[maker], "output.0") for maker in node.reads) for node in only},
        senders=lambda asked: {
            ids[node.label]: [[(ids[maker], "output.0")] for maker in node.reads]
            for node in only
            if ids[node.label] in asked
        },
        readers=lambda asked: {
            call: {ids[node.label] for node in only if call in [ids[maker] for maker in node.reads]} for call in asked
        },
    )
    return Step(calls, list(ids))


def paired(reference: list[Node], target: list[Node]) -> dict[str, str]:
    """For each label of the target the one of its partner."""
    return _planned(reference, target)[0]


def replaced(reference: list[Node], target: list[Node]) -> set[tuple[str, str]]:
    return _planned(reference, target)[1]


def _planned(reference: list[Node], target: list[Node]) -> tuple[dict[str, str], set[tuple[str, str]]]:
    sides = step(*reference, first=100), step(*target, first=500)
    plan = plan_step(sides[0].calls, sides[1].calls)
    assert len({r for r, _ in plan.pairs}) == len({t for _, t in plan.pairs}) == len(plan.pairs)
    found = {sides[1].labels[t]: sides[0].labels[r] for r, t in plan.pairs}
    return found, {(sides[0].labels[r], sides[1].labels[t]) for r, t in plan.replaced}


def same(*labels: str) -> dict[str, str]:
    return {label: label for label in labels}


def test_equal_steps_are_paired_one_by_one() -> None:
    nodes = [module("m", Node("up", LINEAR), Node("act", GELU)), backward("act", GELU), backward("up", LINEAR)]
    assert paired(nodes, nodes) == same("m", "up", "act", "act'", "up'")


def test_an_extra_cast_leaves_the_rest_matched() -> None:
    reference = [module("m", Node("up", LINEAR), Node("act", GELU), Node("down", LINEAR))]
    target = [module("m", Node("up", LINEAR), Node("cast", TO), Node("act", GELU), Node("down", LINEAR))]
    assert paired(reference, target) == same("m", "up", "act", "down")
    assert paired(target, reference) == same("m", "up", "act", "down")
    assert replaced(reference, target) == set()


def test_of_equal_calls_in_a_row_the_one_is_left_out_that_reads_something_else() -> None:
    rewards, ends = Node("rewards", "at", makers=("randn",)), Node("ends", "at", makers=("float",))
    values = Node("values", "at", makers=("linear",))
    reference, target = [rewards, ends, values, Node("sum", ADD)], [rewards, values, Node("sum", ADD)]
    assert paired(reference, target) == same("rewards", "values", "sum")
    assert paired(target, reference) == same("rewards", "values", "sum")


def test_operands_that_come_through_a_cast_in_one_run_are_read_by_the_same_call() -> None:
    reference = [Node("up", LINEAR, makers=(None,)), Node("act", GELU, makers=("linear",)), Node("more", GELU)]
    cast = Node("cast", TO, makers=("linear",))
    target = [Node("up", LINEAR, makers=(None,)), cast, Node("act", GELU, makers=("to",)), Node("more", GELU)]
    assert paired(reference, target) == same("up", "act", "more")


def test_another_attention_block_leaves_its_neighbours_matched() -> None:
    scores = Node("scores", MATMUL, outputs="2,3,3"), Node("weights", SOFTMAX, outputs="2,3,3"), Node("mix", MATMUL)
    reference = [module("m", Node("qkv", LINEAR), *scores, Node("out", LINEAR), Node("residual", ADD))]
    fused = Node("fused", ATTENTION, inputs="2,3;2,3;2,3")
    target = [module("m", Node("qkv", LINEAR), fused, Node("out", LINEAR), Node("residual", ADD))]
    assert paired(reference, target) == same("m", "qkv", "out", "residual")


def test_a_composite_call_is_opened_where_only_its_contents_match() -> None:
    inner = Node("scores", MATMUL, outputs="3,3"), Node("weights", SOFTMAX, outputs="3,3"), Node("mix", MATMUL)
    wrapped = Node("attend", "mylib.attention", inner, inputs="2,3;2,3;2,3")
    reference, target = [module("m", wrapped)], [module("m", *inner)]
    assert paired(reference, target) == same("m", "scores", "weights", "mix")
    assert paired(target, reference) == same("m", "scores", "weights", "mix")


def test_a_replaced_operation_is_paired_and_marked() -> None:
    reference = [module("m", Node("up", LINEAR), Node("act", GELU), Node("down", LINEAR))]
    target = [module("m", Node("up", LINEAR), Node("fast", "mylib.fast_gelu"), Node("down", LINEAR))]
    assert paired(reference, target) == same("m", "up", "down") | {"fast": "act"}
    assert replaced(reference, target) == {("act", "fast")}


@pytest.mark.parametrize("changes", [{"outputs": "2,6"}, {"inputs": "2,3;2,3"}, {"outputs": None}])
def test_operations_of_other_shapes_do_not_replace_each_other(changes: dict[str, Any]) -> None:
    reference = [module("m", Node("up", LINEAR), Node("act", GELU), Node("down", LINEAR))]
    other = replace(Node("other", "mylib.other"), **changes)
    target = [module("m", Node("up", LINEAR), other, Node("down", LINEAR))]
    assert paired(reference, target) == same("m", "up", "down")


def test_another_namespace_is_the_same_operation() -> None:
    reference = [module("m", Node("up", LINEAR), Node("sum", "torch.add"), Node("down", LINEAR))]
    target = [
        module("m", Node("up", LINEAR), Node("sum", "torch.Tensor.__iadd__"), Node("x", TO), Node("down", LINEAR))
    ]
    assert paired(reference, target) == same("m", "up", "sum", "down")
    assert replaced(reference, target) == set()


def test_equal_operations_are_told_apart_by_their_arguments() -> None:
    first, second = Node("first", TO, arguments='{"a":1}'), Node("second", TO, arguments='{"a":2}')
    assert paired([module("m", first, second)], [module("m", second)]) == same("m", "second")
    assert paired([module("m", first, second)], [module("m", first)]) == same("m", "first")


def test_recomputed_calls_are_matched_as_what_they_repeat() -> None:
    inside = {"module": "m"}
    forward = module("m", Node("up", LINEAR, **inside), Node("act", GELU, **inside))
    again = [
        Node("up again", LINEAR, recompute=True, **inside),
        Node("act again", GELU, recompute=True, **inside),
    ]
    backwards = [backward("act", GELU), backward("up", LINEAR)]
    from_again = [replace(node, of=f"{node.of} again") for node in backwards]
    plain, checkpointed = [forward, *backwards], [forward, *again, *from_again]
    assert paired(plain, checkpointed) == same("m", "up", "act", "act'", "up'")
    assert paired(checkpointed, plain) == same("m", "up", "act", "act'", "up'")
    both = paired(checkpointed, [forward, Node("extra", TO), *again, *from_again])
    assert both == same("m", "up", "act", "up again", "act again", "act'", "up'")


def test_a_recomputation_repeats_the_call_of_the_same_number() -> None:
    inside = {"module": "m"}
    calls = step(
        Node("a", LINEAR, **inside),
        Node("b", LINEAR, **inside),
        Node("other", LINEAR, module="n"),
        Node("a again", LINEAR, recompute=True, **inside),
        Node("b again", LINEAR, recompute=True, **inside),
        Node("too many", LINEAR, recompute=True, **inside),
        first=7,
    )
    assert canonical(calls.calls) == {3: 0, 4: 1}


def test_a_hooks_extra_call_has_no_partner() -> None:
    hooked = module("m.a", Node("up", LINEAR), Node("hook", "torch.Tensor.mul"))
    reference = [module("m", module("m.a", Node("up", LINEAR)), module("m.b", Node("down", LINEAR)))]
    target = [module("m", hooked, module("m.b", Node("down", LINEAR)))]
    assert paired(reference, target) == same("m", "m.a", "up", "m.b", "down")


def test_optimizers_pair_whatever_runs_inside_of_them() -> None:
    loop = [Node(f"mul {number}", "torch.Tensor.mul_", outputs=str(number)) for number in range(3)]
    reference = [module("m"), Node("step", "AdamW", tuple(loop), kind="optimizer")]
    together = Node("all", "torch._foreach_mul_", outputs="0;1;2", inputs="0;1;2")
    target = [module("m"), Node("step", "AdamW", (together,), kind="optimizer"), Node("zero", "torch.zeros_like")]
    assert paired(reference, target) == same("m", "step")


def test_calls_inside_a_custom_backward_are_matched() -> None:
    inner = Node("scale", "torch.Tensor.mul"), Node("mask", "torch.where")
    forward = module("m", Node("custom", "mylib.Custom"))
    reference = [forward, backward("custom", "mylib.Custom", *inner)]
    target = [forward, backward("custom", "mylib.Custom", inner[0], Node("clamp", "torch.clamp"), inner[1])]
    assert paired(reference, target) == same("m", "custom", "custom'", "scale", "mask")


def test_a_module_called_as_a_function_gives_its_contents() -> None:
    norm = module("m.norm", Node("norm", "torch.nn.functional.layer_norm"), mapped=False)
    reference = [module("m", Node("up", LINEAR), norm, Node("down", LINEAR))]
    target = [module("m", Node("up", LINEAR), Node("norm", "torch.nn.functional.layer_norm"), Node("down", LINEAR))]
    assert paired(reference, target) == same("m", "up", "norm", "down")
    assert paired(target, reference) == same("m", "up", "norm", "down")


def test_a_wrapper_of_all_is_stepped_through() -> None:
    inner = module("m", Node("up", LINEAR))
    wrapped = module("ddp", inner, op="DistributedDataParallel", mapped=False)
    assert paired([inner], [wrapped]) == same("m", "up")


def test_backwards_are_matched_through_their_forwards_not_their_order() -> None:
    forward = module("m", Node("a", LINEAR), Node("b", LINEAR))
    reference = [forward, backward("b", LINEAR), backward("a", LINEAR)]
    target = [forward, Node("extra", TO), backward("a", LINEAR), backward("b", LINEAR)]
    assert paired(reference, target) == same("m", "a", "b", "a'", "b'")


def test_a_backward_without_a_partner_in_the_forward_has_none() -> None:
    reference = [module("m", Node("a", LINEAR)), backward("a", LINEAR)]
    target = [
        module("m", Node("extra", GELU), Node("a", LINEAR)),
        backward("a", LINEAR),
        backward("extra", GELU),
    ]
    assert paired(reference, target) == same("m", "a", "a'")


def test_pairs_stand_in_the_order_of_the_target() -> None:
    forward = module("m", Node("a", LINEAR), Node("b", GELU))
    reference = step(forward, backward("b", GELU), backward("a", LINEAR), first=0)
    target = step(forward, Node("x", TO), backward("a", LINEAR), backward("b", GELU), first=0)
    rows = [row for _, row in plan_step(reference.calls, target.calls).pairs]
    assert rows == sorted(rows)
    assert len(rows) == 5


def test_nothing_to_pair_is_no_error() -> None:
    assert paired([], [Node("a", LINEAR)]) == {}
    assert paired([Node("a", LINEAR)], [Node("b", GELU, outputs="9")]) == {}


def test_columns_come_in_the_references_names() -> None:
    columns = {
        "id": [4, 5],
        "kind": ["module", "api"],
        "op": ["Block", "mylib.gelu"],
        "name": ["net.blocks.0.0", "mylib.gelu.0"],
        "module": ["net.blocks.0", None],
        "parent": [None, 4],
        "forward": [None, None],
        "recompute": [False, False],
        "arguments": [None, "{}"],
        "generator": [None, None],
    }
    schema = {"parent": pl.Int64, "forward": pl.Int64, "arguments": pl.String, "generator": pl.String}
    calls = step_calls(
        pl.DataFrame(columns, schema_overrides=schema),
        modules={"net.blocks.0": "model.layers.0"},
        mapped={"net.blocks.0"},
        ops={"mylib.gelu": GELU},
        shapes=lambda role: {},
        made_by=dict,
        origins=dict,
        senders=lambda asked: {},
        readers=lambda asked: {},
    )
    assert calls.module == ["model.layers.0", None]
    assert calls.op == ["Block", GELU]
    assert calls.mapped == [True, True]
    assert calls.given == [None, None]
    other = step_calls(
        pl.DataFrame(columns, schema_overrides=schema),
        modules={},
        mapped=(),
        ops={},
        shapes=calls.shapes,
        made_by=dict,
        origins=dict,
        senders=lambda asked: {},
        readers=lambda asked: {},
    )
    assert other.mapped == [False, True]


def test_calls_that_read_the_same_are_paired_wherever_they_stand() -> None:
    norm = Node("norm", "torch.layer_norm")
    query, key, value = (
        module(name, Node(f"{name}.linear", LINEAR, reads=("norm",)), reads=("norm",)) for name in "qkv"
    )
    found = paired([norm, query, key, value], [norm, value, key, query])
    assert found == same("norm", "q", "k", "v", "q.linear", "k.linear", "v.linear")


def test_modules_that_both_runs_call_do_not_replace_each_other() -> None:
    norm, between = Node("norm", "torch.layer_norm"), Node("between", SOFTMAX, reads=("norm",))
    query, value = (module(name, Node(f"{name}.linear", LINEAR, reads=("norm",)), reads=("norm",)) for name in "qv")
    runs = [norm, query, between, value], [norm, value, between, query]
    assert paired(*runs) == same("norm", "q", "q.linear", "between", "v", "v.linear")
    assert not replaced(*runs)


def test_what_is_made_of_a_moved_call_moves_with_it() -> None:
    norm, other = Node("norm", "torch.layer_norm"), Node("other", SOFTMAX, reads=("norm",))
    ways = Node("up", LINEAR, reads=("norm",)), Node("act", GELU, reads=("up",))
    assert paired([norm, *ways, other], [norm, other, *ways]) == same("norm", "up", "act", "other")


def test_a_module_that_reads_what_another_call_made_is_not_paired() -> None:
    up, act = module("up", reads=("norm",)), module("act", reads=("up",))
    moved = module("act", reads=("norm",)), module("up", reads=("act",))
    norm = Node("norm", "torch.layer_norm")
    found = paired([norm, up, act], [norm, *moved])
    assert len(found) == 2
    assert found["norm"] == "norm"


def test_of_calls_that_read_the_same_none_is_paired_by_chance() -> None:
    norm, ones = Node("norm", "torch.layer_norm"), [Node(label, GELU, reads=("norm",)) for label in ("one", "two")]
    ways = [
        Node("up", LINEAR, reads=("norm",)),
        Node("soft", SOFTMAX, reads=("up",)),
        Node("sum", ADD, reads=("soft",)),
    ]
    assert paired([norm, *ones, *ways], [norm, *ways, *ones]) == same("norm", "up", "soft", "sum")


RELU, FUSED, BIAS = "tf.raw_ops.Relu", "tf.raw_ops._MklNativeFusedConv2D", "tf.raw_ops.BiasAddGrad"
CONVOLVED = (Node("conv", "tf.raw_ops.Conv2D"), Node("bias", "tf.raw_ops.BiasAdd"))


def test_an_op_that_a_run_computes_in_the_place_of_others_is_the_one_whose_name_it_bears() -> None:
    reference = [Node("fused", FUSED, given="conv1/Relu")]
    target = [*CONVOLVED, Node("relu", RELU, given="conv1/Relu")]
    assert paired(reference, target) == {"relu": "fused"}
    assert replaced(reference, target) == {("fused", "relu")}


def test_a_library_that_makes_more_results_computes_the_same_operation() -> None:
    plain = Node("plain", "tf.raw_ops.MaxPool", given="pool", outputs="2,3")
    native = Node("native", "tf.raw_ops._MklNativeMaxPool", given="pool", outputs="2,3;40")
    assert paired([native], [Node("cast", "tf.raw_ops.Cast"), plain]) == {"plain": "native"}
    assert replaced([native], [Node("cast", "tf.raw_ops.Cast"), plain]) == set()


def test_gradients_of_a_fused_op_and_of_its_parts_are_paired_by_their_names() -> None:
    summed = Node("summed", BIAS, given="gradients/bias")
    of_fused = backward("fused", FUSED, summed, label="of all")
    of_bias = backward("bias", "tf.raw_ops.BiasAdd", Node("sum", BIAS, given="gradients/bias"))
    target = [*CONVOLVED, Node("relu", RELU, given="conv1/Relu"), backward("relu", RELU), of_bias]
    found = paired([Node("fused", FUSED, given="conv1/Relu"), backward("fused", FUSED), of_fused], target)
    assert found["relu'"] == "fused'"
    assert found["sum"] == "summed"


def test_one_name_is_no_evidence_where_the_shapes_differ_or_two_calls_bear_it() -> None:
    one, other = Node("one", FUSED, given="x"), Node("other", RELU, given="x")
    cast = Node("cast", "tf.raw_ops.Cast")
    assert paired([one], [cast, replace(other, outputs="3,2")]) == {}
    assert paired([one], [cast, other, replace(other, label="again")]) == {}
