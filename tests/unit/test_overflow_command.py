"""`ulpscope overflow`: records, dumps and traces; the first overflow is the first finding."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun

from make_ascend_dumps import Tensor, file_bytes
from ulpscope.cli.main import main
from ulpscope.records.enums import ExitCode
from ulpscope.report.words.language import Language, phrases
from ulpscope.workflows.overflow import OverflowAnswer, overflow

DATA = Path(__file__).parents[1] / "data" / "ascend"
EXPECTED = DATA / "expected" / "msprobe_26.2.0"
RECORD = "Opdebug.Node_OpDebug.59.2.1767225600027623"
RECORDS = {
    "ov_v1": DATA / "precision_data" / "overflow" / "dump",
    "ov_v2": DATA / "overflow_v2",
    "ov_v2_aic1": DATA / "overflow_v2_aic_v1",
}
DUMPS = DATA / "precision_data" / "npu" / "debug_0" / "dump"
INF, NAN = math.inf, math.nan


def f16(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float16)


def survey(run: HandmadeRun, tmp_path: Path) -> OverflowAnswer:
    """Of a framework that is not executed again."""
    return overflow([run.write(tmp_path / "run", framework={"name": "tensorflow"})])


def calls_of(answer: OverflowAnswer) -> list[str | None]:
    return [finding.place.call for finding in answer.survey.findings]


@pytest.mark.parametrize("layout", RECORDS)
def test_the_operator_that_a_record_is_about_is_the_first_finding(
    layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["overflow", str(RECORDS[layout]), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    (found,) = content["findings"]
    assert (content["verdict"], found["kind"], found["module"], found["op"]) == (
        "overflow",
        "overflow",
        "scale/Mul",
        "Muls",
    )
    record = found["evidence"]["record"]
    assert (record["task"], record["stream"], record["timestamp"]) == (27, 1, 1767225600027623)
    assert content["counts"]["records"] == 1


@pytest.mark.parametrize(
    ("layout", "unit", "words"),
    [
        ("ov_v1", "AI Core", ["float", "to_float16"]),
        ("ov_v2", "AIC", ["float"]),
        ("ov_v2_aic1", "AIC", ["float", "to_float16"]),
    ],
)
def test_unit_and_status_are_told_in_words(layout: str, unit: str, words: list[str]) -> None:
    answer = overflow([RECORDS[layout]])
    record = answer.survey.findings[0].record
    assert record is not None
    assert (record.unit, list(record.meanings)) == (unit, words)
    text = answer.text(width=500)
    assert all(phrases(Language.EN).say(f"overflow.meaning.{word}") in text for word in words)


def test_its_tensors_have_the_stats_that_the_older_tool_printed() -> None:
    (summary,) = (EXPECTED / "ov_v1").glob("overflow_summary_*.txt")
    printed = [line for line in summary.read_text().splitlines() if "[Max:" in line]
    (finding,) = overflow([RECORDS["ov_v1"]]).survey.findings
    for tensor, line in zip(finding.tensors, printed, strict=True):
        assert f"[Shape: {tensor.shape}] [Dtype: {tensor.dtype}]" in line
        assert tensor.stats is not None
        shown = [float(line.split(f"[{name}: ")[1].split("]")[0]) for name in ("Max", "Min", "Mean")]
        assert shown == pytest.approx([tensor.stats.max, tensor.stats.min, tensor.stats.mean], rel=1e-3)


def test_saturation_is_found_in_dumps_and_inserted_operators_are_not_blamed() -> None:
    answer = overflow([DUMPS])
    (finding,) = answer.survey.findings
    assert (finding.place.module, finding.place.tensor, finding.record) == ("scale/Mul", "output.0", None)
    assert finding.worst is not None
    assert finding.worst.largest == 65504.0
    assert answer.code is ExitCode.DIFFERENCE


def test_records_come_before_what_numbers_tell_and_are_not_told_twice() -> None:
    answer = overflow([DUMPS, RECORDS["ov_v2"]])
    (finding,) = answer.survey.findings
    assert finding.record is not None
    assert answer.survey.counts.born == 2


def test_a_reference_without_overflow_is_finite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overflow", str(DATA / "precision_data" / "tf" / "dump")]) == 0
    assert capsys.readouterr().out.startswith("FINITE: 25 calls looked at")


def test_records_that_cannot_be_read_are_not_called_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Opdebug.Node_OpDebug.59.2.1767225600000020").write_bytes(b"no record")
    assert main(["overflow", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "1 of 1 overflow records cannot be read" in told.err
    assert not told.out


def test_out_holds_the_answer_a_table_and_each_record_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result"
    assert main(["overflow", str(RECORDS["ov_v1"]), "--out", str(out), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((out / "summary.json").read_text()) == printed
    (written,) = (out / "records").rglob(f"{RECORD}.output.0.json")
    assert written.read_text() == (EXPECTED / "ov_v1" / f"{RECORD}.output.0.json").read_text()
    with open(out / "overflow.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["module"], row["tensor"], row["sign"]) for row in rows] == [
        ("scale/Mul", "input.0", ""),
        ("scale/Mul", "output.0", "saturated"),
    ]
    assert main(["overflow", str(RECORDS["ov_v1"]), "--out", str(out)]) == 2
    assert main(["overflow", str(RECORDS["ov_v1"]), "--out", str(out), "--overwrite"]) == 1


def test_what_is_neither_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overflow", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_record_whose_operator_was_not_dumped_is_told_by_its_task(tmp_path: Path) -> None:
    name = "Opdebug.Node_OpDebug.59.2.1767225600027623"
    (tmp_path / name).write_bytes((DATA / "overflow_v2" / name).read_bytes())
    answer = overflow([tmp_path])
    (finding,) = answer.survey.findings
    assert (finding.place.module, finding.tensors) == (None, ())
    text = answer.text(width=300)
    assert "task 27 of stream 1 overflowed first" in text
    assert "its directory has no dump of this operator" in text


def record_beside(folder: Path, name: str, content: bytes) -> OverflowAnswer:
    """The fixtures' record of task 27, stream 1, and this file beside it."""
    (folder / RECORD).write_bytes((DATA / "overflow_v2" / RECORD).read_bytes())
    (folder / name).write_bytes(content)
    return overflow([folder])


def test_inputs_that_are_not_finite_are_not_called_finite(tmp_path: Path) -> None:
    content = file_bytes("scale/Mul", inputs=[Tensor(f16(1.0, NAN, INF))], outputs=[Tensor(f16(1.0, NAN, INF))])
    told = record_beside(tmp_path, "Muls.scale_Mul.27.1.1767225600027123", content).text(width=300)
    assert "its input.0 (float16) already holds" in told
    assert "inputs are finite" not in told


def test_an_operator_of_which_only_stats_were_dumped_has_them(tmp_path: Path) -> None:
    head = b"Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value\n"
    rows = b"Input,0,864,DT_FLOAT16,ND,2x216,4.39,-2.26,-0.07\nOutput,0,864,DT_FLOAT16,ND,2x216,65504,-65504,-4053\n"
    answer = record_beside(tmp_path, "Muls.scale_Mul.27.1.1767225600027123.csv", head + rows)
    (finding,) = answer.survey.findings
    assert [(each.place, each.largest) for each in finding.tensors] == [("input.0", 4.39), ("output.0", 65504.0)]
    assert finding.place.tensor == "output.0"


def test_an_operators_dump_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    answer = record_beside(tmp_path, "Muls.scale_Mul.27.1.1767225600027123", b"\xff" * 64)
    (finding,) = answer.survey.findings
    assert (finding.place.module, finding.place.op, finding.tensors) == ("scale_Mul", "Muls", ())
    assert any("Muls.scale_Mul.27.1.1767225600027123" in sentence for sentence in answer.survey.missing)
    assert "has no dump of this operator" not in answer.text(width=300)


def test_records_of_one_name_from_two_runs_are_both_written(tmp_path: Path) -> None:
    for run, source in (("a", "overflow_v2"), ("b", "overflow_v2_aic_v1")):
        (tmp_path / run).mkdir()
        (tmp_path / run / RECORD).write_bytes((DATA / source / RECORD).read_bytes())
    out = tmp_path / "result"
    assert main(["overflow", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out)]) == 1
    written = sorted((out / "records").rglob("*.json"))
    assert [json.loads(path.read_text())["version"] for path in written] == [0, 1]


def test_a_call_that_makes_inf_of_finite_numbers_is_found_and_its_followers_are_counted(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0, 100.0])
    first = run.call("exp", reads={"args.0": x}, makes={"output.0": [2.7, INF]})
    second = run.call("log", reads={"args.0": run.output(first)}, makes={"output.0": [1.0, INF]})
    run.call("sub", reads={"args.0": run.output(second)}, makes={"output.0": [0.0, NAN]})
    run.call("relu", reads={"args.0": x}, makes={"output.0": [1.0, 100.0]})
    answer = survey(run, tmp_path)
    assert calls_of(answer) == ["exp.0"]
    counts = answer.survey.counts
    assert (counts.calls, counts.born, counts.inherited) == (4, 1, 2)


def test_float16_saturates_and_other_types_do_not(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value(f16(1.0, 2.0), dtype="float16")
    run.call("mul", reads={"args.0": x}, makes={"output.0": f16(1.0, -65504.0)})
    run.call("cast", reads={"args.0": x}, makes={"output.0": [65504.0, 1e30]})
    run.call("scale", reads={"args.0": x}, makes={"output.0": f16(65472.0)})
    assert calls_of(survey(run, tmp_path)) == ["mul.0"]


def test_what_is_saturated_on_its_way_in_is_not_born(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value(f16(65504.0), dtype="float16")
    run.call("mul", reads={"args.0": x}, makes={"output.0": f16(INF)})
    answer = survey(run, tmp_path)
    assert (calls_of(answer), answer.survey.counts.inherited) == ([], 1)
    assert answer.code is ExitCode.OK


def test_an_argument_may_ask_for_it(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0, 2.0])
    asked = {"args": [{"$tensor": 0}, {"$float": "-inf"}]}
    run.call("masked_fill", reads={"args.0": x}, makes={"output.0": [1.0, -INF]}, arguments=asked)
    run.call("full", makes={"output.0": f16(-65504.0)}, arguments={"args": [[1], -65504.0]})
    answer = survey(run, tmp_path)
    assert answer.survey.findings == ()
    assert [note.place.call for note in answer.survey.notes] == ["masked_fill.0", "full.0"]


@pytest.mark.parametrize(
    ("op", "number", "made", "stated"),
    [
        ("torch.mul", -65504.0, f16(0.0, -65504.0), True),
        ("torch.mul", -1e9, f16(0.0, -INF), True),
        ("torch.mul", 70000.0, f16(1.0, INF), False),
        ("torch.mul", -70000.0, f16(-INF, INF), False),
        ("torch.mul", -65504.0, f16(0.0, NAN), False),
        ("torch.clamp_", 65504.0, f16(0.0, 65504.0), True),
        ("torch.Tensor.masked_fill_", 1e6, f16(0.0, INF), True),
        ("torch.mul", {"$float": "inf"}, f16(0.0, INF), True),
        ("torch.mul", {"$float": "nan"}, f16(0.0, NAN), True),
        ("torch.mul", {"$float": "inf"}, f16(0.0, NAN), False),
    ],
)
def test_an_argument_asks_for_what_it_says_and_for_nothing_else(
    op: str, number: object, made: np.ndarray[Any, Any], stated: bool, tmp_path: Path
) -> None:
    run = HandmadeRun()
    x = run.value(f16(1.0, 2.0), dtype="float16")
    run.call(op, reads={"args.0": x}, makes={"output.0": made}, arguments={"args": [{"$tensor": 0}, number]})
    answer = survey(run, tmp_path)
    assert (len(answer.survey.notes), len(answer.survey.findings)) == (int(stated), int(not stated))


def test_only_the_innermost_call_is_told(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    outer = run.call("Block", reads={"args.0": x}, makes={"output.0": [INF]}, kind="module")
    run.call("exp", reads={"args.0": x}, makes={"output.0": run.output(outer)}, parent=outer)
    assert calls_of(survey(run, tmp_path)) == ["exp.0"]


def test_a_backward_is_also_given_what_its_forward_read(tmp_path: Path) -> None:
    run = HandmadeRun()
    born = run.call("log", reads={"args.0": run.value([0.0])}, makes={"output.0": [-INF]})
    grad = run.value([1.0])
    forward = run.call("sin", reads={"args.0": run.output(born)}, makes={"output.0": [0.0]})
    columns: dict[str, Any] = {"phase": "backward", "kind": "backward", "forward": forward}
    run.call(
        "sin", reads={"output.0": grad}, role="grad_output", makes={"args.0": [NAN]}, made_role="grad_input", **columns
    )
    answer = survey(run, tmp_path)
    assert (calls_of(answer), answer.survey.counts.inherited) == (["log.0"], 1)


def test_what_no_call_has_made_is_told_where_it_comes_in(tmp_path: Path) -> None:
    run = HandmadeRun()
    mask = run.value([0.0, -INF])
    x, weight = run.value([1.0, 2.0]), run.value([1.0, INF])
    run.call("add", reads={"args.0": x, "args.1": mask}, makes={"output.0": [1.0, -INF]})
    outer = run.call("Linear", reads={"args.0": x, "weight": weight}, makes={"output.0": [INF]}, kind="module")
    run.call("linear", reads={"args.1": weight}, makes={"output.0": run.output(outer)}, parent=outer)
    run.call("relu", reads={"args.0": run.output(outer)}, makes={"output.0": [NAN]})
    run.step = 1
    run.call("linear", reads={"args.1": weight}, makes={"output.0": [INF]})
    answer = survey(run, tmp_path)
    (finding,) = answer.survey.findings
    assert (finding.place.call, finding.place.tensor, finding.given) == ("linear.0", "args.1", True)
    assert answer.text().startswith("GIVEN: linear.0 was the first to get inf or nan")
    assert "its args.1 (float32) holds 1 +inf; no recorded call has made it" in answer.text(width=300)


def test_an_input_that_is_a_copy_of_what_a_call_made_does_not_come_from_outside(tmp_path: Path) -> None:
    run = HandmadeRun()
    run.call("exp", reads={"args.0": run.value([1.0])}, makes={"output.0": [INF]})
    # Dumps of an NPU do not say that the one is the other.
    run.call("log", reads={"args.0": run.value([INF])}, makes={"output.0": [INF]})
    assert calls_of(survey(run, tmp_path)) == ["exp.0"]


def test_without_inputs_only_the_first_is_told(tmp_path: Path) -> None:
    run = HandmadeRun()
    for op, number in (("a", 1.0), ("b", INF), ("c", NAN)):
        run.call(op, makes={"output.0": [number]})
    answer = survey(run, tmp_path)
    assert calls_of(answer) == ["b.0"]
    assert answer.survey.counts.unknown == 1


def test_memory_that_nobody_wrote_does_not_count(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    empty = run.value([NAN], initialized=False)
    run.call("empty_like", reads={"args.0": x}, makes={"output.0": empty})
    assert calls_of(survey(run, tmp_path)) == []


def test_the_first_in_the_order_of_execution_comes_first(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    for op in ("b", "a"):
        run.call(op, reads={"args.0": x}, makes={"output.0": [INF]})
    run.step = 1
    run.call("z", reads={"args.0": x}, makes={"output.0": [INF]})
    assert calls_of(survey(run, tmp_path)) == ["b.0", "a.0", "z.0"]


def test_both_languages_say_the_same_things() -> None:
    told = overflow([RECORDS["ov_v1"]]).text(width=300, language=Language.ZH)
    assert "浮点计算溢出" in told
    assert "65504" in told


def test_a_call_of_torch_is_executed_again_on_the_cpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import ulpscope

    with ulpscope.capture(tmp_path / "run", save="tensors"):
        hundred = torch.full((3,), 300.0, dtype=torch.float16)
        torch.exp(hundred)
    (finding,) = overflow([tmp_path / "run"]).survey.findings
    assert (finding.place.op, finding.verdict.value) == ("torch.exp", "normal")
    assert "the largest float16 is 6.55e+04" in finding.message
