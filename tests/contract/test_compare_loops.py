"""What `compare` says of faults that lie outside of the model: in the loop, the optimizer's use, the set-up."""

from functools import partial
from pathlib import Path

import pytest
import torch
from loops import scale, train, write

from ulpscope.records.findings import AdviceKind, Comparison, Finding, FindingKind, Outcome
from ulpscope.report.words.comparison import note_sentence, sentence
from ulpscope.workflows.compare.command import compare


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("sound") / "run")


def compared(reference: Path, target: Path) -> Comparison:
    return compare(reference, target).comparison


def answer(reference: Path, target: Path) -> Finding:
    comparison = compared(reference, target)
    assert comparison.outcome is Outcome.DIVERGED
    return comparison.findings[0]


def test_a_left_out_optimizer_step_is_named_and_explains_the_rest(sound: Path, tmp_path: Path) -> None:
    target = train(tmp_path / "t", "skipped")
    comparison = compared(sound, target)
    (finding,) = comparison.findings
    assert (finding.kind, finding.place.op) == (FindingKind.OPTIMIZER, "torch.optim.adam.Adam")
    assert (finding.place.step, finding.place.call_id) == (1, None)
    assert finding.place.source is not None
    assert "loops.py:" in finding.place.source
    assert finding.evidence.one_run.backwards == (1, 2)
    assert "the target makes none after backward 1 of step 1" in sentence(finding)
    assert comparison.advice[0].kind is AdviceKind.SAME_STEPS
    other_way = answer(target, sound)
    assert "the reference makes none after backward 1 of step 1" in sentence(other_way)


def test_a_fault_before_a_left_out_step_stays_the_answer(sound: Path, tmp_path: Path) -> None:
    findings = compared(sound, train(tmp_path / "t", "swapped", "skipped")).findings
    assert (findings[0].place.op, findings[0].place.step) == ("torch.cat", 0)
    assert findings[-1].evidence.one_run.backwards == (1, 2)


def test_accumulated_gradients_are_no_left_out_step(sound: Path, tmp_path: Path) -> None:
    twice = train(tmp_path / "t", accumulate=2)
    assert compared(twice, train(tmp_path / "again", accumulate=2)).outcome is Outcome.AGREE
    comparison = compared(sound, twice)
    assert all(finding.evidence.one_run.backwards is None for finding in comparison.findings)
    (note,) = [note for note in comparison.notes if note.evidence.one_run.backwards]
    assert note.evidence.one_run.backwards == (1, 2)
    assert "1 in the reference, 2 in the target" in note_sentence(note)


def test_one_backward_more_is_no_left_out_step(sound: Path, tmp_path: Path) -> None:
    (finding,) = compared(sound, train(tmp_path / "t", "once more")).findings
    assert (finding.kind, finding.place.op) == (FindingKind.STRUCTURE, "torch.Tensor.backward")
    assert (finding.place.step, finding.evidence.one_run.backwards) == (1, (1, 2))
    assert "backwards before an optimizer step: 1 in the reference, 2 in the target" in sentence(finding)


def test_one_of_two_optimizers_is_left_out(sound: Path, tmp_path: Path) -> None:
    comparison = compared(sound, train(tmp_path / "t", "half skipped"))
    finding = comparison.findings[0]
    assert (finding.kind, finding.place.op) == (FindingKind.OPTIMIZER, "torch.optim.sgd.SGD")
    assert (finding.place.step, finding.evidence.history.updated_in) == (1, "reference")
    assert "only the reference makes this optimizer step; concerned: model.out.weight" in sentence(finding)
    assert comparison.advice[0].kind is AdviceKind.SAME_STEPS


def test_a_step_that_gradscaler_leaves_out_is_none_of_the_loops(tmp_path: Path) -> None:
    scaler = partial(torch.amp.GradScaler, "cpu", init_scale=2.0)
    runs = scale(tmp_path / "r", scaler), scale(tmp_path / "t", scaler, too_large_at=1)
    first, *others = compared(*runs).findings
    assert (first.place.step, first.kind) == (1, FindingKind.OVERFLOW)
    assert all(finding.evidence.one_run.backwards is None for finding in (first, *others))


def test_a_whole_step_that_one_run_leaves_out(sound: Path, tmp_path: Path) -> None:
    target = train(tmp_path / "t", "left out")
    (finding,) = compared(sound, target).findings
    assert (finding.kind, finding.place.step, finding.evidence.one_run.shifted) == (FindingKind.STRUCTURE, 1, 1)
    assert "its step 1 has the inputs of the reference's step 2" in sentence(finding)
    assert answer(target, sound).evidence.one_run.shifted == -1


def test_gradients_that_nobody_has_set_to_zero(sound: Path, tmp_path: Path) -> None:
    target = train(tmp_path / "t", "kept")
    comparison = compared(sound, target)
    (finding,) = comparison.findings
    assert (finding.place.step, finding.evidence.history.leftover) == (2, ("target", 1))
    assert "the target's gradient still holds that of step 1" in sentence(finding)
    assert [advice.kind for advice in comparison.advice][:1] == [AdviceKind.ZERO_GRADIENTS]
    assert answer(target, sound).evidence.history.leftover == ("reference", 1)


def test_gradients_that_both_runs_keep_are_not_left_over(tmp_path: Path) -> None:
    runs = train(tmp_path / "r", "hoarding"), train(tmp_path / "t", "hoarding", "divided")
    findings = compared(*runs).findings
    assert findings[0].place.op == "torch.Tensor.div"
    assert all(finding.evidence.history.leftover is None for finding in findings)


@pytest.mark.parametrize(("switch", "step", "name"), [("frozen", 0, "model.scale"), ("lost", 1, "model.out.bias")])
def test_a_parameter_without_a_gradient(sound: Path, tmp_path: Path, switch: str, step: int, name: str) -> None:
    comparison = compared(sound, train(tmp_path / "t", switch))
    finding = comparison.findings[0]
    assert (finding.kind, finding.place.step, finding.place.tensor) == (FindingKind.OPTIMIZER, step, name)
    assert finding.evidence.history.without_gradient == "target"
    assert f"the target's optimizer has no gradient for parameter {name}" in sentence(finding)
    assert "identical" not in sentence(finding)
    assert comparison.advice[0].kind is AdviceKind.SAME_TRAINED


def test_a_parameter_that_only_one_optimizer_changes(sound: Path, tmp_path: Path) -> None:
    finding = answer(sound, train(tmp_path / "t", "thawed"))
    assert (finding.kind, finding.place.step, finding.evidence.history.updated_in) == (
        FindingKind.OPTIMIZER,
        0,
        "target",
    )
    assert finding.evidence.history.parameters == ("model.right.bias",)
    assert "begin" not in sentence(finding)


def test_a_buffer_that_is_not_written_any_more(sound: Path, tmp_path: Path) -> None:
    finding = answer(sound, train(tmp_path / "t", "stale"))
    assert (finding.kind, finding.place.step, finding.place.call_id) == (FindingKind.COMPUTATION, 1, None)
    assert finding.place.op == "torch.Tensor.add_"
    assert "begin" not in sentence(finding)


@pytest.mark.parametrize("level", ["api", "module"])
def test_operands_in_another_order(tmp_path: Path, level: str) -> None:
    runs = [train(tmp_path / name, *switches, level=level) for name, switches in (("r", ()), ("t", ("swapped",)))]
    finding = answer(*runs)
    assert (finding.kind, finding.evidence.operand.shown) == (FindingKind.COMPUTATION, "given")
    said = sentence(finding)
    assert "its inputs are identical" not in said
    assert "the tensors before it are identical, what it is given as" in said
    if level == "api":
        assert finding.evidence.operand.origins == ("torch.tanh.0 output.0", "torch.Tensor.mul.0 output.0")


def test_a_parameter_that_is_written_unseen(sound: Path, tmp_path: Path) -> None:
    comparison = compared(sound, train(tmp_path / "t", "unseen"))
    finding = comparison.findings[0]
    assert (finding.kind, finding.place.step, finding.evidence.history.changed_unseen) == (
        FindingKind.PARAMETER,
        2,
        True,
    )
    assert "no longer the same, and no recorded call has changed them" in sentence(finding)
    assert comparison.advice[0].kind is AdviceKind.FIND_WRITER


@pytest.mark.parametrize(
    ("switch", "op"),
    [("divided", "torch.Tensor.div"), ("table", "torch.Tensor.float"), ("mirrored", "torch.Tensor.flip")],
)
def test_arithmetic_outside_of_modules_is_no_data(sound: Path, tmp_path: Path, switch: str, op: str) -> None:
    comparison = compared(sound, train(tmp_path / "t", switch))
    assert (comparison.findings[0].kind, comparison.findings[0].place.op) == (FindingKind.COMPUTATION, op)
    assert FindingKind.INPUT not in {finding.kind for finding in comparison.findings}
    assert not {advice.kind for advice in comparison.advice} & {AdviceKind.SAME_DATA, AdviceKind.INPUT_INCONSISTENT}


def test_a_loss_is_no_data_where_only_modules_are_recorded(tmp_path: Path) -> None:
    runs = [train(tmp_path / name, *switches, level="module") for name, switches in (("r", ()), ("t", ("divided",)))]
    finding = answer(*runs)
    assert (finding.kind, finding.place.op) == (FindingKind.COMPUTATION, "torch.Tensor.backward")
    assert "the tensors before it are identical, what it is given as args.0 differs by" in sentence(finding)


def test_float32_on_the_cpu_is_not_told_to_go_there(sound: Path, tmp_path: Path) -> None:
    for switch in ("swapped", "divided", "kept", "lost"):
        advice = {each.kind for each in compared(sound, train(tmp_path / switch, switch)).advice}
        assert not advice & {AdviceKind.RAISE_PRECISION, AdviceKind.RUN_ON_CPU}


def test_weights_that_one_run_ties(tmp_path: Path) -> None:
    finding = answer(write(tmp_path / "r", tied=True), write(tmp_path / "t", tied=False))
    assert finding.evidence.history.tied in (("reference", "model.words.weight"), ("reference", "model.head.weight"))
    assert "the same parameter as" in sentence(finding)
    assert "identical" not in sentence(finding)


def test_two_models_are_called_that(sound: Path, tmp_path: Path) -> None:
    comparison = compared(sound, write(tmp_path / "t", tied=True))
    paired = comparison.findings[0].evidence.one_run.paired
    assert paired is not None
    assert paired == (comparison.counts.matched, comparison.counts.calls_target)
    assert "different models" in sentence(comparison.findings[0])
    assert comparison.advice[0].kind is AdviceKind.SAME_MODEL
