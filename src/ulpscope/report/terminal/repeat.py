"""Tells whether a run repeats itself, as text and as JSON.

NOT REPEATABLE: torch.nn.functional.dropout.0 in model.drop, step 0, forward

  torch.nn.functional.dropout.0   x = self.drop(x)   train.py:10
  It draws from another state of the generator in each run, though its inputs' bits agree: nobody has seeded it.

  torch.manual_seed(0), ... at the start: 2 runs give the same bits; a run takes 1.0 times as long (3.1 s, ...)
"""

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from ulpscope.records.findings import FindingKind, Place
from ulpscope.records.repeats import Part, Parting, Repetition, Trial
from ulpscope.report.program import head_line
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import BAD, GOOD, answer_text, plain
from ulpscope.report.words.language import (
    Language,
    Phrases,
    number_text,
    phrases,
    seconds_text,
    shown_name,
    typed_path,
)

_KINDS = {
    Part.GENERATOR: FindingKind.RANDOMNESS,
    Part.RANDOM: FindingKind.RANDOMNESS,
    Part.ARGUMENT: FindingKind.INPUT,
    Part.OUTSIDE: FindingKind.INPUT,
    Part.GIVEN: FindingKind.INPUT,
    Part.STRUCTURE: FindingKind.STRUCTURE,
}


def repetition_text(found: Repetition, *, width: int, color: bool, language: Language = Language.EN) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    heading = plain(_heading(found, words), style=GOOD if found.repeats else BAD)
    if found.repeats:
        return answer_text(words, heading, [], width=width, color=color)
    blocks: list[list[RenderableType | str]] = [
        list(_first(found, words)),
        [_trial(trial, found, words) for trial in found.trials],
        list(_advice(found, words)),
    ]
    return answer_text(words, heading, blocks, _commands(found), width=width, color=color)


def _heading(found: Repetition, words: Phrases) -> str:
    if found.repeats:
        counts = {"calls": words.count(found.calls, "call"), "tensors": words.count(found.tensors, "tensor")}
        return words.say("repeat.heading.repeats", runs=found.runs, **counts)
    place = found.partings[0].place
    phase = words.say(f"phase.{place.phase.value}")
    told = words.say("repeat.heading.differs", what=_what(place, words), step=place.step, phase=phase)
    if place.rank or len(found.partings) > 1:
        return words.say("repeat.heading.rank", heading=told, rank=place.rank)
    return told


def _what(place: Place, words: Phrases) -> str:
    name = shown_name(place.call or place.op or "")
    return words.say("place.call_in", call=name, module=shown_name(place.module)) if place.module else name


def _first(found: Repetition, words: Phrases) -> Iterator[RenderableType | str]:
    parting = found.partings[0]
    yield head_line([parting.place.call or ""], parting.place.source)
    yield _said(parting, words)
    if found.runs > 2:
        yield words.say("repeat.runs", runs=found.runs)
    counts = {name: words.count(getattr(parting, name), "call") for name in ("differing", "calls")}
    yield words.say("repeat.followers", **counts)
    for other in found.partings[1:]:
        place = other.place
        yield words.say("repeat.also", rank=place.rank, what=_what(place, words), step=place.step)


def _said(parting: Parting, words: Phrases) -> str:
    return words.say(f"repeat.part.{parting.part.value}", tensor=shown_name(parting.place.tensor or ""))


def _switches(trial: Trial, words: Phrases) -> str:
    return words.listed([words.say(f"repeat.switch.{switch.value}") for switch in trial.switches])


def _trial(trial: Trial, found: Repetition, words: Phrases) -> str:
    if trial.parting is not None:
        what = _what(trial.parting.place, words)
        return words.say("repeat.trial.fails", switches=_switches(trial, words), what=what)
    return words.say(
        "repeat.trial.cures",
        switches=_switches(trial, words),
        runs=trial.runs,
        ratio=number_text(trial.seconds / found.seconds),
        seconds=seconds_text(trial.seconds),
        before=seconds_text(found.seconds),
    )


def _advice(found: Repetition, words: Phrases) -> Iterator[str]:
    cure = found.cure
    if cure is not None:
        yield words.say("repeat.do", switches=_switches(cure, words))
    else:
        first = found.partings[0]
        key = "repeat.no_cure.generator" if first.part is Part.GENERATOR else "repeat.no_cure"
        yield words.say(key, what=_what(first.place, words))


def _commands(found: Repetition) -> Iterator[str]:
    place = found.partings[0].place
    if found.traces and place.call_id is not None:
        yield f"ulpscope show {shlex.quote(typed_path(found.traces[0]))} {place.call_id}"


def repetition_json(found: Repetition, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    words, cure = phrases(language), found.cure
    return answer_json(
        "repeat",
        verdict="repeats" if found.repeats else "differs",
        findings=[_finding(parting, found, words) for parting in found.partings],
        runs=found.runs,
        seconds=found.seconds,
        counts={"calls": found.calls, "tensors": found.tensors},
        trials=[
            {
                **fields_of(trial, "switches", "runs", "seconds"),
                "repeats": trial.parting is None,
                "call": None if trial.parting is None else trial.parting.place.call,
                "ratio": trial.seconds / found.seconds,
                "sentence": _trial(trial, found, words),
            }
            for trial in found.trials
        ],
        switches=None if cure is None else cure.switches,
        traces=found.traces,
    )


def _finding(parting: Parting, found: Repetition, words: Phrases) -> dict[str, Any]:
    return finding_entry(
        _KINDS.get(parting.part, FindingKind.COMPUTATION),
        parting.place,
        evidence=fields_of(parting, "part", "differing", "calls"),
        sentence=f"{_what(parting.place, words)}: {_said(parting, words)}",
        next_command=next(_commands(found), ""),
    )
