"""The experts' workflow as decisions: what to capture next, by what earlier stages have said, and what all of it says.

Losses by step, then every call of the step in which they part, then tensors of the suspect module alone, executed
again, at last the suspect elsewhere. It stops at the first finding that is a cause.
"""

from collections.abc import Sequence

from ulpscope.diagnose.limits import PARTLY_RECOVERED, RECOVERED, UNREPEATED
from ulpscope.records.environments import EnvironmentDifference
from ulpscope.records.findings import Finding, FindingKind, Outcome
from ulpscope.records.investigations import (
    TARGET,
    Compared,
    Conclusion,
    Done,
    Plan,
    Raised,
    Recovery,
    Stage,
    Suspect,
    Verdict,
    Watched,
    has_diverged,
)
from ulpscope.records.trainings import Cause, Trainings

FEWER_BITS = "fewer_bits"
"""The reason of differences between environments that change the precision of products or sums."""
_BETWEEN_UPDATES = (Cause.CHANGED, Cause.UPDATE)
"""What happened after the update of the step before."""


def next_plan(done: Sequence[Done], environment: Sequence[EnvironmentDifference] = ()) -> Plan | None:
    """What to do next; None if there is nothing further to ask."""
    if not done:
        return Plan(Stage.LOSSES)
    last = done[-1]
    said = last.said
    if isinstance(said, Watched):
        return _after_losses(said)
    if isinstance(said, Raised):
        return None
    if last.plan.stage is Stage.MODULES:
        return _after_modules(said)
    if last.plan.stage is Stage.STEP:
        return _after_step(done, said, environment)
    return _elsewhere(done, said)


def _after_losses(said: Watched) -> Plan | None:
    if not any(said.captured):
        return Plan(Stage.MODULES)
    if said.trainings is None or (first := _step_to_capture(said.trainings)) is None:
        return None
    steps = first[0] * said.optimizers, (first[1] + 1) * said.optimizers - 1
    return Plan(Stage.STEP, steps=steps)


def _step_to_capture(trainings: Trainings) -> tuple[int, int] | None:
    """The watched steps to look into; None where there is none, or the parting says all."""
    if not trainings.partings:
        # What noise hides in losses and gradients of a step is seen in its calls.
        first = trainings.noisy_since
        return None if first is None else (first, first)
    parting = trainings.partings[0]
    step = parting.place.step
    if parting.cause is Cause.SETTING:
        return None
    return max(0, step - (parting.cause in _BETWEEN_UPDATES)), step


def _after_modules(said: Compared) -> Plan | None:
    if not any(said.captured):
        return Plan(Stage.STEP)
    finding = _first(said)
    return None if finding is None else Plan(Stage.STEP, steps=(finding.place.step, finding.place.step))


def _after_step(done: Sequence[Done], said: Compared, environment: Sequence[EnvironmentDifference]) -> Plan | None:
    again = _renumbered(done, said)
    if again is not None:
        return again
    finding = _first(said)
    if finding is None or said.suspect is None or is_cause(finding) or _unrepeatable(said) is not None:
        return None
    if _switch(finding, environment) is not None:
        return None
    return Plan(Stage.TENSORS, steps=done[-1].plan.steps, only=_pattern(said.suspect))


def _renumbered(done: Sequence[Done], said: Compared) -> Plan | None:
    """The step that was meant, where the captured one is another: forwards before the training are steps there, and
    optimizers may share one. That is tried once."""
    steps = done[-1].plan.steps
    wanted = _wanted(done)
    if wanted is None or steps is None or said.watched_as is None or len(_captures(done)) > 1:
        return None
    if said.watched_as == wanted[1]:
        return None
    later = steps[1] - said.watched_as
    return Plan(Stage.STEP, steps=(max(0, wanted[0] + later), wanted[1] + later))


def _wanted(done: Sequence[Done]) -> tuple[int, int] | None:
    watched = done[0].said
    if not isinstance(watched, Watched) or watched.trainings is None:
        return None
    return _step_to_capture(watched.trainings)


def wanted_step(done: Sequence[Done]) -> int | None:
    """The watched step that captures look into; None where none was watched."""
    wanted = _wanted(done) if done else None
    return None if wanted is None else wanted[1]


def _captures(done: Sequence[Done]) -> list[Done]:
    return [each for each in done if each.plan.stage is Stage.STEP]


def _pattern(suspect: Suspect) -> str:
    """What `--only` is told: the module of the suspect, or its operation where that would be the whole model."""
    module = suspect.module
    return module if module is not None and "." in module else suspect.op


def _elsewhere(done: Sequence[Done], said: Compared) -> Plan | None:
    """Where the suspect runs once more; nowhere, if it computes in float32 on the CPU already, or was cleared."""
    suspect, steps = said.suspect, done[-1].plan.steps
    if suspect is None or steps is None or not (suspect.is_coarse or suspect.on_device) or _wanted(done) is None:
        return None
    # What the step's backward and update made of it is seen in the next one's loss.
    further = steps[0], steps[1] + 1
    if suspect.is_coarse:
        return Plan(Stage.RAISED, steps=further, in_float32=suspect.call, sides=(TARGET,))
    return Plan(Stage.RAISED, steps=further, on_cpu=suspect.call, sides=(TARGET,))


def is_cause(finding: Finding) -> bool:
    """Whether nothing has to be asked further: the runs were given other things, or make other calls."""
    evidence = finding.evidence
    return finding.kind is not FindingKind.COMPUTATION or bool(evidence.unlike.arguments or evidence.one_run.calls)


def _first(said: Compared) -> Finding | None:
    found = () if said.comparison is None else said.comparison.findings
    return found[0] if found else None


def _unrepeatable(said: Compared) -> str | None:
    """The side whose loss of the same step is about as far from what it was as the two runs are from each other."""
    if said.losses is None:
        return None
    apart = abs(said.losses.target - said.losses.reference)
    for side in ("reference", "target"):
        own = getattr(said.apart, side)
        if own and own >= UNREPEATED * apart:
            return side
    return None


def _switch(finding: Finding | None, environment: Sequence[EnvironmentDifference]) -> EnvironmentDifference | None:
    """A switch of precision that differs, where the same operands give other results."""
    if finding is not None and is_cause(finding):
        return None
    return next((each for each in environment if each.reason == FEWER_BITS), None)


def conclude(done: Sequence[Done], environment: Sequence[EnvironmentDifference] = ()) -> Conclusion:
    """What all stages together say."""
    captured = [each.said for each in done if isinstance(each.said, Compared)]
    unrepeatable = next((side for said in captured if (side := _unrepeatable(said)) is not None), None)
    if unrepeatable is not None:
        return Conclusion(Verdict.NOT_REPEATABLE, _last_found(done), unrepeatable=unrepeatable)
    by = _last_found(done)
    if by is None:
        return Conclusion(Verdict.AGREE if _was_compared(done) else Verdict.NOTHING_COMPARED)
    last = next((each.said for each in reversed(done) if isinstance(each.said, Compared)), None)
    switch = None if last is None else _switch(_first(last), environment)
    if _is_harmless(done, by, switch):
        return Conclusion(Verdict.AGREE)
    recovery = next((_recovery(each.said) for each in done if isinstance(each.said, Raised)), None)
    return Conclusion(Verdict.FOUND, by, environment=switch, acquitted=_is_acquitted(done), recovery=recovery)


def _last_found(done: Sequence[Done]) -> int | None:
    """The stage that looked furthest and found something; what was executed again and cleared is none."""
    found = [place for place, each in enumerate(done) if has_diverged(each.said)]
    if _is_acquitted(done):
        found = [place for place in found if done[place].plan.stage is Stage.LOSSES]
    return found[-1] if found else None


def _is_acquitted(done: Sequence[Done]) -> bool:
    executed = next((each.said for each in done if each.plan.stage is Stage.TENSORS), None)
    if not isinstance(executed, Compared) or executed.comparison is None:
        return False
    return executed.comparison.outcome is Outcome.AGREE


def _was_compared(done: Sequence[Done]) -> bool:
    for each in done:
        said = each.said
        told = said.trainings if isinstance(said, Watched) else said.comparison if isinstance(said, Compared) else None
        if told is not None and told.outcome is not Outcome.NOTHING_COMPARED:
            return True
    return False


def _is_harmless(done: Sequence[Done], by: int, switch: EnvironmentDifference | None) -> bool:
    """Whether all calls of the first step agree, which was suspected by its loss or gradients alone."""
    said = done[by].said
    if switch is not None or not isinstance(said, Watched) or said.trainings is None or _is_acquitted(done):
        return False
    parting, captured = said.trainings.partings[0], [each.said for each in _captures(done)]
    is_first = parting.place.step == said.trainings.steps[0] and parting.cause in (Cause.INPUT, Cause.BACKWARD)
    last = captured[-1] if captured else None
    told = last.comparison if isinstance(last, Compared) else None
    return is_first and told is not None and told.outcome is Outcome.AGREE


def _recovery(said: Raised) -> Recovery | None:
    """By the step in which the loss was furthest from the reference's."""
    known = [each for each in said.losses if each.raised is not None]
    if not known:
        return None
    worst = max(known, key=lambda each: abs(each.target - each.reference))
    before = abs(worst.target - worst.reference)
    after = abs((worst.raised or 0.0) - worst.reference)
    if after <= RECOVERED * before:
        return Recovery.FULL
    return Recovery.PARTIAL if after <= PARTLY_RECOVERED * before else Recovery.NONE
