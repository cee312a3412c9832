"""What is said of two trainings that agree, and leave something open."""

from dataclasses import replace

from tests.unit.test_investigating import trainings

from ulpscope.records.trainings import Beginning, Cause
from ulpscope.report.terminal.trainings import trainings_json, trainings_text
from ulpscope.report.words.language import Language

SAME = ("float32", "float32")


def told(beginning: Beginning, cause: Cause | None = None) -> str:
    found = replace(trainings(cause), beginnings=(beginning,))
    assert trainings_json(found, Language.EN)["beginnings"][0]["roundoffs"] == beginning.roundoffs
    return trainings_text(found, width=200, color=False, language=Language.EN)


def test_a_first_loss_that_rounding_seldom_makes_is_noted() -> None:
    text = told(Beginning(0, 0, SAME, 20.0, is_doubtful=True))
    assert "the losses differ by 20 roundoffs" in text
    assert "Next: ulpscope run -o TRACE --steps 0 --stop -- COMMAND" in text
    assert "roundoffs" not in told(Beginning(0, 0, SAME, 2.0, is_doubtful=False))
    assert "roundoffs" not in told(Beginning(0, 0, SAME, 20.0, is_doubtful=True), Cause.BACKWARD)


def test_types_that_differ_are_told_with_what_they_hide() -> None:
    assert "float32, the target's in bfloat16" in told(Beginning(0, 0, ("float32", "bfloat16"), 0.1, is_doubtful=False))
    assert "a type that is not known" in told(Beginning(0, 0, ("float32", None), 0.1, is_doubtful=False))
    assert "holds numbers" not in told(Beginning(0, 0, SAME, 0.0, is_doubtful=False))


def test_losses_that_look_alike_have_more_digits() -> None:
    parting = replace(trainings(Cause.INPUT).partings[0], losses=(3.55453825, 3.55455446))
    found = replace(trainings(Cause.INPUT), partings=(parting,))
    text = trainings_text(found, width=200, color=False, language=Language.EN)
    assert "3.55454 in the reference and 3.55455 in the target" in text
    close = replace(found, partings=(replace(parting, losses=(3.5545382, 3.5545389)),))
    text = trainings_text(close, width=200, color=False, language=Language.EN)
    assert "3.5545382 in the reference and 3.5545389 in the target" in text
