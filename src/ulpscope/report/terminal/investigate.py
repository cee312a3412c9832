"""Tells an investigation, as text and as JSON.

FOUND in stage 2: DIVERGED at step 0, forward, in model.blocks.1.norm1

  stage      captured                    what it said                                       runs   seconds
  1 losses   --watch gradients           PARTED at step 0: another batch, or another ...    1 + 1  5.9
  2 step     --steps 0 --stop            DIVERGED at step 0, forward, in model.blocks.1...  1 + 1  6.1

  torch.nn.functional.layer_norm.2   ...
"""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import RenderableType

from ulpscope.records.enums import Phase
from ulpscope.records.environments import Likelihood
from ulpscope.records.findings import FindingKind, Place
from ulpscope.records.investigations import (
    REFERENCE,
    TARGET,
    Compared,
    Done,
    Investigation,
    Plan,
    Raised,
    Stage,
    StepLosses,
    Verdict,
    Watched,
)
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import BAD, GOOD, OPEN, answer_text, plain, table
from ulpscope.report.terminal.compare import blocks_of as blocks_of_comparison
from ulpscope.report.terminal.compare import compare_json
from ulpscope.report.terminal.compare import heading_of as heading_of_comparison
from ulpscope.report.terminal.compare_lines import next_commands
from ulpscope.report.terminal.environment import difference_json, difference_sentence
from ulpscope.report.terminal.trainings import blocks_of as blocks_of_trainings
from ulpscope.report.terminal.trainings import heading_of as heading_of_trainings
from ulpscope.report.terminal.trainings import trainings_json
from ulpscope.report.words.language import Language, Phrases, phrases, seconds_text, shown_name

_STYLES = {Verdict.AGREE: GOOD, Verdict.NOTHING_COMPARED: OPEN}
SETTINGS_SHOWN = 3
LOSSES_SHOWN = 3


def beginning_text(number: int, plan: Plan) -> str:
    """Progress: a stage begins."""
    words = phrases(Language.EN)
    sides = words.listed(plan.sides)
    return f"ulpscope: {number} {words.say(f'investigate.stage.{plan.stage.value}')}: {sides}, {plan}"


def said_text(number: int, done: Done) -> str:
    """Progress: a stage is complete."""
    return f"ulpscope: {number} {done.plan.stage.value}: {_said(done, phrases(Language.EN))}"


def investigation_text(found: Investigation, *, width: int, color: bool, language: Language = Language.EN) -> str:
    """The answer as text of this width."""
    words, verdict = phrases(language), found.conclusion.verdict
    heading = plain(_heading(found, words), style=_STYLES.get(verdict, BAD))
    blocks: list[Iterable[RenderableType | str]] = [[_stages(found, words)], list(_sentences(found, words))]
    decisive = found.decisive
    if verdict is Verdict.FOUND and decisive is not None:
        blocks += _blocks(decisive, words, width=width)
    blocks.append(list(_notes(found, words)))
    return answer_text(words, heading, blocks, _commands(found), width=width, color=color)


def _heading(found: Investigation, words: Phrases) -> str:
    told, decisive = found.conclusion, found.decisive
    if told.verdict is Verdict.NOT_REPEATABLE:
        return words.say("investigate.heading.not_repeatable", side=words.say(f"env.side.{told.unrepeatable}"))
    if told.verdict is Verdict.FOUND and told.environment is not None:
        return words.say("investigate.heading.environment", name=shown_name(told.environment.name))
    if told.verdict is Verdict.FOUND and decisive is not None:
        said = _said(decisive, words)
        return words.say("investigate.heading.found", number=(told.by or 0) + 1, said=said)
    if found.needed is not None and not found.done:
        return words.say("investigate.heading.needed")
    return words.say(f"investigate.heading.{told.verdict.value}")


def _stages(found: Investigation, words: Phrases) -> RenderableType:
    rows = []
    for number, done in enumerate(found.done, start=1):
        name = f"{number} {words.say(f'investigate.word.{done.plan.stage.value}')}"
        rows.append([name, str(done.plan), _said(done, words), str(len(done.ran)), seconds_text(done.seconds)])
    headers = words.columns("stage", "captured", "said", "runs", "took")
    return table(headers, rows, right=headers[3:], folds=headers[1:3])


def _said(done: Done, words: Phrases) -> str:
    said = done.said
    if isinstance(said, Watched):
        return _watched(said, words)
    if isinstance(said, Raised):
        return _raised(said, words)
    if said.comparison is None:
        return words.say("investigate.said.no_calls")
    return heading_of_comparison(words, said.comparison)


def _watched(said: Watched, words: Phrases) -> str:
    if said.trainings is not None:
        return heading_of_trainings(said.trainings, words)
    if any(said.captured):
        side = TARGET if said.captured.reference else REFERENCE
        return words.say("investigate.said.one_optimizer", side=words.say(f"env.side.{side}"))
    return words.say("investigate.said.no_optimizer")


def _raised(said: Raised, words: Phrases) -> str:
    if not said.calls:
        return words.say("investigate.said.none_raised")
    told = [_losses(each, words) for each in said.losses[:LOSSES_SHOWN]]
    return words.semicolon.join(told) or words.say("investigate.said.no_losses")


def _losses(each: StepLosses, words: Phrases) -> str:
    numbers = {name: f"{getattr(each, name):.9g}" for name in ("reference", "target")}
    raised = "" if each.raised is None else f"{each.raised:.9g}"
    return words.say("investigate.losses", step=each.step, raised=raised, **numbers)


def _sentences(found: Investigation, words: Phrases) -> Iterator[str]:
    """What is concluded beside the finding itself."""
    told = found.conclusion
    if told.unrepeatable is not None:
        yield _unrepeatable(found, words)
    if told.environment is not None:
        yield words.say("investigate.environment", difference=difference_sentence(told.environment, words))
    if told.acquitted:
        yield words.say("investigate.acquitted")
    if told.recovery is not None:
        yield words.say(
            f"investigate.recovery.{told.recovery.value}", suspect=_suspect(found), where=_where(found, words)
        )


def _unrepeatable(found: Investigation, words: Phrases) -> str:
    side = found.conclusion.unrepeatable or TARGET
    said = next(each.said for each in found.done if isinstance(each.said, Compared) and each.said.losses is not None)
    losses = said.losses
    assert losses is not None
    apart = getattr(said.apart, side)
    return words.say(
        "investigate.unrepeatable",
        step=losses.step,
        side=words.say(f"env.side.{side}"),
        apart=f"{apart:.3g}",
        runs=f"{abs(losses.target - losses.reference):.3g}",
    )


def _suspect(found: Investigation) -> str:
    plan = next(each.plan for each in found.done if each.plan.stage is Stage.RAISED)
    return shown_name(plan.in_float32 or plan.on_cpu or "")


def _where(found: Investigation, words: Phrases) -> str:
    plan = next(each.plan for each in found.done if each.plan.stage is Stage.RAISED)
    return words.say("investigate.in_float32" if plan.in_float32 is not None else "investigate.on_cpu")


def _blocks(done: Done, words: Phrases, *, width: int) -> list[Any]:
    """What the deciding stage says of its finding."""
    said = done.said
    if isinstance(said, Watched) and said.trainings is not None:
        return list(blocks_of_trainings(said.trainings, words))
    if isinstance(said, Compared) and said.comparison is not None:
        return list(blocks_of_comparison(said.comparison, words, width=width))
    return []


def _notes(found: Investigation, words: Phrases) -> Iterator[str]:
    telling = [each for each in found.environment if each.likelihood is not Likelihood.UNLIKELY]
    for each in telling[:SETTINGS_SHOWN] if found.conclusion.verdict is not Verdict.AGREE else ():
        if each != found.conclusion.environment:
            yield words.say("investigate.setting", difference=difference_sentence(each, words))
    if found.commands is not None:
        counts = {side: found.runs(side) for side in (REFERENCE, TARGET)}
        parts = {
            f"{side}_{name}": number
            for side, both in counts.items()
            for name, number in zip(("whole", "part"), both, strict=True)
        }
        yield words.say("investigate.runs", **parts)
    if found.needed is not None:
        sides = words.listed([words.say(f"env.side.{side}") for side in found.needed.sides])
        stage = words.say(f"investigate.stage.{found.needed.stage.value}")
        yield words.say("investigate.needed", stage=stage, sides=sides)


def _commands(found: Investigation) -> Iterator[str]:
    said = None if found.decisive is None else found.decisive.said
    if found.needed is not None:
        yield f"ulpscope run -o TRACE {found.needed} -- COMMAND"
    elif found.conclusion.unrepeatable is not None:
        command = None if found.commands is None else getattr(found.commands, found.conclusion.unrepeatable)
        yield f"ulpscope repeat -- {'COMMAND' if command is None else shlex.join(command)}"
    elif isinstance(said, Compared) and said.comparison is not None:
        yield from next_commands(said.comparison) if found.is_kept else [_kept_command(found)]


def _kept_command(found: Investigation) -> str:
    """Traces that are gone cannot be looked into."""
    commands = found.commands
    told = ("...", "...") if commands is None else tuple(map(shlex.join, commands))
    return f"ulpscope investigate --out DIR -- {told[0]} --against -- {told[1]}"


def investigation_json(found: Investigation, language: Language = Language.EN) -> dict[str, Any]:
    """The object of --json and of summary.json."""
    words, told = phrases(language), found.conclusion
    sides = (REFERENCE, TARGET)
    return answer_json(
        "investigate",
        verdict=told.verdict,
        findings=_findings(found, words),
        notes=[{"sentence": each} for each in (*_sentences(found, words), *_notes(found, words))],
        stages=[_stage(done, words, is_kept=found.is_kept) for done in found.done],
        decided_by=None if told.by is None else told.by + 1,
        recovery=told.recovery,
        commands=None if found.commands is None else {side: getattr(found.commands, side) for side in sides},
        runs={side: dict(zip(("whole", "stopped"), found.runs(side), strict=True)) for side in sides},
        environment=[difference_json(each, language) for each in found.environment],
        needed=None if found.needed is None else found.needed.options,
    )


def _stage(done: Done, words: Phrases, *, is_kept: bool) -> dict[str, Any]:
    plan, said = done.plan, done.said
    more = fields_of(said, "losses", "calls") if isinstance(said, Raised) else {}
    return {
        "stage": plan.stage,
        "options": plan.options,
        "sides": plan.sides,
        "said": _said(done, words),
        "verdict": _verdict(done),
        "runs": len(done.ran),
        "seconds": done.seconds,
        "traces": fields_of(done.traces) if is_kept else None,
        **more,
    }


def _verdict(done: Done) -> str | None:
    said = done.said
    told = said.trainings if isinstance(said, Watched) else said.comparison if isinstance(said, Compared) else None
    return None if told is None else told.outcome.value


def _findings(found: Investigation, words: Phrases) -> list[dict[str, Any]]:
    told, decisive = found.conclusion, found.decisive
    if told.verdict not in (Verdict.FOUND, Verdict.NOT_REPEATABLE):
        return []
    first = []
    if told.unrepeatable is not None:
        evidence = {"side": told.unrepeatable}
        first.append(_own_entry(FindingKind.RANDOMNESS, _unrepeatable(found, words), evidence, found))
    elif told.environment is not None:
        evidence = fields_of(told.environment, "part", "name", "reference", "target", "reason")
        first.append(_own_entry(FindingKind.DTYPE, difference_sentence(told.environment, words), evidence, found))
    said = None if decisive is None else decisive.said
    told_there: list[dict[str, Any]] = []
    if isinstance(said, Watched) and said.trainings is not None:
        told_there = trainings_json(said.trainings, words.language)["findings"]
    elif isinstance(said, Compared) and said.comparison is not None:
        told_there = compare_json(said.comparison, words.language)["findings"]
    more = {} if found.is_kept or isinstance(said, Watched) else {"next": _kept_command(found)}
    return first + [each | more for each in told_there]


def _own_entry(kind: FindingKind, sentence: str, evidence: dict[str, Any], found: Investigation) -> dict[str, Any]:
    """A finding that no stage alone has."""
    step = next(
        (each.said.losses.step for each in found.done if isinstance(each.said, Compared) and each.said.losses), 0
    )
    entry = finding_entry(
        kind, Place(0, step, Phase.OTHER), evidence=evidence, sentence=sentence, next_command=next(_commands(found), "")
    )
    told: dict[str, Any] = answer_json("investigate", entry)
    return {name: told[name] for name in entry}
