"""Tells where two watched trainings part, as text and as JSON.

PARTED at step 70: other batches

  Step 70 has another loss, 3.21 in the reference and 3.3 in the target, from weights and random numbers that agree.
  parameter            apart  before  cosine
  model.emb.weight       0.9       0     0.6

  24,000 gradients of 200 steps compared: 8,400 identical.
  Next: capture step 70 of both runs: ulpscope run -o TRACE --steps 70 --stop -- COMMAND
"""

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from ulpscope.records.findings import Outcome
from ulpscope.records.trainings import Cause, Parting, Trainings
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import OUTCOME_STYLES, answer_text, plain, table
from ulpscope.report.words.language import Language, Phrases, number_text, phrases, shown_name

MISSING_SHOWN = 5
LONGEST_REMARK = 500
RANKS_SHOWN = 8


def trainings_text(found: Trainings, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    heading = plain(heading_of(found, words), style=OUTCOME_STYLES[found.outcome])
    return answer_text(words, heading, blocks_of(found, words), [_next(found)], width=width, color=color)


def blocks_of(found: Trainings, words: Phrases) -> list[Iterator[RenderableType]]:
    """What is said below the heading."""
    return [*(_finding(parting, found, words) for parting in found.partings[:1]), _ending(found, words)]


def trainings_json(found: Trainings, language: Language) -> dict[str, Any]:
    """The object of --json and of summary.json."""
    words = phrases(language)
    findings = [
        finding_entry(
            parting.kind,
            parting.place,
            evidence=_evidence(parting),
            sentence=_sentence(parting, words),
            next_command=_next(found),
        )
        for parting in found.partings
    ]
    counts = {"steps": len(found.steps), **fields_of(found, "gradients", "identical", "signs")}
    notes = [{**fields_of(drift), "sentence": _drift_text(found, words)} for drift in found.drifts[:1]]
    return answer_json(
        "compare",
        fields_of(found, "reference", "target", "noisy_since", "beginnings", "missing"),
        verdict=found.outcome,
        findings=findings,
        notes=notes,
        counts=counts,
    )


def _evidence(parting: Parting) -> dict[str, Any]:
    known = fields_of(parting, "cause", "parameters", "arguments", "losses", "factor")
    return {name: part for name, part in known.items() if part not in (None, ())}


def heading_of(found: Trainings, words: Phrases) -> str:
    """The first line of the answer."""
    if found.partings:
        first = found.partings[0]
        cause = words.say(f"training.cause.{first.cause.value}")
        return words.say("training.heading.parted", step=first.place.step, cause=cause)
    if found.outcome is Outcome.NOTHING_COMPARED:
        return words.say("training.heading.nothing")
    return words.say("training.heading.agree", steps=words.count(len(found.steps), "step"))


def _finding(parting: Parting, found: Trainings, words: Phrases) -> Iterator[RenderableType]:
    yield _sentence(parting, words)
    if parting.cause not in (Cause.SETTING, Cause.MISSING):
        yield _table(parting, words)
    ranks = [each.place.rank for each in found.partings]
    if len(ranks) > 1:
        yield words.say("training.ranks", ranks=words.names([str(rank) for rank in ranks[:RANKS_SHOWN]]))


def _sentence(parting: Parting, words: Phrases) -> str:
    body = words.say(f"training.sentence.{parting.cause.value}", **_parts(parting, words))
    if parting.factor is not None:
        body = words.say("training.scaled", body=body, factor=number_text(parting.factor))
    if parting.place.rank:
        body = words.say("training.on_rank", rank=parting.place.rank, body=body)
    return body


def _parts(parting: Parting, words: Phrases) -> dict[str, object]:
    losses = parting.losses or (float("nan"), float("nan"))
    first = parting.parameters[0] if parting.parameters else None
    stated = parting.arguments[0] if parting.arguments else None
    return {
        "step": parting.place.step,
        "before": parting.place.step - 1,
        "names": words.some([shown_name(each.name) for each in parting.parameters]),
        "optimizer": shown_name(parting.place.call or ""),
        "argument": "" if stated is None else shown_name(stated.place.removeprefix("kwargs.")),
        "reference": "" if stated is None else shown_name(stated.reference),
        "target": "" if stated is None else shown_name(stated.target),
        "loss_reference": _loss_text(losses[0], losses[1]),
        "loss_target": _loss_text(losses[1], losses[0]),
        "error": "" if first is None else number_text(first.error),
    }


def _loss_text(loss: float, other: float) -> str:
    """With as many digits as it takes to tell it from the other run's."""
    return f"{loss:.9g}" if f"{loss:.6g}" == f"{other:.6g}" != f"{loss:.9g}" else f"{loss:.6g}"


def _table(parting: Parting, words: Phrases) -> RenderableType:
    has_signs = any(each.signs is not None for each in parting.parameters)
    names = ["parameter", "apart", "apart_before", "cosine", *(["signs"] if has_signs else [])]
    rows = []
    for each in parting.parameters:
        numbers = [each.error, each.before, each.cosine, *([each.signs] if has_signs else [])]
        rows.append([shown_name(each.name), *("" if one is None else number_text(one) for one in numbers)])
    headers = words.columns(*names)
    return table(headers, rows, right=headers[1:], folds=headers[:1])


def _ending(found: Trainings, words: Phrases) -> Iterator[RenderableType]:
    if found.drifts:
        yield _drift_text(found, words)
    if found.noisy_since is not None and not found.partings:
        yield words.say("training.noisy", step=found.noisy_since)
    yield from _beginning(found, words)
    gradients, steps = words.count(found.gradients, "gradient"), words.count(len(found.steps), "step")
    yield words.say("training.counts", gradients=gradients, steps=steps, identical=f"{found.identical:,}")
    if any(found.left):
        yield words.say("training.left", reference=f"{found.left[0]:,}", target=f"{found.left[1]:,}")
    yield from words.remarks(found.missing[:MISSING_SHOWN], longest=LONGEST_REMARK)


def _beginning(found: Trainings, words: Phrases) -> Iterator[str]:
    """What the first step leaves open: a loss that rounding seldom makes, and what no precision of both resolves."""
    doubtful = next((each for each in found.beginnings if each.is_doubtful), None)
    if doubtful is not None and not found.partings:
        roundoffs = number_text(doubtful.roundoffs or 0.0)
        yield words.say("training.doubtful", step=doubtful.step, roundoffs=roundoffs)
    mixed = next((each.types for each in found.beginnings if len(set(each.types)) == 2), None)
    if mixed is not None and not found.partings:
        unknown = words.say("training.type_unknown")
        yield words.say("training.types", reference=mixed[0] or unknown, target=mixed[1] or unknown)


def _drift_text(found: Trainings, words: Phrases) -> str:
    drift = min(found.drifts, key=lambda each: each.step)
    cosine = "" if drift.cosine is None else number_text(drift.cosine)
    return words.say("training.drift", step=drift.step, parameter=shown_name(drift.parameter), cosine=cosine)


def _next(found: Trainings) -> str:
    """To look into the step of a parting, both runs are captured there."""
    open_steps = [each.place.step for each in found.partings] + [b.step for b in found.beginnings if b.is_doubtful]
    if open_steps:
        return f"ulpscope run -o TRACE --steps {open_steps[0]} --stop -- COMMAND"
    return f"ulpscope show {shlex.quote(found.target)}"
