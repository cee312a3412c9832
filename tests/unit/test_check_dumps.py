"""`ulpscope check DUMP --graph GRAPH`: dumped operators against their definitions."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.cli.main import main
from ulpscope.dialects.ascend.dump_file.file import parse_dump
from ulpscope.dialects.opening import open_run
from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import OutputResult, Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Input, Operator, Origin, Source, TensorDesc
from ulpscope.replay.ascend.engine import Dumped, ExecutedOperator
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.workflows.check.dumps import check_dumps, plan_dump_check

Array = NDArray[Any]
DATA = Path(__file__).parents[1] / "data" / "ascend"
MANIFEST = json.loads((DATA / "manifest.json").read_text())
DUMP = DATA / "precision_data/npu/debug_0/dump"
SOUND = DATA / "debug_1/dump"
GRAPH = DATA / MANIFEST["graph"]
CONVERTED = DATA / "expected/msprobe_26.2.0/convert"
RANDOM = np.random.default_rng(3)


def check(*words: object) -> int:
    return main(["check", *map(str, words)])


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    check(*words, "--json")
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def halves(*shape: int) -> Array:
    return RANDOM.uniform(-2, 2, shape).astype(np.float16)


def executed(
    kind: str, read: Sequence[Tensor], made: Sequence[Tensor], *, attributes: Any = None, **more: Any
) -> ExecutedOperator:
    dump = parse_dump(file_bytes("net/op", inputs=read, outputs=made))
    operator = Operator("net/op", kind, "net", 0, attributes=attributes or {}, **more)
    return ExecutedOperator(operator, Dumped(dump.inputs, dump.outputs), {})


def judged(again: ExecutedOperator) -> list[OutputResult]:
    again.refine()
    results = [judge_output(each) for each in again.evidence]
    return [each for each in results if each is not None]


def why_not(kind: str, read: Sequence[Tensor], made: Sequence[Tensor], **more: Any) -> str:
    with pytest.raises(CannotReplayError) as caught:
        executed(kind, read, made, **more)
    return str(caught.value)


def test_the_operator_that_was_made_wrong_is_the_first_finding(capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(capsys, DUMP, "--graph", GRAPH)
    assert (told["command"], told["verdict"]) == ("check", "unsound")
    first = told["findings"][0]
    assert len(told["findings"]) == 1
    assert (first["module"], first["op"], first["tensor"]) == (MANIFEST["injected"]["wrong_op"], "Relu", "output.0")
    # The device's own tensors, as another tool read them: |x| where there should be 0.
    name = next(entry["file"] for entry in MANIFEST["files"] if entry["op"] == "fc1/Relu")
    below = np.load(CONVERTED / f"{name}.input.0.npy") < 0
    assert first["evidence"]["metrics"]["unequal"] == np.count_nonzero(below)
    assert check(DUMP, "--graph", GRAPH) == 1


def test_what_can_be_computed_of_the_fixtures_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(capsys, SOUND, "--graph", GRAPH)
    assert (told["verdict"], told["findings"], told["notes"]) == ("sound", [], [])
    counts = told["counts"]
    assert counts["apis"] == len(MANIFEST["files"]) == counts["pass"] + counts["skip"]
    assert check(SOUND, "--graph", GRAPH) == 0


def test_what_is_not_computed_is_listed_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(DUMP, "--graph", GRAPH, "--out", tmp_path / "result") == 1
    rows = list(csv.DictReader((tmp_path / "result/result.csv").read_text(encoding="utf-8").splitlines()))
    reasons = {row["module"]: row["message"] for row in rows if row["forward"] == "SKIP"}
    assert reasons["fc1/MatMul"] == "3 operands of MatMul+BiasAdd are needed, the dump has 2"
    assert reasons["bn/FusedBatchNormV3_Update"] == "7 operands of BNTrainingUpdate are needed, the dump has 3"
    assert reasons["scale/Mul"] == "the graph does not tell its attribute value"
    assert "3 operands of MatMul+BiasAdd are needed" in capsys.readouterr().out
    summary = json.loads((tmp_path / "result/summary.json").read_text())
    assert sum(each["apis"] for each in summary["skipped"]) == summary["counts"]["skip"] == len(reasons)


def test_a_fused_operator_is_computed_by_its_originals() -> None:
    result = next(
        call for call in _checked(DUMP) if call.place.module == "conv1/Conv2Dconv1/BiasAddconv1/Relu"
    ).cases[0].result  # fmt: skip
    assert result.forward is Verdict.PASS
    (output,) = result.outputs
    assert (output.statistic, output.shape) == ("sound", (2, 12, 12, 6))


def test_calls_have_the_names_and_ids_of_the_trace() -> None:
    (rank,) = open_run(DUMP).ranks
    calls = {call.place.call_id: (call.place.call, call.place.module) for call in _checked(DUMP)}
    names = rank.collect(rank.calls().select("id", "name", "module")).iter_rows()
    assert calls == {number: (name, module) for number, name, module in names}


def _checked(path: Path, **wanted: Any) -> Any:
    options = CheckOptions(**wanted)
    plan = plan_dump_check(path, GRAPH, options)
    return check_dumps(plan, options, figures=False, heard=lambda _: None).run.calls


def test_operators_are_chosen_by_type_name_and_call() -> None:
    assert [call.place.module for call in _checked(DUMP, only=("fc1/*",))] == ["fc1/MatMul", "fc1/Relu"]
    assert [call.place.module for call in _checked(DUMP, only=("Relu.0",))] == ["fc1/Relu"]
    assert {call.place.op for call in _checked(DUMP, only=("TransData",))} == {"TransData"}
    assert "TransData" not in {call.place.op for call in _checked(DUMP, skip=("TransData",))}


def test_words_say_operators_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    check(DUMP, "--graph", GRAPH)
    told = capsys.readouterr().out
    assert told.startswith("UNSOUND: of 19 operators on npu:0, 1 computes wrongly\n")
    assert f"Next: ulpscope show {GRAPH} fc1/Relu --dumps {DUMP}\n" in told
    check(DUMP, "--graph", GRAPH, "--language", "zh")
    assert "19 个算子" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([DUMP], "is a dump of an NPU, whose operators cannot be executed here"),
        ([DUMP, "--graph", GRAPH, "--device", "cuda:0"], "--device with --graph"),
        ([DUMP, "--graph", GRAPH, "--overflow"], "--overflow with --graph"),
        ([DATA / "fusion", "--graph", GRAPH], "holds no dump of an NPU"),
    ],
)
def test_bad_usage(words: list[object], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(*words) == 2
    assert told in capsys.readouterr().err


def test_nothing_left_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(DUMP, "--graph", GRAPH, "--only", "Einsum") == 3
    (tmp_path / f"Relu.other_Relu.1.0.{FIRST_TIME}").write_bytes(file_bytes("other/Relu", outputs=[Tensor(halves(3))]))
    assert check(tmp_path, "--graph", GRAPH) == 3
    assert "has none of the 1 operators" in capsys.readouterr().err


def test_a_broken_file_costs_one_operator(tmp_path: Path) -> None:
    for path in (DUMP / MANIFEST["dump_dir"].partition("dump/")[2]).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    name = next(entry["file"] for entry in MANIFEST["files"] if entry["op"] == "trans_Cast_0")
    (tmp_path / name).write_bytes(b"\xff" * 64)
    plan = plan_dump_check(tmp_path, GRAPH, CheckOptions())
    run = check_dumps(plan, CheckOptions(), figures=False, heard=lambda _: None).run
    assert [call.place.module for call in run.wrong] == ["fc1/Relu"]
    assert len(run.missing) == 1
    assert name in run.missing[0]


def chain(*names: str, origin: str | None = None) -> dict[str, Any]:
    return {"originals": names, "outputs": (TensorDesc(origin=Origin(names[-1] if origin is None else origin)),)}


def test_fused_followers_are_applied_in_their_order() -> None:
    x, weight, bias = halves(5, 7), halves(7, 4), halves(4)
    wide = x.astype(np.float64) @ weight.astype(np.float64) + bias.astype(np.float64)
    inputs = [Tensor(each) for each in (x, weight, bias)]
    fused = chain("d/MatMul", "d/BiasAdd", "d/Relu_1")
    (sound,) = judged(executed("MatMulV2", inputs, [Tensor(np.maximum(wide, 0).astype(np.float16))], **fused))
    assert sound.verdict is Verdict.PASS
    (wrong,) = judged(executed("MatMulV2", inputs, [Tensor(wide.astype(np.float16))], **fused))
    assert wrong.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("fused", "told"),
    [
        (chain("d/MatMul", "d/Erf"), "no definition of MatMul+Erf"),
        (chain("d/MatMul", "d/Sub"), "no definition of MatMul+Sub"),
        (chain("d/BiasAdd", "d/MatMul"), "the order of its original operators is not known"),
        (chain("d/MatMul", "d/Relu", origin="d/MatMul"), "the order of its original operators is not known"),
        (chain("d/MatMul", "d/BiasAdd"), "3 operands of MatMul+BiasAdd are needed, the dump has 2"),
        (chain("d/dense", "d/Relu"), "which operators it stands for is not known: dense, Relu"),
    ],
)
def test_chains_that_are_not_known_are_not_guessed(fused: dict[str, Any], told: str) -> None:
    inputs, output = [Tensor(halves(5, 7)), Tensor(halves(7, 4))], Tensor(halves(5, 4))
    assert why_not("MatMulV2", inputs, [output], **fused) == told


def test_a_type_that_names_the_whole_has_its_own_definition() -> None:
    x, gamma, beta = halves(4, 16), halves(16), halves(16)
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    again = executed(
        "LayerNorm",
        [Tensor(x), Tensor(gamma), Tensor(beta)],
        [Tensor((normal * gamma + beta).astype(np.float16))],
        attributes={"begin_norm_axis": 1, "epsilon": 1e-5},
        **chain("ln/mean", "ln/SquaredDifference", "ln/mul"),
    )
    assert judged(again)[0].verdict is Verdict.PASS


@pytest.mark.parametrize("names", [("r/add", "r/Relu"), ("r/add_1", "r/Relu_2")])
def test_operators_of_python_are_known_by_their_names(names: tuple[str, str]) -> None:
    x, y = halves(40), halves(40)
    made = np.maximum(x.astype(np.float64) + y.astype(np.float64), 0).astype(np.float16)
    again = executed("Add", [Tensor(x), Tensor(y)], [Tensor(made)], **chain(*names))
    assert judged(again)[0].verdict is Verdict.PASS


def test_a_whole_with_an_activation_behind_it_is_not_guessed() -> None:
    inputs = [Tensor(halves(4, 16)), Tensor(halves(16)), Tensor(halves(16))]
    fused = chain("ln/mean", "ln/mul", "ln/Relu")
    told = why_not("LayerNorm", inputs, [Tensor(halves(4, 16))], attributes={"begin_norm_axis": 1}, **fused)
    assert told.startswith("which operators it stands for is not known: ")


def test_what_a_device_cuts_off_at_its_largest_number_is_an_overflow_and_not_wrong() -> None:
    x = np.array([1.0, -300.0, 400.0], np.float16)
    again = executed("Mul", [Tensor(x), Tensor(x)], [Tensor(np.array([1.0, 65504, 65504], np.float16))])
    assert again.saturated == 2
    assert judged(again)[0].verdict is Verdict.PASS
    wrong = executed("Mul", [Tensor(x), Tensor(x)], [Tensor(np.array([1.0, -65504, 65504], np.float16))])
    assert judged(wrong)[0].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("operators", "verdict", "told"),
    [
        (['name: "a/op" type: "Relu"', 'name: "a_op" type: "Abs"'], Verdict.PASS, ""),
        (['name: "a_op" type: "Relu"', 'name: "a/op" type: "Relu"'], Verdict.PASS, ""),
        (['name: "a/op" type: "Abs"', 'name: "a_op" type: "Relu"'], Verdict.SKIP, "it is Abs in the graph"),
        (['name: "a/op" type: "Relu"'] * 2, Verdict.SKIP, "the graph has 2 operators of its name and type"),
        (['name: "a/op" type: "Abs"'], Verdict.SKIP, "it is Abs in the graph"),
        (['name: "b/op" type: "Relu"', 'name: "a/op/x" type: "Relu"'], None, ""),
    ],
)
def test_names_that_do_not_tell_which_operator_it_is(
    tmp_path: Path, operators: list[str], verdict: Verdict | None, told: str
) -> None:
    x = halves(40)
    content = file_bytes("a/op", inputs=[Tensor(x)], outputs=[Tensor(np.maximum(x, 0))])
    (tmp_path / f"Relu.a_op.1.0.{FIRST_TIME}").write_bytes(content)
    graph = tmp_path / "graph.txt"
    listed = " ".join(f"op {{ {each} }}" for each in operators)
    graph.write_text(f'name: "g"\ngraph {{ name: "g" {listed} }}\n')
    if verdict is None:
        with pytest.raises(UlpscopeError, match="has none of the 1 operators"):
            plan_dump_check(tmp_path, graph, CheckOptions())
        return
    plan = plan_dump_check(tmp_path, graph, CheckOptions())
    (call,) = check_dumps(plan, CheckOptions(), figures=False, heard=lambda _: None).run.calls
    assert (call.cases[0].result.forward, call.cases[0].result.message) == (verdict, told)


def test_saturation_is_remarked(tmp_path: Path) -> None:
    x = np.array([300.0, 2.0, 3.0], np.float16)
    made = np.array([65504.0, 4.0, 9.0], np.float16)
    content = file_bytes("a/Square", inputs=[Tensor(x)], outputs=[Tensor(made)])
    (tmp_path / f"Square.a_Square.1.0.{FIRST_TIME}").write_bytes(content)
    graph = tmp_path / "graph.txt"
    graph.write_text('name: "g"\ngraph { name: "g" op { name: "a/Square" type: "Square" } }\n')
    run = check_dumps(
        plan_dump_check(tmp_path, graph, CheckOptions()), CheckOptions(), figures=False, heard=lambda _: None
    ).run
    (remark,) = run.remarks
    assert remark.startswith("overflow in 1 element of 1 operator; ")


def one_operator(folder: Path, kind: str, read: Sequence[Array], made: Array) -> OutputResult:
    """What `check` says of one operator by its dump and graph."""
    folder.mkdir()
    content = file_bytes("a/op", inputs=[Tensor(each) for each in read], outputs=[Tensor(made)])
    (folder / f"{kind}.a_op.1.0.{FIRST_TIME}").write_bytes(content)
    graph = folder.with_suffix(".txt")
    graph.write_text(f'name: "g"\ngraph {{ name: "g" op {{ name: "a/op" type: "{kind}" }} }}\n')
    plan = plan_dump_check(folder, graph, CheckOptions())
    run = check_dumps(plan, CheckOptions(), figures=False, heard=lambda _: None).run
    return run.calls[0].cases[0].result.outputs[0]


def test_a_unit_that_stores_every_step_is_less_precise_but_not_wrong(tmp_path: Path) -> None:
    x = RANDOM.standard_normal((64, 128)).astype(np.float16)
    # Each of these operations rounds to float16.
    stepwise = one_operator(tmp_path / "stepwise", "Sigmoid", [x], np.float16(1) / (np.float16(1) + np.exp(-x)))
    assert stepwise.verdict is Verdict.WARN
    assert stepwise.message.endswith("storing the result of every step in float16 explains it")
    right = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert one_operator(tmp_path / "right", "Sigmoid", [x], right.astype(np.float16)).verdict is Verdict.PASS
    wrong = 1 / (1 + np.exp(-0.98 * x.astype(np.float64)))
    assert one_operator(tmp_path / "wrong", "Sigmoid", [x], wrong.astype(np.float16)).verdict is Verdict.FAIL


def in_hf32(array: Array) -> Array:
    """Rounded to 11 bits of the fraction, ties to even."""
    bits = array.view(np.uint32)
    result: Array = ((bits + 0x7FF + ((bits >> 12) & 1)) & np.uint32(0xFFFFF000)).view(np.float32)
    return result.astype(np.float64)


def test_products_of_rounded_operands_are_less_precise_but_not_wrong(tmp_path: Path) -> None:
    x, weight = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((64, 256), (256, 48)))
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    made = {
        "float32": exact,
        "hf32": in_hf32(x) @ in_hf32(weight),
        "factor": exact * 1.001,
        "element": np.where(np.arange(48 * 64).reshape(64, 48) == 77, exact * 1.001, exact),
    }
    told = {
        name: one_operator(tmp_path / name, "MatMulV2", [x, weight], each.astype(np.float32))
        for name, each in made.items()
    }
    assert told["hf32"].message.endswith("rounding float32 operands to HF32 explains it")
    assert {name: each.verdict for name, each in told.items()} == {
        "float32": Verdict.PASS,
        "hf32": Verdict.WARN,
        "factor": Verdict.FAIL,
        "element": Verdict.FAIL,
    }


def test_an_attribute_is_the_number_that_the_compiler_has() -> None:
    x = RANDOM.standard_normal(4000).astype(np.float32)
    again = executed("Muls", [Tensor(x)], [Tensor(x * np.float32(0.1))], attributes={"value": 0.1})
    assert judged(again)[0].statistic == "rounded"


def test_equal_elements_may_be_chosen_in_any_order() -> None:
    x = Tensor(np.array([[3, 7, 7], [1, 0, 1]], np.float16))

    def verdict(*places: int) -> Verdict:
        return judged(executed("ArgMaxD", [x], [Tensor(np.array(places, np.int32))]))[0].verdict

    assert verdict(1, 0) is verdict(2, 2) is Verdict.PASS
    assert verdict(0, 0) is verdict(1, 5) is Verdict.FAIL


def test_the_graphs_word_on_the_order_of_axes_counts() -> None:
    """6 x 6 x 6 fills the tiles as NHWC and as NCHW."""
    picture = halves(2, 6, 6, 6)
    tiles = np.zeros((2, 1, 6, 6, 16), np.float16)
    tiles[:, 0, :, :, :6] = picture.transpose(0, 2, 3, 1)
    desc = TensorDesc(layout="NC1HWC0", origin_layout="NCHW", origin_shape=(2, 6, 6, 6))
    again = executed(
        "TransData",
        [Tensor(tiles, "NC1HWC0", (2, 6, 6, 6))],
        [Tensor(picture, "NCHW")],
        inputs=(Input(Source("x", 0), desc),),
        outputs=(TensorDesc(layout="NCHW"),),
    )
    assert judged(again)[0].verdict is Verdict.PASS
    tiled, outputs = [Tensor(tiles, "NC1HWC0", (2, 6, 6, 6))], [Tensor(picture, "NCHW")]
    told = why_not("TransData", tiled, outputs, outputs=(TensorDesc(layout="NCHW"),))
    assert told.startswith("its input is NC1HWC0 of [2, 6, 6, 6], which may be NCHW or another order")
    dump = parse_dump(file_bytes("net/op", inputs=tiled, outputs=outputs))
    operator = Operator("net/op", "TransData", "net", 0, outputs=(TensorDesc(layout="NCHW"),))
    by_others = ExecutedOperator(operator, Dumped(dump.inputs, dump.outputs), {"NC1HWC0": "NCHW"})
    assert judged(by_others)[0].verdict is Verdict.PASS


def test_an_operand_is_not_taken_for_another_that_is_left_out() -> None:
    """A product whose bias is not connected, but the input after it is."""
    x, weight = halves(4, 6), halves(6, 5)
    product = Tensor((x.astype(np.float64) @ weight.astype(np.float64)).astype(np.float16))
    read = [Tensor(x), Tensor(weight), Tensor(halves(5))]
    sources = [Input(Source(name, 0)) for name in "abc"]
    told = why_not("MatMulV2", read, [product], inputs=(*sources[:2], Input(None), sources[2]))
    assert told == "no definition of MatMulV2 without an operand before its last"
    left_out = executed("MatMulV2", read[:2], [product], inputs=(*sources[:2], Input(None)))
    assert judged(left_out)[0].verdict is Verdict.PASS


def test_an_order_that_nobody_tells_is_not_guessed() -> None:
    inputs, output = [Tensor(halves(2, 5, 4, 3))], Tensor(halves(2, 3, 5, 4), "NCHW")
    assert why_not("TransData", inputs, [output]) == "the order of its axes is not known"
    named = [Tensor(inputs[0].data, "NHWC")]
    moved = Tensor(inputs[0].data.transpose(0, 3, 1, 2), "NCHW")
    assert judged(executed("TransData", named, [moved]))[0].verdict is Verdict.PASS


def test_a_vector_of_channels_goes_to_their_axis() -> None:
    picture, vector = halves(2, 6, 4, 5), halves(6)
    padded = np.zeros((1, 1, 1, 1, 16), np.float16)
    padded[..., :6] = vector
    made = (picture.astype(np.float64) * vector.astype(np.float64)[:, None, None]).astype(np.float16)
    again = executed("Mul", [Tensor(picture, "NCHW"), Tensor(padded, "NC1HWC0", (6,))], [Tensor(made, "NCHW")])
    assert judged(again)[0].verdict is Verdict.PASS


def test_a_cast_cuts_fractions_off_and_what_overflows_is_counted() -> None:
    x = np.array([1.9, -1.9, 1e20, -1e20, np.nan], np.float32)
    for beyond in ([2**31 - 1, -(2**31), 0], [0, 0, -(2**31)]):
        again = executed("Cast", [Tensor(x)], [Tensor(np.array([1, -1, *beyond], np.int32))])
        assert judged(again)[0].verdict is Verdict.PASS
        assert again.saturated == 3
    rounding = np.array([2, -2, 2**31 - 1, -(2**31), 0], np.int32)
    assert judged(executed("Cast", [Tensor(x)], [Tensor(rounding)]))[0].verdict is Verdict.FAIL


def test_whole_numbers_may_be_cut_off_or_wrapped_around() -> None:
    x, y = np.array([2**31 - 1, 5], np.int32), np.array([3, 6], np.int32)
    for beyond in (2**31 - 1, -(2**31) + 2):
        again = executed("Add", [Tensor(x), Tensor(y)], [Tensor(np.array([beyond, 11], np.int32))])
        assert (judged(again)[0].verdict, again.saturated) == (Verdict.PASS, 1)
    wrong = executed("Add", [Tensor(x), Tensor(y)], [Tensor(np.array([2**31 - 1, 12], np.int32))])
    assert judged(wrong)[0].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "attributes", "told"),
    [
        ("MyOperator", [halves(3)], halves(3), {}, "no definition of MyOperator"),
        ("Muls", [halves(3)], halves(3), {}, "the graph does not tell its attribute value"),
        ("Muls", [halves(3)], halves(3), {"value": "x"}, "its attribute value is 'x'"),
        ("ReduceSumD", [halves(3, 4)], halves(3), {"axes": (9,)}, "it has an axis 9 of a tensor with 2"),
        ("Relu", [halves(3)], halves(4), {}, "its output is [4], by its definition [3]"),
        ("Add", [halves(3), halves(4)], halves(4), {}, "operands of [3], [4] do not fit Add"),
        ("TileD", [halves(3)], halves(6), {"multiples": (2**60,)}, "its multiples do not make its result"),
        ("PadD", [halves(3)], halves(6), {"paddings": ((0, 2**60),)}, "its paddings do not make its result"),
        ("GatherV2D", [halves(3), np.array([7])], halves(1), {"axis": 0}, "an index is out of its range"),
        ("GatherV2D", [halves(3), np.array([1])], halves(1), {}, "the graph does not tell its attribute axis"),
        ("GatherV2", [halves(3), np.array([1])], halves(1), {}, "3 operands of GatherV2 are needed, the dump has 2"),
        ("Gather", [halves(3), np.array([1])], halves(1), {"batch_dims": 1}, "its attribute batch_dims is 1"),
        ("Round", [halves(3)], halves(3), {"decimals": 2}, "its attribute decimals is 2"),
        ("MatMulV2", [halves(3, 3)] * 2, halves(3, 3), {"offset_x": 5}, "its attribute offset_x is 5"),
        ("Softmax", [halves(3, 4)], halves(3, 4), {"axes": (0,)}, "the graph does not tell its attribute axis"),
        (
            "BNInfer",
            [halves(2, 3), *[halves(3)] * 4],
            halves(2, 3),
            {},
            "the graph does not tell its attribute epsilon",
        ),
        (
            "SoftmaxCrossEntropyWithLogits",
            [halves(2, 3, 4, 4)] * 2,
            halves(2, 4, 4),
            {},
            "its logits have 4 axes, and the axis of classes is not told",
        ),
        (
            "Concat",
            [np.array([0], np.int32), np.array([1], np.int32)],
            np.array([1], np.int32),
            {},
            "which of its operands is the axis is not told",
        ),
        (
            "Cast",
            [np.array([1e30, 1.0], np.float32)],
            np.array([0, 1], np.int64),
            {},
            "what a device makes of numbers beyond int64 is not known",
        ),
    ],
)
def test_what_cannot_be_computed_says_why(
    kind: str, inputs: list[Array], output: Array, attributes: dict[str, Any], told: str
) -> None:
    assert why_not(kind, [Tensor(each) for each in inputs], [Tensor(output)], attributes=attributes) == told


@pytest.mark.parametrize("attributes", [{"ksize": (1, 2**40, 2, 1)}, {"ksize": (1, 2, 2, 1), "pads": (2**40, 0, 0, 0)}])
def test_numbers_out_of_all_proportion_are_refused(attributes: dict[str, Any]) -> None:
    whole = {"strides": (1, 1, 1, 1), "padding": "SAME", **attributes}
    picture = Tensor(halves(1, 4, 4, 2), "NHWC")
    assert why_not("MaxPool", [picture], [picture], attributes=whole)


def test_without_strides_an_output_is_wrong_only_if_it_fits_no_geometry() -> None:
    """A stride of 3 or 4 makes 2 x 2 of 5 x 5."""
    x, weight = halves(1, 5, 5, 2), halves(1, 1, 2, 3)
    inputs = [Tensor(x, "NHWC"), Tensor(weight, "HWCN")]

    def verdict(made: Array) -> Verdict:
        return judged(executed("Conv2D", inputs, [Tensor(made.astype(np.float16), "NHWC")]))[0].verdict

    wide = x.astype(np.float64) @ weight[0, 0].astype(np.float64)
    assert verdict(wide[:, ::3, ::3]) is verdict(wide[:, ::4, ::4]) is verdict(wide[:, ::3, ::4]) is Verdict.PASS
    assert verdict(wide[:, ::2, ::2][:, :2, :2]) is Verdict.FAIL


def test_without_strides_padding_on_one_side_is_found() -> None:
    x, weight = halves(1, 6, 6, 2), halves(3, 3, 2, 4)
    padded = np.pad(x.astype(np.float64), ((0, 0), (2, 0), (0, 2), (0, 0)))
    wide = sum(
        padded[:, row : row + 6, column : column + 6] @ weight[row, column].astype(np.float64)
        for row in range(3)
        for column in range(3)
    )
    inputs = [Tensor(x, "NHWC"), Tensor(weight, "HWCN")]
    made = np.asarray(wide).astype(np.float16)
    assert judged(executed("Conv2D", inputs, [Tensor(made, "NHWC")]))[0].verdict is Verdict.PASS
    made[0, 3, 3, 1] += 1
    assert judged(executed("Conv2D", inputs, [Tensor(made, "NHWC")]))[0].verdict is Verdict.FAIL


def test_more_geometries_than_can_be_tried_are_not_chosen_from() -> None:
    picture, weight = Tensor(halves(1, 200, 200, 1), "NHWC"), Tensor(halves(1, 1, 1, 1), "HWCN")
    told = why_not("Conv2D", [picture, weight], [Tensor(halves(1, 2, 2, 1), "NHWC")])
    assert told == "the graph does not tell its attribute strides"


def test_a_graph_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError):
        plan_dump_check(DUMP, tmp_path / "missing.txt", CheckOptions())
