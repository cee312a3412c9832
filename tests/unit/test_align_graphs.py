"""Which call is which where one run executes graphs: what they wrap, fuse, leave out and add up, written by hand."""

from tests.unit.test_align_calls import Node, backward, module, paired

CONV, BIAS, RELU = "tf.raw_ops.Conv2D", "tf.raw_ops.BiasAdd", "tf.raw_ops.Relu"
ADD, CAST, MUL = "tf.raw_ops.AddN", "tf.raw_ops.Cast", "tf.raw_ops.Mul"
FUSED = Node(
    "fused", "tf.raw_ops._MklNativeFusedConv2D", arguments='{"kwargs":{"epsilon":0.0,"fused_ops":["BiasAdd","Relu"]}}'
)


def compiled(name: str, *inner: Node) -> Node:
    return Node(name, f"tf.function.{name}", inner, kind="compiled")


def test_calls_inside_of_a_compiled_function_are_those_that_the_other_run_makes_in_its_place() -> None:
    layers = module("model", Node("relu", RELU)), Node("product", MUL)
    found = paired([compiled("step", *layers)], list(layers))
    assert found == {"model": "model", "relu": "relu", "product": "product"}


def test_functions_that_compile_other_parts_of_a_step_are_opened() -> None:
    model, product = module("model", Node("relu", RELU)), Node("product", MUL)
    found = paired([compiled("step", model, product)], [compiled("forward", model), product])
    assert found == {"model": "model", "relu": "relu", "product": "product"}


def test_a_function_that_both_runs_compile_stays_one_call() -> None:
    step = compiled("step", Node("relu", RELU))
    assert paired([step], [step]) == {"step": "step", "relu": "relu"}


def test_a_fused_operation_is_the_last_of_its_parts() -> None:
    parts = [Node("convolution", CONV), Node("bias", BIAS), Node("relu", RELU)]
    assert paired(parts, [FUSED]) == {"fused": "relu"}
    assert paired([FUSED, Node("after", MUL)], [*parts, Node("after", MUL)]) == {"relu": "fused", "after": "after"}


def test_of_equal_calls_the_one_of_which_nothing_is_made_is_the_one_too_many() -> None:
    def cells(*numbers: int) -> list[Node]:
        return [Node(f"cell{number}", "Cell", kind="module", module="lstm.cell") for number in numbers]

    turns = [Node(f"turn{number}", MUL, reads=(f"cell{number}",)) for number in (1, 2, 3)]
    looks = Node("zeros", "tf.raw_ops.ZerosLike", reads=("cell0",))
    found = paired([*cells(1, 2, 3), *turns], [*cells(0, 1, 2, 3), looks, *turns])
    assert {label: partner for label, partner in found.items() if label.startswith("cell")} == {
        "cell1": "cell1",
        "cell2": "cell2",
        "cell3": "cell3",
    }


def test_sums_are_known_by_their_terms_whatever_their_order() -> None:
    terms = [Node(label, f"tf.raw_ops.{label}") for label in ("A", "B", "C", "D")]
    one, other = Node("one", ADD, reads=("A", "B")), Node("other", ADD, reads=("D", "C"))
    found = paired([*terms, one, other], [*terms, replace_label(other, "first"), replace_label(one, "second")])
    assert (found["first"], found["second"]) == ("other", "one")


def test_a_sum_in_two_calls_with_a_cast_between_is_the_sum_of_all_terms() -> None:
    terms = [Node(label, f"tf.raw_ops.{label}") for label in ("A", "B", "C")]
    whole = Node("whole", ADD, reads=("A", "B", "C"))
    part = Node("part", ADD, reads=("B", "C"))
    rest = [part, Node("cast", CAST, reads=("part",)), Node("end", ADD, reads=("A", "cast"))]
    found = paired([*terms, whole], [*terms, *rest])
    assert found["end"] == "whole"
    assert "part" not in found


def test_backwards_of_a_fused_operation_are_known_by_the_shapes_of_their_gradients() -> None:
    bias, product = (
        backward("fused", FUSED.op, grad_inputs="4,48"),
        backward("fused", FUSED.op, grad_inputs="4,16;16,48"),
    )
    first, second = replace_label(bias, "bias'"), replace_label(product, "product'")
    found = paired([FUSED, first, second], [FUSED, second, first, Node("more", MUL)])
    assert (found["bias'"], found["product'"]) == ("bias'", "product'")


def replace_label(node: Node, label: str) -> Node:
    return Node(label, node.op, kind=node.kind, of=node.of, reads=node.reads, grad_inputs=node.grad_inputs)
