"""What `ulpscope investigate` does next, by what was said so far, and what it concludes: plain values."""

from dataclasses import replace

import polars as pl
import pytest

from ulpscope.diagnose.investigating import conclude, next_plan, wanted_step
from ulpscope.records.enums import Phase
from ulpscope.records.environments import EnvironmentDifference, Likelihood
from ulpscope.records.evidence import ArgumentDifference, Evidence, OneRun, Unlike
from ulpscope.records.findings import Comparison, Counts, Finding, FindingKind, Outcome, Place, Scope
from ulpscope.records.investigations import (
    Compared,
    Conclusion,
    Done,
    Investigation,
    Plan,
    Raised,
    Recovery,
    Stage,
    StepLosses,
    Suspect,
    Verdict,
    Watched,
)
from ulpscope.records.pairs import Pair
from ulpscope.records.trainings import Beginning, Cause, Parting, Trainings
from ulpscope.report.terminal.investigate import investigation_json, investigation_text
from ulpscope.report.words.language import Language

BOTH = Pair(True, True)
SWITCH = EnvironmentDifference(
    "switches", "float32_matmul_precision", "highest", "medium", Likelihood.LIKELY, "fewer_bits"
)
NOTHING = Evidence()
ALONE = Evidence(one_run=OneRun(only_target=("torch.exp.1",)))
ARGUMENT = Evidence(unlike=Unlike(arguments=(ArgumentDifference("eps", "1e-05", "0.01"),)))


def trainings(cause: Cause | None = None, step: int = 0, *, noisy_since: int | None = None) -> Trainings:
    partings = () if cause is None else (Parting(cause, Place(0, step, Phase.UPDATE), losses=(2.0, 2.5)),)
    return Trainings(
        reference="r",
        target="t",
        outcome=Outcome.DIVERGED if partings else Outcome.AGREE,
        partings=partings,
        drifts=(),
        noisy_since=noisy_since,
        beginnings=(Beginning(0, 0, ("float32", "float32"), 0.0, is_doubtful=False),),
        steps=tuple(range(100)),
        gradients=100,
        identical=100,
        signs=0,
        left=(0, 0),
        missing=(),
        table=pl.DataFrame(),
        course=pl.DataFrame(),
    )


def watched(cause: Cause | None = None, step: int = 0, *, optimizers: int = 1, noisy_since: int | None = None) -> Done:
    said = Watched(BOTH, trainings(cause, step, noisy_since=noisy_since), optimizers)
    return Done(Plan(Stage.LOSSES), said, 1.0, ("reference", "target"))


def finding(kind: FindingKind = FindingKind.COMPUTATION, step: int = 5, evidence: Evidence = NOTHING) -> Finding:
    return Finding(kind, Place(0, step, Phase.FORWARD, "torch.exp.1", 7, "torch.exp", "model.layers.1"), evidence)


def comparison(*findings: Finding) -> Comparison:
    outcome = Outcome.DIVERGED if findings else Outcome.AGREE
    counts, scope = Counts(matched=3, tensors_compared=9, identical=9), Scope((0,), (5,))
    return Comparison("r", "t", outcome, findings, (), counts, scope)


SUSPECT = Suspect("torch.exp.1", "torch.exp", "model.layers.1", is_coarse=False, on_device=False)


def captured(
    *findings: Finding,
    stage: Stage = Stage.STEP,
    steps: tuple[int, int] = (5, 5),
    suspect: Suspect = SUSPECT,
    **said: object,
) -> Done:
    told = Compared(BOTH, comparison(*findings), suspect if findings else None, **{"watched_as": steps[1], **said})  # type: ignore[arg-type]
    return Done(Plan(stage, steps=steps), told, 1.0, ("reference", "target"))


def test_losses_come_first() -> None:
    assert next_plan(()) == Plan(Stage.LOSSES)
    assert str(Plan(Stage.LOSSES)) == "--watch gradients"


@pytest.mark.parametrize(
    ("cause", "steps"),
    [
        (Cause.INPUT, "--steps 70 --stop"),
        (Cause.BACKWARD, "--steps 70 --stop"),
        (Cause.RANDOMNESS, "--steps 70 --stop"),
        (Cause.CHANGED, "--steps 69-70 --stop"),
        (Cause.UPDATE, "--steps 69-70 --stop"),
    ],
)
def test_the_step_in_which_losses_part_is_captured(cause: Cause, steps: str) -> None:
    assert str(next_plan((watched(cause, 70),))) == steps


def test_a_setting_of_the_optimizer_says_all() -> None:
    done = (watched(Cause.SETTING),)
    assert next_plan(done) is None
    assert conclude(done) == Conclusion(Verdict.FOUND, 0)


def test_trainings_that_agree_end_it() -> None:
    assert next_plan((watched(),)) is None
    assert conclude((watched(),)) == Conclusion(Verdict.AGREE)


def test_calls_are_asked_where_trainings_are_noisy_from_some_step_on() -> None:
    done = (watched(noisy_since=3),)
    assert next_plan(done) == Plan(Stage.STEP, steps=(3, 3))
    assert conclude((*done, captured(steps=(3, 3)))).verdict is Verdict.AGREE
    assert conclude((*done, captured(finding(step=3), steps=(3, 3)))) == Conclusion(Verdict.FOUND, 1)


def test_calls_of_a_first_step_outweigh_its_loss() -> None:
    assert conclude((watched(Cause.INPUT), captured(steps=(0, 0)))).verdict is Verdict.AGREE
    assert conclude((watched(Cause.START), captured(steps=(0, 0)))) == Conclusion(Verdict.FOUND, 0)
    assert conclude((watched(Cause.INPUT, 5), captured())) == Conclusion(Verdict.FOUND, 0)


def test_runs_without_an_optimizer_are_asked_by_their_modules() -> None:
    done = [Done(Plan(Stage.LOSSES), Watched(Pair(False, False)), 1.0)]
    assert str(next_plan(done)) == "--level module"
    done.append(Done(Plan(Stage.MODULES), Compared(BOTH, comparison(finding(step=3))), 1.0))
    assert next_plan(done) == Plan(Stage.STEP, steps=(3, 3))
    done[1] = Done(Plan(Stage.MODULES), Compared(Pair(False, False)), 1.0)
    assert str(next_plan(done)) == "every call"
    done[1] = Done(Plan(Stage.MODULES), Compared(BOTH, comparison()), 1.0)
    assert next_plan(done) is None
    assert conclude(done).verdict is Verdict.AGREE


def test_an_optimizer_in_one_run_only_leaves_nothing_to_compare() -> None:
    done = (Done(Plan(Stage.LOSSES), Watched(Pair(True, False)), 1.0),)
    assert next_plan(done) is None
    assert conclude(done).verdict is Verdict.NOTHING_COMPARED


def test_what_a_run_was_given_is_a_cause_what_it_computed_is_a_suspect() -> None:
    first = watched(Cause.INPUT, 5)
    for cause in (
        finding(FindingKind.INPUT),
        finding(FindingKind.STRUCTURE),
        finding(evidence=ARGUMENT),
        finding(evidence=ALONE),
    ):
        assert next_plan((first, captured(cause))) is None
    assert next_plan((first, captured(finding()))) == Plan(Stage.TENSORS, steps=(5, 5), only="model.layers.1")
    root = replace(SUSPECT, module="model")
    assert str(next_plan((first, captured(finding(), suspect=root)))) == (
        "--save tensors --only torch.exp --steps 5 --stop"
    )


def test_a_suspect_in_fewer_bits_runs_once_more_in_float32_one_on_a_device_on_the_cpu() -> None:
    first = watched(Cause.INPUT, 5), captured(finding())
    tensors = captured(finding(), stage=Stage.TENSORS)
    assert next_plan((*first, tensors)) is None
    coarse = captured(finding(), stage=Stage.TENSORS, suspect=replace(SUSPECT, is_coarse=True))
    plan = next_plan((*first, coarse))
    assert plan is not None
    assert (str(plan), plan.sides) == ("--in-float32 torch.exp.1 --steps 5-6 --stop", ("target",))
    away = captured(finding(), stage=Stage.TENSORS, suspect=replace(SUSPECT, on_device=True))
    assert str(next_plan((*first, away))) == "--on-cpu torch.exp.1 --steps 5-6 --stop"


@pytest.mark.parametrize(
    ("raised", "recovery"), [(2.01, Recovery.FULL), (2.2, Recovery.PARTIAL), (2.5, Recovery.NONE), (3.0, Recovery.NONE)]
)
def test_how_far_the_loss_recovers(raised: float, recovery: Recovery) -> None:
    said = Raised((StepLosses(5, 2.0, 2.0, 2.0), StepLosses(6, 2.0, 2.5, raised)), calls=2)
    done = watched(Cause.BACKWARD, 5), captured(finding()), Done(Plan(Stage.RAISED), said, 1.0, ("target",))
    assert conclude(done).recovery is recovery
    assert next_plan(done) is None


def test_what_execution_clears_is_no_finding() -> None:
    done = watched(Cause.INPUT, 5), captured(finding()), captured(stage=Stage.TENSORS)
    assert next_plan(done) is None
    assert conclude(done) == Conclusion(Verdict.FOUND, 0, acquitted=True)


def test_a_switch_of_precision_is_the_finding_where_calls_with_the_same_operands_differ() -> None:
    done = watched(Cause.INPUT), captured(finding(step=0), steps=(0, 0))
    assert next_plan(done, (SWITCH,)) is None
    assert conclude(done, (SWITCH,)) == Conclusion(Verdict.FOUND, 1, environment=SWITCH)
    given = watched(Cause.INPUT), captured(finding(FindingKind.INPUT, step=0), steps=(0, 0))
    assert conclude(given, (SWITCH,)).environment is None
    assert conclude((watched(Cause.SETTING),), (SWITCH,)).environment is None


@pytest.mark.parametrize(("apart", "side"), [((0.4, 0.0), "reference"), ((0.0, 0.4), "target"), ((0.01, 0.0), None)])
def test_a_command_that_does_not_repeat_itself_is_told(apart: tuple[float, float], side: str | None) -> None:
    losses = StepLosses(5, 2.0, 2.5)
    done = watched(Cause.INPUT, 5), captured(finding(), losses=losses, apart=Pair(*apart), watched_as=None)
    told = conclude(done)
    assert told.unrepeatable == side
    assert (told.verdict is Verdict.NOT_REPEATABLE) == (side is not None)
    assert (next_plan(done) is None) == (side is not None)


def test_captured_steps_that_are_numbered_otherwise_are_captured_again() -> None:
    first = watched(Cause.INPUT, 5)
    shifted = captured(watched_as=3)  # two forwards before the training were steps
    again = next_plan((first, shifted))
    assert again == Plan(Stage.STEP, steps=(7, 7))
    assert next_plan((first, shifted, captured(steps=(7, 7), watched_as=6))) is None


def test_optimizers_that_take_turns_make_a_captured_step_each() -> None:
    first = watched(Cause.INPUT, 5, optimizers=2)
    assert next_plan((first,)) == Plan(Stage.STEP, steps=(10, 11))
    assert next_plan((first, captured(steps=(10, 11), watched_as=5))) is None
    together = captured(steps=(10, 11), watched_as=11)
    assert next_plan((first, together)) == Plan(Stage.STEP, steps=(5, 5))


def test_which_watched_step_captures_look_into() -> None:
    assert wanted_step(()) is None
    assert wanted_step((watched(),)) is None
    assert wanted_step((watched(Cause.CHANGED, 7),)) == 7


@pytest.mark.parametrize("language", list(Language))
def test_every_answer_is_told(language: Language) -> None:
    step, losses = captured(finding()), StepLosses(5, 2.0, 2.5, 2.01)
    raised = Done(Plan(Stage.RAISED, steps=(5, 6), in_float32="torch.exp.1"), Raised((losses,), 1), 1.0, ("target",))
    noisy = captured(finding(), losses=losses, apart=Pair(0.4, 0.0), watched_as=None)
    commands = Pair(("python", "a.py"), ("python", "b.py"))
    for done, code in (
        ((watched(),), 0),
        ((watched(Cause.SETTING),), 1),
        ((watched(Cause.INPUT, 5), step, raised), 1),
        ((watched(Cause.INPUT, 5), noisy), 1),
        ((Done(Plan(Stage.LOSSES), Watched(Pair(True, False)), 1.0),), 3),
    ):
        told = Investigation(commands, done, (SWITCH,), conclude(done, (SWITCH,)))
        text = investigation_text(told, width=100, color=False, language=language)
        found = investigation_json(told, language)
        assert told.conclusion.verdict.code == code
        assert bool(found["findings"]) == (code == 1)
        assert text.strip()
        assert "{" not in text
    assert "ulpscope repeat -- python a.py" in investigation_text(
        Investigation(commands, (watched(Cause.INPUT, 5), noisy), (), conclude((watched(Cause.INPUT, 5), noisy))),
        width=100,
        color=False,
    )
