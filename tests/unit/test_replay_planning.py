"""Which calls are executed again, and with which data: from a trace written by hand."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import DataSource, Variant
from ulpscope.replay.planning import CasePlan, can_be_longer, longer, matches, plan_cases
from ulpscope.replay.recorded import RecordedCall, find_repeated, read_calls
from ulpscope.trace.reader import RankTrace, open_trace


def opened(run: HandmadeRun, folder: Path) -> RankTrace:
    run.write(folder / "run")
    return open_trace(folder / "run").ranks[0]


def planned(run: HandmadeRun, folder: Path, **choice: Any) -> CasePlan:
    return plan_cases(opened(run, folder), CheckOptions(**choice))


def recorded(run: HandmadeRun, folder: Path, call: int) -> RecordedCall:
    return read_calls(opened(run, folder), [call])[call]


def placed(*places: str) -> dict[str, Any]:
    return {"args": [{"$tensor": place} for place in places]}


def test_the_same_test_is_planned_once(tmp_path: Path) -> None:
    run = HandmadeRun()
    for number in (1.0, 2.0):
        run.call(
            "torch.sin", reads={"args.0": run.value([number])}, makes={"output.0": [0.0]}, arguments=placed("args.0")
        )
    run.call("torch.sin", reads={"args.0": run.value([1.0, 2.0])}, arguments=placed("args.0"))
    plan = planned(run, tmp_path)
    assert ([case.call for case in plan.cases], plan.repeated) == ([0, 2], 1)
    every = planned(run, tmp_path / "2", every=True)
    assert [case.call for case in every.cases] == [0, 1, 2]


def test_plain_arguments_make_another_test(tmp_path: Path) -> None:
    run = HandmadeRun()
    for exponent in (2, 3):
        arguments = {"args": [{"$tensor": "args.0"}, exponent]}
        run.call("torch.pow", reads={"args.0": run.value([1.0])}, arguments=arguments)
    assert len(planned(run, tmp_path).cases) == 2


def test_reasons_for_leaving_calls(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    run.call("torch.empty", makes={"output.0": [0.0]})
    run.call("torch.distributed.all_reduce", reads={"args.0": x}, kind="collective")
    run.call("torch.add", reads={"args.0": run.value([1.0], layout="sparse_coo")})
    run.call("torch.add", reads={"args.0": run.value([1.0], initialized=False)})
    run.call("torch.add", reads={"args.0": x}, error="boom")
    run.call("torch.Tensor.backward", reads={"args.0": x})
    run.call("torch.Tensor.copy_", reads={"args.0": run.value([1.0], initialized=False), "args.1": x})
    plan = planned(run, tmp_path)
    assert [left.reason for left in plan.left] == [
        "its result is not defined by its arguments",
        "a collective needs its process group",
        "an input is sparse_coo",
        "it reads uninitialized memory",
        "it raised in the run",
    ]
    assert [case.op for case in plan.cases] == ["torch.Tensor.copy_"]


def test_patterns_name_calls() -> None:
    assert matches(("linear",), "torch.nn.functional.linear.3", "torch.nn.functional.linear")
    assert matches(("*.linear.3",), "torch.nn.functional.linear.3", "torch.nn.functional.linear")
    assert matches(("LINEAR",), "torch.nn.functional.linear.3", "torch.nn.functional.linear")
    assert not matches(("*.linear",), "torch.nn.functional.linear.3", "torch.nn.functional.gelu")


def test_stress_is_for_what_it_provokes(tmp_path: Path) -> None:
    run = HandmadeRun()
    x, weight = run.value([[1.0, 2.0]] * 3), run.value([[1.0, 2.0]])
    run.call("torch.nn.functional.linear", reads={"args.0": x, "args.1": weight}, arguments=placed("args.0", "args.1"))
    run.call("torch.sin", reads={"args.0": x}, arguments=placed("args.0"))
    plan = planned(run, tmp_path)
    assert [(case.call, case.variant) for case in plan.cases] == [
        (0, Variant.RECORDED),
        (0, Variant.LONG),
        (1, Variant.RECORDED),
    ]
    assert {case.source for case in plan.cases} == {DataSource.RANDOM}
    assert len(planned(run, tmp_path / "2", stress=False).cases) == 2


def test_sums_become_longer_and_everything_else_shorter(tmp_path: Path) -> None:
    run = HandmadeRun()
    x, weight, bias = run.value([[[1.0] * 8] * 50] * 3), run.value([[1.0] * 8] * 100), run.value([1.0] * 100)
    call = run.call(
        "torch.nn.functional.linear",
        reads={"args.0": x, "args.1": weight, "kwargs.bias": bias},
        arguments={**placed("args.0", "args.1"), "kwargs": {"bias": {"$tensor": "kwargs.bias"}}},
    )
    found = recorded(run, tmp_path, call)
    assert can_be_longer(found)
    inputs, _ = longer(found)
    assert {place: value.shape for place, value in inputs.items()} == {
        "args.0": (1, 24, 4096),
        "args.1": (24, 4096),
        "kwargs.bias": (24,),
    }


@pytest.mark.parametrize(
    ("rest", "possible"),
    [([], True), ([-1], True), ([1], True), ([[-1]], True), ([{"$tuple": [1]}], True), ([0], False), ([[0, 1]], False)],
)
def test_only_sums_over_the_last_axis_become_longer(tmp_path: Path, rest: list[Any], possible: bool) -> None:
    run = HandmadeRun()
    arguments = {"args": [{"$tensor": "args.0"}, *rest]}
    call = run.call("torch.sum", reads={"args.0": run.value([[1.0, 2.0]] * 3)}, arguments=arguments)
    assert can_be_longer(recorded(run, tmp_path, call)) is possible


def test_a_product_with_itself_does_not_become_longer(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([[1.0, 2.0], [3.0, 4.0]])
    for repeated in ({}, {"as": "args.0"}):
        run.call(
            "torch.mm",
            reads={"args.0": x, "args.1": x},
            arguments={"args": [{"$tensor": "args.0"}, {"$tensor": "args.1", **repeated}]},
        )
    rank = opened(run, tmp_path)
    assert [can_be_longer(read_calls(rank, [call])[call]) for call in (0, 1)] == [True, False]


def test_a_repeated_tensor_is_found_wherever_it_stands() -> None:
    again = {"$tensor": "kwargs.mask", "as": "args.0.1"}
    arguments = {"args": [[{"$tensor": "args.0.0"}, {"$tensor": "args.0.1"}]], "kwargs": {"mask": again}}
    assert list(find_repeated(arguments)) == [("kwargs.mask", "args.0.1")]


@pytest.mark.parametrize(("option", "possible"), [("transpose_a", False), ("adj_y", False), ("grad_a", True)])
def test_a_product_of_transposed_operands_does_not_become_longer(tmp_path: Path, option: str, possible: bool) -> None:
    run = HandmadeRun()
    x, weight = run.value([[1.0, 2.0]] * 3), run.value([[1.0] * 4] * 2)
    arguments = {**placed("args.0", "args.1"), "kwargs": {option: True}}
    call = run.call("tf.raw_ops.MatMul", reads={"args.0": x, "args.1": weight}, arguments=arguments)
    assert can_be_longer(recorded(run, tmp_path, call)) is possible


def test_axes_that_are_handed_over_as_tensors_make_another_test(tmp_path: Path) -> None:
    run = HandmadeRun()
    for op in ("tf.raw_ops.Transpose", "torch.take"):
        for order in ([0, 1], [1, 0], [1, 0]):
            reads = {"args.0": run.value([[1.0, 2.0]]), "args.1": run.value(order, dtype="int32")}
            run.call(op, reads=reads, arguments=placed("args.0", "args.1"))
    assert [case.call for case in planned(run, tmp_path, stress=False).cases] == [0, 1, 3]


def test_what_only_asks_for_gradients_is_no_test(tmp_path: Path) -> None:
    run = HandmadeRun()
    for op in ("tf.GradientTape.gradient", "torch.autograd.grad", "tf.raw_ops.Neg"):
        run.call(op, reads={"args.0": run.value([1.0])}, arguments=placed("args.0"))
    assert [case.op for case in planned(run, tmp_path).cases] == ["tf.raw_ops.Neg"]
