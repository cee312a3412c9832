"""nan and inf that arguments ask for: where they are a mask, and where they break a run."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.unit.handmade import HandmadeRun

from ulpscope.records.enums import ExitCode
from ulpscope.workflows.overflow import OverflowAnswer, overflow

INF, NAN = math.inf, math.nan


def asked(number: str) -> dict[str, Any]:
    return {"args": [{"$tensor": 0}, {"$float": number}]}


def survey(run: HandmadeRun, path: Path) -> OverflowAnswer:
    """Of a framework that is not executed again."""
    return overflow([run.write(path / "run", framework={"name": "tensorflow"})])


def told(answer: OverflowAnswer) -> list[str | None]:
    return [finding.place.call for finding in answer.survey.findings]


def noted(answer: OverflowAnswer) -> list[str | None]:
    return [note.place.call for note in answer.survey.notes]


class Training:
    """A step of a network with one weight, and the step after it."""

    def __init__(self) -> None:
        self.run = HandmadeRun()
        self.weight = self.run.value([1.0, 2.0], storage=10)
        self.x = self.run.value([1.0, 1.0])

    def gradient(self) -> int:
        grad = self.run.value([0.1, 0.2], storage=20)
        columns: dict[str, Any] = {"made_role": "grad_input", "phase": "backward", "kind": "backward"}
        self.run.call("linear", reads={"g": self.x}, role="grad_output", makes={"args.1": grad}, **columns)
        return grad

    def write(self, grad: int, content: list[float], number: str, **changes: Any) -> int:
        new = self.run.value(content, **changes)
        makes = {"output.0": new}
        self.run.call("__setitem__", reads={"args.0": grad}, makes=makes, arguments=asked(number), phase="other")
        return new

    def update(self, gradient: int, after: list[float]) -> int:
        new = self.run.value(after, storage=10)
        columns: dict[str, Any] = {"made_role": "parameter_after", "kind": "optimizer", "phase": "update"}
        call = self.run.call("SGD", makes={"model.weight": new}, **columns)
        self.run.use(call, "parameter", "model.weight", self.weight)
        self.run.use(call, "gradient", "model.weight", gradient)
        return new

    def next_step(self, weight: int) -> None:
        """A module around a linear: the module itself does not read its inner weights."""
        run = self.run
        run.step += 1
        outer = run.call("Net", reads={"args.0": self.x}, makes={"output.0": [NAN]}, kind="module", module="model")
        inner: dict[str, Any] = {
            "reads": {"args.0": self.x, "args.1": weight},
            "makes": {"output.0": run.output(outer)},
        }
        run.call("linear", **inner, parent=outer, module="model.fc")
        loss = run.call("mean", reads={"args.0": run.output(outer)}, makes={"output.0": [NAN]})
        run.use(run.call("backward", phase="backward"), "loss", "args.0", run.output(loss))


def test_nan_written_into_a_gradient_is_the_birth_and_the_optimizer_hands_it_on(tmp_path: Path) -> None:
    training = Training()
    grad = training.write(training.gradient(), [NAN, 0.2], "nan", storage=20)
    training.next_step(training.update(grad, [NAN, 1.8]))
    answer = survey(training.run, tmp_path)
    (finding,) = answer.survey.findings
    assert (finding.place.call, finding.place.step, finding.written) == ("__setitem__.0", 0, True)
    assert [(call.step, call.call) for call in finding.way] == [
        (0, "__setitem__.0"),
        (0, "SGD.0"),
        (1, "linear.0"),
        (1, "mean.0"),
    ]
    assert answer.survey.notes == ()
    text = answer.text(width=500)
    assert text.startswith("OVERFLOW: __setitem__.0 wrote nan first; 1 overflow in all")
    way = "it reaches SGD.0, which makes model.weight of it, linear.0 in model.fc of step 1 and the loss (mean.0)"
    assert f"an argument of the call is nan; {way}." in text


def test_what_is_written_through_a_view_is_read_as_the_gradient(tmp_path: Path) -> None:
    training = Training()
    grad = training.gradient()
    training.write(training.run.value([0.2], storage=20), [NAN], "nan", storage=20)
    whole = training.run.value([0.1, NAN], storage=20)
    training.next_step(training.update(whole, [1.0, NAN]))
    assert grad != whole
    answer = survey(training.run, tmp_path)
    assert told(answer) == ["__setitem__.0"]
    assert answer.survey.findings[0].way[1].call == "SGD.0"


@pytest.mark.parametrize(("number", "written"), [("inf", INF), ("-inf", -INF)])
def test_inf_in_a_gradient_is_no_mask(number: str, written: float, tmp_path: Path) -> None:
    training = Training()
    grad = training.write(training.gradient(), [written, 0.2], number, storage=20)
    training.next_step(training.update(grad, [NAN, 1.8]))
    answer = survey(training.run, tmp_path)
    assert (told(answer), noted(answer)) == (["__setitem__.0"], [])
    assert f"wrote {number} first" in answer.text()


def test_nan_that_nobody_takes_on_is_a_note(tmp_path: Path) -> None:
    run = HandmadeRun()
    buffer = run.call("full", makes={"output.0": [NAN, NAN]}, arguments={"args": [[2], {"$float": "nan"}]})
    run.call("nanmean", reads={"args.0": run.output(buffer)}, makes={"output.0": [0.0]})
    answer = survey(run, tmp_path)
    assert (told(answer), noted(answer), answer.code) == ([], ["full.0"], ExitCode.OK)


def test_a_buffer_of_nan_that_is_filled_in_steps_is_a_note(tmp_path: Path) -> None:
    run = HandmadeRun()
    losses = run.value([NAN, NAN], storage=7)
    arguments = {"args": [[2], {"$float": "nan"}]}
    run.call("full", makes={"output.0": losses}, arguments=arguments)
    for content in ([0.5, NAN], [0.5, 0.4]):
        filled = run.value(content, storage=7)
        run.call("__setitem__", reads={"args.0": losses}, makes={"output.0": filled})
        losses = filled
        run.step += 1
    answer = survey(run, tmp_path)
    assert (told(answer), noted(answer)) == ([], ["full.0"])


def test_a_weight_that_was_broken_before_blames_no_module_around_it(tmp_path: Path) -> None:
    training = Training()
    training.gradient()
    training.next_step(training.run.value([NAN, 2.0]))
    (finding,) = survey(training.run, tmp_path).survey.findings
    assert (finding.place.call, finding.given) == ("linear.0", True)


def mask(run: HandmadeRun) -> int:
    scores = run.value([1.0, 2.0])
    masked = run.call("masked_fill", reads={"args.0": scores}, makes={"output.0": [-INF, 2.0]}, arguments=asked("-inf"))
    return run.output(run.call("add", reads={"args.0": run.output(masked)}, makes={"output.0": [-INF, 3.0]}))


def test_what_a_mask_holds_may_be_handed_on(tmp_path: Path) -> None:
    run = HandmadeRun()
    run.call("softmax", reads={"args.0": mask(run)}, makes={"output.0": [0.0, 1.0]})
    answer = survey(run, tmp_path)
    assert (told(answer), noted(answer), answer.survey.counts.inherited) == ([], ["masked_fill.0"], 1)


@pytest.mark.parametrize(("number", "found"), [(-INF, []), (INF, ["from_numpy.0"]), (NAN, ["from_numpy.0"])])
def test_data_may_bring_a_mask_and_nothing_else(number: float, found: list[str], tmp_path: Path) -> None:
    run = HandmadeRun()
    run.call("relu", reads={"args.0": run.value([1.0])}, makes={"output.0": [1.0]})
    mask = run.call("from_numpy", makes={"output.0": [number, 0.0]})
    run.call("add", reads={"args.0": run.output(mask)}, makes={"output.0": [number, 1.0]})
    assert told(survey(run, tmp_path)) == found


def test_nan_that_comes_of_a_mask_is_born_there(tmp_path: Path) -> None:
    run = HandmadeRun()
    row = run.call("softmax", reads={"args.0": mask(run)}, makes={"output.0": [NAN, NAN]})
    run.call("matmul", reads={"args.0": run.output(row)}, makes={"output.0": [NAN]})
    answer = survey(run, tmp_path)
    assert (told(answer), noted(answer)) == (["softmax.0"], ["masked_fill.0"])
    assert "its args.0 (float32) already holds 1 -inf" in answer.text(width=300)


@pytest.mark.parametrize("turned", [[INF, INF, -INF], [INF, INF, 1.0]])
def test_an_overflow_beside_a_mask_is_told_from_a_negated_mask(turned: list[float], tmp_path: Path) -> None:
    run = HandmadeRun()
    masked = mask(run)
    run.call("mul", reads={"args.0": masked}, makes={"output.0": turned})
    assert told(survey(run, tmp_path)) == (["mul.0"] if -INF in turned else [])


def test_a_loss_is_no_mask(tmp_path: Path) -> None:
    run = HandmadeRun()
    loss = run.call("cross_entropy", reads={"args.0": mask(run)}, makes={"output.0": [INF]})
    run.use(run.call("backward", phase="backward"), "loss", "args.0", run.output(loss))
    assert told(survey(run, tmp_path)) == ["cross_entropy.0"]


def test_a_loss_made_of_a_stated_inf_leads_back_to_the_argument(tmp_path: Path) -> None:
    run = HandmadeRun()
    full = run.call("full_like", reads={"args.0": run.value([1.0])}, makes={"output.0": [INF]}, arguments=asked("inf"))
    loss = run.call("sum", reads={"args.0": run.output(full)}, makes={"output.0": [INF]})
    run.use(run.call("backward", phase="backward"), "loss", "args.0", run.output(loss))
    (finding,) = survey(run, tmp_path).survey.findings
    assert (finding.place.call, finding.written, finding.way[-1].is_loss) == ("full_like.0", True, True)


def test_a_loss_that_an_argument_states_is_told(tmp_path: Path) -> None:
    run = HandmadeRun()
    run.call("relu", reads={"args.0": run.value([1.0])}, makes={"output.0": [1.0]})
    loss = run.call("full", makes={"output.0": [INF]}, arguments={"args": [[1], {"$float": "inf"}]})
    run.use(run.call("backward", phase="backward"), "loss", "args.0", run.output(loss))
    assert told(survey(run, tmp_path)) == ["full.0"]


def test_a_hook_is_blamed_and_not_the_backward_of_the_module_around_it(tmp_path: Path) -> None:
    training = Training()
    run = training.run
    grad, broken = training.gradient(), run.value([NAN, NAN], storage=30)
    columns: dict[str, Any] = {"made_role": "gradient", "kind": "module_backward", "phase": "backward"}
    run.call("Linear", reads={"output.0": training.x}, role="grad_output", makes={"weight": broken}, **columns)
    makes = {"output.0": broken}
    run.call("mul", reads={"args.0": grad}, makes=makes, arguments=asked("nan"), phase="backward")
    training.next_step(training.update(broken, [NAN, NAN]))
    assert told(survey(run, tmp_path)) == ["mul.0"]


def test_a_kernel_that_gets_a_number_as_a_tensor_leads_to_the_call_whose_argument_it_is(tmp_path: Path) -> None:
    training = Training()
    run, grad = training.run, training.gradient()
    broken = run.value([NAN, 0.2], storage=20)
    columns: dict[str, Any] = {"reads": {"args.0": grad}, "makes": {"output.0": broken}, "phase": "other"}
    outer = run.call("__setitem__", arguments=asked("nan"), **columns)
    number = run.value([NAN], storage=40)
    run.call("lift_fresh", reads={"args.0": number}, makes={"output.0": number}, parent=outer, kind="kernel")
    inside = run.value([NAN], storage=20)
    run.call("copy_", reads={"args.1": number}, makes={"output.0": inside}, parent=outer, kind="kernel")
    training.next_step(training.update(broken, [NAN, 1.8]))
    answer = survey(run, tmp_path)
    (finding,) = answer.survey.findings
    assert (finding.place.call, finding.written, finding.way[-1].is_loss) == ("__setitem__.0", True, True)


def test_what_a_call_hands_back_as_it_got_it_comes_from_outside(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([NAN, 1.0])
    run.call("contiguous", reads={"args.0": x}, makes={"output.0": x})
    (finding,) = survey(run, tmp_path).survey.findings
    assert (finding.place.call, finding.given) == ("contiguous.0", True)


def test_gradients_from_outside_are_not_taken_for_the_weights_that_come_of_them(tmp_path: Path) -> None:
    training = Training()
    training.gradient()
    training.next_step(training.update(training.run.value([NAN, NAN]), [NAN, NAN]))
    (finding,) = survey(training.run, tmp_path).survey.findings
    assert (finding.place.call, finding.place.step, finding.given) == ("SGD.0", 0, True)


def test_inf_does_not_ask_for_nan(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import ulpscope

    with ulpscope.capture(tmp_path / "run", save="tensors"):
        torch.mul(torch.tensor([0.0, 1.0]), INF)
    (finding,) = overflow([tmp_path / "run"]).survey.findings
    assert (finding.place.op, finding.verdict.value) == ("torch.mul", "normal")
